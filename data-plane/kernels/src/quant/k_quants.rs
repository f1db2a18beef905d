//! The 256-element types Q4_K, Q5_K and Q6_K.

use super::half::f16_at;

/// Scale and minimum (six bits each) of the eight sub-blocks of 32, from the twelve packed bytes of Q4_K and Q5_K: the
/// first four of each are the low six bits of bytes 0..8; the others take four bits of bytes 8..12 and their upper two
/// bits from the top of bytes 0..8.
pub(super) fn scales_and_minimums(packed: &[u8]) -> [(u8, u8); 8] {
    let mut out = [(0, 0); 8];
    for j in 0..4 {
        out[j] = (packed[j] & 63, packed[j + 4] & 63);
        let upper = (packed[j] >> 6, packed[j + 4] >> 6);
        out[j + 4] = (packed[j + 8] & 15 | upper.0 << 4, packed[j + 8] >> 4 | upper.1 << 4);
    }
    out
}

/// Codes of Q4_K: in each run of 32 bytes the low nibbles are one sub-block, the high nibbles the next.
pub(super) fn q4_k_codes(block: &[u8]) -> [u8; 256] {
    let mut codes = [0; 256];
    for (codes, qs) in codes.chunks_exact_mut(64).zip(block[16..144].chunks_exact(32)) {
        for (l, q) in qs.iter().enumerate() {
            codes[l] = q & 15;
            codes[l + 32] = q >> 4;
        }
    }
    codes
}

/// Codes of Q5_K: as Q4_K, with bit `j` of `qh[l]` the fifth bit of element `l` of sub-block `j`.
pub(super) fn q5_k_codes(block: &[u8]) -> [u8; 256] {
    let (high_bits, nibbles) = (&block[16..48], &block[48..176]);
    let mut codes = [0; 256];
    for (j, codes) in codes.chunks_exact_mut(32).enumerate() {
        let qs = &nibbles[j / 2 * 32..][..32];
        for (l, code) in codes.iter_mut().enumerate() {
            let nibble = if j % 2 == 0 { qs[l] & 15 } else { qs[l] >> 4 };
            *code = nibble | (high_bits[l] >> j & 1) << 4;
        }
    }
    codes
}

/// Codes of Q6_K (0..64, stored with 32 added): two halves of 128, each 64 bytes of nibbles and 32 bytes of upper bits.
pub(super) fn q6_k_codes(block: &[u8]) -> [u8; 256] {
    let mut codes = [0; 256];
    for (half, codes) in codes.chunks_exact_mut(128).enumerate() {
        let low = &block[half * 64..][..64];
        let high = &block[128 + half * 32..][..32];
        for l in 0..32 {
            codes[l] = low[l] & 15 | (high[l] & 3) << 4;
            codes[l + 32] = low[l + 32] & 15 | (high[l] >> 2 & 3) << 4;
            codes[l + 64] = low[l] >> 4 | (high[l] >> 4 & 3) << 4;
            codes[l + 96] = low[l + 32] >> 4 | (high[l] >> 6) << 4;
        }
    }
    codes
}

fn with_minimums(block: &[u8], codes: &[u8; 256], out: &mut [f32]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    let subs = codes.chunks_exact(32).zip(out.chunks_exact_mut(32));
    for ((scale, minimum), (codes, out)) in scales_and_minimums(&block[4..16]).into_iter().zip(subs) {
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        for (out, q) in out.iter_mut().zip(codes) {
            *out = scale * f32::from(*q) - minimum;
        }
    }
}

/// `{f16 d; f16 dmin; u8 scales[12]; u8 qs[128]}`: value = d·scale·q − dmin·minimum.
pub(super) fn q4_k(block: &[u8], out: &mut [f32]) {
    with_minimums(block, &q4_k_codes(block), out);
}

/// `{f16 d; f16 dmin; u8 scales[12]; u8 qh[32]; u8 qs[128]}`: as Q4_K with five bits.
pub(super) fn q5_k(block: &[u8], out: &mut [f32]) {
    with_minimums(block, &q5_k_codes(block), out);
}

/// `{u8 ql[128]; u8 qh[64]; i8 scales[16]; f16 d}`: value = d·scale·(q − 32), a scale for every 16 elements.
pub(super) fn q6_k(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 208);
    let codes = q6_k_codes(block);
    let subs = codes.chunks_exact(16).zip(out.chunks_exact_mut(16));
    for (scale, (codes, out)) in block[192..208].iter().zip(subs) {
        let scale = d * f32::from(scale.cast_signed());
        for (out, q) in out.iter_mut().zip(codes) {
            *out = scale * (f32::from(*q) - 32.0);
        }
    }
}
