//! A device, orders of execution, and how near is near enough.

use std::fmt::{Debug, Display};
use std::path::Path;

use weir_kernels::cuda::Device;
use weir_kernels::cuda::ops::{
    ActivationType, Formats, KvElement, Operations, StepInputs, StepLimits, StepRow, StepSample,
};
use weir_stand_in::{Order, StandIn};

use crate::random::Random;

/// By their numbers, from the last, and shuffled anew after every wait.
const ORDERS: [Order; 3] = [Order::Forward, Order::Reverse, Order::Seeded(1)];

pub(crate) const ACTIVATIONS: [ActivationType; 2] = [ActivationType::Bf16, ActivationType::F16];

/// A device of the stand-in. Whatever is made on it must be dropped before.
pub(crate) struct Fixture {
    pub(crate) device: Device,
    stand_in: StandIn,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with_kernels(&[])
    }

    /// How many products cuBLASLt was asked for.
    pub(crate) fn products_of_the_library(&self) -> u64 {
        self.stand_in.calls("cublasLtMatmul")
    }

    /// The same with kernels that take the place of those of their names.
    pub(crate) fn with_kernels(sources: &[&Path]) -> Self {
        let stand_in = StandIn::load_with(sources);
        Self { device: Device::open_with(0, weir_stand_in::image()).unwrap(), stand_in }
    }

    pub(crate) fn operations(&self, activation: ActivationType) -> Operations {
        self.operations_for(Formats { activation, kv: KvElement::Bf16, head_dim: 64 })
    }

    pub(crate) fn operations_for(&self, formats: Formats) -> Operations {
        Operations::load(&self.device, formats).unwrap()
    }

    /// What `run` returns in every order of execution; it starts from new buffers each time.
    pub(crate) fn in_every_order<R: PartialEq + Debug>(&self, run: impl Fn() -> R) -> R {
        // One order is enough to look for accesses out of range.
        let orders = if weir_stand_in::is_sanitized() { &ORDERS[2..] } else { &ORDERS[..] };
        let mut results = orders.iter().map(|order| {
            self.stand_in.set_order(*order);
            run()
        });
        let first = results.next().unwrap();
        for (result, order) in results.zip(&orders[1..]) {
            assert!(result == first, "other bits in order {order:?}");
        }
        first
    }
}

/// Limits that leave room for everything but what they are given.
pub(crate) fn limits(tokens: usize, rows: usize) -> StepLimits {
    StepLimits {
        tokens,
        rows,
        seats: rows,
        max_blocks: 64,
        pages: 1,
        splits: rows,
        heads_per_kv: 1,
        window: None,
    }
}

/// The inputs of one step that moves no page.
pub(crate) fn step(
    device: &Device,
    limits: StepLimits,
    rows: &[StepRow<'_>],
    samples: &[StepSample],
) -> StepInputs {
    let mut step = StepInputs::new(device, limits, 1).unwrap();
    step.submit(device, rows, samples, &[], &[]).unwrap();
    step
}

/// The largest error of rounding to single precision, relative to the value.
pub(crate) const SINGLE: f64 = 1.0 / (1 << 24) as f64;

/// The largest error of rounding a value to a format: half of the distance between neighbours at it.
pub(crate) fn rounding(activation: ActivationType, value: f64) -> f64 {
    match activation {
        ActivationType::Bf16 => value.abs() / 256.0,
        // Below 2^-14 neighbours are 2^-24 apart.
        ActivationType::F16 => (value.abs() / 2048.0).max(1.0 / (1 << 25) as f64),
    }
}

/// The same for keys and values.
pub(crate) fn kv_rounding(kv: KvElement, value: f64) -> f64 {
    match kv {
        KvElement::Bf16 => rounding(ActivationType::Bf16, value),
        KvElement::F16 => rounding(ActivationType::F16, value),
        // Below 2^-6 neighbours are 2^-9 apart.
        KvElement::E4m3 => (value.abs() / 16.0).max(1.0 / 1024.0),
    }
}

#[track_caller]
pub(crate) fn assert_near(got: f64, expected: f64, tolerance: f64, what: impl Display) {
    let error = (got - expected).abs();
    assert!(error <= tolerance, "{what}: {got} is {error:e} from {expected}, {tolerance:e} are allowed");
}

/// Random activations: their bits.
pub(crate) fn activations(
    random: &mut Random,
    activation: ActivationType,
    len: usize,
    scale: f32,
) -> Vec<u16> {
    (0..len).map(|_| activation.bits(random.unit() * scale)).collect()
}

/// The values of bits.
pub(crate) fn values(activation: ActivationType, bits: &[u16]) -> Vec<f64> {
    bits.iter().map(|bits| f64::from(activation.value(*bits))).collect()
}
