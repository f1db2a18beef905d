//! Normalisation, gated activations, the rows that sample, conversions.

use weir_kernels::cuda::ops::{Gate, StepRow, StepSample};

use crate::random::Random;
use crate::support::{
    ACTIVATIONS, Fixture, SINGLE, activations, assert_near, limits, rounding, step, values,
};

#[test]
fn rms_norm_is_that_of_double_precision() {
    let fixture = Fixture::new();
    for activation in ACTIVATIONS {
        let operations = fixture.operations(activation);
        // One vector; fewer than the block's threads; more; any number.
        let any = 4 * (1 + Random(9).below(700));
        let shapes = [(1, 4, 1e-4, 1e-5), (3, 100, 30.0, 1e-6), (2, 2052, 1.0, 1e-5), (4, any, 2.0, 1e-6)];
        for (rows, dim, size, epsilon) in shapes {
            let mut random = Random(dim as u64);
            let (x, weight) = (random.floats_within(size, rows * dim), random.floats_within(2.0, dim));
            let out = fixture.in_every_order(|| {
                let device = &fixture.device;
                let on_device = (device.buffer_of(&x).unwrap(), device.buffer_of(&weight).unwrap());
                let mut out = device.zeros(rows * dim).unwrap();
                operations.rms_norm(&on_device.0, rows, &on_device.1, epsilon, &mut out).unwrap();
                device.read(&out).unwrap()
            });
            let out = values(activation, &out);
            for row in 0..rows {
                let squares: f64 = x[row * dim..][..dim].iter().map(|x| f64::from(*x).powi(2)).sum();
                let inverse = (squares / dim as f64 + f64::from(epsilon)).sqrt().recip();
                for i in 0..dim {
                    let expected = f64::from(x[row * dim + i]) * inverse * f64::from(weight[i]);
                    // The format's rounding, once; a sum of squares has no cancellation, so that all else is a few of single precision.
                    let tolerance = rounding(activation, expected) + 8.0 * SINGLE * expected.abs();
                    assert_near(out[row * dim + i], expected, tolerance, format_args!("{dim}: {row}, {i}"));
                }
            }
        }
    }
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}

#[test]
fn gated_activations_are_those_of_double_precision() {
    let fixture = Fixture::new();
    for activation in ACTIVATIONS {
        let operations = fixture.operations(activation);
        let any = 8 * (1 + Random(10).below(500));
        for (rows, columns, size) in [(1, 8, 1.0), (3, 200, 6.0), (2, 2056, 120.0), (2, any, 10.0)] {
            let mut gate_up = activations(&mut Random(columns as u64), activation, 2 * rows * columns, size);
            // Where exp overflows, and where it vanishes.
            for (i, (gate, up)) in [(-1e4, 1.5), (1e4, 1.5)].into_iter().enumerate() {
                (gate_up[i], gate_up[columns + i]) = (activation.bits(gate), activation.bits(up));
            }
            let gate_ups = values(activation, &gate_up);
            for gate in [Gate::Silu, Gate::GeluTanh] {
                let out = fixture.in_every_order(|| {
                    let gate_up = fixture.device.buffer_of(&gate_up).unwrap();
                    let mut out = fixture.device.zeros(rows * columns).unwrap();
                    operations.gated(gate, &gate_up, rows, columns, &mut out).unwrap();
                    fixture.device.read(&out).unwrap()
                });
                for (at, got) in values(activation, &out).into_iter().enumerate() {
                    let (row, column) = (at / columns, at % columns);
                    let x = gate_ups[2 * row * columns + column];
                    let up = gate_ups[(2 * row + 1) * columns + column];
                    let expected = up * if gate == Gate::Silu { silu(x) } else { gelu_tanh(x) };
                    // The format's rounding, once. exp and tanh are off by a few roundings of single precision; where the tail cancels
                    // (1 + tanh near 0) these are relative to x, not to the result.
                    let tolerance = rounding(activation, expected) + 16.0 * SINGLE * (x * up).abs();
                    assert_near(
                        got,
                        expected,
                        tolerance,
                        format_args!("{gate:?} {columns}: {row}, {column}"),
                    );
                }
            }
        }
    }
}

#[test]
fn gathered_rows_are_those_that_sample() {
    let fixture = Fixture::new();
    let operations = fixture.operations(ACTIVATIONS[0]);
    for dim in [4, 1028] {
        let hidden = Random(1).floats(12 * dim);
        let out = fixture.in_every_order(|| {
            let device = &fixture.device;
            let rows = [
                StepRow { seat: 0, start_position: 0, tokens: Some(&[1, 2, 3]) },
                StepRow { seat: 3, start_position: 9, tokens: None },
                StepRow { seat: 1, start_position: 5, tokens: Some(&[4, 5]) },
            ];
            let samples = [2, 0, 1].map(|row| StepSample { row, mask: None });
            let step = step(device, limits(12, 5), &rows, &samples);
            let mut out = device.buffer_of(&vec![f32::NAN; 5 * dim]).unwrap();
            operations.gather(&device.buffer_of(&hidden).unwrap(), &step, 5, dim, &mut out).unwrap();
            device.read(&out).unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>()
        });
        // The last tokens of the third row, the first and the second; then two samples that are not there.
        let tokens = [Some(5), Some(2), Some(3), None, None];
        for (row, token) in out.chunks_exact(dim).zip(tokens) {
            for (i, &bits) in row.iter().enumerate() {
                assert_eq!(bits, token.map_or(0, |token| hidden[token * dim + i].to_bits()));
            }
        }
    }
}

#[test]
fn conversions_round_once_to_the_nearest() {
    let fixture = Fixture::new();
    for activation in ACTIVATIONS {
        let operations = fixture.operations(activation);
        let mut x = Random(3).floats_within(3.0, 1500);
        // Ties, of which half are rounded up; then what has no number in the format, or hardly one.
        x.extend([1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, 1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0]);
        x.extend([f32::INFINITY, f32::NEG_INFINITY, 7e4, -7e4, 1e-7, -3e-8, 0.0, -0.0, 1e-40]);
        let bits: Vec<u16> = x.iter().map(|x| activation.bits(*x)).collect();
        let (rounded, back) = fixture.in_every_order(|| {
            let device = &fixture.device;
            let mut rounded = device.zeros(x.len()).unwrap();
            operations.to_activation(&device.buffer_of(&x).unwrap(), x.len(), &mut rounded).unwrap();
            let mut back = device.zeros(x.len()).unwrap();
            operations.to_f32(&rounded, x.len(), &mut back).unwrap();
            let back = device.read(&back).unwrap();
            (device.read(&rounded).unwrap(), back.into_iter().map(f32::to_bits).collect::<Vec<_>>())
        });
        assert_eq!(rounded, bits);
        let values: Vec<u32> = bits.iter().map(|bits| activation.value(*bits).to_bits()).collect();
        assert_eq!(back, values);
    }
}
