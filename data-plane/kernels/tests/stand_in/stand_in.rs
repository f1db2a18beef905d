//! A CUDA driver without a device, for tests: the kernels run on the CPU, one by one, when the host waits for them.
//!
//! [`StandIn::load`] builds `libcuda.so.1`, `libcublasLt.so.13` and `libnvrtc.so.13` with g++ and loads them by their paths. The dynamic
//! linker then gives these for the names that cudarc asks for, so it has to happen before the first use of cudarc.
#![allow(clippy::panic, clippy::allow_attributes)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

mod compile;

/// An image that the stand-in's driver accepts for a module: the start of a fat binary. It finds kernels by name only.
pub const IMAGE: &[u8] = &[0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0];

/// What to open a device with: [`IMAGE`], or on the machine's own driver the kernels of the build.
#[must_use]
pub fn image() -> Option<&'static [u8]> {
    (!is_real()).then_some(IMAGE)
}

/// In which order blocks, warps and lanes run between two barriers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// By their numbers.
    Forward,
    /// By their numbers, from the last.
    Reverse,
    /// Shuffled anew after every wait, by a seed.
    Seeded(u64),
}

/// Values of `CUresult` that a test may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// `CUDA_ERROR_OUT_OF_MEMORY`
    OutOfMemory = 2,
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`
    IllegalAddress = 700,
    /// `CUDA_ERROR_LAUNCH_FAILED`
    LaunchFailed = 719,
}

/// The stand-in, for one test at a time: others of this process wait in [`StandIn::load`].
///
/// Everything that a test has made of cudarc must be dropped before this is.
#[derive(Debug)]
pub struct StandIn {
    _turn: MutexGuard<'static, ()>,
    /// False on the machine's own driver.
    is_loaded: bool,
}

/// True where tests are to run on the machine's own driver and device (`WEIR_CUDA=real`): [`StandIn::load`] loads nothing then,
/// what sets the stand-in does nothing, and asking it anything but [`StandIn::message`] panics.
#[must_use]
pub fn is_real() -> bool {
    std::env::var_os("WEIR_CUDA").is_some_and(|which| which == "real")
}

/// The shared objects for `LD_PRELOAD`: a program that is started with them finds the stand-in in place of a driver.
///
/// # Panics
/// If g++ is missing or refuses a source.
#[must_use]
pub fn preload() -> String {
    let mut paths = libraries();
    paths.push(compile::shared_object("kernels.so", &compile::kernel_files(), &[]));
    paths.iter().map(|path| path.to_string_lossy().into_owned()).collect::<Vec<_>>().join(":")
}

/// Whether the kernels are watched by the address and undefined-behaviour sanitizers: they are where the process runs under the former,
/// which means that its library was loaded before all others.
#[must_use]
pub fn is_sanitized() -> bool {
    // SAFETY: null is the default scope: whatever the process has loaded.
    unsafe { !dlsym(std::ptr::null_mut(), c"__asan_init".as_ptr()).is_null() }
}

#[link(name = "c")]
unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

/// The address of what the driver's library was loaded as.
static DRIVER: OnceLock<usize> = OnceLock::new();

impl StandIn {
    /// Builds and loads the driver with all kernels of the crate `kernels`, as new: no memory, no errors, no counts.
    ///
    /// # Panics
    /// If g++ is missing or refuses a source.
    #[must_use]
    pub fn load() -> Self {
        Self::load_with(&[])
    }

    /// The same with more kernels, which take the place of others of the same name.
    ///
    /// # Panics
    /// If g++ is missing or refuses a source.
    #[must_use]
    pub fn load_with(kernels: &[&Path]) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        if is_real() {
            return Self { _turn: turn, is_loaded: false };
        }
        DRIVER.get_or_init(|| {
            let driver = load_driver();
            let kernels = compile::kernel_files();
            if !kernels.is_empty() {
                open(&compile::shared_object("kernels.so", &kernels, &[]), LOCAL);
            }
            driver
        });
        if !kernels.is_empty() {
            let kernels: Vec<PathBuf> = kernels.iter().map(|path| path.to_path_buf()).collect();
            open(&compile::shared_object("more_kernels.so", &kernels, &[]), LOCAL);
        }
        let this = Self { _turn: turn, is_loaded: true };
        this.reset();
        this
    }

    /// How often the host has waited for the device, in whatever function.
    #[must_use]
    pub fn waits(&self) -> u64 {
        // SAFETY: the function's type is that of control.cpp; null means all functions.
        unsafe {
            symbol::<unsafe extern "C" fn(*const c_char) -> u64>("weir_stand_in_waits")(std::ptr::null())
        }
    }

    /// How often the host has waited in this function of the driver.
    #[must_use]
    pub fn waits_in(&self, function: &str) -> u64 {
        count("weir_stand_in_waits", function)
    }

    /// How often this function of the driver was called.
    #[must_use]
    pub fn calls(&self, function: &str) -> u64 {
        count("weir_stand_in_calls", function)
    }

    /// How many kernels and library calls have run on the device.
    #[must_use]
    pub fn executions(&self) -> u64 {
        // SAFETY: the function's type is that of control.cpp.
        unsafe { symbol::<unsafe extern "C" fn() -> u64>("weir_stand_in_executions")() }
    }

    /// What the device has failed of, naming the kernel; empty if it has not.
    #[must_use]
    pub fn message(&self) -> String {
        if !self.is_loaded {
            return String::new();
        }
        let mut text = vec![0_u8; 4096];
        // SAFETY: the function's type is that of control.cpp; it writes at most as many bytes as it is told.
        unsafe {
            symbol::<unsafe extern "C" fn(*mut u8, usize) -> usize>("weir_stand_in_message")(
                text.as_mut_ptr(),
                text.len(),
            );
        }
        CStr::from_bytes_until_nul(&text).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// In which order the threads of kernels run from now on.
    pub fn set_order(&self, order: Order) {
        if !self.is_loaded {
            return;
        }
        let (kind, seed) = match order {
            Order::Forward => (0, 0),
            Order::Reverse => (1, 0),
            Order::Seeded(seed) => (2, seed),
        };
        // SAFETY: the function's type is that of control.cpp.
        unsafe { symbol::<unsafe extern "C" fn(c_int, u64)>("weir_stand_in_set_order")(kind, seed) }
    }

    /// How many threads of the operating system share the blocks of a grid.
    pub fn set_workers(&self, workers: u32) {
        if !self.is_loaded {
            return;
        }
        // SAFETY: the function's type is that of control.cpp.
        unsafe { symbol::<unsafe extern "C" fn(u32)>("weir_stand_in_set_workers")(workers) }
    }

    /// Whether red zones are looked at after every kernel.
    pub fn set_memory_checks(&self, on: bool) {
        if !self.is_loaded {
            return;
        }
        // SAFETY: the function's type is that of control.cpp.
        unsafe { symbol::<unsafe extern "C" fn(c_int)>("weir_stand_in_set_memory_checks")(on.into()) }
    }

    /// How many devices there are.
    pub fn set_devices(&self, count: i32) {
        // SAFETY: the function's type is that of control.cpp.
        unsafe { symbol::<unsafe extern "C" fn(c_int)>("weir_stand_in_set_devices")(count) }
    }

    /// What `cuDriverGetVersion` says, 13000 for CUDA 13.0.
    pub fn set_driver_version(&self, version: i32) {
        // SAFETY: the function's type is that of control.cpp.
        unsafe { symbol::<unsafe extern "C" fn(c_int)>("weir_stand_in_set_driver_version")(version) }
    }

    /// The devices' architecture.
    pub fn set_capability(&self, major: i32, minor: i32) {
        // SAFETY: the function's type is that of control.cpp.
        unsafe { symbol::<unsafe extern "C" fn(c_int, c_int)>("weir_stand_in_set_capability")(major, minor) }
    }

    /// Opening a device fails with this error of the driver, or not any more (0).
    pub fn refuse_context(&self, error: i32) {
        // SAFETY: the function's type is that of control.cpp.
        unsafe { symbol::<unsafe extern "C" fn(c_int)>("weir_stand_in_refuse_context")(error) }
    }

    /// Bytes of memory that the device has in all, 1 GiB at first.
    pub fn set_memory(&self, bytes: usize) {
        if !self.is_loaded {
            return;
        }
        // SAFETY: the function's type is that of control.cpp.
        unsafe { symbol::<unsafe extern "C" fn(usize)>("weir_stand_in_set_memory")(bytes) }
    }

    /// Bytes of its memory in use.
    #[must_use]
    pub fn used_memory(&self) -> usize {
        // SAFETY: the function's type is that of control.cpp.
        unsafe { symbol::<unsafe extern "C" fn() -> usize>("weir_stand_in_used_memory")() }
    }

    /// The launch of a kernel or graph that comes after `after` more is refused.
    pub fn fail_launch(&self, after: u64, failure: Failure) {
        // SAFETY: the function's type is that of control.cpp.
        unsafe {
            symbol::<unsafe extern "C" fn(u64, c_int)>("weir_stand_in_fail_launch")(after, failure as c_int);
        }
    }

    /// The kernel that runs after `after` more fails on the device: the host hears of it where it waits, and ever after.
    pub fn fail_execution(&self, after: u64, failure: Failure) {
        // SAFETY: the function's type is that of control.cpp.
        unsafe {
            symbol::<unsafe extern "C" fn(u64, c_int)>("weir_stand_in_fail_execution")(
                after,
                failure as c_int,
            );
        }
    }

    /// While on, nothing queued runs: queries find it not ready, waits do not return.
    pub fn hang(&self, on: bool) {
        if !self.is_loaded {
            return;
        }
        // SAFETY: the function's type is that of control.cpp.
        unsafe { symbol::<unsafe extern "C" fn(c_int)>("weir_stand_in_hang")(on.into()) }
    }

    /// A kernel that changes these bytes of device memory fails, until [`StandIn::unguard`].
    ///
    /// # Panics
    /// If they are no device memory.
    pub fn guard(&self, address: u64, bytes: usize) {
        // SAFETY: the function's type is that of control.cpp, which checks the address.
        let known = unsafe {
            symbol::<unsafe extern "C" fn(u64, usize) -> c_int>("weir_stand_in_guard")(address, bytes)
        };
        assert!(known != 0, "{bytes} bytes at {address:#x} are no device memory");
    }

    /// Takes all guards off.
    pub fn unguard(&self) {
        // SAFETY: the function's type is that of control.cpp.
        unsafe { symbol::<unsafe extern "C" fn()>("weir_stand_in_unguard")() }
    }

    fn reset(&self) {
        // SAFETY: the function's type is that of control.cpp.
        unsafe { symbol::<unsafe extern "C" fn()>("weir_stand_in_reset")() }
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        // What still waits is let go.
        self.hang(false);
    }
}

fn count(function: &str, of: &str) -> u64 {
    let of = CString::new(of).expect("no zero byte");
    // SAFETY: both counting functions of control.cpp have this type; the text outlives the call.
    unsafe { symbol::<unsafe extern "C" fn(*const c_char) -> u64>(function)(of.as_ptr()) }
}

const NOW: c_int = 2;
const LOCAL: c_int = NOW;
const GLOBAL: c_int = NOW | 0x100;

/// Loads the driver and the libraries over it.
fn load_driver() -> usize {
    let loaded: Vec<usize> = libraries().iter().map(|path| open(path, GLOBAL)).collect();
    loaded[0]
}

/// Paths of the driver, cuBLASLt over it, and NVRTC; each also under the name without a number, which cudarc asks for first.
fn libraries() -> Vec<PathBuf> {
    let source = |name: &str| compile::sources().join(name);
    let of_driver = ["block", "fibers", "grid", "memory", "queue", "control", "driver", "driver_device"];
    let of_driver = of_driver.iter().chain(&["driver_memory", "driver_stream", "driver_launch"]);
    let of_driver: Vec<PathBuf> = of_driver.map(|name| source(&format!("{name}.cpp"))).collect();
    let driver = library("cuda", "1", &of_driver);
    let cublas_lt = library("cublasLt", "13", &[source("cublas_lt.cpp")]);
    [driver, cublas_lt, library("nvrtc", "13", &[source("nvrtc.cpp")])].concat()
}

fn library(name: &str, version: &str, sources: &[PathBuf]) -> [PathBuf; 2] {
    let file = format!("lib{name}.so.{version}");
    let path = compile::shared_object(&file, sources, &[&format!("-Wl,-soname,{file}")]);
    // An empty library whose only need is the one above: symbols are looked for there too.
    let short = format!("lib{name}.so");
    let needs = path.to_string_lossy().into_owned();
    let link = [&format!("-Wl,-soname,{short}"), "-Wl,--no-as-needed", &needs];
    let short = compile::shared_object(&short, &[], &link);
    [path, short]
}

fn open(path: &Path, flags: c_int) -> usize {
    let text = CString::new(path.to_string_lossy().as_bytes()).expect("no zero byte");
    // SAFETY: the library is ours; what runs when it is loaded only fills a table.
    let library = unsafe { dlopen(text.as_ptr(), flags) };
    if library.is_null() {
        // SAFETY: dlopen has just failed, so there is a text.
        let reason = unsafe { CStr::from_ptr(dlerror()) };
        panic!("{}: {}", path.display(), reason.to_string_lossy());
    }
    library as usize
}

/// A function of control.cpp.
///
/// # Safety
/// `F` is a function pointer of the type that the function has there.
unsafe fn symbol<F: Copy>(name: &str) -> F {
    let driver = *DRIVER.get().expect("the driver is loaded");
    let text = CString::new(name).expect("no zero byte");
    // SAFETY: the handle is of a library that is never closed.
    let address = unsafe { dlsym(driver as *mut c_void, text.as_ptr()) };
    assert!(!address.is_null(), "the stand-in has no {name}");
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
    // SAFETY: the caller gives the type; function pointers and addresses are of one size here.
    unsafe { std::mem::transmute_copy(&address) }
}
