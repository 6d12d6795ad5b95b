//! The draft head, from inside the trunk's file or from one beside it.

use std::path::Path;

use super::sizes::hyperparameters;
use super::weights::{head_mix, layer};
use super::{ARCH, Draft, Fuse, Hyperparameters, LayerKind};
use crate::backend::Backend;
use crate::engine::EngineError;
use crate::model::WeightFile;
use crate::model::parts::invalid;
use crate::model::taker::Taker;

type DraftOf<B> = Draft<<B as Backend>::Matrix, <B as Backend>::Experts, <B as Backend>::Vector>;

/// Takes the draft head from the trunk's own file, if it holds one.
pub(crate) fn draft_inside<B: Backend>(
    file: &mut WeightFile,
    hyper: &Hyperparameters,
) -> Result<Option<DraftOf<B>>, EngineError> {
    match hyper.draft {
        None => Ok(None),
        Some(kind) => take::<B>(file, hyper, kind).map(Some),
    }
}

/// Opens the file of a draft head made for this trunk.
pub(crate) fn draft_beside<B: Backend>(
    path: &Path,
    trunk: &Hyperparameters,
) -> Result<(WeightFile, LayerKind, DraftOf<B>), EngineError> {
    let mut file = WeightFile::open(path)?;
    let arch = file.metadata.str("general.architecture").ok().flatten().unwrap_or_default();
    if arch != ARCH {
        let what = format!("its architecture is `{arch}`; a draft head for this model is `{ARCH}`");
        return Err(invalid(path, what));
    }
    let hyper = hyperparameters(&file)?;
    let Some(kind) = hyper.draft else {
        let what = format!("metadata key `{ARCH}.nextn_predict_layers` is missing: it holds no \
                            draft head");
        return Err(invalid(path, what));
    };
    if let Some(what) = difference(trunk, &hyper) {
        let what = format!("it was made for another model: {what}");
        return Err(invalid(path, what));
    }
    // The trunk says what the head leaves out.
    let own = Hyperparameters { vocab_size: trunk.vocab_size, ..hyper };
    let draft = take::<B>(&mut file, &own, kind)?;
    file.check_all_taken(ARCH)?;
    Ok((file, kind, draft))
}

/// The first size in which a draft head's file differs from its trunk.
fn difference(trunk: &Hyperparameters, draft: &Hyperparameters) -> Option<String> {
    let sizes = |h: &Hyperparameters| {
        [
            ("block_count", h.n_layers),
            ("embedding_length", h.d_model),
            ("attention.head_count", h.n_heads),
            ("attention.head_count_kv", h.n_kv_heads),
            ("attention.key_length", h.head_dim),
            ("rope.dimension_count", h.n_rot),
            ("expert_count", h.n_experts),
            ("expert_used_count", h.n_experts_used),
            ("expert_feed_forward_length", h.d_expert),
            ("expert_shared_feed_forward_length", h.d_shared),
            ("hyper_connection.count", h.n_streams),
            ("hyper_connection.low_rank", h.hyper_rank),
            ("attention.indexer.head_count", h.indexer.n_heads),
            ("attention.indexer.key_length", h.indexer.head_dim),
            ("attention.indexer.top_k", h.indexer.budget),
        ]
    };
    let differ = |((key, trunk), (_, draft)): ((&str, usize), (&str, usize))| {
        (trunk != draft).then(|| format!("`{ARCH}.{key}` differs from the model's {trunk}"))
    };
    let found = sizes(trunk).into_iter().zip(sizes(draft)).find_map(differ);
    let is_same = trunk.rope_base.to_bits() == draft.rope_base.to_bits()
        && trunk.rms_eps.to_bits() == draft.rms_eps.to_bits();
    let numbers = (!is_same).then(|| {
        format!(
            "`{ARCH}.rope.freq_base` or `{ARCH}.attention.layer_norm_rms_epsilon` differs from \
             the model's"
        )
    });
    let vocab = (draft.vocab_size != 0 && draft.vocab_size != trunk.vocab_size)
        .then(|| format!("its vocabulary has {} tokens", draft.vocab_size));
    found.or(numbers).or(vocab)
}

fn take<B: Backend>(
    file: &mut WeightFile,
    hyper: &Hyperparameters,
    kind: LayerKind,
) -> Result<DraftOf<B>, EngineError> {
    let index = hyper.n_layers;
    let (d_model, vocab_size, wide) = (hyper.d_model, hyper.vocab_size, hyper.wide());
    let mut taker = Taker::<B>::new(file);
    let name = |part: &str| format!("blk.{index}.nextn.{part}");
    let has = |taker: &Taker<'_, B>, stem: &str| taker.has(&format!("{stem}.weight"));
    let fuse = match has(&taker, &name("eh_proj")) {
        true => Fuse::Joined(taker.matrix(&name("eh_proj"), d_model, 2 * d_model)?),
        false => Fuse::Separate {
            embed: taker.matrix(&name("fc_embd"), d_model, d_model)?,
            hidden: taker.matrix(&name("fc_hidden"), d_model, d_model)?,
        },
    };
    // In a file of its own the head's mix may stand where a trunk's does.
    let own_head = name("hc_head");
    let head = match taker.has(&format!("{own_head}_norm.weight")) {
        true => own_head.as_str(),
        false => "output_hc",
    };
    let mut optional = |stems: [&str; 2]| {
        let present = stems.into_iter().map(str::to_owned).chain([]).find(|s| has(&taker, s));
        present.map(|stem| taker.matrix(&stem, vocab_size, d_model)).transpose()
    };
    let token_embd = optional([&name("embed_tokens"), "token_embd"])?;
    let output = optional([&name("shared_head_head"), "output"])?;
    Ok(Draft {
        fuse,
        embed_norm: taker.vector(&name("enorm.weight"), d_model)?,
        hidden_norm: taker.vector(&name("hnorm.weight"), wide)?,
        layer: layer(&mut taker, hyper, kind, index)?,
        head: head_mix(&mut taker, hyper, head)?,
        token_embd,
        output,
    })
}
