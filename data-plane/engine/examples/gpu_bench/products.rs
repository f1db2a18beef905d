//! Rates of matrix products.

use std::error::Error;

use weir_kernels::cuda::ops::{ActivationType, Formats, KvElement, Multiplier, Operations, Output, Weight};
use weir_kernels::cuda::{Device, DeviceBuffer, Peaks};
use weir_kernels::quant::GgmlType;

use super::report::{Measurement, Work};
use super::{Outcome, peaks, timing};

/// Inputs of a product: decode steps, and a chunk of prefill.
const ROWS: [usize; 5] = [1, 16, 64, 256, 2048];
/// Weights of a Llama 3 8B: `[outputs, inputs]`.
const SHAPES: [(&str, usize, usize); 5] = [
    ("query", 4096, 4096),
    ("key", 1024, 4096),
    ("gate", 14_336, 4096),
    ("down", 4096, 14_336),
    ("output", 128_256, 4096),
];

pub(crate) fn run(is_tiny: bool) -> Outcome {
    let device = Device::open(0)?;
    let activation = ActivationType::Bf16;
    let formats = Formats { activation, kv: KvElement::Bf16, head_dim: 128 };
    let bench = Bench {
        operations: Operations::load(&device, formats)?.with_library()?,
        peaks: peaks(&device)?,
        device,
        is_tiny,
    };
    let tiny_shapes = [("query", 64, 128)];
    let (shapes, rows) =
        if is_tiny { (&tiny_shapes[..], &[1, 17, 65][..]) } else { (&SHAPES[..], &ROWS[..]) };
    for weights in [GgmlType::BF16, GgmlType::Q8_0, GgmlType::Q4_0] {
        for &(name, outputs, inputs) in shapes {
            bench.shape(weights, name, (outputs, inputs), rows)?;
        }
    }
    Ok(())
}

struct Bench {
    device: Device,
    operations: Operations,
    peaks: Peaks,
    is_tiny: bool,
}

impl Bench {
    fn shape(
        &self,
        ggml_type: GgmlType,
        name: &str,
        (outputs, inputs): (usize, usize),
        rows: &[usize],
    ) -> Result<(), Box<dyn Error>> {
        let bytes = Weight::device_bytes(ggml_type, (outputs, inputs)).ok_or("a shape that overflows")?;
        // In turn, so that each comes from memory: together four times what the cache holds.
        let copies = if self.is_tiny { 1 } else { (4 * self.peaks.cache_bytes).div_ceil(bytes).max(1) };
        let weight =
            |seed| Weight::random(&self.device, ActivationType::Bf16, ggml_type, (outputs, inputs), seed);
        let weights = (0..copies as u64).map(weight).collect::<Result<Vec<_>, _>>()?;
        let most = rows.iter().copied().max().unwrap_or(1);
        // Values that repeat at another length than rows do.
        let values =
            (0..8191_u16).map(|i| ActivationType::Bf16.bits(f32::from(i * 2339 % 8191) / 4096.0 - 1.0));
        let mut x: DeviceBuffer<u16> = self.device.zeros(most * inputs)?;
        self.device.fill(&mut x, 0..most * inputs, &values.collect::<Vec<_>>())?;
        let mut out: DeviceBuffer<u16> = self.device.zeros(most * outputs)?;
        // The library multiplies by dense weights only.
        let by_library = self.operations.has_library() && ggml_type == GgmlType::BF16;
        let multipliers = [Multiplier::Own, Multiplier::Library];
        for (rows, multiplier) in
            rows.iter().flat_map(|rows| multipliers.map(|multiplier| (*rows, multiplier)))
        {
            if multiplier == Multiplier::Library && !by_library {
                continue;
            }
            let seconds = timing::seconds(&self.device, self.is_tiny, |turn| {
                let (weight, out) = (&weights[turn % copies], Output::Activations(&mut out));
                self.operations.matmul_by(multiplier, &x, rows, weight, out, (outputs, 0))
            })?;
            let by = if multiplier == Multiplier::Own { "own kernel" } else { "cuBLASLt" };
            let flops = 2.0 * rows as f64 * outputs as f64 * inputs as f64;
            Measurement {
                what: format!("product, {ggml_type:?}, {name} {outputs} x {inputs}, {rows} rows, {by}"),
                amount: flops / 1e12,
                unit: "TFLOP/s",
                seconds,
                work: Work { bytes: (bytes + 2 * rows * (inputs + outputs)) as f64, flops },
                peaks: &self.peaks,
            }
            .print();
        }
        Ok(())
    }
}
