//! The model text in pieces: its canonical bytes, as the pinned version's tokenizer digest covers them.

use std::sync::Arc;

use futures::{StreamExt, stream};
use tonic::Status;
use weir_schemas::ids::VersionId;
use weir_schemas::rpc::worker::ModelTextChunk;

use super::Replies;
use crate::versions::Versions;

/// Well below gRPC's default limit for one message.
const CHUNK_BYTES: usize = 256 << 10;

pub(super) fn start(versions: &Arc<Versions>, version_id: &str) -> Result<Replies<ModelTextChunk>, Status> {
    let id: VersionId =
        version_id.parse().map_err(|error| Status::invalid_argument(format!("version_id: {error}")))?;
    let version = versions.ready(id).ok_or_else(|| Status::not_found("the version is not loaded here"))?;
    let starts = (0..version.text_bytes.len()).step_by(CHUNK_BYTES);
    let chunk = move |start: usize| {
        let end = version.text_bytes.len().min(start + CHUNK_BYTES);
        Ok(ModelTextChunk { data: version.text_bytes[start..end].to_vec() })
    };
    Ok(stream::iter(starts).map(chunk).boxed())
}
