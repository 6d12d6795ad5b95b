//! The `qwen4exp` architecture (Qwen3.8-Flash-Next): sizes, weights, and how a file names them.
//!
//! Every layer reads and writes a wide residual of `n_streams` rows of `d_model` through two
//! hyper-connection mixes ([`Mix`]); its mixer is full attention with an indexer, or the gated
//! delta rule; a mixture of experts follows. One layer also adds rows of an n-gram table
//! ([`Ple`]). The
//! draft head ([`Draft`]) is one more block, inside the file or beside it.

mod draft;
mod sizes;
mod traps;
mod weights;

pub(crate) use draft::draft_inside;
pub(crate) use sizes::hyperparameters;
pub(crate) use traps::warnings;
pub(crate) use weights::weights;

use super::MappedMatrix;

/// Value of `general.architecture`.
pub(crate) const ARCH: &str = "qwen4exp";

/// Sizes and constants, all within bounds and consistent with each other.
#[derive(Debug, Clone, PartialEq)]
pub struct Hyperparameters {
    /// Layers, without the draft head's.
    pub n_layers: usize,
    /// Width of one residual stream.
    pub d_model: usize,
    /// Rows of the output matrix.
    pub vocab_size: usize,
    /// Longest context the model was made for, in tokens.
    pub context_len: u32,
    /// Added to the mean square in every norm.
    pub rms_eps: f32,
    /// Query heads of full attention.
    pub n_heads: usize,
    /// Key and value heads of full attention.
    pub n_kv_heads: usize,
    /// Width of such a head.
    pub head_dim: usize,
    /// How many of a head's first elements are rotated; even.
    pub n_rot: usize,
    /// Base of the rotation's frequencies.
    pub rope_base: f32,
    /// Key heads of linear attention.
    pub n_key_heads: usize,
    /// Value heads of linear attention, a multiple of `n_key_heads`.
    pub n_value_heads: usize,
    /// Width of such a head, keys and values alike.
    pub linear_head_dim: usize,
    /// Steps that the convolution of linear attention sees.
    pub conv_kernel: usize,
    /// Routed experts of a layer.
    pub n_experts: usize,
    /// Experts that a token uses.
    pub n_experts_used: usize,
    /// Width inside a routed expert.
    pub d_expert: usize,
    /// Width inside the shared expert.
    pub d_shared: usize,
    /// Residual streams.
    pub n_streams: usize,
    /// Inner width of a hyper-connection mix.
    pub hyper_rank: usize,
    /// The indexer of sparse attention.
    pub indexer: IndexerSizes,
    /// What each layer's mixer is.
    pub layers: Vec<LayerKind>,
    /// The n-gram embedding, if the file has one.
    pub ple: Option<PleSizes>,
    /// The draft head's mixer, if the file counts one more block for it.
    pub draft: Option<LayerKind>,
}

/// Sizes of the indexers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexerSizes {
    /// Query heads.
    pub n_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens that a query attends to, besides the tail.
    pub budget: usize,
}

/// What mixes the positions of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerKind {
    /// Softmax attention, sparse if blocks of `compress_ratio` tokens are chosen; 0 is dense.
    Full {
        /// Tokens of a block.
        compress_ratio: usize,
    },
    /// The gated delta rule.
    Linear,
}

/// Sizes and hash constants of the n-gram embedding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PleSizes {
    /// The layer that adds it.
    pub layer: usize,
    /// Longest n-gram, n.
    pub order: usize,
    /// Hashes of each order.
    pub heads_per_ngram: usize,
    /// Width of a table row.
    pub row_width: usize,
    /// Steps that the dilated convolution sees; its dilation is `order`.
    pub conv_kernel: usize,
    /// The token that cuts contexts.
    pub eos: u32,
    /// *Shapes*: `(order,)`.
    pub multipliers: Vec<u64>,
    /// First table row of each head.
    pub offsets: Vec<u64>,
    /// Table rows of each head.
    pub sizes: Vec<u64>,
    /// Rows of the table.
    pub n_table_rows: u64,
}

impl Hyperparameters {
    /// Width of the wide residual.
    #[must_use]
    pub fn wide(&self) -> usize {
        self.n_streams * self.d_model
    }

    /// Width of all query heads together.
    #[must_use]
    pub fn q_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of all key heads together, and of all value heads.
    #[must_use]
    pub fn kv_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Width of a linear layer's queries, keys and values together: the channels of its
    /// convolution.
    #[must_use]
    pub fn qkv_width(&self) -> usize {
        (2 * self.n_key_heads + self.n_value_heads) * self.linear_head_dim
    }

    /// Width of all value heads of a linear layer together.
    #[must_use]
    pub fn value_width(&self) -> usize {
        self.n_value_heads * self.linear_head_dim
    }
}

/// The weights of a model. `M` is the backend's matrix, `E` its experts, `V` its vector.
#[derive(Debug)]
pub struct Weights<M, E, V> {
    /// *Shapes*: `(vocab_size, d_model)`.
    pub token_embd: M,
    /// *Shapes*: `(vocab_size, d_model)`. `None` if the embedding serves here too.
    pub output: Option<M>,
    /// The mix before the output matrix, without inject.
    pub head: Mix<M, V>,
    /// *Shapes*: `(n_table_rows, row_width)`. Always in the file's own pages: read row by row.
    pub ngram_table: Option<MappedMatrix>,
    /// In order.
    pub layers: Vec<Layer<M, E, V>>,
}

/// A hyper-connection mix.
#[derive(Debug)]
pub struct Mix<M, V> {
    /// *Shapes*: `(n_streams * d_model,)`.
    pub norm: V,
    /// *Shapes*: `(hyper_rank, n_streams * d_model)`.
    pub down: M,
    /// *Shapes*: `(n_streams * d_model, hyper_rank)`.
    pub up: M,
    /// *Shapes*: `(n_streams, n_streams * d_model)`. `None` where nothing is added back.
    pub inject: Option<M>,
}

