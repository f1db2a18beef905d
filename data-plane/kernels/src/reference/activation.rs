//! Gated activations and softmax.

/// `out = silu(gate) · up`, with silu(x) = x / (1 + e⁻ˣ).
pub fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == up.len() && up.len() == out.len(), "one length");
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        *out = gate / (1.0 + (-gate).exp()) * up;
    }
}

/// `out = gelu(gate) · up`, with the tanh form of GELU that Gemma uses.
pub fn gelu_tanh_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    assert!(gate.len() == up.len() && up.len() == out.len(), "one length");
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        let inner = SQRT_2_OVER_PI * (gate + 0.044_715 * gate * gate * gate);
        *out = 0.5 * gate * (1.0 + inner.tanh()) * up;
    }
}

/// Softmax in place; the maximum is subtracted first. An empty slice stays empty.
pub fn softmax(scores: &mut [f32]) {
    let maximum = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0_f64;
    for score in scores.iter_mut() {
        *score = (*score - maximum).exp();
        sum += f64::from(*score);
    }
    #[expect(clippy::cast_possible_truncation, reason = "rounding to single precision")]
    let inverse = (1.0 / sum) as f32;
    scores.iter_mut().for_each(|score| *score *= inverse);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_points() {
        let mut out = [0.0; 3];
        silu_mul(&[0.0, 1.0, -100.0], &[5.0, 2.0, 1.0], &mut out);
        assert_eq!(out[0], 0.0);
        assert!((out[1] - 1.462_117_2).abs() < 1e-6 && out[2].abs() < 1e-30);
        gelu_tanh_mul(&[0.0, 1.0, -10.0], &[5.0, 2.0, 1.0], &mut out);
        assert_eq!(out[0], 0.0);
        assert!((out[1] - 1.682_384).abs() < 1e-5 && out[2].abs() < 1e-6);
        softmax(&mut out);
        assert!((out.iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }
}
