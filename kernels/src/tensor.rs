//! A borrowed weight matrix: format, shape and bytes that fit together.

use crate::error::ShapeError;
use crate::format::BlockFormat;

/// A weight matrix as it lies in the file.
///
/// *Shapes*: `(rows, cols)`, row-major, each row whole blocks of `format`. As a linear layer it
/// maps `cols` inputs to `rows` outputs.
#[derive(Debug, Clone, Copy)]
pub struct WeightView<'a> {
    format: BlockFormat,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    bytes: &'a [u8],
}

impl<'a> WeightView<'a> {
    /// Checks that `bytes` are exactly `rows` rows of `cols` elements.
    ///
    /// # Errors
    /// When `cols` is not whole blocks, or the length is another. The file is wrong; the caller can
    /// only refuse it.
    pub fn new(
        format: BlockFormat,
        rows: usize,
        cols: usize,
        bytes: &'a [u8],
    ) -> Result<Self, ShapeError> {
        let name = format.name();
        if !cols.is_multiple_of(format.block_len()) {
            let block_len = format.block_len();
            return Err(ShapeError::PartialBlock { format: name, cols, block_len });
        }
        let row_bytes = format.row_bytes(cols);
        let Some((row_bytes, expected)) =
            row_bytes.and_then(|bytes| Some((bytes, bytes.checked_mul(rows)?)))
        else {
            return Err(ShapeError::TooLarge { format: name, rows, cols });
        };
        if bytes.len() != expected {
            let actual = bytes.len();
            return Err(ShapeError::Length { format: name, rows, cols, expected, actual });
        }
        Ok(Self { format, rows, cols, row_bytes, bytes })
    }

    /// How its elements are stored.
    #[must_use]
    pub fn format(&self) -> BlockFormat {
        self.format
    }

    /// Rows, which are the outputs of a linear layer.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements in a row, which are the inputs of a linear layer.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// All bytes.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes of one row.
    ///
    /// # Panics
    /// When `row` is not below [`rows`](Self::rows).
    #[must_use]
    pub fn row(&self, row: usize) -> &'a [u8] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        &self.bytes[row * self.row_bytes..][..self.row_bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_refuses_bytes_of_another_length() {
        let bytes = [0u8; 68];
        assert!(WeightView::new(BlockFormat::Q8_0, 2, 32, &bytes).is_ok());
        assert!(matches!(
            WeightView::new(BlockFormat::Q8_0, 2, 32, &bytes[1..]),
            Err(ShapeError::Length { expected: 68, actual: 67, .. })
        ));
        assert!(matches!(
            WeightView::new(BlockFormat::Q8_0, 2, 31, &bytes),
            Err(ShapeError::PartialBlock { .. })
        ));
        assert!(matches!(
            WeightView::new(BlockFormat::F32, usize::MAX, 2, &bytes),
            Err(ShapeError::TooLarge { .. })
        ));
    }
}
