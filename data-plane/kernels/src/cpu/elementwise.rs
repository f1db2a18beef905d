//! Row operations over any [`Simd`]: exponential, RMSNorm, gated activations. Each gives the same bits on every
//! instruction set.

use super::simd::{LANES, Simd};

/// e to the power of each lane, within two units in the last place. Below −87 it flushes towards the smallest normal number,
/// above 88 it stays there.
///
/// Cephes' `expf`: x = n·ln 2 + r, a polynomial for e^r, then n into the exponent.
#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    const POLYNOMIAL: [f32; 6] =
        [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5.0e-1];
    let x = s.max(s.min(x, s.splat(88.0)), s.splat(-87.0));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let n_float = s.to_float(n);
    let r = s.fma(n_float, s.splat(-0.693_359_4), x);
    let r = s.fma(n_float, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(POLYNOMIAL[0]);
    p = s.fma(p, r, s.splat(POLYNOMIAL[1]));
    p = s.fma(p, r, s.splat(POLYNOMIAL[2]));
    p = s.fma(p, r, s.splat(POLYNOMIAL[3]));
    p = s.fma(p, r, s.splat(POLYNOMIAL[4]));
    p = s.fma(p, r, s.splat(POLYNOMIAL[5]));
    let p = s.add(s.fma(p, s.mul(r, r), r), s.splat(1.0));
    s.mul(p, s.power_of_two(n))
}

/// `silu(gate) · up`.
struct SiluMul;

impl<S: Simd> TwoToOne<S> for SiluMul {
    #[inline(always)]
    fn apply(&self, s: S, gate: S::F, up: S::F) -> S::F {
        let denominator = s.add(s.splat(1.0), exp(s, s.sub(s.splat(0.0), gate)));
        s.mul(s.div(gate, denominator), up)
    }
}

/// `gelu_tanh(gate) · up`, with tanh(u) = 1 − 2 / (e^2u + 1), so 0.5·(1 + tanh u) = 1 − 1 / (e^2u + 1).
struct GeluTanhMul;

impl<S: Simd> TwoToOne<S> for GeluTanhMul {
    #[inline(always)]
    fn apply(&self, s: S, gate: S::F, up: S::F) -> S::F {
        const TWICE_SQRT_2_OVER_PI: f32 = 1.595_769;
        let cube = s.mul(s.mul(gate, gate), gate);
        let twice_inner = s.mul(s.splat(TWICE_SQRT_2_OVER_PI), s.fma(s.splat(0.044_715), cube, gate));
        let denominator = s.add(exp(s, twice_inner), s.splat(1.0));
        let half_one_plus_tanh = s.sub(s.splat(1.0), s.div(s.splat(1.0), denominator));
        s.mul(s.mul(gate, half_one_plus_tanh), up)
    }
}

/// The element-wise operations of two inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    Silu,
    GeluTanh,
}

/// `out = gate(a) · b`, any length.
#[inline(always)]
pub(super) fn gate_row<S: Simd>(s: S, gate: Gate, a: &[f32], b: &[f32], out: &mut [f32]) {
    match gate {
        Gate::Silu => map_two(s, a, b, out, SiluMul),
        Gate::GeluTanh => map_two(s, a, b, out, GeluTanhMul),
    }
}

/// `out = x / rms(x) · weight`, one row of any length.
#[inline(always)]
pub(super) fn rms_norm_row<S: Simd>(s: S, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let inverse = s.splat(inverse_rms(s, x, epsilon));
    map_two(s, x, weight, out, NormBy(inverse));
}

/// `residual += x / rms(x) · weight`, one row of any length.
#[inline(always)]
pub(super) fn add_rms_norm_row<S: Simd>(s: S, x: &[f32], weight: &[f32], epsilon: f32, residual: &mut [f32]) {
    let inverse = s.splat(inverse_rms(s, x, epsilon));
    let vectors = x.len() / LANES;
    let (x_vectors, x_tail) = x.as_chunks::<LANES>();
    let (weight_vectors, weight_tail) = weight.as_chunks::<LANES>();
    let (residual_vectors, residual_tail) = residual.as_chunks_mut::<LANES>();
    for i in 0..vectors {
        let normed = s.mul(s.mul(s.array(&x_vectors[i]), inverse), s.array(&weight_vectors[i]));
        residual_vectors[i] = s.to_array(s.add(s.array(&residual_vectors[i]), normed));
    }
    let normed = s.mul(s.mul(s.array(&padded(x_tail)), inverse), s.array(&padded(weight_tail)));
    let sum = s.to_array(s.add(s.array(&padded(residual_tail)), normed));
    residual_tail.copy_from_slice(&sum[..residual_tail.len()]);
}

/// 1 / sqrt(mean(x²) + epsilon); the squares are summed in sixteen lanes and these in one tree.
#[inline(always)]
fn inverse_rms<S: Simd>(s: S, x: &[f32], epsilon: f32) -> f32 {
    let (vectors, tail) = x.as_chunks::<LANES>();
    let mut squares = s.splat(0.0);
    for vector in vectors {
        let vector = s.array(vector);
        squares = s.fma(vector, vector, squares);
    }
    let last = s.array(&padded(tail));
    squares = s.fma(last, last, squares);
    #[expect(clippy::cast_precision_loss, reason = "rows are far shorter than 2^24")]
    let mean = s.reduce_add(squares) / x.len() as f32;
    1.0 / (mean + epsilon).sqrt()
}

/// A function of two vectors; a closure or function pointer would not be inlined into code with an instruction set enabled.
trait TwoToOne<S: Simd> {
    fn apply(&self, s: S, a: S::F, b: S::F) -> S::F;
}

/// `a · inverse · b`.
struct NormBy<F>(F);

impl<S: Simd> TwoToOne<S> for NormBy<S::F> {
    #[inline(always)]
    fn apply(&self, s: S, a: S::F, b: S::F) -> S::F {
        s.mul(s.mul(a, self.0), b)
    }
}

#[inline(always)]
fn map_two<S: Simd>(s: S, a: &[f32], b: &[f32], out: &mut [f32], f: impl TwoToOne<S>) {
    assert!(a.len() == b.len() && b.len() == out.len(), "one length");
    let vectors = out.len() / LANES;
    let (a_vectors, a_tail) = a.as_chunks::<LANES>();
    let (b_vectors, b_tail) = b.as_chunks::<LANES>();
    let (out_vectors, out_tail) = out.as_chunks_mut::<LANES>();
    for i in 0..vectors {
        out_vectors[i] = s.to_array(f.apply(s, s.array(&a_vectors[i]), s.array(&b_vectors[i])));
    }
    if !out_tail.is_empty() {
        let last = s.to_array(f.apply(s, s.array(&padded(a_tail)), s.array(&padded(b_tail))));
        out_tail.copy_from_slice(&last[..out_tail.len()]);
    }
}

/// A tail as a whole vector, zeros behind it.
#[inline(always)]
fn padded(tail: &[f32]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    lanes[..tail.len()].copy_from_slice(tail);
    lanes
}
