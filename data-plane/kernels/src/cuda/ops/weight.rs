//! A weight matrix in device memory.

mod random;

use super::formats::ActivationType;
use super::repack::{group_bytes, packed_bytes, repack};
use crate::cuda::{CudaError, Device, DeviceBuffer};
use crate::quant::{GgmlType, QuantLengthError, dequantize};

/// A matrix `[rows, columns]`: dense in the activations' format, or packed as GGML's Q8_0, Q4_0 or Q4_1 in the kernels' own order.
#[derive(Debug)]
pub struct Weight {
    bytes: DeviceBuffer<u8>,
    form: Form,
    rows: usize,
    columns: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Dense(ActivationType),
    Packed(GgmlType),
}

/// Why a tensor cannot be a weight.
#[derive(Debug, thiserror::Error)]
pub enum WeightError {
    /// The kernels read rows of whole blocks of 32.
    #[error("a matrix of {rows} rows and {columns} columns cannot be used: columns come in blocks of 32")]
    Shape {
        /// Rows of the matrix.
        rows: usize,
        /// Its columns.
        columns: usize,
    },
    /// The data are not of that length.
    #[error(transparent)]
    Length(#[from] QuantLengthError),
    /// No memory, or no device.
    #[error(transparent)]
    Device(#[from] CudaError),
}

impl Weight {
    /// Brings a tensor to the device: Q8_0, Q4_0 and Q4_1 stay packed, every other type becomes dense in `activation`.
    ///
    /// # Errors
    /// [`WeightError`].
    pub fn load(
        device: &Device,
        activation: ActivationType,
        ggml_type: GgmlType,
        bytes: &[u8],
        (rows, columns): (usize, usize),
    ) -> Result<Self, WeightError> {
        let elements = rows.checked_mul(columns).filter(|elements| *elements > 0);
        let elements = elements.filter(|_| columns.is_multiple_of(32));
        let elements = elements.ok_or(WeightError::Shape { rows, columns })?;
        if group_bytes(ggml_type).is_some() {
            let packed = repack(ggml_type, bytes, rows, columns);
            let packed = packed.ok_or(QuantLengthError { ggml_type, bytes: bytes.len(), elements })?;
            let form = Form::Packed(ggml_type);
            return Ok(Self { bytes: device.buffer_of(&packed)?, form, rows, columns });
        }
        let mut values = vec![0.0; elements];
        dequantize(ggml_type, bytes, &mut values)?;
        Ok(Self::dense(device, activation, &values, (rows, columns))?)
    }

    /// A dense matrix of these values, rounded to `activation`. Panics if there are not `rows · columns`, or `columns` is no
    /// multiple of 32.
    ///
    /// # Errors
    /// [`CudaError::Memory`].
    pub fn dense(
        device: &Device,
        activation: ActivationType,
        values: &[f32],
        (rows, columns): (usize, usize),
    ) -> Result<Self, CudaError> {
        assert!(values.len() == rows * columns && columns.is_multiple_of(32), "rows of whole blocks");
        let bytes: Vec<u8> = values.iter().flat_map(|value| activation.bits(*value).to_le_bytes()).collect();
        Ok(Self { bytes: device.buffer_of(&bytes)?, form: Form::Dense(activation), rows, columns })
    }

    /// Bytes that a tensor of this type and shape takes on the device, before it is loaded; `None` if that overflows.
    pub fn device_bytes(ggml_type: GgmlType, (rows, columns): (usize, usize)) -> Option<usize> {
        match group_bytes(ggml_type) {
            Some(_) => packed_bytes(ggml_type, rows, columns),
            None => rows.checked_mul(columns)?.checked_mul(2),
        }
    }

    /// Its rows: outputs of a product, entries of an embedding table.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Its columns: inputs of a product.
    pub fn columns(&self) -> usize {
        self.columns
    }

    pub(super) fn bytes(&self) -> &DeviceBuffer<u8> {
        &self.bytes
    }

    /// The packed type, if it is packed.
    pub(super) fn packing(&self) -> Option<GgmlType> {
        match self.form {
            Form::Packed(ggml_type) => Some(ggml_type),
            Form::Dense(_) => None,
        }
    }

    /// The element format, if it is dense.
    pub(super) fn dense_type(&self) -> Option<ActivationType> {
        match self.form {
            Form::Dense(activation) => Some(activation),
            Form::Packed(_) => None,
        }
    }
}
