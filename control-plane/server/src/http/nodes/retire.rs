//! `DELETE /api/v1/nodes/{node_id}`
//!
//! Its leases move to the next gateway with the next snapshot, its replica leaves the snapshot, and the stream
//! refuses it from then on.

use axum::extract::State;
use axum::response::Response;
use weir_domain::node::{Node, NodeCommand, NodeId};

use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Path, WriteHeaders};
use crate::http::problem::Problem;
use crate::http::schema::{ReadProblems, WriteProblems};
use crate::http::write::{Reply, single};

/// Retire a node that is gone for good. It is final: a machine that returns does so under a new id.
#[utoipa::path(delete, path = "/api/v1/nodes/{node_id}", tag = "nodes",
    params(("node_id" = String, Path)),
    responses((status = 204), ReadProblems, WriteProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn retire_node(
    admin: PlatformAdmin,
    State(app): State<App>,
    Path(id): Path<NodeId>,
    headers: WriteHeaders,
) -> Result<Response, Problem> {
    let command = NodeCommand::Retire { now: app.clock.now() };
    single::<Node, _>(&app, &admin.caller, (headers, ""), (id, command), |_| Reply::done()).await
}
