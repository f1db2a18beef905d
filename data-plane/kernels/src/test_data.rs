//! Deterministic pseudo-random inputs for tests.

use crate::quant::GgmlType;
use crate::quant::half::f32_to_f16;

/// SplitMix64 (Steele et al. 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in −1 .. 1.
    pub(crate) fn unit(&mut self) -> f32 {
        #[expect(clippy::cast_precision_loss, reason = "24 bits fit")]
        let value = (self.next() >> 40) as f32 / 8_388_608.0;
        value - 1.0
    }

    pub(crate) fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.unit()).collect()
    }
}

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
