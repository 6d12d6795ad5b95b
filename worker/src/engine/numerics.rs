//! The numerics profiles: in what numbers a model is computed.

use kernels::cpu::Precision;
use kernels::cpu::kv::KvFormat;

/// In what numbers to compute; part of what makes two runs comparable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Numerics {
    /// int8 activations where the weights have codes; keys and values in f16.
    #[default]
    Fast,
    /// f32 activations; keys and values in f16.
    Careful,
    /// f32 throughout, keys and values too: to be held against known answers.
    Reference,
}

impl Numerics {
    /// The profile of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Fast, Self::Careful, Self::Reference].into_iter().find(|own| own.name() == name)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Careful => "careful",
            Self::Reference => "reference",
        }
    }

    /// How activations meet weights.
    #[must_use]
    pub fn precision(self) -> Precision {
        match self {
            Self::Fast => Precision::Int8,
            Self::Careful | Self::Reference => Precision::F32,
        }
    }

    /// How keys and values are kept.
    #[must_use]
    pub fn kv_format(self) -> KvFormat {
        match self {
            Self::Fast | Self::Careful => KvFormat::F16,
            Self::Reference => KvFormat::F32,
        }
    }
}
