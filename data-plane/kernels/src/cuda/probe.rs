//! Whether this machine has a device that the kernels run on, found out without ever panicking.
//!
//! cudarc panics when a library or a symbol is missing. So the library is looked for first, and then every symbol that
//! this backend calls, before the first call.

use std::ffi::CStr;

use cudarc::driver::{DriverError, result, sys};

use super::image;

/// Oldest driver whose interface is that of CUDA 13.0, as `cuDriverGetVersion` gives it.
const DRIVER_VERSION_MIN: i32 = 13_000;
/// Oldest architecture that the kernels are written for: Ampere, which has bf16 tensor cores and `cp.async`.
const COMPUTE_CAPABILITY_MIN: (i32, i32) = (8, 0);

/// Every symbol of the driver that is called, by this crate or by cudarc for it.
const SYMBOLS: [&str; 50] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphUpload",
    "cuLaunchKernel",
    "cuMemAllocAsync",
    "cuMemAlloc_v2",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamIsCapturing",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// A device that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Index among this process's devices.
    pub ordinal: usize,
    /// What its maker calls it.
    pub name: String,
    /// Major and minor number of its architecture.
    pub compute_capability: (i32, i32),
    /// Bytes of memory in all.
    pub memory_bytes: u64,
    /// As the driver gives it: 1000 times the major version of CUDA, and 10 times the minor.
    pub driver_version: i32,
}

/// Why there is no such device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// No driver is installed, or its library cannot be loaded.
    #[error("there is no usable NVIDIA driver: {reason}")]
    NoLibrary {
        /// The dynamic linker's words.
        reason: String,
    },
    /// The library lacks what every driver of the needed age has.
    #[error("the CUDA driver library lacks `{symbol}`: it is older than CUDA 13.0, or broken")]
    MissingSymbol {
        /// The first symbol that was missed.
        symbol: &'static str,
    },
    /// The driver is too old.
    #[error(
        "the NVIDIA driver is for CUDA {}.{}, and 13.0 or later is needed: update the driver",
        .version / 1000,
        .version % 1000 / 10
    )]
    OldDriver {
        /// As the driver gives it.
        version: i32,
    },
    /// The driver does not work.
    #[error("the NVIDIA driver does not work: {call} says {message}")]
    Driver {
        /// The call that failed.
        call: &'static str,
        /// The driver's words.
        message: String,
    },
    /// Nothing to run on it.
    #[error(
        "this build has no compiled kernels (make kernels), and NVRTC, which could compile them, is not installed"
    )]
    NoKernels,
    /// Nothing to run on it, either.
    #[error(
        "this build has no compiled kernels (make kernels), and NVRTC, which could compile them, lacks `{symbol}`: it is too old, or broken"
    )]
    BrokenCompiler {
        /// The first symbol that was missed.
        symbol: &'static str,
    },
    /// A driver without a device.
    #[error(
        "the NVIDIA driver finds {count} devices, counted from 0, and number {ordinal} was asked for (worker.cuda.ordinal); CUDA_VISIBLE_DEVICES may hide some"
    )]
    NoDevice {
        /// The device that was asked for.
        ordinal: usize,
        /// How many there are.
        count: i32,
    },
    /// A device older than the kernels.
    #[error(
        "device {ordinal} ({name}) has compute capability {}.{}, and {}.{} or later is needed",
        .compute_capability.0,
        .compute_capability.1,
        COMPUTE_CAPABILITY_MIN.0,
        COMPUTE_CAPABILITY_MIN.1
    )]
    OldDevice {
        /// The device that was asked for.
        ordinal: usize,
        /// Its name.
        name: String,
        /// Its architecture.
        compute_capability: (i32, i32),
    },
}

/// Finds out whether a device can be used, and what it is. Opens it and closes it again.
///
/// # Errors
/// [`ProbeError`] in words for the operator.
pub fn probe(ordinal: usize) -> Result<DeviceInfo, ProbeError> {
    let (device, info) = find(ordinal)?;
    open_and_close(device)?;
    Ok(info)
}

