//! How long operations take on the device.

use std::time::{Duration, Instant};

use weir_kernels::cuda::{CudaError, Device, Graph};

/// Long enough that looking for the end (every 50 µs) is a part of a hundred.
const MEASURED: Duration = Duration::from_millis(10);
/// Of so many launches the fastest counts: whatever else happens on the machine only adds.
const LAUNCHES: usize = 5;
/// Recorded operations of one graph.
const OPERATIONS_MAX: u32 = 2000;
/// Far beyond anything that is measured here.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Seconds of one operation, launched back to back from a graph; `operation` is given a running number, so that it can take
/// its data from another place each time and find nothing of it in a cache.
pub(crate) fn seconds(
    device: &Device,
    is_tiny: bool,
    mut operation: impl FnMut(usize) -> Result<(), CudaError>,
) -> Result<f64, CudaError> {
    let mut record = |count: u32| device.record_graph(|| (0..count as usize).try_for_each(&mut operation));
    let once = fastest(device, &mut record(1)?, 1)?;
    if is_tiny {
        return Ok(once.as_secs_f64());
    }
    let wanted = MEASURED.as_nanos() / once.as_nanos().max(1);
    let count = u32::try_from(wanted).unwrap_or(OPERATIONS_MAX).clamp(8, OPERATIONS_MAX);
    Ok(fastest(device, &mut record(count)?, LAUNCHES)?.as_secs_f64() / f64::from(count))
}

fn fastest(device: &Device, graph: &mut Graph, launches: usize) -> Result<Duration, CudaError> {
    let mut fastest = Duration::MAX;
    // The first one warms up.
    for launch in 0..=launches {
        device.record()?.wait(TIMEOUT)?;
        let started = Instant::now();
        graph.launch()?;
        device.record()?.wait(TIMEOUT)?;
        if launch > 0 {
            fastest = fastest.min(started.elapsed());
        }
    }
    Ok(fastest)
}
