//! Quantised blocks as the integer kernels want them: unsigned codes, one scale and one minimum per sub-block.
//!
//! Every quantised type has the form `value = scale·(code − zero_point) + minimum` over sub-blocks of 32 (Q6_K: 16), with
//! `minimum` 0 where `zero_point` is not and the other way round. Scale and minimum are exact in single precision.

use super::GgmlType;
use super::half::f16_at;
use super::{k_quants, legacy};

/// Bits that hold a code of a quantised type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeBits {
    /// 0..16.
    Four,
    /// 0..128 (five- and six-bit types).
    Seven,
    /// 0..256.
    Eight,
}

/// The integer form of a quantised type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntegerForm {
    /// Width of the codes.
    pub code_bits: CodeBits,
    /// What is subtracted from every code.
    pub zero_point: u8,
    /// Whether sub-blocks have a minimum.
    pub has_minimum: bool,
    /// Elements that share a scale: 32 or 16.
    pub sub_block_elements: usize,
    /// Whether scales and minimums are exact in half precision.
    pub half_scales: bool,
}

impl IntegerForm {
    /// The form of a type, `None` for the floating-point types.
    pub const fn of(ggml_type: GgmlType) -> Option<Self> {
        let (code_bits, zero_point, has_minimum, sub_block_elements, half_scales) = match ggml_type {
            GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => return None,
            GgmlType::Q4_0 => (CodeBits::Four, 8, false, 32, true),
            GgmlType::Q4_1 => (CodeBits::Four, 0, true, 32, true),
            GgmlType::Q5_0 => (CodeBits::Seven, 16, false, 32, true),
            GgmlType::Q5_1 => (CodeBits::Seven, 0, true, 32, true),
            GgmlType::Q8_0 => (CodeBits::Eight, 128, false, 32, true),
            GgmlType::Q4_K => (CodeBits::Four, 0, true, 32, false),
            GgmlType::Q5_K => (CodeBits::Seven, 0, true, 32, false),
            GgmlType::Q6_K => (CodeBits::Seven, 32, false, 16, false),
        };
        Some(Self { code_bits, zero_point, has_minimum, sub_block_elements, half_scales })
    }
}

/// One row in integer form.
#[derive(Debug, Clone, Default)]
pub struct IntegerRow {
    /// A code an element.
    pub codes: Vec<u8>,
    /// A scale a sub-block.
    pub scales: Vec<f32>,
    /// A minimum a sub-block (0 where the type has none).
    pub minimums: Vec<f32>,
}

impl IntegerRow {
    /// Decodes whole blocks of a quantised type into this row, replacing what it held. `bytes` past the last whole block
    /// are ignored; a floating-point type gives an empty row.
    pub fn decode(&mut self, ggml_type: GgmlType, bytes: &[u8]) {
        self.codes.clear();
        self.scales.clear();
        self.minimums.clear();
        for block in bytes.chunks_exact(ggml_type.block_bytes()) {
            match ggml_type {
                GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => {}
                GgmlType::Q4_0 => self.push(&nibbles(&block[2..18]), f16_at(block, 0), 0.0),
                GgmlType::Q4_1 => self.push(&nibbles(&block[4..20]), f16_at(block, 0), f16_at(block, 2)),
                GgmlType::Q5_0 => {
                    self.push(&legacy::five_bit_codes(&block[2..6], &block[6..22]), f16_at(block, 0), 0.0);
                }
                GgmlType::Q5_1 => {
                    let codes = legacy::five_bit_codes(&block[4..8], &block[8..24]);
                    self.push(&codes, f16_at(block, 0), f16_at(block, 2));
                }
                GgmlType::Q8_0 => {
                    let mut codes = [0; 32];
                    codes.iter_mut().zip(&block[2..34]).for_each(|(code, q)| *code = q ^ 0x80);
                    self.push(&codes, f16_at(block, 0), 0.0);
                }
                GgmlType::Q4_K => self.push_with_minimums(block, &k_quants::q4_k_codes(block)),
                GgmlType::Q5_K => self.push_with_minimums(block, &k_quants::q5_k_codes(block)),
                GgmlType::Q6_K => {
                    self.codes.extend(k_quants::q6_k_codes(block));
                    let d = f16_at(block, 208);
                    self.scales
                        .extend(block[192..208].iter().map(|scale| d * f32::from(scale.cast_signed())));
                    self.minimums.extend([0.0; 16]);
                }
            }
        }
    }

    fn push(&mut self, codes: &[u8], scale: f32, minimum: f32) {
        self.codes.extend_from_slice(codes);
        self.scales.push(scale);
        self.minimums.push(minimum);
    }

    fn push_with_minimums(&mut self, block: &[u8], codes: &[u8; 256]) {
        self.codes.extend(codes);
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        for (scale, minimum) in k_quants::scales_and_minimums(&block[4..16]) {
            self.scales.push(d * f32::from(scale));
            self.minimums.push(-(dmin * f32::from(minimum)));
        }
    }
}

fn nibbles(bytes: &[u8]) -> [u8; 32] {
    let mut codes = [0; 32];
    for (i, q) in bytes[..16].iter().enumerate() {
        codes[i] = q & 15;
        codes[i + 16] = q >> 4;
    }
    codes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::dequantize;

    /// Scale, zero point and minimum say the same as the dequantiser, for every type and pseudo-random blocks.
    #[test]
    fn the_integer_form_is_the_dequantised_value() {
        for ggml_type in GgmlType::ALL {
            let Some(form) = IntegerForm::of(ggml_type) else { continue };
            let bytes = crate::test_data::blocks(ggml_type, 6, 7);
            let elements = 6 * ggml_type.block_elements();
            let mut expected = vec![0.0; elements];
            dequantize(ggml_type, &bytes, &mut expected).unwrap();
            let mut row = IntegerRow::default();
            row.decode(ggml_type, &bytes);
            assert_eq!(row.codes.len(), elements, "{ggml_type:?}");
            assert_eq!(row.scales.len() * form.sub_block_elements, elements, "{ggml_type:?}");
            for (i, expected) in expected.iter().enumerate() {
                let sub = i / form.sub_block_elements;
                let code = f32::from(row.codes[i]) - f32::from(form.zero_point);
                assert_eq!(
                    row.scales[sub] * code + row.minimums[sub],
                    *expected,
                    "{ggml_type:?} element {i}"
                );
                let limit = match form.code_bits {
                    CodeBits::Four => 16,
                    CodeBits::Seven => 128,
                    CodeBits::Eight => 256,
                };
                assert!(u16::from(row.codes[i]) < limit);
            }
        }
    }
}
