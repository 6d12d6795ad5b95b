//! The block formats of weights: their names, numbers and sizes.
//!
//! What the bytes of a block mean is in `reference/dequantize.rs`.

/// How the elements of a weight row are stored.
///
/// Source: the GGUF specification, `ggml_type`; block layouts as in `ggml-common.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockFormat {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an `f32`.
    Bf16,
    /// 32 elements: f16 scale, 32 signed bytes.
    Q8_0,
    /// 32 elements: f16 scale, 32 nibbles with offset 8.
    Q4_0,
    /// 32 elements: f16 scale, f16 minimum, 32 nibbles.
    Q4_1,
    /// 32 elements: f16 scale, 32 fifth bits, 32 nibbles, offset 16.
    Q5_0,
    /// 32 elements: f16 scale, f16 minimum, 32 fifth bits, 32 nibbles.
    Q5_1,
    /// 256 elements in 8 sub-blocks with 6-bit scales and minima, 4-bit codes.
    Q4K,
    /// As `Q4K` with a fifth bit.
    Q5K,
    /// 256 elements in 16 sub-blocks with 8-bit scales, 6-bit codes with offset 32.
    Q6K,
}

impl BlockFormat {
    /// Every format, in the order of the enum.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// The format with this number in a GGUF tensor directory, if this crate computes with it.
    #[must_use]
    pub fn from_ggml_type(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.ggml_type() == id)
    }

    /// Its number in a GGUF tensor directory.
    #[must_use]
    pub fn ggml_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::Bf16 => 30,
        }
    }

    /// Its usual name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        }
    }

    /// Elements in a block.
    #[must_use]
    pub fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Whether elements are codes that share scales, rather than floating-point numbers.
    #[must_use]
    pub fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// Bytes of a row of `n_cols` elements; `None` if that is not whole blocks or not addressable.
    #[must_use]
    pub fn row_bytes(self, n_cols: usize) -> Option<usize> {
        if !n_cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (n_cols / self.block_len()).checked_mul(self.block_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_names_its_format() {
        for format in BlockFormat::ALL {
            assert_eq!(BlockFormat::from_ggml_type(format.ggml_type()), Some(format));
        }
        assert_eq!(BlockFormat::from_ggml_type(4), None);
        assert_eq!(BlockFormat::from_ggml_type(u32::MAX), None);
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(BlockFormat::Q8_0.row_bytes(64), Some(68));
        assert_eq!(BlockFormat::Q8_0.row_bytes(33), None);
        assert_eq!(BlockFormat::Q6K.row_bytes(0), Some(0));
        assert_eq!(BlockFormat::F32.row_bytes(usize::MAX), None);
    }
}
