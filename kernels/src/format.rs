//! The block formats of weights: their names, numbers and sizes.
//!
//! What the bytes of a block mean is in `reference/dequantize/`, the grids of the IQ formats in
//! `format/grids.rs`.

pub(crate) mod grids;

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
    /// 256 elements in 16 sub-blocks with 4-bit scales and minima, 2-bit codes.
    Q2K,
    /// 256 elements in 16 sub-blocks with 6-bit scales, 3-bit codes with offset 4.
    Q3K,
    /// 256 elements in 8 sub-blocks with 6-bit scales and minima, 4-bit codes.
    Q4K,
    /// As `Q4K` with a fifth bit.
    Q5K,
    /// 256 elements in 16 sub-blocks with 8-bit scales, 6-bit codes with offset 32.
    Q6K,
    /// 256 elements: 2048 points of eight of -1, 0, 1, with a shift per 32.
    Iq1S,
    /// 256 elements: the points of `Iq1S`, with scales per 16 and a shift per 8.
    Iq1M,
    /// 256 elements: 256 points of eight magnitudes, seven signs and a parity.
    Iq2Xxs,
    /// 256 elements: 512 points of eight magnitudes, seven signs and a parity.
    Iq2Xs,
    /// 256 elements: 1024 points of eight magnitudes, eight signs.
    Iq2S,
    /// 256 elements: 256 points of four magnitudes, seven signs of eight and a parity.
    Iq3Xxs,
    /// 256 elements: 512 points of four magnitudes, four signs.
    Iq3S,
    /// 32 elements: f16 scale, 32 nibbles that number sixteen unequal steps.
    Iq4Nl,
    /// 256 elements in 8 sub-blocks with 6-bit scales, nibbles as in `Iq4Nl`.
    Iq4Xs,
    /// 32 elements: a power of two, 32 four-bit floats (E2M1).
    Mxfp4,
    /// 64 elements: four eight-bit scales (E4M3), 64 four-bit floats (E2M1).
    Nvfp4,
    /// 64 elements: f16 scale, 64 two-bit codes with offset 1.
    Q2_0,
    /// 256 elements of -1, 0, 1, five to a byte; f16 scale.
    Tq1_0,
    /// 256 elements of -1, 0, 1, two bits each; f16 scale.
    Tq2_0,
}

/// What is known of a format.
struct Facts {
    /// In a GGUF tensor directory.
    ggml_type: u32,
    name: &'static str,
    block_len: usize,
    block_bytes: usize,
}

impl BlockFormat {
    /// Every format, in the order of the enum.
    pub const ALL: [Self; 27] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq1S,
        Self::Iq1M,
        Self::Iq2Xxs,
        Self::Iq2Xs,
        Self::Iq2S,
        Self::Iq3Xxs,
        Self::Iq3S,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
        Self::Nvfp4,
        Self::Q2_0,
        Self::Tq1_0,
        Self::Tq2_0,
    ];

    fn facts(self) -> Facts {
        let (ggml_type, name, block_len, block_bytes) = match self {
            Self::F32 => (0, "F32", 1, 4),
            Self::F16 => (1, "F16", 1, 2),
            Self::Bf16 => (30, "BF16", 1, 2),
            Self::Q8_0 => (8, "Q8_0", 32, 34),
            Self::Q4_0 => (2, "Q4_0", 32, 18),
            Self::Q4_1 => (3, "Q4_1", 32, 20),
            Self::Q5_0 => (6, "Q5_0", 32, 22),
            Self::Q5_1 => (7, "Q5_1", 32, 24),
            Self::Q2K => (10, "Q2_K", 256, 84),
            Self::Q3K => (11, "Q3_K", 256, 110),
            Self::Q4K => (12, "Q4_K", 256, 144),
            Self::Q5K => (13, "Q5_K", 256, 176),
            Self::Q6K => (14, "Q6_K", 256, 210),
            Self::Iq1S => (19, "IQ1_S", 256, 50),
            Self::Iq1M => (29, "IQ1_M", 256, 56),
            Self::Iq2Xxs => (16, "IQ2_XXS", 256, 66),
            Self::Iq2Xs => (17, "IQ2_XS", 256, 74),
            Self::Iq2S => (22, "IQ2_S", 256, 82),
            Self::Iq3Xxs => (18, "IQ3_XXS", 256, 98),
            Self::Iq3S => (21, "IQ3_S", 256, 110),
            Self::Iq4Nl => (20, "IQ4_NL", 32, 18),
            Self::Iq4Xs => (23, "IQ4_XS", 256, 136),
            Self::Mxfp4 => (39, "MXFP4", 32, 17),
            Self::Nvfp4 => (40, "NVFP4", 64, 36),
            Self::Q2_0 => (42, "Q2_0", 64, 18),
            Self::Tq1_0 => (34, "TQ1_0", 256, 54),
            Self::Tq2_0 => (35, "TQ2_0", 256, 66),
        };
        Facts { ggml_type, name, block_len, block_bytes }
    }

    /// The format with this number in a GGUF tensor directory, if this crate computes with it.
    #[must_use]
    pub fn from_ggml_type(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.ggml_type() == id)
    }

    /// Its number in a GGUF tensor directory.
    #[must_use]
    pub fn ggml_type(self) -> u32 {
        self.facts().ggml_type
    }

    /// Its usual name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// Elements in a block.
    #[must_use]
    pub fn block_len(self) -> usize {
        self.facts().block_len
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        self.facts().block_bytes
    }

    /// Whether elements are codes that share scales, rather than floating-point numbers.
    #[must_use]
    pub fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// Whether products with int8 activations exist; the others take `f32` activations.
    #[must_use]
    pub fn has_int8_path(self) -> bool {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => false,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 => true,
            Self::Q4K | Self::Q5K | Self::Q6K => true,
            Self::Q2K | Self::Q3K | Self::Tq1_0 | Self::Tq2_0 | Self::Mxfp4 | Self::Nvfp4 => false,
            Self::Iq1S | Self::Iq1M | Self::Iq2Xxs | Self::Iq2Xs | Self::Iq2S => false,
            Self::Iq3Xxs | Self::Iq3S | Self::Iq4Nl | Self::Iq4Xs | Self::Q2_0 => false,
        }
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
