//! Checked views of row-major `f32` activations: the shape is checked once, at construction.

use std::fmt;

/// A shape that does not fit its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{elements} elements are not rows of {columns}")]
pub struct ShapeError {
    /// Elements in the slice.
    pub elements: usize,
    /// Length of a row asked for.
    pub columns: usize,
}

fn rows_of(elements: usize, columns: usize) -> Result<usize, ShapeError> {
    if columns > 0 && elements.is_multiple_of(columns) {
        Ok(elements / columns)
    } else {
        Err(ShapeError { elements, columns })
    }
}

/// `[rows, columns]` of `f32`, contiguous, read-only.
#[derive(Clone, Copy)]
pub struct TensorRef<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
}

impl<'a> TensorRef<'a> {
    /// Views `data` as rows of `columns`.
    pub fn new(data: &'a [f32], columns: usize) -> Result<Self, ShapeError> {
        Ok(Self { data, rows: rows_of(data.len(), columns)?, columns })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Length of a row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Everything, row after row.
    pub fn data(&self) -> &'a [f32] {
        self.data
    }

    /// Row `row`. Panics if there is none.
    pub fn row(&self, row: usize) -> &'a [f32] {
        &self.data[row * self.columns..][..self.columns]
    }
}

impl fmt::Debug for TensorRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorRef[{}, {}]", self.rows, self.columns)
    }
}

/// `[rows, columns]` of `f32`, contiguous, writable.
pub struct TensorMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    columns: usize,
}

impl<'a> TensorMut<'a> {
    /// Views `data` as rows of `columns`.
    pub fn new(data: &'a mut [f32], columns: usize) -> Result<Self, ShapeError> {
        let rows = rows_of(data.len(), columns)?;
        Ok(Self { data, rows, columns })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Length of a row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Everything, row after row.
    pub fn data(&mut self) -> &mut [f32] {
        self.data
    }

    /// Row `row`. Panics if there is none.
    pub fn row(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.columns..][..self.columns]
    }

    /// The same tensor read-only.
    pub fn as_ref(&self) -> TensorRef<'_> {
        TensorRef { data: self.data, rows: self.rows, columns: self.columns }
    }
}

impl fmt::Debug for TensorMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorMut[{}, {}]", self.rows, self.columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_whole() {
        let data = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let tensor = TensorRef::new(&data, 3).unwrap();
        assert_eq!((tensor.rows(), tensor.row(1)), (2, &data[3..]));
        assert_eq!(TensorRef::new(&data, 4).unwrap_err(), ShapeError { elements: 6, columns: 4 });
        assert_eq!(TensorRef::new(&data, 0).unwrap_err(), ShapeError { elements: 6, columns: 0 });
    }

    #[test]
    fn a_writable_view_writes_through() {
        let mut data = [0.0; 4];
        let mut tensor = TensorMut::new(&mut data, 2).unwrap();
        tensor.row(1)[0] = 7.0;
        assert_eq!(tensor.as_ref().row(1), [7.0, 0.0]);
        assert_eq!(data[2], 7.0);
    }
}
