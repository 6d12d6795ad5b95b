//! How tensor elements are stored: the types of a GGUF file, with the sizes of their blocks.
//!
//! Source: the type list and block structures of ggml (`ggml.h`, `ggml-common.h`).

macro_rules! tensor_types {
    ($($variant:ident = $id:literal, $name:literal, $block_len:literal, $block_size:literal;)*) => {
        /// A storage type. Elements come in blocks of `block_len`, `block_size` bytes each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum TensorType {
            $(#[doc = $name] $variant,)*
        }

        impl TensorType {
            /// Every type, for tables and tests.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The type of an id in the file, or `None` if this build does not know it.
            #[must_use]
            pub fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(Self::$variant),)* _ => None }
            }

            /// The id in the file.
            #[must_use]
            pub fn id(self) -> u32 {
                match self { $(Self::$variant => $id),* }
            }

            /// The name people use.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Elements in a block.
            #[must_use]
            pub fn block_len(self) -> u64 {
                match self { $(Self::$variant => $block_len),* }
            }

            /// Bytes of a block.
            #[must_use]
            pub fn block_size(self) -> u64 {
                match self { $(Self::$variant => $block_size),* }
            }
        }
    };
}

tensor_types! {
    F32 = 0, "F32", 1, 4;
    F16 = 1, "F16", 1, 2;
    Q4_0 = 2, "Q4_0", 32, 18;
    Q4_1 = 3, "Q4_1", 32, 20;
    Q5_0 = 6, "Q5_0", 32, 22;
    Q5_1 = 7, "Q5_1", 32, 24;
    Q8_0 = 8, "Q8_0", 32, 34;
    Q8_1 = 9, "Q8_1", 32, 36;
    Q2K = 10, "Q2_K", 256, 84;
    Q3K = 11, "Q3_K", 256, 110;
    Q4K = 12, "Q4_K", 256, 144;
    Q5K = 13, "Q5_K", 256, 176;
    Q6K = 14, "Q6_K", 256, 210;
    Q8K = 15, "Q8_K", 256, 292;
    Iq2Xxs = 16, "IQ2_XXS", 256, 66;
    Iq2Xs = 17, "IQ2_XS", 256, 74;
    Iq3Xxs = 18, "IQ3_XXS", 256, 98;
    Iq1S = 19, "IQ1_S", 256, 50;
    Iq4Nl = 20, "IQ4_NL", 32, 18;
    Iq3S = 21, "IQ3_S", 256, 110;
    Iq2S = 22, "IQ2_S", 256, 82;
    Iq4Xs = 23, "IQ4_XS", 256, 136;
    I8 = 24, "I8", 1, 1;
    I16 = 25, "I16", 1, 2;
    I32 = 26, "I32", 1, 4;
    I64 = 27, "I64", 1, 8;
    F64 = 28, "F64", 1, 8;
    Iq1M = 29, "IQ1_M", 256, 56;
    Bf16 = 30, "BF16", 1, 2;
    Tq1_0 = 34, "TQ1_0", 256, 54;
    Tq2_0 = 35, "TQ2_0", 256, 66;
    Mxfp4 = 39, "MXFP4", 32, 17;
    Nvfp4 = 40, "NVFP4", 64, 36;
    Q1_0 = 41, "Q1_0", 128, 18;
    Q2_0 = 42, "Q2_0", 64, 18;
}

impl TensorType {
    /// Bytes of a tensor of this shape (fastest dimension first), or `None` if a row does not
    /// fill whole blocks, a dimension is zero, or the size overflows.
    #[must_use]
    pub fn size(self, dims: &[u64]) -> Option<u64> {
        let row = *dims.first()?;
        if dims.contains(&0) || !row.is_multiple_of(self.block_len()) {
            return None;
        }
        // The element count must not overflow either: callers multiply the dimensions.
        let elements = dims.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim))?;
        (elements / self.block_len()).checked_mul(self.block_size())
    }
}
