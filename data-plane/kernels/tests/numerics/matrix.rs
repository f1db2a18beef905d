//! Random weight matrices: their bytes as a file has them, and their exact values.

use half::{bf16, f16};
use weir_kernels::cuda::ops::ActivationType;
use weir_kernels::quant::GgmlType;

use crate::random::Random;

/// A matrix `[rows, columns]`.
pub(crate) struct Matrix {
    /// Of the tensor, in GGML's layout.
    pub(crate) bytes: Vec<u8>,
    pub(crate) values: Vec<f64>,
}

/// Elements of a packed block.
const BLOCK: usize = 32;

impl Matrix {
    /// The tensor type whose elements a kernel reads unchanged.
    pub(crate) fn dense_type(activation: ActivationType) -> GgmlType {
        match activation {
            ActivationType::Bf16 => GgmlType::BF16,
            ActivationType::F16 => GgmlType::F16,
        }
    }

    /// Dense in the activations' format, or Q8_0, Q4_0 or Q4_1 with every code; values up to about 1.
    pub(crate) fn random(
        random: &mut Random,
        activation: ActivationType,
        ggml_type: GgmlType,
        (rows, columns): (usize, usize),
    ) -> Self {
        let mut matrix = Self { bytes: Vec::new(), values: Vec::new() };
        for _ in 0..rows * columns / BLOCK {
            if ggml_type == Self::dense_type(activation) {
                matrix.add_dense(random, activation);
            } else {
                matrix.add_packed(random, ggml_type);
            }
        }
        matrix
    }

    fn add_dense(&mut self, random: &mut Random, activation: ActivationType) {
        for _ in 0..BLOCK {
            let value = random.unit();
            let (bits, value) = match activation {
                ActivationType::Bf16 => (bf16::from_f32(value).to_bits(), bf16::from_f32(value).to_f64()),
                ActivationType::F16 => (f16::from_f32(value).to_bits(), f16::from_f32(value).to_f64()),
            };
            self.bytes.extend(bits.to_le_bytes());
            self.values.push(value);
        }
    }

    /// A block: the scale, Q4_1's minimum, then the codes. Four-bit codes lie as elements `i` and `i + 16` in byte `i`, the former in
    /// its low half; Q4_0's stand for −8 to 7.
    fn add_packed(&mut self, random: &mut Random, ggml_type: GgmlType) {
        let mut half = |size: f32| {
            let value = f16::from_f32(random.unit() * size);
            self.bytes.extend(value.to_le_bytes());
            value.to_f64()
        };
        let scale = half(if ggml_type == GgmlType::Q8_0 { 1.0 / 128.0 } else { 1.0 / 8.0 });
        let minimum = if ggml_type == GgmlType::Q4_1 { half(1.0) } else { 0.0 };
        if ggml_type == GgmlType::Q8_0 {
            let codes = random.bytes(BLOCK);
            self.values.extend(codes.iter().map(|code| scale * f64::from(code.cast_signed())));
            self.bytes.extend(codes);
            return;
        }
        let zero_point = if ggml_type == GgmlType::Q4_0 { 8.0 } else { 0.0 };
        let pairs = random.bytes(BLOCK / 2);
        let codes = pairs.iter().map(|pair| pair & 15).chain(pairs.iter().map(|pair| pair >> 4));
        self.values.extend(codes.map(|code| scale * (f64::from(code) - zero_point) + minimum));
        self.bytes.extend(pairs);
    }
}
