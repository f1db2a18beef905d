//! What the contract says of itself, and the page that shows it. The page loads nothing from outside, and its
//! content security policy holds the browser to that.

use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_SECURITY_POLICY;
use tower_http::set_header::SetResponseHeaderLayer;
use utoipa::openapi::OpenApi as Document;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_swagger_ui::{Config, SwaggerUi};

use super::App;
use super::problem::ProblemBody;

/// The page's own files and nothing else; its styles are partly inline, its icons data URLs.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
);

/// The contract without its operations.
#[derive(Debug, OpenApi)]
#[openapi(
    info(
        title = "Weir control plane",
        version = "1",
        description = "Tenants, keys, models, prices, nodes, usage and costs. Failures are application/problem+json. \
                       Lists are pages by cursor. Writes take Idempotency-Key; changes take If-Match with the ETag of a read.",
        license(name = "Apache-2.0")
    ),
    components(schemas(ProblemBody)),
    modifiers(&TokenScheme)
)]
pub(super) struct Contract;

struct TokenScheme;

impl Modify for TokenScheme {
    fn modify(&self, document: &mut Document) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .bearer_format("JWT")
            .description(Some("A key's token. The scopes that an operation asks for stand beside it; tenant:admin includes the tenant's other scopes, platform:admin all."))
            .build();
        document
            .components
            .get_or_insert_default()
            .add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

/// The API docs at `/docs`.
pub(super) fn pages(contract: Document) -> Router<App> {
    let config = Config::default().validator_url("none");
    let page = SwaggerUi::new("/docs").url("/docs/openapi.json", contract).config(config);
    Router::<App>::from(page).layer(SetResponseHeaderLayer::overriding(CONTENT_SECURITY_POLICY, POLICY))
}
