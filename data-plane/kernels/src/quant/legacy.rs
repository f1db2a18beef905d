//! The 32-element types Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0.

use super::half::f16_at;

/// `{f16 d; u8 qs[16]}`: the low nibbles are elements 0..16, the high nibbles 16..32; value = (q − 8)·d.
pub(super) fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    let (low, high) = out.split_at_mut(16);
    for ((low, high), q) in low.iter_mut().zip(high).zip(&block[2..18]) {
        *low = (f32::from(q & 15) - 8.0) * d;
        *high = (f32::from(q >> 4) - 8.0) * d;
    }
}

/// `{f16 d; f16 m; u8 qs[16]}`: value = q·d + m.
pub(super) fn q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    let (low, high) = out.split_at_mut(16);
    for ((low, high), q) in low.iter_mut().zip(high).zip(&block[4..20]) {
        *low = f32::from(q & 15) * d + m;
        *high = f32::from(q >> 4) * d + m;
    }
}

/// The 32 codes of a five-bit block: nibbles as in Q4_0, bit `i` of the little-endian word is element `i`'s fifth bit.
pub(super) fn five_bit_codes(high_bits: &[u8], nibbles: &[u8]) -> [u8; 32] {
    let high_bits = u32::from_le_bytes([high_bits[0], high_bits[1], high_bits[2], high_bits[3]]);
    let mut codes = [0; 32];
    for (i, q) in nibbles[..16].iter().enumerate() {
        codes[i] = q & 15 | u8::from(high_bits >> i & 1 == 1) << 4;
        codes[i + 16] = q >> 4 | u8::from(high_bits >> (i + 16) & 1 == 1) << 4;
    }
    codes
}

/// `{f16 d; u32 qh; u8 qs[16]}`: value = (q − 16)·d.
pub(super) fn q5_0(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (out, q) in out.iter_mut().zip(five_bit_codes(&block[2..6], &block[6..22])) {
        *out = (f32::from(q) - 16.0) * d;
    }
}

/// `{f16 d; f16 m; u32 qh; u8 qs[16]}`: value = q·d + m.
pub(super) fn q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    for (out, q) in out.iter_mut().zip(five_bit_codes(&block[4..8], &block[8..24])) {
        *out = f32::from(q) * d + m;
    }
}

/// `{f16 d; i8 qs[32]}`: value = q·d.
pub(super) fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (out, q) in out.iter_mut().zip(&block[2..34]) {
        *out = f32::from(q.cast_signed()) * d;
    }
}
