//! A caller of the admin and tenant API, as any script would be one.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Writes wait for one lock at most; reads of usage touch an index.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Between two tries of a call that the control plane could not answer yet.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Entries asked for at once.
const PAGE: usize = 200;
/// Characters of a refusal that are worth showing.
const PROBLEM_CHARS_MAX: usize = 500;

/// The API under one token.
#[derive(Debug, Clone)]
pub(super) struct Admin {
    client: reqwest::Client,
    url: String,
    token: String,
}

impl Admin {
    /// `url` is `http://host:port/api/v1`.
    pub(super) fn new(url: &str, token: &str) -> anyhow::Result<Self> {
        let client = reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build()?;
        Ok(Self { client, url: url.to_owned(), token: token.to_owned() })
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.call(Method::GET, path, None).await
    }

    /// Whether the token is good for this read.
    pub(super) async fn may_read(&self, path: &str) -> anyhow::Result<bool> {
        match self.get::<Value>(path).await {
            Ok(_) => Ok(true),
            Err(error) if error.is::<Unauthorized>() => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> anyhow::Result<T> {
        self.call(Method::POST, path, Some(body)).await
    }

    pub(super) async fn put(&self, path: &str, body: &Value) -> anyhow::Result<()> {
        self.call::<Value>(Method::PUT, path, Some(body)).await.map(drop)
    }

    pub(super) async fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.call::<Value>(Method::DELETE, path, None).await.map(drop)
    }

    /// The first entry of a list that satisfies `wanted`.
    pub(super) async fn find(
        &self,
        path: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> anyhow::Result<Option<Value>> {
        let mut after = String::new();
        loop {
            let page: Value = self.get(&format!("{path}?limit={PAGE}{after}")).await?;
            let entries = page["data"].as_array().context("a list without entries")?;
            if let Some(entry) = entries.iter().find(|entry| wanted(entry)) {
                return Ok(Some(entry.clone()));
            }
            match page["next_cursor"].as_str() {
                Some(cursor) => after = format!("&after={cursor}"),
                None => return Ok(None),
            }
        }
    }

    /// The entry that satisfies `wanted`, made from `body` if there is none.
    pub(super) async fn ensure(
        &self,
        path: &str,
        wanted: impl Fn(&Value) -> bool,
        body: Value,
    ) -> anyhow::Result<Value> {
        match self.find(path, wanted).await? {
            Some(entry) => Ok(entry),
            None => self.post(path, &body).await,
        }
    }

    /// The entry of this name, made if there is none.
    pub(super) async fn ensure_named(&self, path: &str, name: &str) -> anyhow::Result<Value> {
        self.ensure(path, |entry| entry["name"] == name, json!({ "name": name })).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<T> {
        let what = format!("{method} {path}");
        let started = Instant::now();
        let (status, text) = loop {
            let mut request = self.client.request(method.clone(), format!("{}{path}", self.url));
            if let Some(body) = body {
                request = request.json(body);
            }
            let response = request.bearer_auth(&self.token).send().await;
            let response = response.with_context(|| format!("{what}: the control plane does not answer"))?;
            let status = response.status();
            let text = response.text().await.with_context(|| format!("{what}: the answer broke off"))?;
            // Come back, says a busy database. Only a POST may have been done nevertheless, and would be done twice.
            let again = status == StatusCode::SERVICE_UNAVAILABLE && method != Method::POST;
            if !again || started.elapsed() > TIMEOUT {
                break (status, text);
            }
            tokio::time::sleep(RETRY_AFTER).await;
        };
        if status.is_success() {
            // 204 has no body.
            let text = if text.is_empty() { "null" } else { &text };
            return serde_json::from_str(text)
                .with_context(|| format!("{what}: an answer that is not expected"));
        }
        if status == StatusCode::UNAUTHORIZED {
            bail!(Unauthorized);
        }
        bail!("{what}: {status}: {}", text.chars().take(PROBLEM_CHARS_MAX).collect::<String>())
    }
}

/// The token is not good (any more).
#[derive(Debug, thiserror::Error)]
#[error("the token is refused")]
struct Unauthorized;

/// The `id` of an entry.
pub(super) fn id(entry: &Value) -> anyhow::Result<String> {
    entry["id"].as_str().map(str::to_owned).context("an entry without an id")
}
