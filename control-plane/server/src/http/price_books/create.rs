//! `POST /api/v1/price-books`

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::ToSchema;
use weir_domain::price_book::{PriceBook, PriceBookCommand};
use weir_schemas::ids::PriceBookId;

use super::PriceBookView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Body, WriteHeaders};
use crate::http::problem::Problem;
use crate::http::schema::{ReadProblems, WriteProblems};
use crate::http::write::{Reply, single};

/// A price book to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreatePriceBook {
    /// Its name; unique.
    #[schema(example = "list")]
    name: String,
    /// ISO 4217 code.
    #[schema(example = "USD")]
    currency: String,
}

/// Make a price book in one currency.
#[utoipa::path(post, path = "/api/v1/price-books", tag = "prices", request_body = CreatePriceBook,
    params(("Idempotency-Key" = Option<String>, Header, description = "Names this write; a repeat within a day gets the same answer.")),
    responses((status = 201, body = PriceBookView, headers(("ETag" = String), ("Location" = String))), ReadProblems, WriteProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn create_price_book(
    admin: PlatformAdmin,
    State(app): State<App>,
    headers: WriteHeaders,
    Body { value: body, digest }: Body<CreatePriceBook>,
) -> Result<Response, Problem> {
    let now = app.clock.now();
    let id = PriceBookId::new(now);
    let command = PriceBookCommand::Create { id, name: body.name, currency: body.currency, now };
    single::<PriceBook, _>(&app, &admin.caller, (headers, &digest), (id, command), |state| {
        Reply::created(format!("/api/v1/price-books/{id}"), state.map(PriceBookView::from))
    })
    .await
}
