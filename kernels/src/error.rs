//! The one error of this crate: bytes that cannot be the tensor they are said to be.

use thiserror::Error;

/// Why a [`WeightView`](crate::tensor::WeightView) was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// A row must be whole blocks.
    #[error("{cols} columns are not a multiple of {format}'s block of {block_len} elements")]
    PartialBlock {
        /// Name of the format.
        format: &'static str,
        /// Elements in a row.
        cols: usize,
        /// Elements in a block.
        block_len: usize,
    },
    /// The bytes are not as many as rows, columns and format say.
    #[error(
        "{rows} rows of {cols} {format} elements need {expected} bytes, but {actual} are there"
    )]
    Length {
        /// Name of the format.
        format: &'static str,
        /// Rows asked for.
        rows: usize,
        /// Elements in a row.
        cols: usize,
        /// Bytes this needs.
        expected: usize,
        /// Bytes given.
        actual: usize,
    },
    /// The size does not fit a `usize`.
    #[error("{rows} rows of {cols} {format} elements are more than this machine can address")]
    TooLarge {
        /// Name of the format.
        format: &'static str,
        /// Rows asked for.
        rows: usize,
        /// Elements in a row.
        cols: usize,
    },
}
