//! Plain HTTP to both APIs, as a client that reads bytes would.

use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::StreamExt;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};

use crate::installation::{Installation, MODEL};
use crate::wait::until;

/// Longer than any answer here takes.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(240);

/// One caller: addresses and a credential.
#[derive(Debug, Clone)]
pub struct Api {
    http: reqwest::Client,
    base_url: String,
    admin_url: String,
    key: Option<String>,
}

/// A tenant made for a test.
#[derive(Debug, Clone)]
pub struct Tenant {
    /// Its id.
    pub id: String,
    /// Its key's id.
    pub key_id: String,
    /// A caller with its key, scopes inference and usage:read.
    pub api: Api,
}

impl Api {
    /// With the key that `weir up` made.
    pub fn first_tenant(installation: &Installation) -> Self {
        Self::with(installation, Some(installation.env["WEIR_API_KEY"].clone()))
    }

    /// As the platform's operator.
    pub fn operator(installation: &Installation) -> Self {
        Self::with(installation, Some(installation.env["WEIR_ADMIN_TOKEN"].clone()))
    }

    fn with(installation: &Installation, key: Option<String>) -> Self {
        Self::new(&installation.env["WEIR_BASE_URL"], &installation.env["WEIR_ADMIN_URL"], key)
    }

    /// At these addresses: `…/v1` of a gateway, `…/api/v1` of a control plane.
    pub fn new(base_url: &str, admin_url: &str, key: Option<String>) -> Self {
        let http = reqwest::Client::builder().timeout(REQUEST_TIMEOUT).build().unwrap();
        Self { http, base_url: base_url.to_owned(), admin_url: admin_url.to_owned(), key }
    }

    /// The same addresses with another credential, or none.
    pub fn with_key(&self, key: Option<&str>) -> Self {
        Self { key: key.map(str::to_owned), ..self.clone() }
    }

    /// Its credential.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// POSTs a chat completion under an Idempotency-Key.
    pub async fn chat_once(&self, idempotency_key: &str, body: &Value) -> Response {
        let request = self.http.post(format!("{}/chat/completions", self.base_url)).json(body);
        let request = request.bearer_auth(self.key().unwrap_or_default());
        request.header("idempotency-key", idempotency_key).send().await.unwrap()
    }

    /// Sends bytes to the OpenAI-compatible API; `path` follows `/v1`.
    pub async fn send(&self, method: Method, path: &str, body: Vec<u8>) -> reqwest::Result<Response> {
        self.request(method, format!("{}{path}", self.base_url), body).await
    }

    /// Calls the control plane; `path` follows `/api/v1`. Status and body (null where there is none).
    pub async fn control(&self, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Value) {
        let bytes = body.map_or_else(Vec::new, |body| serde_json::to_vec(&body).unwrap());
        let response = self.request(method, format!("{}{path}", self.admin_url), bytes).await.unwrap();
        (response.status(), response.json().await.unwrap_or(Value::Null))
    }

    /// The same of a control plane that may be away: nothing where it does not answer.
    pub async fn try_control(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Option<(StatusCode, Value)> {
        let bytes = body.map_or_else(Vec::new, |body| serde_json::to_vec(&body).unwrap());
        let response = self.request(method, format!("{}{path}", self.admin_url), bytes).await.ok()?;
        Some((response.status(), response.json().await.unwrap_or(Value::Null)))
    }

    async fn request(&self, method: Method, url: String, body: Vec<u8>) -> reqwest::Result<Response> {
        let mut request =
            self.http.request(method, url).header("content-type", "application/json").body(body);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        request.send().await
    }

    /// POSTs JSON and reads the whole answer.
    pub async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        let response = self.send(Method::POST, path, serde_json::to_vec(body).unwrap()).await.unwrap();
        (response.status(), response.json().await.unwrap_or(Value::Null))
    }

    /// A chat completion that must succeed.
    pub async fn chat(&self, content: &str, more: Value) -> Value {
        let (status, answer) = self.post("/chat/completions", &chat_body(content, more)).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        answer
    }

    /// Begins a stream; the caller reads (or drops) it.
    pub async fn stream(&self, content: &str, more: Value) -> Response {
        let mut body = chat_body(content, more);
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let response =
            self.send(Method::POST, "/chat/completions", serde_json::to_vec(&body).unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        response
    }

    /// Makes a tenant with limits and one key; everything must succeed.
    pub async fn create_tenant(&self, name: &str, limits: Value, now: DateTime<Utc>) -> Tenant {
        let (status, tenant) =
            self.control(Method::POST, "/tenants", Some(json!({"name": name, "limits": limits}))).await;
        assert_eq!(status, StatusCode::CREATED, "{tenant}");
        let id = tenant["id"].as_str().unwrap().to_owned();
        let key = self.create_key(&id, &["inference", "usage:read"], now).await;
        let api = self.with_key(key["token"].as_str());
        Tenant { id, key_id: key["id"].as_str().unwrap().to_owned(), api }
    }

    /// Makes a key; the answer holds `id` and, this once, `token`.
    pub async fn create_key(&self, tenant: &str, scopes: &[&str], now: DateTime<Utc>) -> Value {
        let expires_at = now + chrono::Duration::days(1);
        let body = json!({"name": "test", "scopes": scopes, "expires_at": expires_at});
        let (status, key) = self.control(Method::POST, &format!("/tenants/{tenant}/keys"), Some(body)).await;
        assert_eq!(status, StatusCode::CREATED, "{key}");
        // The gateway learns of it with the next config, milliseconds later.
        let caller = self.with_key(key["token"].as_str());
        until("the key is known to the gateway", || async {
            let response = caller.send(Method::GET, "/models", Vec::new()).await.unwrap();
            (response.status() != StatusCode::UNAUTHORIZED).then_some(())
        })
        .await;
        key
    }
}

/// A chat request of one user message, with more fields merged in.
pub fn chat_body(content: &str, more: Value) -> Value {
    let mut body = json!({"model": MODEL, "messages": [{"role": "user", "content": content}]});
    if let Value::Object(more) = more {
        body.as_object_mut().unwrap().extend(more);
    }
    body
}

/// The events of an SSE body, `[DONE]` included as a JSON string.
pub async fn events(response: Response) -> Vec<Value> {
    let mut bytes = Vec::new();
    let mut body = response.bytes_stream();
    while let Some(chunk) = body.next().await {
        bytes.extend_from_slice(&chunk.unwrap());
    }
    parse_events(&String::from_utf8(bytes).unwrap())
}

/// The same of a body that is read already.
pub(crate) fn parse_events(text: &str) -> Vec<Value> {
    let data = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap_or_else(|_| json!(data))).collect()
}
