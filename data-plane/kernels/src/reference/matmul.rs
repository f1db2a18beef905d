//! Matrix multiplication by a weight stored row by row.

/// `out[n, m] = x[n, k] · weight[m, k]ᵀ`. `columns` is k; n and m follow from the lengths.
pub fn matmul(weight: &[f32], columns: usize, x: &[f32], out: &mut [f32]) {
    assert!(weight.len().is_multiple_of(columns) && x.len().is_multiple_of(columns), "whole rows");
    let weight_rows = weight.len() / columns;
    assert_eq!(out.len(), x.len() / columns * weight_rows, "one output for each row and weight row");
    for (x, out) in x.chunks_exact(columns).zip(out.chunks_exact_mut(weight_rows)) {
        for (weight, out) in weight.chunks_exact(columns).zip(out) {
            *out = dot(x, weight);
        }
    }
}

/// A dot product: sixteen single-precision partial sums (so that the compiler may vectorise, and the error grows with
/// a sixteenth of the length), added up in double precision.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "vectors of one length");
    let mut sums = [0.0_f32; 16];
    let (a_chunks, b_chunks) = (a.chunks_exact(16), b.chunks_exact(16));
    let tail: f64 =
        a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| f64::from(a * b)).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    #[expect(clippy::cast_possible_truncation, reason = "rounding to single precision")]
    let total = (sums.into_iter().map(f64::from).sum::<f64>() + tail) as f32;
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_product() {
        let weight = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let mut out = [0.0; 4];
        matmul(&weight, 3, &[1.0, 0.0, -1.0, 2.0, 1.0, 0.5], &mut out);
        assert_eq!(out, [-2.0, -2.0, 5.5, 16.0]);
    }

    #[test]
    fn tails_count() {
        let a: Vec<f32> = (0..35_u8).map(f32::from).collect();
        assert_eq!(dot(&a, &[1.0; 35]), 595.0);
    }
}
