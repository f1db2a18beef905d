//! A weight matrix repacked for the fast kernels.

use crate::quant::{GgmlType, dequantize};
use crate::reference;

/// A weight of `rows` outputs by `columns` inputs.
#[derive(Debug, Clone)]
pub struct PackedMatrix {
    ggml_type: GgmlType,
    rows: usize,
    columns: usize,
    bytes: Vec<u8>,
}

/// Why a weight cannot be packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// Rows that are not whole blocks, or no rows at all.
    #[error("{rows} rows of {columns} are not whole blocks of {ggml_type:?}")]
    Shape {
        /// The weight's type.
        ggml_type: GgmlType,
        /// Rows asked for.
        rows: usize,
        /// Columns asked for.
        columns: usize,
    },
    /// Another number of bytes than the shape needs.
    #[error("{actual} bytes for a weight that has {expected}")]
    Length {
        /// Bytes given.
        actual: usize,
        /// Bytes needed.
        expected: usize,
    },
}

impl PackedMatrix {
    /// Repacks GGML data of `rows` rows of `columns`. Costs one pass over the data and about as much memory as the data.
    pub fn pack(ggml_type: GgmlType, bytes: &[u8], rows: usize, columns: usize) -> Result<Self, PackError> {
        let shape = PackError::Shape { ggml_type, rows, columns };
        if rows == 0 || columns == 0 || !columns.is_multiple_of(ggml_type.block_elements()) {
            return Err(shape);
        }
        let expected =
            rows.checked_mul(columns).and_then(|elements| ggml_type.data_bytes(elements)).ok_or(shape)?;
        if bytes.len() != expected {
            return Err(PackError::Length { actual: bytes.len(), expected });
        }
        Ok(Self { ggml_type, rows, columns, bytes: bytes.to_vec() })
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Type of the data it was packed from.
    pub fn ggml_type(&self) -> GgmlType {
        self.ggml_type
    }

    /// Bytes it occupies.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The exact values of a row. Panics if there is no such row or `out` is not `columns` long.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.columns, "row {row} of {}", self.rows);
        let row_bytes = self.bytes.len() / self.rows;
        dequantize(self.ggml_type, &self.bytes[row * row_bytes..][..row_bytes], out)
            .expect("a row is whole blocks, checked in pack");
    }

    pub(super) fn matmul(&self, x: &[f32], out: &mut [f32], accumulate: bool) {
        let mut weight = vec![0.0; self.columns];
        for row in 0..self.rows {
            self.dequantize_row(row, &mut weight);
            for (x, out) in x.chunks_exact(self.columns).zip(out.chunks_exact_mut(self.rows)) {
                let value = reference::dot(x, &weight);
                out[row] = if accumulate { out[row] + value } else { value };
            }
        }
    }
}
