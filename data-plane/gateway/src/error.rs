//! Every way a request can fail, as facts. Whose fault it is stands in [`GatewayError::class`]; how it looks on the
//! wire is `http/openai_error.rs`'s business alone. No variant carries a prompt, a key or a token.

use std::time::Duration;

use weir_schemas::config_snapshot::Slo;
use weir_schemas::error_class::ErrorClass;

use crate::admission::Refusal;
use crate::authenticate::AuthError;
use crate::idempotency::IdempotencyError;
use crate::openai::ParameterError;
use crate::routing::Expected;

/// Why a request was not, or not fully, answered.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum GatewayError {
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    #[error("the request body is larger than {limit_bytes} bytes")]
    BodyTooLarge { limit_bytes: usize },
    #[error("the request body did not arrive in time")]
    BodyTimeout,
    #[error("the request body could not be read")]
    BodyUnreadable,
    #[error("no such URL: {method} {path}")]
    UnknownUrl { method: String, path: String },
    #[error("{method} is not allowed on {path}")]
    MethodNotAllowed { method: String, path: String },
    #[error("the model does not exist")]
    UnknownModel { model: String },
    #[error("no replica of the model is ready")]
    ModelWarming { model: String, retry_after: Duration },
    #[error("the {param} cannot be rendered or tokenised")]
    Template { reason: String, param: &'static str },
    #[error("{prompt_tokens} prompt tokens and {output_tokens} output tokens exceed {limit_tokens}")]
    ContextLength { limit_tokens: u64, prompt_tokens: u64, output_tokens: u64, param: &'static str },
    #[error(transparent)]
    Admission(#[from] Box<Refusal>),
    #[error("the tenant's budget is spent")]
    BudgetSpent,
    #[error("the platform is full")]
    Capacity {
        retry_after: Duration,
        /// What it met, where that is why.
        load: Option<(Expected, Slo)>,
    },
    #[error(transparent)]
    Idempotency(#[from] IdempotencyError),
    #[error("the record log takes no new request")]
    RecordLogFull,
    #[error("the gateway is stopping")]
    Stopping,
    #[error("the replica was lost")]
    ReplicaLost,
    #[error("the engine failed")]
    EngineFailed,
    #[error("the request ran longer than {limit:?}")]
    Deadline { limit: Duration },
    #[error("internal error: {0}")]
    Internal(&'static str),
}

impl GatewayError {
    /// Whose fault it was and what the caller may do.
    pub(crate) fn class(&self) -> ErrorClass {
        match self {
            Self::Auth(AuthError::Scope) => ErrorClass::Forbidden,
            Self::Auth(AuthError::Missing | AuthError::Malformed | AuthError::Refused(_)) => {
                ErrorClass::Unauthenticated
            }
            Self::Parameter(_)
            | Self::BodyTooLarge { .. }
            | Self::BodyUnreadable
            | Self::MethodNotAllowed { .. }
            | Self::Template { .. }
            | Self::ContextLength { .. } => ErrorClass::Invalid,
            Self::UnknownUrl { .. } | Self::UnknownModel { .. } => ErrorClass::NotFound,
            Self::Admission(_) | Self::BudgetSpent => ErrorClass::RateLimited,
            Self::Capacity { .. } | Self::Idempotency(IdempotencyError::TooManyRunning) => {
                ErrorClass::Capacity
            }
            Self::Idempotency(_) => ErrorClass::Conflict,
            Self::ModelWarming { .. } | Self::RecordLogFull | Self::Stopping | Self::ReplicaLost => {
                ErrorClass::Unavailable
            }
            Self::BodyTimeout | Self::Deadline { .. } => ErrorClass::Deadline,
            Self::EngineFailed | Self::Internal(_) => ErrorClass::Internal,
        }
    }
}
