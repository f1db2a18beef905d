//! Stage 3, resolve: from the name that a client gave to one pinned version, and whether it can be served now.

use weir_schemas::config_snapshot::{Alias, PinnedVersion};
use weir_schemas::ids::RequestId;

use crate::error::GatewayError;
use crate::indexed_config::IndexedConfig;

/// The version that this request gets. Of several weighted targets the request's own id decides, so that nothing here
/// needs randomness and a request that is looked at again gets the same.
pub(crate) fn resolve<'c>(
    config: &'c IndexedConfig,
    model: &str,
    request: RequestId,
) -> Result<&'c PinnedVersion, GatewayError> {
    let unknown = || GatewayError::UnknownModel { model: model.to_owned() };
    let alias = config.alias(model).ok_or_else(unknown)?;
    let known = |version| config.version(version);
    weighted(alias, request, |version| known(version).is_some()).and_then(known).ok_or_else(unknown)
}

fn weighted(
    alias: &Alias,
    request: RequestId,
    is_known: impl Fn(weir_schemas::ids::VersionId) -> bool,
) -> Option<weir_schemas::ids::VersionId> {
    let targets = || alias.targets.iter().filter(|target| is_known(target.version));
    let total: u64 = targets().map(|target| u64::from(target.weight)).sum();
    let mut point = request_hash(request).checked_rem(total)?;
    for target in targets() {
        match point.checked_sub(u64::from(target.weight)) {
            Some(rest) => point = rest,
            None => return Some(target.version),
        }
    }
    None
}

/// 64 well-mixed bits of a request id (the finaliser of splitmix64, Steele et al. 2014).
pub(crate) fn request_hash(request: RequestId) -> u64 {
    let bits = request.as_u128();
    let mut z =
        u64::try_from(bits & u128::from(u64::MAX)).unwrap_or(0) ^ u64::try_from(bits >> 64).unwrap_or(0);
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use weir_schemas::config_snapshot::AliasTarget;
    use weir_schemas::ids::{AliasId, VersionId};

    use super::*;

    fn alias(weights: &[u32]) -> Alias {
        let target =
            |(at, &weight): (usize, &u32)| AliasTarget { version: VersionId::from_u128(at as u128), weight };
        Alias {
            id: AliasId::from_u128(1),
            name: "m".into(),
            targets: weights.iter().enumerate().map(target).collect(),
            created_at: chrono::DateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn requests_spread_by_weight_and_the_same_id_goes_the_same_way() {
        let alias = alias(&[1, 0, 3]);
        let mut counts = [0u32; 3];
        for id in 0..4_000u128 {
            let request = RequestId::from_u128(id << 70 | id);
            let version = weighted(&alias, request, |_| true).unwrap();
            assert_eq!(weighted(&alias, request, |_| true), Some(version));
            counts[usize::try_from(version.as_u128()).unwrap()] += 1;
        }
        assert_eq!(counts[1], 0);
        // 1,000 expected; five standard deviations are 137.
        assert!((863..=1_137).contains(&counts[0]), "{counts:?}");
    }

    #[test]
    fn targets_that_the_config_lacks_take_no_requests() {
        let alias = alias(&[5, 5]);
        let only_second = |version: VersionId| version.as_u128() == 1;
        for id in 0..50 {
            assert_eq!(
                weighted(&alias, RequestId::from_u128(id), only_second),
                Some(VersionId::from_u128(1))
            );
        }
        assert_eq!(weighted(&alias, RequestId::from_u128(1), |_| false), None);
    }
}
