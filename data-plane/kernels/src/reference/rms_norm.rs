//! Root-mean-square normalisation (Zhang and Sennrich 2019).

/// `out = x / sqrt(mean(x²) + epsilon) · weight`, row by row; a row is as long as `weight`.
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    assert!(x.len().is_multiple_of(weight.len()) && x.len() == out.len(), "whole rows");
    for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
        let squares: f64 = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "rounding is meant")]
        let mean = (squares / x.len() as f64) as f32;
        let inverse = 1.0 / (mean + epsilon).sqrt();
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * inverse * weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_divided_by_its_root_mean_square() {
        let mut out = [0.0; 4];
        rms_norm(&[3.0, 4.0, 0.0, 0.0], &[1.0, 2.0], 0.0_f32.max(1e-6), &mut out);
        let root = (12.5_f32 + 1e-6).sqrt();
        assert!((out[0] - 3.0 / root).abs() < 1e-6 && (out[1] - 8.0 / root).abs() < 1e-6);
        assert_eq!(out[2..], [0.0, 0.0]);
    }
}
