//! Matrix products of every kind of weight, by each of the kernels for few, more and many rows.

use weir_kernels::cuda::ops::{ActivationType, LIBRARY_ROWS_MIN, Multiplier, Operations, Output, Weight};
use weir_kernels::quant::GgmlType;

use crate::matrix::Matrix;
use crate::random::Random;
use crate::support::{ACTIVATIONS, Fixture, SINGLE, activations, assert_near, rounding, values};

/// A product `[rows, n]` of `[rows, k]` activations.
struct Case {
    activation: ActivationType,
    n: usize,
    k: usize,
    x: Vec<u16>,
    matrix: Matrix,
    ggml_type: GgmlType,
    bias: Vec<f32>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Activations,
    Single,
    Residual,
}

/// What stands in an output before: a value that is neither a result nor NaN.
const BEFORE: f32 = 0.625;

impl Case {
    fn new(activation: ActivationType, ggml_type: GgmlType, rows: usize, n: usize, k: usize) -> Self {
        let mut random = Random((1000 * rows + 10 * n + k) as u64);
        let x = activations(&mut random, activation, rows * k, 1.0);
        let matrix = Matrix::random(&mut random, activation, ggml_type, (n, k));
        let bias = random.floats(n);
        Self { activation, n, k, x, matrix, ggml_type, bias }
    }

    /// The result for the rows from `first` on, as an output `[rows, stride]`.
    fn run(
        &self,
        operations: &Operations,
        multiplier: Multiplier,
        (first, rows): (usize, usize),
        kind: Kind,
        place: (usize, usize),
        has_bias: bool,
    ) -> Vec<f32> {
        let (device, activation) = (operations.device(), self.activation);
        let shape = (self.n, self.k);
        let weight = Weight::load(device, activation, self.ggml_type, &self.matrix.bytes, shape).unwrap();
        let x = device.buffer_of(&self.x[first * self.k..][..rows * self.k]).unwrap();
        let bias = has_bias.then(|| device.buffer_of(&self.bias).unwrap());
        let multiply = |out: Output<'_>| match multiplier {
            Multiplier::Own => operations.matmul(&x, rows, &weight, bias.as_ref(), out, place).unwrap(),
            Multiplier::Library => operations.matmul_by(multiplier, &x, rows, &weight, out, place).unwrap(),
        };
        if kind == Kind::Activations {
            let mut out = device.buffer_of(&vec![activation.bits(BEFORE); rows * place.0]).unwrap();
            multiply(Output::Activations(&mut out));
            return device.read(&out).unwrap().into_iter().map(|bits| activation.value(bits)).collect();
        }
        let mut out = device.buffer_of(&vec![BEFORE; rows * place.0]).unwrap();
        multiply(if kind == Kind::Single { Output::Single(&mut out) } else { Output::Residual(&mut out) });
        device.read(&out).unwrap()
    }

    /// Holds an output against sums in double precision; what is not the product's is as before.
    fn check(&self, out: &[f32], kind: Kind, (stride, column): (usize, usize), has_bias: bool) {
        let x = values(self.activation, &self.x);
        for (at, &got) in out.iter().enumerate() {
            let (row, j) = (at / stride, (at % stride).wrapping_sub(column));
            if j >= self.n {
                assert_eq!(got.to_bits(), BEFORE.to_bits(), "outside of the product");
                continue;
            }
            let terms = x[row * self.k..][..self.k].iter().zip(&self.matrix.values[j * self.k..][..self.k]);
            let (mut expected, mut magnitude) = (0.0, 0.0);
            for (x, w) in terms {
                expected += x * w;
                magnitude += (x * w).abs();
            }
            if has_bias {
                expected += f64::from(self.bias[j]);
            }
            if kind == Kind::Residual {
                expected += f64::from(BEFORE);
            }
            // Sums in single precision: their roundings go both ways, so that they come to a few of the terms' sum of magnitudes, not
            // to one for each term. Four-bit weights with a minimum are summed as two parts, each larger than the sum.
            let parts = if self.ggml_type == GgmlType::Q4_1 { 4.0 } else { 1.0 };
            let mut tolerance = 4.0 * parts * SINGLE * (magnitude + 2.0);
            if kind == Kind::Activations {
                // And one rounding to the activations' format.
                tolerance += rounding(self.activation, expected);
            }
            let what = format_args!(
                "{:?} {:?} {kind:?} n {} k {}: {row}, {j}",
                self.ggml_type, self.activation, self.n, self.k
            );
            assert_near(f64::from(got), expected, tolerance, what);
        }
    }
}

