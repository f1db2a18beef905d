//! A weight matrix repacked for the fast kernels.
//!
//! Outputs go in strips of [`LANES`]: a lane of every vector is one output, so no kernel ever adds across lanes, and a strip
//! is one contiguous stream. The last strip is padded with zero outputs. Within a strip, quantised types hold
//!
//! 1. scales `[sub-block][16]`, then minimums `[sub-block][16]` if the type has them (half precision where that is exact),
//!    padded to a cache line;
//! 2. codes: for each 32 inputs, eight groups of `[16 outputs][4 inputs]` bytes, which is what VNNI multiplies by a broadcast
//!    of four activations and what an AMX weight tile is. Four-bit codes hold group `g` in the low and group `g + 4` in the
//!    high nibbles.
//!
//! Floating-point types hold `[input][16 outputs]` as they are.

use super::simd::LANES;
use crate::aligned::AlignedBytes;
use crate::quant::blocks::{CodeBits, IntegerForm, IntegerRow};
use crate::quant::half::{f16_to_f32, f32_to_f16};
use crate::quant::{GgmlType, dequantize};

/// Inputs that one integer block covers.
pub(super) const BLOCK: usize = 32;

/// A weight of `rows` outputs by `columns` inputs.
#[derive(Debug, Clone)]
pub struct PackedMatrix {
    ggml_type: GgmlType,
    rows: usize,
    columns: usize,
    layout: StripLayout,
    bytes: AlignedBytes,
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

/// Where things are in a strip.
#[derive(Debug, Clone, Copy)]
pub(super) struct StripLayout {
    /// `None` for floating-point types.
    pub(super) form: Option<IntegerForm>,
    /// Bytes of the scales, and of the minimums if there are any.
    pub(super) scales_bytes: usize,
    /// Where the codes start.
    pub(super) codes_offset: usize,
    /// Bytes of a strip.
    pub(super) strip_bytes: usize,
}

impl StripLayout {
    fn new(ggml_type: GgmlType, columns: usize) -> Self {
        let Some(form) = IntegerForm::of(ggml_type) else {
            let strip_bytes = columns * LANES * ggml_type.block_bytes();
            return Self { form: None, scales_bytes: 0, codes_offset: 0, strip_bytes };
        };
        let element = if form.half_scales { 2 } else { 4 };
        let scales_bytes = columns / form.sub_block_elements * LANES * element;
        let sections = if form.has_minimum { 2 } else { 1 };
        let codes_offset = (sections * scales_bytes).next_multiple_of(64);
        let strip_bytes = codes_offset + columns / BLOCK * block_bytes(form.code_bits);
        Self { form: Some(form), scales_bytes, codes_offset, strip_bytes }
    }
}

/// Bytes of the codes of sixteen outputs by 32 inputs.
pub(super) const fn block_bytes(code_bits: CodeBits) -> usize {
    match code_bits {
        CodeBits::Four => LANES * BLOCK / 2,
        CodeBits::Seven | CodeBits::Eight => LANES * BLOCK,
    }
}

/// Where in a block's codes the code of an output (`lane`) and an input is, and by how much it is shifted there.
const fn code_place(code_bits: CodeBits, lane: usize, input: usize) -> (usize, u32) {
    let (group, within) = (input / 4, lane * 4 + input % 4);
    match code_bits {
        CodeBits::Four => (group % 4 * 64 + within, if group < 4 { 0 } else { 4 }),
        CodeBits::Seven | CodeBits::Eight => (group * 64 + within, 0),
    }
}

impl PackedMatrix {
    /// Repacks GGML data of `rows` rows of `columns`. Costs one pass over the data and about as much memory as the data
    /// (five- and six-bit types are held in eight bits).
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
        let layout = StripLayout::new(ggml_type, columns);
        let packed = AlignedBytes::zeroed(rows.div_ceil(LANES) * layout.strip_bytes);
        let mut matrix = Self { ggml_type, rows, columns, layout, bytes: packed };
        let mut integers = IntegerRow::default();
        for (row, data) in bytes.chunks_exact(expected / rows).enumerate() {
            match layout.form {
                Some(form) => {
                    integers.decode(ggml_type, data);
                    matrix.put_integers(row, form, &integers);
                }
                None => matrix.put_floats(row, data),
            }
        }
        Ok(matrix)
    }

    fn put_integers(&mut self, row: usize, form: IntegerForm, integers: &IntegerRow) {
        let (layout, lane) = (self.layout, row % LANES);
        let strip = &mut self.bytes[row / LANES * layout.strip_bytes..][..layout.strip_bytes];
        let (scales, codes) = strip.split_at_mut(layout.codes_offset);
        for (sub, (scale, minimum)) in integers.scales.iter().zip(&integers.minimums).enumerate() {
            let place = sub * LANES + lane;
            put_scale(scales, form, place, *scale);
            if form.has_minimum {
                put_scale(&mut scales[layout.scales_bytes..], form, place, *minimum);
            }
        }
        let blocks = codes.chunks_exact_mut(block_bytes(form.code_bits));
        for (block, row_codes) in blocks.zip(integers.codes.chunks_exact(BLOCK)) {
            for (input, code) in row_codes.iter().enumerate() {
                let (place, shift) = code_place(form.code_bits, lane, input);
                block[place] |= code << shift;
            }
        }
    }

