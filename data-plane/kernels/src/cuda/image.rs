//! The compiled kernels: from the build, or compiled on this machine.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaModule, DriverError};
use cudarc::nvrtc::{CompileError, CompileOptions, Ptx, compile_ptx_with_opts, sys as nvrtc};

use super::device::CudaError;
use super::probe::{DeviceInfo, ProbeError};

/// Machine code for the supported architectures, if the build had a compiler for it (`make kernels`).
const FATBIN: Option<&[u8]> = include!(concat!(env!("OUT_DIR"), "/fatbin.rs"));
/// All kernels in one source, for compiling at run time: made by the build script.
const SOURCE: &str = include_str!(concat!(env!("OUT_DIR"), "/kernels.cu"));

/// Every symbol of NVRTC that cudarc calls for what is done here.
const SYMBOLS: [&str; 7] = [
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcCompileProgram",
    "nvrtcGetPTXSize",
    "nvrtcGetPTX",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
];

/// Loads the kernels into a device: the given ones, those of the build, or compiled now.
pub(super) fn load(
    context: &Arc<CudaContext>,
    info: &DeviceInfo,
    kernels: Option<&[u8]>,
) -> Result<Arc<CudaModule>, CudaError> {
    match kernels.or(FATBIN) {
        Some(image) => context.load_module(Ptx::from_binary(image.to_vec())).map_err(refused),
        None => compile(context, info),
    }
}

/// Whether there are kernels to load: the build's, or a compiler for them.
pub(super) fn check_can_be_had() -> Result<(), ProbeError> {
    if FATBIN.is_some() { Ok(()) } else { check_compiler() }
}

fn check_compiler() -> Result<(), ProbeError> {
    // SAFETY: loads the library by its well-known names.
    if !unsafe { nvrtc::is_culib_present() } {
        return Err(ProbeError::NoKernels);
    }
    // SAFETY: the library is present; the symbol's address is only looked at.
    let is_missing = |symbol: &&str| unsafe { nvrtc::culib().get::<*const ()>(symbol.as_bytes()) }.is_err();
    match SYMBOLS.into_iter().find(is_missing) {
        Some(symbol) => Err(ProbeError::BrokenCompiler { symbol }),
        None => Ok(()),
    }
}

fn refused(error: DriverError) -> CudaError {
    CudaError::Image(error.to_string())
}

/// Compiles the kernels for a device with NVRTC, which has to be installed, and loads them.
pub(super) fn compile(context: &Arc<CudaContext>, info: &DeviceInfo) -> Result<Arc<CudaModule>, CudaError> {
    check_compiler()?;
    let (major, minor) = info.compute_capability;
    let options = vec![format!("--gpu-architecture=compute_{major}{minor}"), "--std=c++17".to_owned()];
    let options = CompileOptions { options, ..CompileOptions::default() };
    let compiled = compile_ptx_with_opts(SOURCE, options).map_err(|error| {
        CudaError::Image(match error {
            CompileError::CompileError { log, .. } => format!("NVRTC says {}", log.to_string_lossy()),
            other => format!("NVRTC fails: {other}"),
        })
    })?;
    context.load_module(compiled).map_err(refused)
}