/// All weights in one of the formats of activations: rows, n, k, output and whether there is a bias.
fn check_all(fixture: &Fixture, activation: ActivationType, cases: &[(usize, usize, usize, Kind, bool)]) {
    let operations = fixture.operations(activation);
    let types = [Matrix::dense_type(activation), GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q4_1];
    for ggml_type in types {
        for &(rows, n, k, kind, has_bias) in cases {
            let case = Case::new(activation, ggml_type, rows, n, k);
            let place = ((n + 5).next_multiple_of(2), 2);
            let bits = fixture.in_every_order(|| {
                let out = case.run(&operations, Multiplier::Own, (0, rows), kind, place, has_bias);
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            });
            let out: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
            case.check(&out, kind, place, has_bias);
        }
    }
}

/// One column, one block of k; then an odd number of groups, and of blocks; then more groups than a slice takes at once.
#[test]
fn products_of_up_to_16_rows() {
    let fixture = Fixture::new();
    let cases = [
        (1, 1, 32, Kind::Activations, true),
        (5, 17, 96, Kind::Residual, false),
        (16, 33, 1120, Kind::Single, true),
        (2, 7, 2752, Kind::Residual, true),
    ];
    for activation in ACTIVATIONS {
        check_all(&fixture, activation, &cases);
    }
}

#[test]
fn products_of_up_to_64_rows() {
    let fixture = Fixture::new();
    let cases = [
        (17, 3, 32, Kind::Single, false),
        (33, 30, 544, Kind::Activations, true),
        (64, 17, 160, Kind::Residual, false),
    ];
    for activation in ACTIVATIONS {
        check_all(&fixture, activation, &cases);
    }
}

#[test]
fn products_of_more_rows() {
    let fixture = Fixture::new();
    let cases = [(65, 1, 32, Kind::Activations, false), (131, 133, 352, Kind::Residual, true)];
    for activation in ACTIVATIONS {
        check_all(&fixture, activation, &cases);
    }
}

#[test]
fn products_of_random_shapes() {
    let fixture = Fixture::new();
    let mut random = Random(5);
    for activation in ACTIVATIONS {
        for most_rows in [16, 16, 64, 150] {
            let (rows, n, k) =
                (1 + random.below(most_rows), 1 + random.below(70), 32 * (1 + random.below(24)));
            let kind = [Kind::Activations, Kind::Single, Kind::Residual][random.below(3)];
            check_all(&fixture, activation, &[(rows, n, k, kind, random.below(2) == 0)]);
        }
    }
}

#[test]
fn products_of_the_library() {
    let fixture = Fixture::new();
    let (n, k, place) = (72, 160, (96, 16));
    for activation in ACTIVATIONS {
        let operations = fixture.operations(activation).with_library().unwrap();
        // The stand-in has one; a machine need not.
        assert!(operations.has_library() || weir_stand_in::is_real());
        if operations.has_library() {
            for kind in [Kind::Activations, Kind::Single, Kind::Residual] {
                let rows = LIBRARY_ROWS_MIN;
                let case = Case::new(activation, Matrix::dense_type(activation), rows, n, k);
                let before = fixture.products_of_the_library();
                let out = case.run(&operations, Multiplier::Library, (0, rows), kind, place, false);
                case.check(&out, kind, place, false);
                assert!(weir_stand_in::is_real() || fixture.products_of_the_library() > before);
            }
        }
    }
}

/// However many rows there are, and wherever a row stands among them.
#[test]
fn a_rows_bits_do_not_depend_on_the_others() {
    let fixture = Fixture::new();
    for activation in ACTIVATIONS {
        let types = [Matrix::dense_type(activation), GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q4_1];
        let operations = fixture.operations(activation);
        for ggml_type in types {
            let (n, k) = (18, 672);
            let case = Case::new(activation, ggml_type, 130, n, k);
            let run = |which| case.run(&operations, Multiplier::Own, which, Kind::Single, (n, 0), true);
            let all = run((0, 130));
            for (first, rows) in [(0, 1), (129, 1), (60, 16), (77, 40), (3, 64), (1, 66)] {
                let some = run((first, rows));
                assert!(some == all[first * n..][..rows * n], "{ggml_type:?}: {rows} rows from {first}");
            }
        }
    }
}