    fn put_floats(&mut self, row: usize, data: &[u8]) {
        let element = self.ggml_type.block_bytes();
        let strip = &mut self.bytes[row / LANES * self.layout.strip_bytes..];
        for (input, value) in data.chunks_exact(element).enumerate() {
            strip[(input * LANES + row % LANES) * element..][..element].copy_from_slice(value);
        }
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

    /// Bytes it occupies; all of them are read by a multiplication.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn num_strips(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    pub(super) fn layout(&self) -> StripLayout {
        self.layout
    }

    pub(super) fn strip(&self, strip: usize) -> &[u8] {
        &self.bytes[strip * self.layout.strip_bytes..][..self.layout.strip_bytes]
    }

    /// The exact values of a row. Panics if there is no such row or `out` is not `columns` long.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.columns, "row {row} of {}", self.rows);
        let (strip, lane) = (self.strip(row / LANES), row % LANES);
        let Some(form) = self.layout.form else {
            let element = self.ggml_type.block_bytes();
            for (input, out) in out.iter_mut().enumerate() {
                let value = &strip[(input * LANES + lane) * element..][..element];
                dequantize(self.ggml_type, value, std::slice::from_mut(out)).expect("one element");
            }
            return;
        };
        let (scales, codes) = strip.split_at(self.layout.codes_offset);
        let blocks = codes.chunks_exact(block_bytes(form.code_bits));
        let mask = if form.code_bits == CodeBits::Four { 15 } else { 255 };
        for (block, (codes, out)) in blocks.zip(out.chunks_exact_mut(BLOCK)).enumerate() {
            for (input, out) in out.iter_mut().enumerate() {
                let sub = (block * BLOCK + input) / form.sub_block_elements * LANES + lane;
                let (place, shift) = code_place(form.code_bits, lane, input);
                let code = f32::from(codes[place] >> shift & mask) - f32::from(form.zero_point);
                *out = code * scale_at(scales, form, sub);
                if form.has_minimum {
                    *out += scale_at(&scales[self.layout.scales_bytes..], form, sub);
                }
            }
        }
    }
}

fn put_scale(scales: &mut [u8], form: IntegerForm, place: usize, value: f32) {
    if form.half_scales {
        scales[2 * place..][..2].copy_from_slice(&f32_to_f16(value).to_le_bytes());
    } else {
        scales[4 * place..][..4].copy_from_slice(&value.to_le_bytes());
    }
}

fn scale_at(scales: &[u8], form: IntegerForm, place: usize) -> f32 {
    if form.half_scales {
        f16_to_f32(u16::from_le_bytes([scales[2 * place], scales[2 * place + 1]]))
    } else {
        let bytes = &scales[4 * place..][..4];
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_loses_nothing() {
        for ggml_type in GgmlType::ALL {
            for rows in [1, 15, 16, 37] {
                let columns =
                    if ggml_type.block_elements() == 1 { 37 } else { 3 * ggml_type.block_elements() };
                let blocks = rows * columns / ggml_type.block_elements();
                let bytes = crate::test_data::blocks(ggml_type, blocks, rows as u64);
                let mut expected = vec![0.0; rows * columns];
                dequantize(ggml_type, &bytes, &mut expected).unwrap();
                let matrix = PackedMatrix::pack(ggml_type, &bytes, rows, columns).unwrap();
                let mut row_values = vec![0.0; columns];
                for (row, expected) in expected.chunks_exact(columns).enumerate() {
                    matrix.dequantize_row(row, &mut row_values);
                    assert_eq!(row_values, expected, "{ggml_type:?} row {row} of {rows}");
                }
            }
        }
    }

    #[test]
    fn four_bit_weights_take_no_more_memory_than_in_the_file() {
        let bytes = crate::test_data::blocks(GgmlType::Q4_1, 64 * 18, 1);
        let matrix = PackedMatrix::pack(GgmlType::Q4_1, &bytes, 64, 576).unwrap();
        assert_eq!(matrix.memory_bytes(), bytes.len());
    }

    #[test]
    fn shapes_and_lengths_are_checked() {
        let pack = |len, rows, columns| {
            PackedMatrix::pack(GgmlType::Q8_0, &vec![0; len], rows, columns).unwrap_err()
        };
        assert!(matches!(pack(34, 1, 31), PackError::Shape { .. }));
        assert!(matches!(pack(0, 0, 32), PackError::Shape { .. }));
        assert!(matches!(pack(34, usize::MAX, 32), PackError::Shape { .. }));
        assert_eq!(pack(35, 1, 32), PackError::Length { actual: 35, expected: 34 });
    }
}
