//! The HTTP edge: connections, routes, bodies in and out. Everything it decides is HTTP's; what a request means is the
//! dialect's (`openai`), what happens to it the pipeline's.

mod answer;
mod body;
mod chat_completions;
mod completions;
mod health;
mod listener;
mod load_headers;
mod models;
pub(crate) mod openai_error;
mod openapi;
pub(crate) mod rate_limit_headers;
mod router;
mod serving;
mod stall_guard;

pub(crate) use listener::{HttpServer, ServerLimits};
pub(crate) use router::{Edge, router};
