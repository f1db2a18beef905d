//! `GET /api/v1/nodes`

use axum::Json;
use axum::extract::State;

use super::NodeView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::Query;
use crate::http::problem::Problem;
use crate::http::read::{Page, PageQuery};
use crate::http::schema::ReadProblems;
use crate::store::nodes::NodeRow;

/// List gateways and workers with the config they hold and what they refused.
#[utoipa::path(get, path = "/api/v1/nodes", tag = "nodes", params(PageQuery),
    responses((status = 200, body = Page<NodeView>), ReadProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn list_nodes(
    admin: PlatformAdmin,
    State(app): State<App>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<NodeView>>, Problem> {
    let page = query.check()?;
    let rows = app.store.nodes(admin.scope, &page).await?;
    let view = |row: NodeRow| {
        let status = app.board.status(&row.node_id);
        NodeView::of_row(row, status)
    };
    let views: Vec<NodeView> = rows.into_iter().map(view).collect();
    Ok(Page::of(views, page.limit, |view| view.id.clone()))
}
