//! Extractors: each operation names in its signature who may call it, and gets the proof. They run before the body
//! is read, so that a stranger learns nothing and costs nothing.

use std::marker::PhantomData;

use axum::extract::{FromRequestParts, Query, RawPathParams};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use serde::Deserialize;
use weir_schemas::config_snapshot::Scope;
use weir_schemas::error_class::ErrorClass;
use weir_schemas::ids::{KeyId, TenantId};

use super::token::{self, Subject, TokenError};
use crate::http::App;
use crate::http::problem::Problem;
use crate::scope::{PlatformScope, ReadScope, TenantScope};

/// A verified caller.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    subject: Subject,
    key: KeyId,
    scopes: Vec<Scope>,
}

impl Caller {
    /// How the caller is named in the log.
    pub(crate) fn actor(&self) -> String {
        self.key.to_string()
    }

    /// Whether the caller's scopes include `scope`, stated or implied by a greater one.
    pub(crate) fn may(&self, scope: Scope) -> bool {
        let implied = |held: &Scope| match held {
            Scope::PlatformAdmin => true,
            Scope::TenantAdmin => scope != Scope::PlatformAdmin,
            Scope::Inference | Scope::UsageRead | Scope::KeysWrite => *held == scope,
        };
        self.scopes.iter().any(implied)
    }

    fn require(&self, scope: Scope) -> Result<(), Problem> {
        if self.may(scope) { Ok(()) } else { Err(Problem::scope(scope)) }
    }
}

async fn authenticate(parts: &Parts, app: &App) -> Result<Caller, Problem> {
    let header = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = header.and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
    });
    let token = bearer.ok_or_else(Problem::unauthenticated)?;
    let verified = token::verify(&app.store, app.signer.identity(), token, app.clock.now()).await;
    match verified {
        Ok(verified) => Ok(Caller { subject: verified.subject, key: verified.key, scopes: verified.scopes }),
        Err(TokenError::Invalid) => Err(Problem::unauthenticated()),
        Err(TokenError::Store(error)) => Err(error.into()),
    }
}

/// An operator: scope `platform:admin`.
#[derive(Debug, Clone)]
pub(crate) struct PlatformAdmin {
    pub(crate) caller: Caller,
    pub(crate) scope: PlatformScope,
}

impl FromRequestParts<App> for PlatformAdmin {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let caller = authenticate(parts, app).await?;
        caller.require(Scope::PlatformAdmin)?;
        match caller.subject {
            Subject::Platform => Ok(Self { caller, scope: PlatformScope::proven() }),
            Subject::Tenant(_) => Err(Problem::scope(Scope::PlatformAdmin)),
        }
    }
}

/// The scope that an operation under a tenant asks for.
pub(crate) trait Requirement: Send + Sync {
    const SCOPE: Scope;
}

macro_rules! requirement {
    ($($(#[$doc:meta])* $name:ident = $scope:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct $name;

        impl Requirement for $name {
            const SCOPE: Scope = Scope::$scope;
        }
    )*};
}

requirement! {
    /// `keys:write`.
    KeysWrite = KeysWrite;
    /// `tenant:admin`.
    TenantAdmin = TenantAdmin;
    /// `usage:read`.
    UsageRead = UsageRead;
}

/// A caller within the tenant that the path names as `tenant_id`: the tenant itself with the scope `R`, or an
/// operator. Another tenant's path is not there.
#[derive(Debug, Clone)]
pub(crate) struct TenantCaller<R> {
    pub(crate) caller: Caller,
    pub(crate) scope: TenantScope,
    requirement: PhantomData<R>,
}

/// Reads of a tenant itself ask for `tenant:admin`.
pub(crate) type TenantReader = TenantCaller<TenantAdmin>;

impl<R: Requirement> FromRequestParts<App> for TenantCaller<R> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let caller = authenticate(parts, app).await?;
        let params = RawPathParams::from_request_parts(parts, app)
            .await
            .map_err(|_| Problem::of(ErrorClass::NotFound, "no such tenant"))?;
        let named = params.iter().find(|(name, _)| *name == "tenant_id").map(|(_, value)| value.parse());
        let Some(Ok(tenant)) = named else { return Err(Problem::of(ErrorClass::NotFound, "no such tenant")) };
        if matches!(caller.subject, Subject::Tenant(own) if own != tenant) {
            return Err(Problem::of(ErrorClass::NotFound, "no such tenant"));
        }
        caller.require(R::SCOPE)?;
        Ok(Self { caller, scope: TenantScope::proven(tenant), requirement: PhantomData })
    }
}

/// A caller of usage and costs: a tenant with `usage:read` sees its own; an operator all, or one tenant's by
/// `tenant_id`. A tenant that names another finds nothing there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UsageCaller {
    pub(crate) scope: ReadScope,
}

#[derive(Deserialize)]
struct NamedTenant {
    tenant_id: Option<String>,
}

impl FromRequestParts<App> for UsageCaller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let caller = authenticate(parts, app).await?;
        let absent = || Problem::of(ErrorClass::NotFound, "no such tenant");
        let named: Option<TenantId> = match Query::<NamedTenant>::try_from_uri(&parts.uri) {
            Ok(Query(NamedTenant { tenant_id: Some(text) })) => Some(text.parse().map_err(|_| absent())?),
            Ok(Query(NamedTenant { tenant_id: None })) => None,
            Err(_) => return Err(Problem::of(ErrorClass::Invalid, "the query cannot be read")),
        };
        let scope = match (caller.subject, named) {
            (Subject::Tenant(own), Some(other)) if own != other => return Err(absent()),
            (Subject::Tenant(own), _) => ReadScope::Tenant(TenantScope::proven(own)),
            (Subject::Platform, Some(tenant)) => ReadScope::Tenant(TenantScope::proven(tenant)),
            (Subject::Platform, None) => ReadScope::Platform(PlatformScope::proven()),
        };
        caller.require(UsageRead::SCOPE)?;
        Ok(Self { scope })
    }
}
