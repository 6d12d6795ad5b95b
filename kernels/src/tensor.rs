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

/// Weight matrices of equal shape one after the other: the experts of a layer.
///
/// *Shapes*: `(n_experts, rows, cols)`; of each expert a part of its rows may be meant.
#[derive(Debug, Clone, Copy)]
pub struct ExpertsView<'a> {
    format: BlockFormat,
    n_experts: usize,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    /// Bytes from one expert to the next.
    stride: usize,
    /// Bytes of an expert before the rows that are meant.
    first: usize,
    bytes: &'a [u8],
}

impl<'a> ExpertsView<'a> {
    /// Checks that `bytes` are exactly `n_experts` matrices of `rows` rows of `cols` elements.
    ///
    /// # Errors
    /// As [`WeightView::new`].
    pub fn new(
        format: BlockFormat,
        n_experts: usize,
        rows: usize,
        cols: usize,
        bytes: &'a [u8],
    ) -> Result<Self, ShapeError> {
        let name = format.name();
        let Some(all_rows) = n_experts.checked_mul(rows) else {
            return Err(ShapeError::TooLarge { format: name, rows, cols });
        };
        let whole = WeightView::new(format, all_rows, cols, bytes)?;
        let row_bytes = whole.row_bytes();
        let stride = rows * row_bytes;
        Ok(Self { format, n_experts, rows, cols, row_bytes, stride, first: 0, bytes })
    }

    /// The same rows of every expert, `n_rows` from `first_row` on.
    ///
    /// # Panics
    /// When an expert has no such rows.
    #[must_use]
    pub fn part(self, first_row: usize, n_rows: usize) -> Self {
        assert!(
            first_row.checked_add(n_rows).is_some_and(|end| end <= self.rows),
            "rows {first_row}+{n_rows} of {}",
            self.rows
        );
        Self { rows: n_rows, first: self.first + first_row * self.row_bytes, ..self }
    }

    /// How elements are stored.
    #[must_use]
    pub fn format(&self) -> BlockFormat {
        self.format
    }

    /// Number of experts.
    #[must_use]
    pub fn n_experts(&self) -> usize {
        self.n_experts
    }

    /// Rows of an expert, its outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements in a row, an expert's inputs.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The matrix of one expert.
    ///
    /// # Panics
    /// When `index` is not below [`n_experts`](Self::n_experts).
    #[must_use]
    pub fn expert(&self, index: usize) -> WeightView<'a> {
        assert!(index < self.n_experts, "expert {index} of {}", self.n_experts);
        let start = index * self.stride + self.first;
        let bytes = &self.bytes[start..start + self.rows * self.row_bytes];
        let Self { format, rows, cols, row_bytes, .. } = *self;
        WeightView { format, rows, cols, row_bytes, bytes }
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

    #[test]
    fn experts_are_matrices_one_after_the_other() {
        let bytes: Vec<u8> = (0..3 * 4 * 2 * 4).collect();
        let view = ExpertsView::new(BlockFormat::F32, 3, 4, 2, &bytes).expect("it fits");
        assert_eq!(view.expert(1).bytes(), &bytes[32..64]);
        let part = view.part(1, 2);
        assert_eq!(part.expert(2).bytes(), &bytes[64 + 8..64 + 24]);
        assert_eq!(part.part(1, 1).expert(0).bytes(), &bytes[16..24]);
        assert!(ExpertsView::new(BlockFormat::F32, 3, 4, 2, &bytes[1..]).is_err());
    }
}
