//! One device: its context, its stream, its kernels, and when it has run what.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaContext, CudaEvent, CudaFunction, CudaModule, CudaStream, DriverError};

use super::image;
use super::probe::{DeviceInfo, ProbeError, find};

/// What can go wrong on a device.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// There is no device to use.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The driver refused a call, or reports that earlier work failed.
    #[error("{doing} failed: {message}")]
    Driver {
        /// What was being done.
        doing: &'static str,
        /// The driver's words.
        message: String,
    },
    /// Not as much memory as was asked for.
    #[error("{needed} bytes of device memory are needed, {free} are free")]
    Memory {
        /// Bytes asked for.
        needed: u64,
        /// Bytes free at that time.
        free: u64,
    },
    /// The kernels cannot be loaded.
    #[error("the kernels cannot be loaded: {0}")]
    Image(String),
    /// The device has not finished in time.
    #[error("the device has not finished a step for {:.1} s", .0.as_secs_f64())]
    Hung(Duration),
}

impl CudaError {
    pub(super) fn driver(doing: &'static str) -> impl FnOnce(DriverError) -> Self {
        move |error| Self::Driver { doing, message: error.to_string() }
    }
}

/// A device with one stream of work and the kernels of this crate.
#[derive(Debug, Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    info: DeviceInfo,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    module: Arc<CudaModule>,
    /// Buffers that the graph being recorded names.
    recording: Mutex<Option<Vec<Arc<dyn Any + Send + Sync>>>>,
}

impl Device {
    /// Opens a device and loads the kernels into it.
    ///
    /// # Errors
    /// [`CudaError`]: there is none that serves, or the kernels are not for it.
    pub fn open(ordinal: usize) -> Result<Self, CudaError> {
        Self::open_with(ordinal, None)
    }

    /// The same with kernels compiled elsewhere: a cubin, a fatbin or PTX, or whatever else the driver takes.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn open_with(ordinal: usize, kernels: Option<&[u8]>) -> Result<Self, CudaError> {
        Self::open_loading(ordinal, |context, info| image::load(context, info, kernels))
    }

    /// The same with kernels that NVRTC compiles now, as a build without compiled ones does.
    ///
    /// # Errors
    /// As [`Device::open`]; [`CudaError::Image`] too if NVRTC is not installed.
    pub fn open_compiling(ordinal: usize) -> Result<Self, CudaError> {
        Self::open_loading(ordinal, image::compile)
    }

    fn open_loading(
        ordinal: usize,
        load: impl FnOnce(&Arc<CudaContext>, &DeviceInfo) -> Result<Arc<CudaModule>, CudaError>,
    ) -> Result<Self, CudaError> {
        let (_, info) = find(ordinal)?;
        let context = CudaContext::new(ordinal).map_err(CudaError::driver("opening the device"))?;
        // SAFETY: all work of this context goes to one stream, so nothing needs events between streams.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(CudaError::driver("making a stream"))?;
        let module = load(&context, &info)?;
        let recording = Mutex::default();
        Ok(Self { inner: Arc::new(Inner { info, context, stream, module, recording }) })
    }

    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// Bytes of memory free now, and in all.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        let info = self.inner.context.mem_get_info().map_err(CudaError::driver("asking for free memory"))?;
        Ok((info.0 as u64, info.1 as u64))
    }

    /// Marks the end of the work submitted so far.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn record(&self) -> Result<Event, CudaError> {
        let event = self.inner.stream.record_event(None).map_err(CudaError::driver("recording an event"))?;
        Ok(Event { event })
    }

    /// The same with the device's time, for [`Event::since`].
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn record_time(&self) -> Result<Event, CudaError> {
        let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
        let event = self.inner.stream.record_event(timed).map_err(CudaError::driver("recording an event"))?;
        Ok(Event { event })
    }

    /// Makes the device that of this thread, which every call of the driver's needs. Cheap if it is already.
    pub(super) fn bind(&self) -> Result<(), CudaError> {
        self.inner.context.bind_to_thread().map_err(CudaError::driver("using the device"))
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.inner.context
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.inner.stream
    }

    pub(super) fn start_recording(&self) {
        *self.recording() = Some(Vec::new());
    }

    pub(super) fn stop_recording(&self) -> Vec<Arc<dyn Any + Send + Sync>> {
        self.recording().take().unwrap_or_default()
    }

    pub(super) fn is_recording(&self) -> bool {
        self.recording().is_some()
    }

    pub(super) fn keep(&self, buffers: Vec<Arc<dyn Any + Send + Sync>>) {
        if let Some(kept) = &mut *self.recording() {
            kept.extend(buffers);
        }
    }

    fn recording(&self) -> MutexGuard<'_, Option<Vec<Arc<dyn Any + Send + Sync>>>> {
        self.inner.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A kernel by its name.
    pub(super) fn function(&self, name: &str) -> Result<CudaFunction, CudaError> {
        let function = self.inner.module.load_function(name);
        function.map_err(|error| CudaError::Image(format!("kernel `{name}`: {error}")))
    }
}

/// A point in the stream of a device's work.
#[derive(Debug)]
pub struct Event {
    event: CudaEvent,
}

/// While the device is nearly done, asking again at once; later, without taking the core from others.
const SPIN: Duration = Duration::from_micros(200);
/// Between two looks after that: a small part of the shortest step that is worth sleeping through.
const POLL: Duration = Duration::from_micros(50);

impl Event {
    /// True if the work before it has been run.
    ///
    /// # Errors
    /// [`CudaError::Driver`] if some of it failed.
    pub fn has_passed(&self) -> Result<bool, CudaError> {
        let bound = self.event.context().bind_to_thread();
        bound.and_then(|()| self.event.try_is_complete()).map_err(CudaError::driver("running a step"))
    }

    /// The device's time from an earlier point to this one, both of [`Device::record_time`]. For loading and measuring: waits.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn since(&self, earlier: &Self) -> Result<Duration, CudaError> {
        let elapsed = earlier.event.elapsed_ms(&self.event).map_err(CudaError::driver("measuring"))?;
        Ok(Duration::from_secs_f64(f64::from(elapsed.max(0.0)) / 1e3))
    }

    /// Waits until the work before it has been run: the one wait of the host. Asks instead of sleeping in the driver, so
    /// that a device which hangs is noticed.
    ///
    /// # Errors
    /// [`CudaError::Driver`] if some of it failed, [`CudaError::Hung`] if it takes longer than `timeout`.
    pub fn wait(&self, timeout: Duration) -> Result<(), CudaError> {
        let started = Instant::now();
        while !self.has_passed()? {
            let waited = started.elapsed();
            if waited > timeout {
                return Err(CudaError::Hung(timeout));
            }
            if waited < SPIN {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(POLL);
            }
        }
        Ok(())
    }
}