/// The weights of one layer.
#[derive(Debug)]
pub struct Layer<M, E, V> {
    /// The n-gram embedding, added before the mixer.
    pub ple: Option<Ple<M, V>>,
    /// What the mixer reads, and how its result is added.
    pub hc_attn: Mix<M, V>,
    /// Attention of either kind.
    pub mixer: Mixer<M, V>,
    /// What the experts read, and how their result is added.
    pub hc_ffn: Mix<M, V>,
    /// The experts.
    pub moe: Moe<M, E>,
}

/// What mixes the positions of a layer.
#[derive(Debug)]
pub enum Mixer<M, V> {
    /// Softmax attention.
    Full(Box<FullAttention<M, V>>),
    /// The gated delta rule.
    Linear(Box<LinearAttention<M, V>>),
}

/// Softmax attention with an output gate.
#[derive(Debug)]
pub struct FullAttention<M, V> {
    /// Query and gate of each head in turn. *Shapes*: `(2 * n_heads * head_dim, d_model)`.
    pub q: M,
    /// *Shapes*: `(n_kv_heads * head_dim, d_model)`.
    pub k: M,
    /// *Shapes*: `(n_kv_heads * head_dim, d_model)`.
    pub v: M,
    /// *Shapes*: `(d_model, n_heads * head_dim)`.
    pub output: M,
    /// *Shapes*: `(head_dim,)`.
    pub q_norm: V,
    /// *Shapes*: `(head_dim,)`.
    pub k_norm: V,
    /// `None` if attention is dense.
    pub indexer: Option<Indexer<M, V>>,
}

/// What chooses the blocks that a query attends to.
#[derive(Debug)]
pub struct Indexer<M, V> {
    /// *Shapes*: `(n_heads * head_dim, d_model)` of the indexer.
    pub q: M,
    /// *Shapes*: `(head_dim, d_model)`.
    pub k: M,
    /// *Shapes*: `(head_dim,)`.
    pub q_norm: V,
    /// *Shapes*: `(head_dim,)`.
    pub k_norm: V,
}

/// The gated delta rule.
#[derive(Debug)]
pub struct LinearAttention<M, V> {
    /// *Shapes*: `(qkv_width, d_model)`.
    pub qkv: M,
    /// *Shapes*: `(value_width, d_model)`.
    pub gate: M,
    /// *Shapes*: `(n_value_heads, d_model)`.
    pub alpha: M,
    /// *Shapes*: `(n_value_heads, d_model)`.
    pub beta: M,
    /// *Shapes*: `(n_value_heads,)`, all negative.
    pub a: V,
    /// *Shapes*: `(n_value_heads,)`.
    pub dt: V,
    /// *Shapes*: `(qkv_width, conv_kernel)`.
    pub conv: V,
    /// *Shapes*: `(linear_head_dim,)`.
    pub norm: V,
    /// *Shapes*: `(d_model, value_width)`.
    pub out: M,
}

/// A mixture of experts with a shared one.
#[derive(Debug)]
pub struct Moe<M, E> {
    /// *Shapes*: `(n_experts, d_model)`.
    pub router: M,
    /// *Shapes*: `(n_experts, d_expert, d_model)`.
    pub gate: E,
    /// *Shapes*: `(n_experts, d_expert, d_model)`.
    pub up: E,
    /// *Shapes*: `(n_experts, d_model, d_expert)`.
    pub down: E,
    /// *Shapes*: `(d_shared, d_model)`.
    pub shared_gate: M,
    /// *Shapes*: `(d_shared, d_model)`.
    pub shared_up: M,
    /// *Shapes*: `(d_model, d_shared)`.
    pub shared_down: M,
    /// *Shapes*: `(1, d_model)`.
    pub shared_scale: M,
}

/// The n-gram embedding of a layer.
#[derive(Debug)]
pub struct Ple<M, V> {
    /// *Shapes*: `(n_streams * d_model, d_model)`.
    pub key: M,
    /// *Shapes*: `(d_model, d_model)`.
    pub value: M,
    /// *Shapes*: `(n_streams * d_model,)`.
    pub norm_key: V,
    /// *Shapes*: `(n_streams * d_model,)`.
    pub norm_query: V,
    /// *Shapes*: `(n_streams * d_model,)`.
    pub norm_conv: V,
    /// *Shapes*: `(n_streams * d_model, conv_kernel)`.
    pub conv: V,
}

/// The draft head: one block that guesses the token after the next.
#[derive(Debug)]
pub struct Draft<M, E, V> {
    /// Takes embedding and residual together.
    pub fuse: Fuse<M>,
    /// *Shapes*: `(d_model,)`.
    pub embed_norm: V,
    /// *Shapes*: `(n_streams * d_model,)`; one norm over all streams.
    pub hidden_norm: V,
    /// A full-attention layer.
    pub layer: Layer<M, E, V>,
    /// The mix before the output matrix, without inject.
    pub head: Mix<M, V>,
    /// Its own embedding; `None` takes the trunk's.
    pub token_embd: Option<M>,
    /// Its own output matrix; `None` takes the trunk's.
    pub output: Option<M>,
}

/// The draft head's first matrices.
#[derive(Debug)]
pub enum Fuse<M> {
    /// `[embedding | hidden]`. *Shapes*: `(d_model, 2 * d_model)`.
    Joined(M),
    /// Two of `(d_model, d_model)`.
    Separate {
        /// For the embedding.
        embed: M,
        /// For each stream of the residual.
        hidden: M,
    },
}
