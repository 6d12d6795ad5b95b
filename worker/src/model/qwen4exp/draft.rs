//! The draft head inside the trunk's file.

use super::weights::{head_mix, layer};
use super::{Draft, Fuse, Hyperparameters, LayerKind};
use crate::backend::Backend;
use crate::engine::EngineError;
use crate::model::WeightFile;
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
    let mut optional = |stem: &str| {
        let present = has(&taker, stem);
        present.then(|| taker.matrix(stem, vocab_size, d_model)).transpose()
    };
    let token_embd = optional(&name("embed_tokens"))?;
    let output = optional(&name("shared_head_head"))?;
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
