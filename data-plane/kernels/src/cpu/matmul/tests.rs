//! Against the reference, and bit for bit across instruction sets, batch sizes and thread counts.

use super::*;
use crate::cpu::Cpu;
use crate::quant::blocks::IntegerForm;
use crate::quant::{GgmlType, dequantize};
use crate::reference;
use crate::test_data::{Random, blocks};

fn weight(ggml_type: GgmlType, rows: usize, columns: usize, seed: u64) -> (PackedMatrix, Vec<f32>) {
    let bytes = blocks(ggml_type, rows * columns / ggml_type.block_elements(), seed);
    let mut plain = vec![0.0; rows * columns];
    dequantize(ggml_type, &bytes, &mut plain).unwrap();
    (PackedMatrix::pack(ggml_type, &bytes, rows, columns).unwrap(), plain)
}

fn product(cpu: &Cpu, input: MatmulInput<'_>, weight: &PackedMatrix) -> Vec<f32> {
    let mut out = vec![f32::NAN; input.len() / weight.columns() * weight.rows()];
    cpu.matmul(input, &mut [MatmulOutput { weight, out: &mut out, accumulate: false }]);
    out
}

fn columns_of(ggml_type: GgmlType) -> usize {
    if ggml_type.block_elements() == 1 { 45 } else { 3 * ggml_type.block_elements() }
}

/// Quantised activations differ from exact ones by rounding; floating-point weights only by the order of sums.
#[test]
fn products_are_close_to_the_reference() {
    let cpu = Cpu::new(Isa::Generic, 1);
    for ggml_type in GgmlType::ALL {
        let columns = columns_of(ggml_type);
        let (packed, plain) = weight(ggml_type, 37, columns, 5);
        let x = Random(9).floats(3 * columns);
        let mut expected = vec![0.0; 3 * 37];
        reference::matmul(&plain, columns, &x, &mut expected);
        let actual = product(&cpu, MatmulInput::Rows(&x), &packed);
        for (i, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
            let row = &plain[i % 37 * columns..][..columns];
            // Each input is off by at most half a step of the largest of its block; steps are independent, so six deviations
            // are generous. The order of sums takes its share.
            let norm = row.iter().map(|weight| weight * weight).sum::<f32>().sqrt();
            let quantized = IntegerForm::of(ggml_type).is_some();
            let tolerance = norm * if quantized { 6.0 * 0.29 / (127.0 * 254.0) + 1e-5 } else { 1e-5 };
            assert!((actual - expected).abs() <= tolerance, "{ggml_type:?} {i}: {actual} for {expected}");
        }
    }
}

#[test]
fn bits_do_not_depend_on_instruction_set_batch_or_threads() {
    let one = Cpu::new(Isa::Generic, 1);
    let others: Vec<Cpu> =
        Isa::available().into_iter().flat_map(|isa| [1, 3].map(|threads| Cpu::new(isa, threads))).collect();
    for ggml_type in GgmlType::ALL {
        let columns = columns_of(ggml_type);
        for weight_rows in [16, 37] {
            let (packed, _) = weight(ggml_type, weight_rows, columns, 6);
            let x = Random(1).floats(41 * columns);
            let alone: Vec<f32> =
                x.chunks_exact(columns).flat_map(|x| product(&one, MatmulInput::Rows(x), &packed)).collect();
            for cpu in &others {
                for rows in [1, 2, 3, 6, 7, 9, 16, 17, 22, 41] {
                    let batch = product(cpu, MatmulInput::Rows(&x[..rows * columns]), &packed);
                    let same = batch.iter().zip(&alone).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{ggml_type:?} {:?} {rows} rows of {weight_rows}", cpu.isa());
                }
            }
        }
    }
}

#[test]
fn transforms_are_the_references() {
    let columns = 96;
    let (packed, plain) = weight(GgmlType::F32, 5, columns, 2);
    let mut random = Random(4);
    let (a, b) = (random.floats(2 * columns), random.floats(2 * columns));
    let norm_weight = random.floats(columns);
    let transformed = |f: &dyn Fn(&mut [f32])| {
        let mut x = vec![0.0; 2 * columns];
        f(&mut x);
        let mut out = vec![0.0; 2 * 5];
        reference::matmul(&plain, columns, &x, &mut out);
        out
    };
    let epsilon = 1e-5;
    let cases = [
        (
            MatmulInput::RmsNorm { x: &a, weight: &norm_weight, epsilon },
            transformed(&|x| reference::rms_norm(&a, &norm_weight, epsilon, x)),
        ),
        (MatmulInput::SiluMul { gate: &a, up: &b }, transformed(&|x| reference::silu_mul(&a, &b, x))),
        (
            MatmulInput::GeluTanhMul { gate: &a, up: &b },
            transformed(&|x| reference::gelu_tanh_mul(&a, &b, x)),
        ),
    ];
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, 2);
        for (input, expected) in &cases {
            let actual = product(&cpu, *input, &packed);
            for (actual, expected) in actual.iter().zip(expected) {
                assert!((actual - expected).abs() < 2e-5, "{isa:?} {actual} for {expected}");
            }
        }
    }
}

#[test]
fn several_weights_share_one_input_and_add_to_their_outputs() {
    let columns = 256;
    let mut random = Random(8);
    let x = random.floats(3 * columns);
    let types = [GgmlType::Q4_1, GgmlType::Q6_K, GgmlType::F16];
    let weights = types.map(|ggml_type| weight(ggml_type, 20, columns, 3).0);
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, 2);
        let before = random.floats(3 * 20);
        let mut outs = [before.clone(), before.clone(), before.clone()];
        let mut outputs: Vec<MatmulOutput<'_>> = weights
            .iter()
            .zip(&mut outs)
            .map(|(weight, out)| MatmulOutput { weight, out, accumulate: true })
            .collect();
        cpu.matmul(MatmulInput::Rows(&x), &mut outputs);
        for (weight, out) in weights.iter().zip(&outs) {
            let product = product(&cpu, MatmulInput::Rows(&x), weight);
            let expected: Vec<f32> =
                before.iter().zip(product).map(|(before, product)| before + product).collect();
            assert_eq!(*out, expected, "{isa:?} {:?}", weight.ggml_type());
        }
    }
}

#[test]
fn zero_and_tiny_rows_stay_finite() {
    let (packed, _) = weight(GgmlType::Q4_1, 16, 64, 1);
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, 1);
        assert!(product(&cpu, MatmulInput::Rows(&[0.0; 64]), &packed).iter().all(|value| *value == 0.0));
        let tiny = product(&cpu, MatmulInput::Rows(&[f32::MIN_POSITIVE / 8.0; 64]), &packed);
        assert!(tiny.iter().all(|value| value.is_finite()), "{isa:?}");
    }
}
