//! Deterministic pseudo-random inputs for tests.

use crate::quant::GgmlType;
use crate::quant::half::f32_to_f16;
pub(crate) use crate::random::Random;

/// `count` valid blocks of a type with small scales and every code.
pub(crate) fn blocks(ggml_type: GgmlType, count: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = Vec::new();
    for _ in 0..count {
        let mut block: Vec<u8> =
            (0..ggml_type.block_bytes()).map(|_| random.next().to_le_bytes()[0]).collect();
        for at in half_fields(ggml_type) {
            block[*at..at + 2].copy_from_slice(&f32_to_f16(random.unit() * 0.02).to_le_bytes());
        }
        match ggml_type {
            GgmlType::F32 => block.copy_from_slice(&random.unit().to_le_bytes()),
            GgmlType::F16 => block.copy_from_slice(&f32_to_f16(random.unit()).to_le_bytes()),
            GgmlType::BF16 => block.copy_from_slice(&random.unit().to_le_bytes()[2..]),
            _ => {}
        }
        bytes.extend(block);
    }
    bytes
}

fn half_fields(ggml_type: GgmlType) -> &'static [usize] {
    match ggml_type {
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => &[],
        GgmlType::Q4_0 | GgmlType::Q5_0 | GgmlType::Q8_0 => &[0],
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4_K | GgmlType::Q5_K => &[0, 2],
        GgmlType::Q6_K => &[208],
    }
}