/// The same for who opens it then.
pub(super) fn find(ordinal: usize) -> Result<(sys::CUdevice, DeviceInfo), ProbeError> {
    // SAFETY: loads libraries by the driver's well-known names, which is what this function is for.
    if !unsafe { sys::is_culib_present() } {
        return Err(ProbeError::NoLibrary { reason: why_not_loaded(c"libcuda.so.1") });
    }
    // SAFETY: the library is present; the symbol's address is only looked at.
    let is_missing = |symbol: &&str| unsafe { sys::culib().get::<*const ()>(symbol.as_bytes()) }.is_err();
    if let Some(symbol) = SYMBOLS.into_iter().find(is_missing) {
        return Err(ProbeError::MissingSymbol { symbol });
    }
    let version = driver_version()?;
    if version < DRIVER_VERSION_MIN {
        return Err(ProbeError::OldDriver { version });
    }
    match result::init() {
        Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => {
            return Err(ProbeError::NoDevice { ordinal, count: 0 });
        }
        other => other.map_err(|error| failed("cuInit", error))?,
    }
    let count = result::device::get_count().map_err(|error| failed("cuDeviceGetCount", error))?;
    let index = i32::try_from(ordinal).ok().filter(|index| *index < count);
    let index = index.ok_or(ProbeError::NoDevice { ordinal, count })?;
    let device = result::device::get(index).map_err(|error| failed("cuDeviceGet", error))?;
    let name = device_name(device)?;
    let attribute = |attribute| {
        // SAFETY: the device is one that the driver gave.
        unsafe { result::device::get_attribute(device, attribute) }
            .map_err(|error| failed("cuDeviceGetAttribute", error))
    };
    use sys::CUdevice_attribute_enum as Attribute;
    let compute_capability = (
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    if compute_capability < COMPUTE_CAPABILITY_MIN {
        return Err(ProbeError::OldDevice { ordinal, name, compute_capability });
    }
    // SAFETY: as above.
    let memory_bytes = unsafe { result::device::total_mem(device) };
    let memory_bytes = memory_bytes.map_err(|error| failed("cuDeviceTotalMem", error))? as u64;
    image::check_can_be_had()?;
    let info = DeviceInfo { ordinal, name, compute_capability, memory_bytes, driver_version: version };
    Ok((device, info))
}

/// What the dynamic linker has against a library.
fn why_not_loaded(name: &CStr) -> String {
    // SAFETY: loading a driver runs its constructors, as cudarc has just tried to.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) };
    if !handle.is_null() {
        return "its library can be loaded now, and could not a moment ago".to_owned();
    }
    // SAFETY: dlopen has just failed on this thread, so there is a text, which lives until the next failure on it.
    unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned()
}

/// At most 127 bytes. cudarc's own panics where the driver writes no end.
fn device_name(device: sys::CUdevice) -> Result<String, ProbeError> {
    let mut name = [0_u8; 128];
    // SAFETY: writes less than the buffer's length, so that its last byte stays zero.
    let result = unsafe { sys::cuDeviceGetName(name.as_mut_ptr().cast(), 127, device) };
    result.result().map_err(|error| failed("cuDeviceGetName", error))?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// A device can be seen and still not be had: its memory is full, or another process has it for itself.
fn open_and_close(device: sys::CUdevice) -> Result<(), ProbeError> {
    // SAFETY: the device is one that the driver gave.
    unsafe { result::primary_ctx::retain(device) }
        .map_err(|error| failed("cuDevicePrimaryCtxRetain", error))?;
    // SAFETY: retained a moment ago.
    unsafe { result::primary_ctx::release(device) }
        .map_err(|error| failed("cuDevicePrimaryCtxRelease", error))
}

fn driver_version() -> Result<i32, ProbeError> {
    let mut version = 0;
    // SAFETY: writes one int through a pointer to one.
    let result = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    result.result().map_err(|error| failed("cuDriverGetVersion", error))?;
    Ok(version)
}

fn failed(call: &'static str, error: DriverError) -> ProbeError {
    // cudarc writes `DriverError(CODE, "words")`.
    let text = error.to_string();
    let message = text.strip_prefix("DriverError(").and_then(|text| text.strip_suffix(')')).unwrap_or(&text);
    ProbeError::Driver { call, message: message.to_owned() }
}
