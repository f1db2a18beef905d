//! The form of values that nodes must be able to use: checked when they are stated, when they are published and when
//! they are applied, by the same functions.

/// 32 bytes in base64url without padding.
const ED25519_KEY_CHARS: usize = 43;

/// Whether this is `http://host:port` (or https) with a host that a URI may have.
pub fn is_http_address(address: &str) -> bool {
    let rest = address.strip_prefix("http://").or_else(|| address.strip_prefix("https://"));
    let Some((host, port)) = rest.and_then(|rest| rest.rsplit_once(':')) else { return false };
    let name = |host: &str| {
        !host.is_empty()
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
    };
    let literal = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_host = literal.map_or_else(|| name(host), |ip| ip.parse::<std::net::Ipv6Addr>().is_ok());
    is_host && port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok()
}

/// Whether this can be an Ed25519 public key in base64url without padding.
pub fn is_ed25519_key(x: &str) -> bool {
    let alphabet = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    // The last of 43 characters carries four bits; the two that are left over must be zero.
    const LAST: &[u8] = b"AEIMQUYcgkosw048";
    x.len() == ED25519_KEY_CHARS
        && x.bytes().all(alphabet)
        && x.as_bytes().last().is_some_and(|last| LAST.contains(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_keys() {
        for (address, good) in [
            ("http://127.0.0.1:7301", true),
            ("https://worker-1.internal:443", true),
            ("http://[::1]:7301", true),
            ("http://a b:1", false),
            ("http://host", false),
            ("http://:1", false),
            ("http://host:70000", false),
            ("http://host:+1", false),
            ("http://user@host:1", false),
            ("http://[nonsense]:1", false),
            ("127.0.0.1:1", false),
            ("", false),
        ] {
            assert_eq!(is_http_address(address), good, "{address}");
        }
        let good = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
        assert!(is_ed25519_key(good));
        for bad in ["", &good[1..], &format!("{good}A"), &good.replace('_', "/"), &good.replace("Ro", "Rp")] {
            assert!(!is_ed25519_key(bad), "{bad}");
        }
    }
}
