//! `.weir/dev.env`: what scripts need to talk to this installation. It holds secrets, so only its owner can read it.

use std::collections::BTreeMap;
use std::path::Path;

use super::state_dir::write_private;

/// The file's name in `.weir`.
pub(super) const FILE: &str = "dev.env";

/// Addresses and credentials of the installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DevEnv {
    /// The OpenAI-compatible API, `…/v1`.
    pub(super) base_url: String,
    /// The first tenant's key.
    pub(super) api_key: String,
    /// The admin and tenant API, `…/api/v1`.
    pub(super) admin_url: String,
    /// The platform operator's token.
    pub(super) admin_token: String,
    /// Prometheus metrics of the whole process.
    pub(super) metrics_url: String,
    /// `host:port`, where there is a broker.
    pub(super) kafka_brokers: Option<String>,
}

impl DevEnv {
    pub(super) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let Self { base_url, api_key, admin_url, admin_token, metrics_url, kafka_brokers } = self;
        let mut text = format!(
            "WEIR_BASE_URL={base_url}\nWEIR_API_KEY={api_key}\nWEIR_ADMIN_URL={admin_url}\n\
             WEIR_ADMIN_TOKEN={admin_token}\nWEIR_METRICS_URL={metrics_url}\n"
        );
        if let Some(brokers) = kafka_brokers {
            text += &format!("WEIR_KAFKA_BROKERS={brokers}\n");
        }
        write_private(path, text.as_bytes())
    }
}

/// What an earlier start left under this name, if anything: key and token survive restarts, and stand nowhere else.
pub(super) fn kept(path: &Path, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let variables: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
    variables.get(name).map(|value| (*value).to_owned()).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_and_token_survive() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        assert_eq!(kept(&path, "WEIR_API_KEY"), None);
        let env = DevEnv {
            base_url: "http://127.0.0.1:1/v1".into(),
            api_key: "a.b=c.d".into(),
            admin_url: "http://127.0.0.1:2/api/v1".into(),
            admin_token: "t".into(),
            metrics_url: "http://127.0.0.1:1/metrics".into(),
            kafka_brokers: Some("127.0.0.1:3".into()),
        };
        env.write(&path).unwrap();
        assert_eq!(kept(&path, "WEIR_API_KEY").as_deref(), Some("a.b=c.d"));
        assert_eq!(kept(&path, "WEIR_ADMIN_TOKEN").as_deref(), Some("t"));
        assert_eq!(kept(&path, "WEIR_KAFKA_BROKERS").as_deref(), Some("127.0.0.1:3"));
    }
}
