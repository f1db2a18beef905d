//! The `Idempotency-Key` of a request: whose it is, what it was sent with, and what the ledger knows it by.

use axum::http::HeaderMap;
use sha2::{Digest, Sha256};
use weir_schemas::ids::TenantId;

use crate::openai::ParameterError;

/// Stripe's name, which others took over; draft-ietf-httpapi-idempotency-key-header describes it.
const HEADER: &str = "idempotency-key";
/// As Stripe's bound; a UUID needs 36.
const MAX_CHARS: usize = 255;

/// The key of one request. The key itself is not kept, only its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IdempotencyKey {
    /// Tenant and SHA-256 of the key: keys of different tenants never meet.
    name: String,
    /// SHA-256 of the endpoint and the raw body.
    request: String,
}

impl IdempotencyKey {
    /// The key that a request has, if any.
    pub(crate) fn of(
        headers: &HeaderMap,
        tenant: TenantId,
        endpoint: &str,
        body: &[u8],
    ) -> Result<Option<Self>, ParameterError> {
        let mut values = headers.get_all(HEADER).iter();
        let Some(value) = values.next() else { return Ok(None) };
        let key = value.as_bytes();
        let is_valid = (1..=MAX_CHARS).contains(&key.len())
            && key.iter().all(u8::is_ascii_graphic)
            && values.next().is_none();
        if !is_valid {
            let message = format!(
                "Invalid 'Idempotency-Key' header: send it once, with 1 to {MAX_CHARS} visible ASCII characters \
                 and no space, such as a UUID."
            );
            return Err(ParameterError::invalid("Idempotency-Key", message));
        }
        let request = Sha256::new().chain_update(endpoint).chain_update([0]).chain_update(body).finalize();
        Ok(Some(Self {
            name: format!("{tenant}-{:x}", Sha256::digest(key)),
            request: format!("{request:x}"),
        }))
    }

    /// Tenant and hash of the key, fit for a file's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Hash of what was asked with the key.
    pub(crate) fn request(&self) -> &str {
        &self.request
    }

    /// What stands in the records, of which the ledger charges one. It covers the request too: where a key is no longer
    /// known here and comes with another body, that is another answer, and not free.
    pub(crate) fn charge_hash(&self) -> String {
        let both =
            Sha256::new().chain_update(&self.name).chain_update([0]).chain_update(&self.request).finalize();
        format!("sha256:{both:x}")
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;
    use crate::testing::tenant;

    fn key(
        values: &[&str],
        tenant: TenantId,
        endpoint: &str,
        body: &str,
    ) -> Result<Option<IdempotencyKey>, ParameterError> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(HEADER, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        IdempotencyKey::of(&headers, tenant, endpoint, body.as_bytes())
    }

    #[test]
    fn only_one_visible_key_of_at_most_255_characters_is_taken() {
        assert_eq!(key(&[], tenant(), "/a", "{}").unwrap(), None);
        let (longest, too_long) = ("k".repeat(255), "k".repeat(256));
        for good in ["a", "0b5c-~!", &longest] {
            assert!(key(&[good], tenant(), "/a", "{}").unwrap().is_some(), "{good}");
        }
        for bad in [&[""][..], &["a b"], &["a\tb"], &["ä"], &[&too_long], &["a", "b"]] {
            let error = key(bad, tenant(), "/a", "{}").unwrap_err();
            assert_eq!(error.param.as_deref(), Some("Idempotency-Key"), "{bad:?}");
            assert!(error.message.contains("1 to 255 visible ASCII"), "{}", error.message);
        }
    }

    #[test]
    fn tenants_are_apart_and_endpoint_and_body_are_told_apart() {
        let make = |tenant, value, endpoint, body| key(&[value], tenant, endpoint, body).unwrap().unwrap();
        let first = make(tenant(), "k", "/a", "{}");
        assert_eq!(first, make(tenant(), "k", "/a", "{}"));
        assert!(first.charge_hash().starts_with("sha256:") && first.charge_hash().len() == 71);
        for (same_name, other) in [
            (false, make(TenantId::from_u128(77), "k", "/a", "{}")),
            (false, make(tenant(), "l", "/a", "{}")),
            (true, make(tenant(), "k", "/b", "{}")),
            (true, make(tenant(), "k", "/a", "{ }")),
        ] {
            assert_eq!(
                (first.name() == other.name(), first.request() == other.request()),
                (same_name, !same_name)
            );
            assert_ne!(first.charge_hash(), other.charge_hash());
        }
    }
}
