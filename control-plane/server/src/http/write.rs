//! What every write has in common: one transaction, If-Match, Idempotency-Key, ETag of the result.

use axum::http::header::{ETAG, LOCATION};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use weir_domain::aggregate::Aggregate;
use weir_schemas::config_snapshot::digest;
use weir_schemas::error_class::ErrorClass;

use super::App;
use super::extract::WriteHeaders;
use super::problem::Problem;
use crate::auth::Caller;
use crate::publisher::Board;
use crate::store::idempotency::{IdempotencyKey, StoredReply};
use crate::store::{Changed, WriteTransaction};

/// An open write on behalf of a caller.
#[derive(Debug)]
pub(crate) struct Write {
    /// The transaction, for operations that do more than one command.
    pub(crate) transaction: WriteTransaction,
    board: Board,
    if_match: Option<u64>,
    idempotency: Option<IdempotencyKey>,
}

/// Whether there is something to do.
#[derive(Debug)]
pub(crate) enum Started {
    /// Do it.
    Fresh(Box<Write>),
    /// It was done already; this was the answer.
    Repeat(Response),
}

/// What a write answers.
#[derive(Debug)]
pub(crate) struct Reply<V> {
    pub(crate) status: StatusCode,
    pub(crate) location: Option<String>,
    pub(crate) body: V,
}

impl<V> Reply<V> {
    /// 200 with a body.
    pub(crate) const fn ok(body: V) -> Self {
        Self { status: StatusCode::OK, location: None, body }
    }

    /// 201 with a body and where it can be found.
    pub(crate) fn created(location: String, body: V) -> Self {
        Self { status: StatusCode::CREATED, location: Some(location), body }
    }
}

impl Reply<Option<()>> {
    /// 204.
    pub(crate) const fn done() -> Self {
        Self { status: StatusCode::NO_CONTENT, location: None, body: None }
    }
}

impl Write {
    /// Opens the write. `body` is the digest of the request's body, empty without one.
    pub(crate) async fn begin(
        app: &App,
        caller: &Caller,
        headers: WriteHeaders,
        body: &str,
    ) -> Result<Started, Problem> {
        let mut transaction = app.store.begin(caller.actor(), app.clock.now()).await?;
        let WriteHeaders { if_match, idempotency_key, target } = headers;
        let idempotency = idempotency_key.map(|key| IdempotencyKey {
            principal: caller.actor(),
            key,
            fingerprint: digest(format!("{target}\n{body}").as_bytes()),
        });
        if let Some(key) = &idempotency
            && let Some(reply) = transaction.replay(key).await?
        {
            let mut response = respond(&reply)?;
            response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
            return Ok(Started::Repeat(response));
        }
        Ok(Started::Fresh(Box::new(Self { transaction, board: app.board.clone(), if_match, idempotency })))
    }

    /// Runs a command on the aggregate that the request is about.
    pub(crate) async fn execute<A: Aggregate>(
        &mut self,
        id: A::Id,
        command: A::Command,
    ) -> Result<Changed<A>, Problem> {
        Ok(self.transaction.execute::<A>(id, self.if_match, command).await?)
    }

    /// Commits, waits until it is in force at the connected gateways, and answers; a repeat will get the same.
    pub(crate) async fn finish<V: Serialize>(
        self,
        version: u64,
        reply: Reply<V>,
    ) -> Result<Response, Problem> {
        let shown = stored(version, &reply.location, reply.status, &reply.body)?;
        self.finish_with(shown.clone(), shown).await
    }

    /// Commits and answers `shown`; a repeat will get `kept`. For what may be shown only once.
    pub(crate) async fn finish_once<V: Serialize>(
        self,
        version: u64,
        shown: Reply<V>,
        kept: V,
    ) -> Result<Response, Problem> {
        let kept = stored(version, &shown.location, shown.status, &kept)?;
        let shown = stored(version, &shown.location, shown.status, &shown.body)?;
        self.finish_with(shown, kept).await
    }

    async fn finish_with(mut self, shown: StoredReply, kept: StoredReply) -> Result<Response, Problem> {
        if let Some(key) = &self.idempotency {
            self.transaction.remember(key, &kept).await?;
        }
        let position = self.transaction.commit().await?;
        self.board.in_force(position).await;
        respond(&shown)
    }
}

/// A write of one command on one aggregate; `reply` makes the answer from its new state.
pub(crate) async fn single<A: Aggregate, V: Serialize>(
    app: &App,
    caller: &Caller,
    (headers, body): (WriteHeaders, &str),
    (id, command): (A::Id, A::Command),
    reply: impl FnOnce(Option<&A>) -> Reply<V> + Send,
) -> Result<Response, Problem> {
    let mut write = match Write::begin(app, caller, headers, body).await? {
        Started::Fresh(write) => write,
        Started::Repeat(response) => return Ok(response),
    };
    let changed = write.execute::<A>(id, command).await?;
    let reply = reply(changed.state.as_ref());
    write.finish(changed.version, reply).await
}

fn stored<V: Serialize>(
    version: u64,
    location: &Option<String>,
    status: StatusCode,
    body: &V,
) -> Result<StoredReply, Problem> {
    let body = serde_json::to_value(body).map_err(|_| unprintable())?;
    let is_empty = status == StatusCode::NO_CONTENT;
    Ok(StoredReply {
        status: i16::try_from(status.as_u16()).map_err(|_| unprintable())?,
        etag: (!is_empty).then(|| etag(version)),
        location: location.clone(),
        body: (!is_empty).then_some(body),
    })
}

/// The ETag of a version.
pub(crate) fn etag(version: u64) -> String {
    format!("\"{version}\"")
}

fn respond(reply: &StoredReply) -> Result<Response, Problem> {
    let status = u16::try_from(reply.status).ok().and_then(|status| StatusCode::from_u16(status).ok());
    let status = status.ok_or_else(unprintable)?;
    let mut response = match &reply.body {
        Some(body) => (status, axum::Json(body)).into_response(),
        None => status.into_response(),
    };
    for (name, value) in [(ETAG, &reply.etag), (LOCATION, &reply.location)] {
        if let Some(value) = value {
            let value = value.parse().map_err(|_| unprintable())?;
            response.headers_mut().insert(name, value);
        }
    }
    Ok(response)
}

fn unprintable() -> Problem {
    Problem::of(ErrorClass::Internal, "the answer could not be written")
}
