//! GGML's tensor types: block layouts and exact dequantisation to `f32`.
//!
//! Owns what a block's bytes mean. Never multiplies anything: the fast kernels repack through [`blocks`], which gives each
//! type as unsigned codes with a scale and a minimum per sub-block, so that no kernel knows a file layout.
//!
//! Layouts: `ggml-common.h` of GGML; each is restated beside its decoder.

pub mod blocks;
pub mod half;
mod k_quants;
mod legacy;

/// How a tensor's elements are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, non_camel_case_types, reason = "the variants are GGML's own names")]
pub enum GgmlType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4_K,
    Q5_K,
    Q6_K,
}

/// Lengths that do not belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes of {ggml_type:?} do not hold exactly {elements} elements")]
pub struct QuantLengthError {
    /// The type of the data.
    pub ggml_type: GgmlType,
    /// Length of the data.
    pub bytes: usize,
    /// Elements the caller wanted.
    pub elements: usize,
}

impl GgmlType {
    /// Every supported type.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
    ];

    /// The type of GGML's code, if it is supported.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|ggml_type| ggml_type.code() == code)
    }

    /// GGML's code (`enum ggml_type`).
    pub const fn code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q4_K => 12,
            Self::Q5_K => 13,
            Self::Q6_K => 14,
            Self::BF16 => 30,
        }
    }

    /// Elements in a block; a row is a whole number of blocks.
    pub const fn block_elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q4_K | Self::Q5_K | Self::Q6_K => 256,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
        }
    }

    /// Bytes of `elements` elements, if they are whole blocks and the product fits.
    pub const fn data_bytes(self, elements: usize) -> Option<usize> {
        if elements.is_multiple_of(self.block_elements()) {
            (elements / self.block_elements()).checked_mul(self.block_bytes())
        } else {
            None
        }
    }

    /// The name that model cards use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q4_K => "Q4_K",
            Self::Q5_K => "Q5_K",
            Self::Q6_K => "Q6_K",
        }
    }
}

/// Decodes `bytes` into exactly `out.len()` values. Each value is the one GGML's own dequantisation gives, bit for bit.
pub fn dequantize(ggml_type: GgmlType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantLengthError> {
    if ggml_type.data_bytes(out.len()) != Some(bytes.len()) {
        return Err(QuantLengthError { ggml_type, bytes: bytes.len(), elements: out.len() });
    }
    let input = bytes.chunks_exact(ggml_type.block_bytes());
    let output = out.chunks_exact_mut(ggml_type.block_elements());
    match ggml_type {
        GgmlType::F32 => {
            input.zip(output).for_each(|(b, o)| o[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        }
        GgmlType::F16 => input.zip(output).for_each(|(b, o)| o[0] = half::f16_at(b, 0)),
        GgmlType::BF16 => input.zip(output).for_each(|(b, o)| o[0] = half::bf16_at(b, 0)),
        GgmlType::Q4_0 => input.zip(output).for_each(|(b, o)| legacy::q4_0(b, o)),
        GgmlType::Q4_1 => input.zip(output).for_each(|(b, o)| legacy::q4_1(b, o)),
        GgmlType::Q5_0 => input.zip(output).for_each(|(b, o)| legacy::q5_0(b, o)),
        GgmlType::Q5_1 => input.zip(output).for_each(|(b, o)| legacy::q5_1(b, o)),
        GgmlType::Q8_0 => input.zip(output).for_each(|(b, o)| legacy::q8_0(b, o)),
        GgmlType::Q4_K => input.zip(output).for_each(|(b, o)| k_quants::q4_k(b, o)),
        GgmlType::Q5_K => input.zip(output).for_each(|(b, o)| k_quants::q5_k(b, o)),
        GgmlType::Q6_K => input.zip(output).for_each(|(b, o)| k_quants::q6_k(b, o)),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
