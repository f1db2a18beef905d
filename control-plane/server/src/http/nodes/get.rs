//! `GET /api/v1/nodes/{node_id}`

use axum::extract::State;
use axum::response::Response;
use weir_domain::node::{Node, NodeId};

use super::NodeView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Path, Query};
use crate::http::problem::Problem;
use crate::http::read::{AsOfQuery, one};
use crate::http::schema::ReadProblems;
use crate::scope::ReadScope;

/// Show a gateway or worker. As of a past moment, what it said of itself is shown, not the config it held.
#[utoipa::path(get, path = "/api/v1/nodes/{node_id}", tag = "nodes",
    params(("node_id" = String, Path), AsOfQuery),
    responses((status = 200, body = NodeView, headers(("ETag" = String))), ReadProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn get_node(
    admin: PlatformAdmin,
    State(app): State<App>,
    Path(id): Path<NodeId>,
    Query(as_of): Query<AsOfQuery>,
) -> Result<Response, Problem> {
    let status = app.board.status(&id.to_string()).filter(|_| as_of.is_now());
    one::<Node, _>(&app, ReadScope::Platform(admin.scope), id, &as_of, |node| NodeView::of_node(node, status))
        .await
}
