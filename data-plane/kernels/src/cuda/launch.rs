//! One launch of a kernel.

use std::any::Any;
use std::ffi::c_void;
use std::mem::size_of;
use std::sync::Arc;

use cudarc::driver::{CudaFunction, result, sys};

use super::memory::{DeviceBuffer, Element};
use super::{CudaError, Device};

/// A kernel that has been found in the module, with the shared memory that it is launched with.
#[derive(Debug)]
pub(super) struct Kernel {
    function: CudaFunction,
    shared_bytes: u32,
}

/// What a kernel may use without being asked for more.
const SHARED_BYTES_DEFAULT: usize = 48 << 10;

impl Kernel {
    /// Finds a kernel that uses `shared_bytes` of dynamic shared memory, and lets it use them.
    pub(super) fn load(device: &Device, name: &str, shared_bytes: usize) -> Result<Self, CudaError> {
        let function = device.function(name)?;
        if shared_bytes > SHARED_BYTES_DEFAULT {
            use sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as LIMIT;
            let limit = i32::try_from(shared_bytes).expect("shared memory is far smaller than 2 GiB");
            // SAFETY: the function is one of a loaded module, which it keeps.
            unsafe { result::function::set_function_attribute(function.cu_function(), LIMIT, limit) }
                .map_err(CudaError::driver("giving a kernel its shared memory"))?;
        }
        Ok(Self { function, shared_bytes: narrow(shared_bytes) })
    }
}

fn narrow(value: usize) -> u32 {
    u32::try_from(value).expect("a launch dimension below 2^32")
}

/// A kernel with the arguments it was given so far. Buffers are kept by a graph that is being recorded.
pub(super) struct Launch<'a> {
    device: &'a Device,
    kernel: &'a Kernel,
    arguments: Vec<u64>,
    buffers: Vec<Arc<dyn Any + Send + Sync>>,
}

impl<'a> Launch<'a> {
    pub(super) fn of(device: &'a Device, kernel: &'a Kernel) -> Self {
        Self { device, kernel, arguments: Vec::with_capacity(20), buffers: Vec::new() }
    }

    /// A buffer that the kernel reads.
    pub(super) fn reads<T: Element>(mut self, buffer: &DeviceBuffer<T>) -> Self {
        self.arguments.push(buffer.pointer());
        if self.device.is_recording() {
            self.buffers.push(buffer.allocation().clone());
        }
        self
    }

    /// A buffer that the kernel reads from element `first` on. Panics if there is none.
    pub(super) fn reads_from<T: Element>(mut self, buffer: &DeviceBuffer<T>, first: usize) -> Self {
        assert!(first < buffer.len(), "an element of the buffer");
        self = self.reads(buffer);
        if let Some(pointer) = self.arguments.last_mut() {
            *pointer += (first * size_of::<T>()) as u64;
        }
        self
    }

    /// A buffer that the kernel writes.
    pub(super) fn writes<T: Element>(self, buffer: &mut DeviceBuffer<T>) -> Self {
        self.reads(buffer)
    }

    /// A buffer that the kernel does without.
    pub(super) fn reads_if_any<T: Element>(mut self, buffer: Option<&DeviceBuffer<T>>) -> Self {
        match buffer {
            Some(buffer) => self.reads(buffer),
            None => {
                self.arguments.push(0);
                self
            }
        }
    }

    /// An `int`.
    pub(super) fn int(mut self, value: usize) -> Self {
        let value = u32::try_from(value).ok().filter(|value| i32::try_from(*value).is_ok());
        self.arguments.push(u64::from(value.expect("a dimension below 2^31")));
        self
    }

    /// A `long long`.
    pub(super) fn long(mut self, value: usize) -> Self {
        self.arguments.push(value as u64);
        self
    }

    /// A `float`.
    pub(super) fn float(mut self, value: f32) -> Self {
        self.arguments.push(u64::from(value.to_bits()));
        self
    }

    /// Submits it.
    ///
    /// # Safety
    /// The arguments are those of the kernel, and it stays within the buffers.
    pub(super) unsafe fn submit(mut self, grid: (usize, usize), block: usize) -> Result<(), CudaError> {
        if grid.0 * grid.1 == 0 {
            return Ok(());
        }
        self.device.bind()?;
        // Every argument is at most eight bytes, and little-endian: its first bytes are those of a narrower one.
        let mut pointers: Vec<*mut c_void> =
            self.arguments.iter_mut().map(|argument| std::ptr::from_mut(argument).cast()).collect();
        let grid = (narrow(grid.0), narrow(grid.1), 1);
        // SAFETY: the caller's promise; the driver copies the arguments before it returns.
        unsafe {
            result::launch_kernel(
                self.kernel.function.cu_function(),
                grid,
                (narrow(block), 1, 1),
                self.kernel.shared_bytes,
                self.device.stream().cu_stream(),
                &mut pointers,
            )
        }
        .map_err(CudaError::driver("launching a kernel"))?;
        self.device.keep(self.buffers);
        Ok(())
    }
}
