//! Two planes for an input that eight bits would blur.
//!
//! The fast kernels round an input to 8 bits with one scale for 32 components. Measured along the golden texts, the rounding
//! of the input of the *value* projections alone made half of the variance of all noise in the logits (values are summed over
//! all positions, with no nonlinearity in between), and they are 3 % of the work, as are the keys. So their input is split
//! into what 8 bits hold exactly and the rest, which gets 8 bits of its own; the products add up.

/// Components with one scale in the kernels, so that the coarse plane survives their rounding unchanged.
const BLOCK: usize = 32;
/// Largest code of the kernels.
const CODE_MAX: f32 = 127.0;
/// Adding and subtracting this rounds to the nearest integer: 1.5 · 2²³, for numbers well below 2²².
const ROUND: f32 = 12_582_912.0;

/// Splits `x` into `coarse + fine`, of which `coarse` is on the grid of 8-bit codes of each block.
pub(super) fn split(x: &[f32], coarse: &mut [f32], fine: &mut [f32]) {
    assert!(x.len() == coarse.len() && x.len() == fine.len(), "one length");
    let planes = coarse.chunks_mut(BLOCK).zip(fine.chunks_mut(BLOCK));
    for (x, (coarse, fine)) in x.chunks(BLOCK).zip(planes) {
        let scale = x.iter().fold(0.0_f32, |max, value| max.max(value.abs())) / CODE_MAX;
        let inverse = if scale > 0.0 { scale.recip() } else { 0.0 };
        for ((x, coarse), fine) in x.iter().zip(coarse).zip(fine) {
            *coarse = (x * inverse + ROUND - ROUND) * scale;
            *fine = x - *coarse;
        }
    }
}

/// `out = a + b`.
pub(super) fn add(a: &[f32], b: &[f32], out: &mut [f32]) {
    assert!(a.len() == out.len() && b.len() == out.len(), "one length");
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = a + b;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_add_up_and_the_fine_one_is_small() {
        let x: Vec<f32> = (0..70_u8).map(|i| (f32::from(i) * 0.37).sin() * f32::from(i)).collect();
        let (mut coarse, mut fine, mut sum) = (vec![0.0; 70], vec![0.0; 70], vec![0.0; 70]);
        split(&x, &mut coarse, &mut fine);
        add(&coarse, &fine, &mut sum);
        for (block, x) in x.chunks(BLOCK).enumerate() {
            let largest = x.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
            for (i, x) in x.iter().enumerate() {
                let at = block * BLOCK + i;
                assert!((sum[at] - x).abs() <= 1e-6 * largest);
                assert!(fine[at].abs() <= largest / 254.0 * 1.001);
                let code = coarse[at] / (largest / 127.0);
                assert!((code - code.round()).abs() < 1e-4, "{code} is not a code");
            }
        }
        split(&[0.0; 32], &mut coarse[..32], &mut fine[..32]);
        assert!(coarse[..32].iter().chain(&fine[..32]).all(|value| *value == 0.0));
    }
}
