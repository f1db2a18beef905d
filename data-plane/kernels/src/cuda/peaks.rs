//! The most that a device can do, beside which measurements are shown.

use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;

use super::{CudaError, Device};

/// Rates that no kernel can pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peaks {
    /// Bytes a second between the chip and its memory.
    pub bandwidth: f64,
    /// Operations (a multiplication or an addition) a second of the tensor cores on dense 16-bit matrices, sums in single precision.
    pub tensor_flops: f64,
    /// Bytes of the second cache level: what is measured must be larger to come from memory.
    pub cache_bytes: usize,
    /// Where the rates come from.
    pub source: &'static str,
}

/// Operations a clock and multiprocessor of the tensor cores on dense 16-bit matrices, by compute capability; from NVIDIA's
/// architecture papers (Ampere, Ada, Hopper, Blackwell). Cards for players have half of 8.6's, 8.9's and 12.0's.
const FLOPS_A_CLOCK: [((i32, i32), f64); 6] = [
    ((8, 0), 2048.0),
    ((8, 6), 1024.0),
    ((8, 9), 1024.0),
    ((9, 0), 4096.0),
    ((10, 0), 8192.0),
    ((12, 0), 1024.0),
];

/// Where a driver does not say its clocks: data sheets, by what the name contains, in GB/s and TFLOP/s (dense).
const DATA_SHEETS: [(&str, f64, f64); 6] = [
    ("H100 PCIe", 2000.0, 756.0),
    ("H100", 3350.0, 989.0),
    ("H200", 4800.0, 989.0),
    ("B200", 8000.0, 2250.0),
    ("A100-SXM4-40GB", 1555.0, 312.0),
    ("A100", 1935.0, 312.0),
];

impl Device {
    /// The device's bounds, from what the driver says of its clocks and widths, else from its data sheet; `None` if neither
    /// is known.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn peaks(&self) -> Result<Option<Peaks>, CudaError> {
        let attribute = |attribute| {
            let value = self.context().attribute(attribute).map_err(CudaError::driver("asking a device"))?;
            Ok::<_, CudaError>(f64::from(value.max(0)))
        };
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let clock_khz = attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?;
        let memory_khz = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?;
        let bus_bits = attribute(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?;
        let cache = self.context().attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
        let cache_bytes = usize::try_from(cache.map_err(CudaError::driver("asking a device"))?).unwrap_or(0);
        let info = self.info();
        let a_clock = FLOPS_A_CLOCK.iter().find(|(capability, _)| *capability == info.compute_capability);
        // Memory moves data on both edges of its clock.
        let bandwidth = 2.0 * memory_khz * 1e3 * bus_bits / 8.0;
        if let Some((_, flops)) = a_clock.filter(|_| bandwidth > 0.0 && clock_khz > 0.0) {
            let tensor_flops = multiprocessors * clock_khz * 1e3 * flops;
            return Ok(Some(Peaks { bandwidth, tensor_flops, cache_bytes, source: "highest clocks" }));
        }
        let sheet = DATA_SHEETS.iter().find(|(part, ..)| info.name.contains(part));
        Ok(sheet.map(|(_, gigabytes, teraflops)| Peaks {
            bandwidth: gigabytes * 1e9,
            tensor_flops: teraflops * 1e12,
            cache_bytes,
            source: "data sheet",
        }))
    }
}
