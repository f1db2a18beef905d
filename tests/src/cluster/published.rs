//! What a cluster is told to serve.

use std::process::Command;

use reqwest::Method;
use serde_json::{Value, json};

use super::Cluster;
use crate::installation::{MODEL_FILE, binary, repository};
use crate::wait::until;

impl Cluster {
    /// Makes a model of this version, priced, deployed to a pool, known as `alias`.
    pub async fn publish(&self, mut version: Value, alias: &str, pool: &str) {
        let operator = self.operator();
        let make = async |path: &str, body: Value| -> Value {
            let (status, made) = operator.control(Method::POST, path, Some(body)).await;
            assert!(status.is_success(), "{path}: {status} {made}");
            made
        };
        let model = make("/models", json!({"name": format!("model-of-{alias}")})).await;
        version["model_id"] = model["id"].clone();
        let version = make("/versions", version).await["id"].clone();
        let book =
            make("/price-books", json!({"name": format!("prices-of-{alias}"), "currency": "USD"})).await;
        let prices = json!({"version_id": version, "prompt_per_million": "0.10", "cached_prompt_per_million": "0.05",
            "generated_per_million": "0.40"});
        make(&format!("/price-books/{}/prices", book["id"].as_str().unwrap()), prices).await;
        make("/deployments", json!({"version_id": version, "pool": pool})).await;
        make("/aliases", json!({"name": alias, "targets": [{"version_id": version, "weight": 1}]})).await;
    }

    /// Waits until every node has in force what was published last.
    pub async fn config_in_force(&self) {
        let operator = self.operator();
        until("the config is in force", || async {
            let (_, published) = operator.control(Method::GET, "/config", None).await;
            let (_, nodes) = operator.control(Method::GET, "/nodes", None).await;
            let nodes = nodes["data"].as_array()?;
            nodes.iter().all(|node| node["revision"] == published["revision"]).then_some(())
        })
        .await;
    }
}

/// The version of the default model.
pub fn smollm2() -> Value {
    let file = repository().join(".cache/models").join(MODEL_FILE);
    assert!(file.is_file(), "{} is missing: run `make models`", file.display());
    let output = Command::new(binary()).arg("inspect").arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut version: Value = serde_json::from_slice(&output.stdout).unwrap();
    let facts = ["weights_uri", "digest", "dtype", "parameter_count", "context_limit", "tokenizer_digest"];
    version.as_object_mut().unwrap().retain(|name, _| facts.contains(&name.as_str()));
    version
}
