//! Packed weights in the order in which the kernels read them.
//!
//! A row is cut into groups of 64 elements, two of GGML's blocks. In a group, for each of four lanes: its eight codes of the
//! first block (elements `8 · lane ..`), then its eight of the second. Then the scales of all blocks, `[rows, 2 · groups]` in half
//! precision, then the minimums alike where the type has them. A last half group is filled up with zeros.

use crate::quant::GgmlType;

/// Elements of a group.
pub(super) const GROUP: usize = 64;
/// Elements of a block.
const BLOCK: usize = 32;
const LANES: usize = 4;

/// Bytes of the codes of a group, if the kernels read the type packed.
pub(super) const fn group_bytes(ggml_type: GgmlType) -> Option<usize> {
    match ggml_type {
        GgmlType::Q8_0 => Some(GROUP),
        GgmlType::Q4_0 | GgmlType::Q4_1 => Some(GROUP / 2),
        GgmlType::F32
        | GgmlType::F16
        | GgmlType::BF16
        | GgmlType::Q5_0
        | GgmlType::Q5_1
        | GgmlType::Q4_K
        | GgmlType::Q5_K
        | GgmlType::Q6_K => None,
    }
}

/// Bytes of a matrix in the kernels' order.
pub(super) fn packed_bytes(ggml_type: GgmlType, rows: usize, columns: usize) -> Option<usize> {
    let groups = columns.div_ceil(GROUP);
    let halves = if ggml_type == GgmlType::Q4_1 { 2 } else { 1 };
    rows.checked_mul(groups)?.checked_mul(group_bytes(ggml_type)? + halves * 4)
}

/// Brings GGML's blocks of a matrix into the kernels' order. `None` if the type is not read packed, or the lengths do not fit.
pub(super) fn repack(ggml_type: GgmlType, bytes: &[u8], rows: usize, columns: usize) -> Option<Vec<u8>> {
    let group_bytes = group_bytes(ggml_type)?;
    if !columns.is_multiple_of(BLOCK) || ggml_type.data_bytes(rows.checked_mul(columns)?)? != bytes.len() {
        return None;
    }
    let (blocks, groups) = (columns / BLOCK, columns.div_ceil(GROUP));
    let mut packed = vec![0; packed_bytes(ggml_type, rows, columns)?];
    let (codes, halves) = packed.split_at_mut(rows * groups * group_bytes);
    let (scales, minimums) = halves.split_at_mut(rows * groups * 4);
    for (index, block) in bytes.chunks_exact(ggml_type.block_bytes()).enumerate() {
        let (row, block_of_row) = (index / blocks, index % blocks);
        let group = row * groups + block_of_row / 2;
        let at = 4 * group + 2 * (block_of_row % 2);
        scales[at..at + 2].copy_from_slice(&block[..2]);
        let codes = &mut codes[group * group_bytes..][..group_bytes];
        match ggml_type {
            GgmlType::Q8_0 => eight_bit(&block[2..34], block_of_row % 2, codes),
            GgmlType::Q4_1 => {
                minimums[at..at + 2].copy_from_slice(&block[2..4]);
                four_bit(&block[4..20], block_of_row % 2, codes);
            }
            _ => four_bit(&block[2..18], block_of_row % 2, codes),
        }
    }
    Some(packed)
}

fn eight_bit(block: &[u8], half: usize, group: &mut [u8]) {
    for (lane, codes) in block.chunks_exact(8).enumerate() {
        group[16 * lane + 8 * half..][..8].copy_from_slice(codes);
    }
}

/// GGML's low nibbles are elements 0 to 15, the high ones 16 to 31. A lane's element `e` is nibble `e / 2 + 4 · (e % 2)`: a shift then
/// leaves a pair in the halves of a register.
fn four_bit(block: &[u8], half: usize, group: &mut [u8]) {
    let code = |element: usize| block[element % 16] >> (4 * (element / 16)) & 15;
    for lane in 0..LANES {
        let mut word = 0_u32;
        for element in 0..8 {
            let nibble = element / 2 + 4 * (element % 2);
            word |= u32::from(code(8 * lane + element)) << (4 * nibble);
        }
        group[8 * lane + 4 * half..][..4].copy_from_slice(&word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::dequantize;

    fn f16_at(bytes: &[u8], offset: usize) -> f32 {
        half::f16::from_le_bytes([bytes[offset], bytes[offset + 1]]).to_f32()
    }

    /// What a kernel makes of a packed matrix.
    fn unpack(ggml_type: GgmlType, packed: &[u8], rows: usize, columns: usize) -> Vec<f32> {
        let groups = columns.div_ceil(GROUP);
        let group_bytes = group_bytes(ggml_type).unwrap();
        let scales = rows * groups * group_bytes;
        let minimums = scales + rows * groups * 4;
        let mut values = Vec::new();
        for row in 0..rows {
            for column in 0..columns {
                let group = row * groups + column / GROUP;
                let (half, lane, element) = (column % GROUP / BLOCK, column % BLOCK / 8, column % 8);
                let codes = &packed[group * group_bytes..][..group_bytes];
                let scale = f16_at(packed, scales + 4 * group + 2 * half);
                values.push(if ggml_type == GgmlType::Q8_0 {
                    f32::from(codes[16 * lane + 8 * half + element].cast_signed()) * scale
                } else {
                    let word = &codes[8 * lane + 4 * half..][..4];
                    let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                    let code = word >> (4 * (element / 2 + 4 * (element % 2))) & 15;
                    let code = u8::try_from(code).unwrap();
                    if ggml_type == GgmlType::Q4_0 {
                        (f32::from(code) - 8.0) * scale
                    } else {
                        f32::from(code) * scale + f16_at(packed, minimums + 4 * group + 2 * half)
                    }
                });
            }
        }
        values
    }

    #[test]
    fn unpacking_gives_what_ggml_gives() {
        for ggml_type in [GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q4_1] {
            for (rows, columns) in [(1, 32), (3, 64), (2, 96), (5, 160)] {
                let bytes: Vec<u8> = (0..ggml_type.data_bytes(rows * columns).unwrap())
                    .map(|i| {
                        if i % ggml_type.block_bytes() < 4 {
                            0x2c
                        } else {
                            u8::try_from(i * 89 % 251).unwrap()
                        }
                    })
                    .collect();
                let mut expected = vec![0.0; rows * columns];
                dequantize(ggml_type, &bytes, &mut expected).unwrap();
                let packed = repack(ggml_type, &bytes, rows, columns).unwrap();
                assert_eq!(
                    unpack(ggml_type, &packed, rows, columns),
                    expected,
                    "{ggml_type:?} {rows} {columns}"
                );
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(repack(GgmlType::Q6_K, &[0; 210], 1, 256).is_none());
        assert!(repack(GgmlType::Q8_0, &[0; 33], 1, 32).is_none());
        assert!(repack(GgmlType::Q8_0, &[0; 34], 2, 16).is_none());
    }
}
