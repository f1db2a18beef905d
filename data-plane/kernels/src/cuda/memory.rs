//! Memory of the device, and host memory that it copies from and to.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::size_of;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, result};
use half::{bf16, f16};

use super::{CudaError, Device, Event};

/// Plain numbers: any bytes are a value, and it means the same on both sides.
///
/// # Safety
/// No padding, no invalid bit pattern, no pointer.
pub unsafe trait Element: Copy + Send + Sync + 'static {}

macro_rules! elements {
    ($($type:ty),*) => { $(
        // SAFETY: a number without padding; every bit pattern is one.
        unsafe impl Element for $type {}
    )* };
}
elements!(u8, u16, u32, u64, i32, f32, bf16, f16);

/// Equal elements in device memory. Fixed from allocation to drop.
#[derive(Debug)]
pub struct DeviceBuffer<T: Element> {
    allocation: Arc<Allocation>,
    len: usize,
    elements: PhantomData<T>,
}

/// What is freed when neither a buffer nor a recorded graph needs it any more.
#[derive(Debug)]
pub(super) struct Allocation {
    context: Arc<CudaContext>,
    pointer: CUdeviceptr,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // The driver waits for work that is under way before it takes memory back.
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: the pointer came from the allocation below and is freed once.
            self.context.record_err(unsafe { result::free_sync(self.pointer) });
        }
    }
}

impl<T: Element> DeviceBuffer<T> {
    /// Elements in the buffer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes in the buffer.
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    pub(super) fn pointer(&self) -> CUdeviceptr {
        self.allocation.pointer
    }

    pub(super) fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }
}

impl Device {
    /// Allocates zeroed memory. For loading only: it may wait for the device.
    ///
    /// # Errors
    /// [`CudaError::Memory`] if there is not enough, with what is free.
    pub fn zeros<T: Element>(&self, len: usize) -> Result<DeviceBuffer<T>, CudaError> {
        let bytes = len.saturating_mul(size_of::<T>()).max(1);
        self.bind()?;
        // SAFETY: plain allocation; the pointer is owned by the allocation at once.
        let pointer = unsafe { result::malloc_sync(bytes) };
        let Ok(pointer) = pointer else {
            return Err(CudaError::Memory { needed: bytes as u64, free: self.memory()?.0 });
        };
        let allocation = Arc::new(Allocation { context: self.context().clone(), pointer });
        // SAFETY: `bytes` bytes lie behind the pointer.
        unsafe { result::memset_d8_async(pointer, 0, bytes, self.stream().cu_stream()) }
            .map_err(CudaError::driver("clearing memory"))?;
        Ok(DeviceBuffer { allocation, len, elements: PhantomData })
    }

    /// Allocates memory with these contents. For loading only: it waits for the device.
    ///
    /// # Errors
    /// As [`Device::zeros`].
    pub fn buffer_of<T: Element>(&self, values: &[T]) -> Result<DeviceBuffer<T>, CudaError> {
        let buffer = self.zeros(values.len())?;
        if !values.is_empty() {
            // SAFETY: as many elements lie behind the pointer, and `values` lives until the stream has run the copy.
            unsafe { result::memcpy_htod_async(buffer.pointer(), values, self.stream().cu_stream()) }
                .and_then(|()| self.stream().synchronize())
                .map_err(CudaError::driver("copying to the device"))?;
        }
        Ok(buffer)
    }

