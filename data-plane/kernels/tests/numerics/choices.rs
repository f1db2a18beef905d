//! What computes a product of a large step, and kernels that are compiled when they are loaded.

use weir_kernels::cuda::ops::{
    ActivationType, Formats, KvElement, LIBRARY_ROWS_MIN, Multiplier, Operations, Output, Weight,
};
use weir_kernels::cuda::{Device, DeviceBuffer};

use crate::random::Random;
use crate::support::{Fixture, activations};

const ACTIVATION: ActivationType = ActivationType::Bf16;
/// Outputs and inputs.
const SHAPE: (usize, usize) = (8, 32);

/// The operands of one product with more rows than the library's least.
struct Operands {
    x: DeviceBuffer<u16>,
    weight: Weight,
    out: DeviceBuffer<f32>,
}

impl Operands {
    fn new(device: &Device) -> Self {
        let mut random = Random(1);
        let x = activations(&mut random, ACTIVATION, LIBRARY_ROWS_MIN * SHAPE.1, 1.0);
        let weight = Weight::dense(device, ACTIVATION, &random.floats(SHAPE.0 * SHAPE.1), SHAPE).unwrap();
        let out = device.zeros(LIBRARY_ROWS_MIN * SHAPE.0).unwrap();
        Self { x: device.buffer_of(&x).unwrap(), weight, out }
    }

    fn choose(&mut self, operations: &mut Operations, rows: usize) -> bool {
        let out = Output::Single(&mut self.out);
        operations.choose_multiplier(&self.x, rows, &self.weight, out, (SHAPE.0, 0)).unwrap()
    }
}

#[test]
fn a_large_step_uses_what_was_measured_to_be_faster() {
    let fixture = Fixture::new();
    let device = &fixture.device;
    let mut operands = Operands::new(device);
    let mut without = fixture.operations(ACTIVATION);
    assert!(!operands.choose(&mut without, LIBRARY_ROWS_MIN), "there is no library");
    let mut with = fixture.operations(ACTIVATION).with_library().unwrap();
    assert!(!operands.choose(&mut with, LIBRARY_ROWS_MIN - 1), "steps that decode keep their bits");
    let chosen =
        if operands.choose(&mut with, LIBRARY_ROWS_MIN) { Multiplier::Library } else { Multiplier::Own };
    let Operands { x, weight, mut out } = operands;
    let place = (SHAPE.0, 0);
    with.matmul_by(chosen, &x, LIBRARY_ROWS_MIN, &weight, Output::Single(&mut out), place).unwrap();
    let stated = device.read(&out).unwrap();
    with.matmul(&x, LIBRARY_ROWS_MIN, &weight, None, Output::Single(&mut out), place).unwrap();
    assert_eq!(device.read(&out).unwrap(), stated);
}

/// A build without compiled kernels has NVRTC compile its one source.
#[test]
fn kernels_are_compiled_where_the_build_has_none() {
    let _fixture = Fixture::new();
    if weir_stand_in::is_real() {
        return;
    }
    let device = Device::open_compiling(0).unwrap();
    let formats = Formats { activation: ActivationType::F16, kv: KvElement::E4m3, head_dim: 128 };
    Operations::load(&device, formats).unwrap();
}
