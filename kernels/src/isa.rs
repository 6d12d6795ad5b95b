//! Which instructions the kernels may use on this machine.

/// A set of instructions the kernels have versions for, from least to most able.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What the compiler makes of plain Rust, on any architecture.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 (F, BW, DQ, VL, VBMI, VNNI), besides all of `Avx2`.
    Avx512,
}

/// Proof that this machine has a [`Level`]'s instructions.
///
/// It can be made only by looking, so a kernel that holds one may call functions compiled for that
/// level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa {
    level: Level,
    bf16: bool,
}

impl Isa {
    /// The level every machine has.
    pub const PORTABLE: Self = Self { level: Level::Portable, bf16: false };

    /// The most able level of this machine.
    #[must_use]
    pub fn detect() -> Self {
        [Level::Avx512, Level::Avx2].into_iter().find_map(Self::at_level).unwrap_or(Self::PORTABLE)
    }

    /// The given level, if this machine has it.
    #[must_use]
    pub fn at_level(level: Level) -> Option<Self> {
        match level {
            Level::Portable => Some(Self::PORTABLE),
            Level::Avx2 => has_avx2().then_some(Self { level, bf16: false }),
            Level::Avx512 => {
                (has_avx2() && has_avx512()).then(|| Self { level, bf16: has_avx512_bf16() })
            }
        }
    }

    /// The level of that name (`portable`, `avx2`, `avx512`), if this machine has it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let level = match name {
            "portable" => Level::Portable,
            "avx2" => Level::Avx2,
            "avx512" => Level::Avx512,
            _ => return None,
        };
        Self::at_level(level)
    }

    /// Every level this machine has, least able first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        [Level::Portable, Level::Avx2, Level::Avx512]
            .into_iter()
            .filter_map(Self::at_level)
            .collect()
    }

    /// The level this proves.
    #[must_use]
    pub fn level(self) -> Level {
        self.level
    }

    /// Whether the machine also multiplies bf16 pairs (AVX512-BF16).
    #[must_use]
    pub fn has_bf16(self) -> bool {
        self.bf16
    }

    /// Its name, as [`from_name`](Self::from_name) takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.level {
            Level::Portable => "portable",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vbmi")
        && is_x86_feature_detected!("avx512vnni")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512_bf16() -> bool {
    is_x86_feature_detected!("avx512bf16")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512_bf16() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_levels() {
        for isa in Isa::available() {
            assert_eq!(Isa::from_name(isa.name()), Some(isa));
        }
        assert_eq!(Isa::from_name("sse9"), None);
        assert_eq!(Isa::available().last(), Some(&Isa::detect()));
    }
}
