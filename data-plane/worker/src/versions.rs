//! Which versions this worker serves, and in what state each is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::watch;
use weir_schemas::config_snapshot::PinnedVersion;
use weir_schemas::ids::VersionId;

use crate::device::Device;
use crate::host::{EngineHandle, EngineStatus};

/// A version that serves.
#[derive(Debug)]
pub(crate) struct LoadedVersion {
    pub(crate) engine: EngineHandle,
    /// What it runs on, never [`Device::Auto`].
    pub(crate) device: Device,
    /// The model text in its canonical form, as gateways fetch it.
    pub(crate) text_bytes: Vec<u8>,
    pub(crate) text_digest: String,
}

/// Where a version stands.
#[derive(Debug, Clone)]
pub(crate) enum VersionState {
    Loading,
    Ready(Arc<LoadedVersion>),
    /// With the operator's text, and when it happened.
    Failed(String, Instant),
}

#[derive(Debug)]
struct Entry {
    pinned: PinnedVersion,
    state: VersionState,
}

/// The table of versions. Readers get copies; every change is announced.
#[derive(Debug)]
pub(crate) struct Versions {
    entries: Mutex<BTreeMap<VersionId, Entry>>,
    /// Of every step loop that has not ended.
    live: Mutex<Vec<watch::Receiver<EngineStatus>>>,
    changed: watch::Sender<u64>,
}

impl Default for Versions {
    fn default() -> Self {
        Self { entries: Mutex::default(), live: Mutex::default(), changed: watch::Sender::new(0) }
    }
}

impl Versions {
    /// Every version with its state.
    pub(crate) fn all(&self) -> Vec<(VersionId, VersionState)> {
        self.entries.lock().iter().map(|(&id, entry)| (id, entry.state.clone())).collect()
    }

    /// The version, if it serves.
    pub(crate) fn ready(&self, id: VersionId) -> Option<Arc<LoadedVersion>> {
        match &self.entries.lock().get(&id)?.state {
            VersionState::Ready(version) => Some(version.clone()),
            VersionState::Loading | VersionState::Failed(..) => None,
        }
    }

    /// What the version was pinned to when its load began.
    pub(crate) fn pinned(&self, id: VersionId) -> Option<(PinnedVersion, VersionState)> {
        self.entries.lock().get(&id).map(|entry| (entry.pinned.clone(), entry.state.clone()))
    }

    pub(crate) fn set(&self, pinned: PinnedVersion, state: VersionState) {
        if let VersionState::Ready(version) = &state {
            let mut live = self.live.lock();
            live.retain(|status| status.has_changed().is_ok());
            live.push(version.engine.status.clone());
        }
        self.entries.lock().insert(pinned.id, Entry { pinned, state });
        self.announce();
    }

    /// Forgets a version. Its running sequences end as they would have; its memory is freed after the last.
    pub(crate) fn remove(&self, id: VersionId) {
        if self.entries.lock().remove(&id).is_some() {
            self.announce();
        }
    }

    /// Resolves at the next change of any version's state.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Attempts over all engines, unloaded ones that still work included.
    pub(crate) fn attempts(&self) -> u32 {
        self.live.lock().iter().map(|status| status.borrow().load.sequences()).sum()
    }

    /// Drops every handle and waits for the step loops to end, which they do once their work is done.
    pub(crate) async fn shut_down(&self) {
        self.entries.lock().clear();
        self.announce();
        let live = std::mem::take(&mut *self.live.lock());
        for mut status in live {
            while status.changed().await.is_ok() {}
        }
    }

    fn announce(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}
