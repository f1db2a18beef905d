//! A device of the stand-in and launches on it.

use std::path::Path;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaModule, CudaStream, LaunchConfig};
use cudarc::nvrtc::Ptx;
use weir_stand_in::{IMAGE, Order, StandIn};

pub(crate) const ORDERS: [Order; 5] =
    [Order::Forward, Order::Reverse, Order::Seeded(1), Order::Seeded(2), Order::Seeded(3)];

pub(crate) fn stand_in() -> StandIn {
    StandIn::load_with(&[Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/equipment/faults.cu"))])
}

/// One stream of the device, and the kernels. Streams do not wait for each other by themselves.
pub(crate) struct Device {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) stream: Arc<CudaStream>,
    module: Arc<CudaModule>,
}

impl Device {
    pub(crate) fn new() -> Self {
        let context = CudaContext::new(0).unwrap();
        // SAFETY: the tests order the streams themselves; that is what they test.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().unwrap();
        let module = context.load_module(Ptx::from_binary(IMAGE.to_vec())).unwrap();
        Self { context, stream, module }
    }

    pub(crate) fn kernel(&self, name: &str) -> CudaFunction {
        self.module.load_function(name).unwrap()
    }
}

/// A grid of one dimension.
pub(crate) fn grid(blocks: u32, threads: u32, shared_bytes: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: shared_bytes }
}
