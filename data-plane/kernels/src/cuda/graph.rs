//! Work that was recorded once and is launched as one.

use std::any::Any;
use std::sync::Arc;

use cudarc::driver::{CudaGraph, sys};

use super::{CudaError, Device};

/// Operations with their arguments, as they were when the graph was recorded: what varies from launch to launch lies in
/// device memory, which the graph keeps.
pub struct Graph {
    graph: CudaGraph,
    _buffers: Vec<Arc<dyn Any + Send + Sync>>,
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Graph").finish_non_exhaustive()
    }
}

// SAFETY: a graph may be used from any thread, by one at a time: launching takes it mutably.
unsafe impl Send for Graph {}

impl Device {
    /// Records what `operations` submits, without running it: kernels only, no copies from or to the host.
    ///
    /// # Errors
    /// What `operations` says, or [`CudaError::Driver`].
    pub fn record_graph(
        &self,
        operations: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<Graph, CudaError> {
        let stream = self.stream();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).map_err(CudaError::driver("recording a graph"))?;
        self.start_recording();
        let outcome = operations();
        let buffers = self.stop_recording();
        let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0));
        outcome?;
        let graph = graph.map_err(CudaError::driver("recording a graph"))?;
        let graph = graph.ok_or(CudaError::Driver {
            doing: "recording a graph",
            message: "nothing was recorded".to_owned(),
        })?;
        graph.upload().map_err(CudaError::driver("uploading a graph"))?;
        Ok(Graph { graph, _buffers: buffers })
    }
}

impl Graph {
    /// Submits the recorded operations.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn launch(&mut self) -> Result<(), CudaError> {
        self.graph.launch().map_err(CudaError::driver("launching a graph"))
    }
}
