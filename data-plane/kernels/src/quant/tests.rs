//! Hand-computed blocks, and blocks decoded by the `gguf` package of PyPI (tests/fixtures/dequantize.py writes them).

use super::*;

fn check(ggml_type: GgmlType, bytes: &[u8], expected: &[(usize, f32)]) {
    let mut out = vec![f32::NAN; ggml_type.block_elements()];
    dequantize(ggml_type, bytes, &mut out).unwrap();
    for (index, value) in expected {
        assert_eq!(out[*index], *value, "{ggml_type:?} element {index}");
    }
}

const HALF: [u8; 2] = 0x3800_u16.to_le_bytes();
const TWO: [u8; 2] = 0x4000_u16.to_le_bytes();

#[test]
fn legacy_blocks() {
    let nibbles = |first: u8, last: u8| {
        let mut qs = [0x88_u8; 16];
        qs[0] = first;
        qs[15] = last;
        qs
    };
    let q4_0 = [&HALF[..], &nibbles(0x0f, 0xf0)].concat();
    check(GgmlType::Q4_0, &q4_0, &[(0, 3.5), (16, -4.0), (15, -4.0), (31, 3.5), (1, 0.0)]);
    let q4_1 = [&HALF[..], &TWO, &nibbles(0x0f, 0xf0)].concat();
    check(GgmlType::Q4_1, &q4_1, &[(0, 9.5), (16, 2.0), (15, 2.0), (31, 9.5), (1, 6.0)]);
    let high = 0x8000_0001_u32.to_le_bytes();
    let q5_0 = [&HALF[..], &high, &nibbles(0x0f, 0xf0)].concat();
    check(GgmlType::Q5_0, &q5_0, &[(0, 7.5), (16, -8.0), (15, -8.0), (31, 7.5), (1, -4.0)]);
    let q5_1 = [&HALF[..], &TWO, &high, &nibbles(0x0f, 0xf0)].concat();
    check(GgmlType::Q5_1, &q5_1, &[(0, 17.5), (16, 2.0), (31, 17.5), (1, 6.0)]);
    let mut q8_0 = [&HALF[..], &[0; 32]].concat();
    q8_0[2] = 0x80;
    q8_0[33] = 127;
    check(GgmlType::Q8_0, &q8_0, &[(0, -64.0), (31, 63.5), (1, 0.0)]);
}

#[test]
fn k_quant_blocks() {
    // Sub-block 0: scale 1, minimum 2; sub-block 7: scale 63 (low 15, upper 3), minimum 33 (low 1, upper 2).
    let mut scales = [0_u8; 12];
    scales[0] = 1;
    scales[4] = 2;
    scales[11] = 15 | 1 << 4;
    scales[3] = 3 << 6;
    scales[7] = 2 << 6;
    let mut q4_k = [&HALF[..], &TWO, &scales, &[0x70; 128]].concat();
    q4_k[16] = 0x0f;
    check(GgmlType::Q4_K, &q4_k, &[(0, 3.5), (1, -4.0), (255, 31.5 * 7.0 - 66.0)]);
    let mut q5_k = [&HALF[..], &TWO, &scales, &[0; 32], &[0x70; 128]].concat();
    q5_k[16] = 0x01;
    q5_k[47] = 0x80;
    check(GgmlType::Q5_K, &q5_k, &[(0, 4.0), (1, -4.0), (255, 31.5 * 23.0 - 66.0)]);
    let mut q6_k = [&[0; 128][..], &[0; 64], &[2; 16], &HALF].concat();
    q6_k[0] = 0xf1;
    q6_k[128] = 0b10_01_00_11;
    q6_k[192 + 4] = 0xff;
    // Element 0: 1 + 3·16 − 32 = 17; element 64: 15 + 1·16 − 32 = −1, in sub-block 4 with scale −1.
    check(GgmlType::Q6_K, &q6_k, &[(0, 17.0), (64, 0.5), (32, -32.0), (96, 0.0), (255, -32.0)]);
}

#[test]
fn floating_point_types() {
    check(GgmlType::F32, &1.25_f32.to_le_bytes(), &[(0, 1.25)]);
    check(GgmlType::F16, &HALF, &[(0, 0.5)]);
    check(GgmlType::BF16, &0xbf80_u16.to_le_bytes(), &[(0, -1.0)]);
}

#[test]
fn lengths_must_fit() {
    let mut out = [0.0; 32];
    let error = dequantize(GgmlType::Q8_0, &[0; 33], &mut out).unwrap_err();
    assert_eq!(error, QuantLengthError { ggml_type: GgmlType::Q8_0, bytes: 33, elements: 32 });
    assert!(dequantize(GgmlType::Q8_0, &[0; 34], &mut out[..31]).is_err());
    assert!(dequantize(GgmlType::Q4_K, &[0; 144], &mut out).is_err());
}

#[test]
fn codes_are_ggmls() {
    for ggml_type in GgmlType::ALL {
        assert_eq!(GgmlType::from_code(ggml_type.code()), Some(ggml_type));
    }
    assert_eq!(GgmlType::from_code(4), None);
}

/// The fixture's hexadecimal text as bytes.
fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks_exact(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn every_type_decodes_as_the_python_package_does() {
    let mut seen = Vec::new();
    for line in include_str!("../../tests/fixtures/dequantize.txt").lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let ggml_type = GgmlType::ALL.into_iter().find(|ggml_type| ggml_type.name() == fields[0]).unwrap();
        let bytes = unhex(fields[2]);
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let mut out = vec![f32::NAN; values.len()];
        dequantize(ggml_type, &unhex(fields[1]), &mut out).unwrap();
        for (i, (actual, expected)) in out.iter().zip(&values).enumerate() {
            assert_eq!(
                actual.to_bits(),
                expected.to_bits(),
                "{ggml_type:?} element {i}: {actual} for {expected}"
            );
        }
        seen.push(ggml_type);
    }
    assert_eq!(seen.len(), GgmlType::ALL.len());
}
