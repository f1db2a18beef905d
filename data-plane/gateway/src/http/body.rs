//! Reading a request's body within its limit. A body that is too large is refused as soon as that is known, and what
//! still comes of it is thrown away for a while, so that the client gets to read the refusal.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio_util::task::TaskTracker;

use crate::error::GatewayError;

/// 4 MiB in this time is a very slow line; slower than that holds a connection for nothing.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// What is read of a refused body, without keeping it, before the connection is cut.
const MAX_DISCARDED_BYTES: usize = 64 << 20;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(10);

/// The body, if it has at most `limit_bytes`.
pub(super) async fn read(
    headers: &HeaderMap,
    mut body: Body,
    limit_bytes: usize,
    tasks: &TaskTracker,
) -> Result<Bytes, GatewayError> {
    let announced =
        headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit_bytes as u64) {
        discard(body, tasks);
        return Err(GatewayError::BodyTooLarge { limit_bytes });
    }
    let collected = tokio::time::timeout(READ_TIMEOUT, collect(&mut body, limit_bytes)).await;
    match collected {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => {
            if matches!(error, GatewayError::BodyTooLarge { .. }) {
                discard(body, tasks);
            }
            Err(error)
        }
        Err(_) => Err(GatewayError::BodyTimeout),
    }
}

async fn collect(body: &mut Body, limit_bytes: usize) -> Result<Bytes, GatewayError> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| GatewayError::BodyUnreadable)?.into_data() else { continue };
        if bytes.len() + data.len() > limit_bytes {
            return Err(GatewayError::BodyTooLarge { limit_bytes });
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

/// Reads on without keeping anything: a client that sends all of its body before it reads the answer would otherwise
/// find its connection reset instead of the answer.
pub(super) fn discard(mut body: Body, tasks: &TaskTracker) {
    tasks.spawn(async move {
        let read = async {
            let mut discarded = 0;
            while let Some(Ok(frame)) = body.frame().await {
                discarded += frame.data_ref().map_or(0, Bytes::len);
                if discarded > MAX_DISCARDED_BYTES {
                    return;
                }
            }
        };
        // Dropping what is left of the body closes the connection.
        drop(tokio::time::timeout(DISCARD_TIMEOUT, read).await);
    });
}