    /// Fills elements of a buffer with a pattern, repeated as often as needed, without more of the host's memory than the pattern takes. For
    /// loading only: it waits for the device. Panics if the elements are not the buffer's, or the pattern is empty.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn fill<T: Element>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        elements: Range<usize>,
        pattern: &[T],
    ) -> Result<(), CudaError> {
        self.bind()?;
        let len = elements.len();
        assert!(is_within(elements.start, len, buffer.len) && !pattern.is_empty(), "elements of the buffer");
        let stream = self.stream().cu_stream();
        let start = buffer.pointer() + (elements.start * size_of::<T>()) as u64;
        let mut filled = pattern.len().min(len);
        // SAFETY: as many elements lie behind the pointer, and the pattern lives until the stream has run the copy.
        let mut outcome = unsafe { result::memcpy_htod_async(start, &pattern[..filled], stream) };
        while filled < len && outcome.is_ok() {
            let (count, bytes) = (filled.min(len - filled), filled * size_of::<T>());
            // SAFETY: what is filled and what follows it lie in the buffer, and do not overlap.
            outcome = unsafe {
                result::memcpy_dtod_async(start + bytes as u64, start, count * size_of::<T>(), stream)
            };
            filled += count;
        }
        let waited = self.stream().synchronize();
        outcome.and(waited).map_err(CudaError::driver("filling memory"))
    }

    /// Everything in a buffer, for tests and measurements: it waits for the device.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn read<T: Element + Default>(&self, buffer: &DeviceBuffer<T>) -> Result<Vec<T>, CudaError> {
        self.bind()?;
        let mut values = vec![T::default(); buffer.len()];
        if !values.is_empty() {
            // SAFETY: as many elements lie behind the pointer, and `values` lives until the stream has run the copy.
            unsafe { result::memcpy_dtoh_async(&mut values, buffer.pointer(), self.stream().cu_stream()) }
                .and_then(|()| self.stream().synchronize())
                .map_err(CudaError::driver("copying from the device"))?;
        }
        Ok(values)
    }

    /// Allocates host memory that the device copies from and to by itself.
    ///
    /// # Errors
    /// [`CudaError::Driver`] if the host has no such memory left.
    pub fn pinned<T: Element>(&self, len: usize) -> Result<PinnedBuffer<T>, CudaError> {
        let bytes = len.saturating_mul(size_of::<T>()).max(1);
        self.bind()?;
        // SAFETY: plain allocation; zeroed below before anybody reads it.
        let pointer =
            unsafe { result::malloc_host(bytes, 0) }.map_err(CudaError::driver("pinning host memory"))?;
        let pointer = NonNull::new(pointer.cast::<T>())
            .ok_or(CudaError::Driver { doing: "pinning host memory", message: "no address".to_owned() })?;
        // SAFETY: `bytes` bytes lie behind the pointer; zero is a value of every element.
        unsafe { pointer.cast::<u8>().write_bytes(0, bytes) };
        Ok(PinnedBuffer { context: self.context().clone(), pointer, len, in_use: None })
    }

    /// Submits a copy of the first `len` elements to the start of a buffer. The host may not write to them before it has
    /// been run. Panics if either is shorter.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn upload<T: Element>(
        &self,
        from: &mut PinnedBuffer<T>,
        len: usize,
        to: &mut DeviceBuffer<T>,
    ) -> Result<(), CudaError> {
        self.upload_range(from, 0, len, to, 0)
    }

    /// The same from element `from_first` on to element `to_first` and those after it.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn upload_range<T: Element>(
        &self,
        from: &mut PinnedBuffer<T>,
        from_first: usize,
        len: usize,
        to: &mut DeviceBuffer<T>,
        to_first: usize,
    ) -> Result<(), CudaError> {
        assert!(
            is_within(from_first, len, from.len) && is_within(to_first, len, to.len),
            "a copy within both"
        );
        self.bind()?;
        // SAFETY: the elements lie in pinned memory, which is neither written nor freed before the event has passed.
        let from_host = unsafe { std::slice::from_raw_parts(from.pointer.as_ptr().add(from_first), len) };
        let pointer = to.pointer() + (to_first * size_of::<T>()) as u64;
        // SAFETY: as many elements lie behind the pointer.
        unsafe { result::memcpy_htod_async(pointer, from_host, self.stream().cu_stream()) }
            .map_err(CudaError::driver("copying to the device"))?;
        from.in_use = Some(self.record()?);
        Ok(())
    }

    /// Submits a copy of the first `len` elements of a buffer to host memory, which may not be looked at before it has
    /// been run. Panics if either is shorter.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn download<T: Element>(
        &self,
        from: &DeviceBuffer<T>,
        len: usize,
        to: &mut PinnedBuffer<T>,
    ) -> Result<(), CudaError> {
        self.download_range(from, 0, len, to, 0)
    }

    /// The same from element `from_first` on to element `to_first` and those after it.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn download_range<T: Element>(
        &self,
        from: &DeviceBuffer<T>,
        from_first: usize,
        len: usize,
        to: &mut PinnedBuffer<T>,
        to_first: usize,
    ) -> Result<(), CudaError> {
        assert!(
            is_within(from_first, len, from.len) && is_within(to_first, len, to.len),
            "a copy within both"
        );
        self.bind()?;
        // SAFETY: the elements lie in pinned memory, which is neither read nor freed before the event has passed.
        let to_host = unsafe { std::slice::from_raw_parts_mut(to.pointer.as_ptr().add(to_first), len) };
        let pointer = from.pointer() + (from_first * size_of::<T>()) as u64;
        // SAFETY: as many elements lie behind the pointer.
        unsafe { result::memcpy_dtoh_async(to_host, pointer, self.stream().cu_stream()) }
            .map_err(CudaError::driver("copying from the device"))?;
        to.in_use = Some(self.record()?);
        Ok(())
    }
}

fn is_within(first: usize, len: usize, all: usize) -> bool {
    first.checked_add(len).is_some_and(|end| end <= all)
}

/// Host memory at a fixed place.
#[derive(Debug)]
pub struct PinnedBuffer<T: Element> {
    context: Arc<CudaContext>,
    pointer: NonNull<T>,
    len: usize,
    /// Passes when the device is done with it.
    in_use: Option<Event>,
}

// SAFETY: owned memory of plain numbers.
unsafe impl<T: Element> Send for PinnedBuffer<T> {}

impl<T: Element> PinnedBuffer<T> {
    /// Elements in the buffer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements, for reading and writing.
    ///
    /// # Errors
    /// [`CudaError::Driver`] if a copy from or to it has not been run yet: collect its step first.
    pub fn elements(&mut self) -> Result<&mut [T], CudaError> {
        if let Some(event) = &self.in_use {
            if !event.has_passed()? {
                let message = "its copy has not been run yet".to_owned();
                return Err(CudaError::Driver { doing: "using a host buffer", message });
            }
            self.in_use = None;
        }
        // SAFETY: `len` elements, all of them values, which no copy under way touches.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) })
    }
}

impl<T: Element> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_err() {
            return;
        }
        // The driver waits for copies that are under way before it takes the memory back.
        // SAFETY: the pointer came from the allocation and is freed once.
        self.context.record_err(unsafe { result::free_host(self.pointer.as_ptr().cast::<c_void>()) });
    }
}
