//! The proof that the whole path works: a streaming chat completion through the gateway, then its usage and its
//! charge as the tenant's own key sees them.

use std::time::Duration;

use anyhow::{Context, bail};
use futures::StreamExt;
use rust_decimal::Decimal;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use weir_schemas::clock::Clock;

use super::admin::Admin;
use super::first_run::ALIAS;
use crate::screen::{say, say_part};

const PROMPT: &str = "In one sentence: what is a weir?";
const MAX_TOKENS: u32 = 96;
/// A cold machine reads the weights and computes the first prompt slowly.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// The record goes to the ledger at the next group fsync; this is a hundred times as long.
const LEDGER_TIMEOUT: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(100);
/// A server-sent event of one chunk is a few hundred bytes.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// Counts and money, as the API shows them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Totals {
    requests: u64,
    input: u64,
    cached: u64,
    output: u64,
    amount: Decimal,
}

/// Prints the answer while it is generated, then what it cost.
pub(super) async fn show(base_url: &str, api_key: &str, tenant: &Admin, clock: &Clock) -> anyhow::Result<()> {
    // The start of the minute, which is how usage is kept.
    let since = clock.now().timestamp() / 60 * 60;
    let before = totals(tenant, since).await?;
    say(&format!("\n> {PROMPT}"));
    let usage = tokio::time::timeout(ANSWER_TIMEOUT, stream(base_url, api_key))
        .await
        .context("no answer came in time")??;
    let told = |key: &str| usage[key].as_u64().unwrap_or(0);
    let deadline = tokio::time::Instant::now() + LEDGER_TIMEOUT;
    let after = loop {
        let now = totals(tenant, since).await?;
        if now.requests > before.requests {
            break now;
        }
        if tokio::time::Instant::now() >= deadline {
            bail!("the ledger does not show the request after {} s", LEDGER_TIMEOUT.as_secs());
        }
        tokio::time::sleep(POLL).await;
    };
    say(&format!(
        "\n  told by the stream:  {} prompt tokens, {} generated",
        told("prompt_tokens"),
        told("completion_tokens")
    ));
    say(&format!(
        "  /api/v1/usage:       {} input tokens ({} cached), {} output, {} request",
        after.input - before.input,
        after.cached - before.cached,
        after.output - before.output,
        after.requests - before.requests
    ));
    say(&format!("  /api/v1/costs:       {} USD", (after.amount - before.amount).normalize()));
    Ok(())
}

/// One chat completion; returns the usage of its last chunk.
async fn stream(base_url: &str, api_key: &str) -> anyhow::Result<Value> {
    let body = json!({
        "model": ALIAS,
        "messages": [{ "role": "user", "content": PROMPT }],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": true,
        "stream_options": { "include_usage": true },
    });
    let client = reqwest::Client::builder().no_proxy().build()?;
    let url = format!("{base_url}/chat/completions");
    let response = client.post(url).bearer_auth(api_key).json(&body).send().await?;
    let status = response.status();
    if !status.is_success() {
        bail!("the first request was refused: {status}: {}", response.text().await.unwrap_or_default());
    }
    let mut bytes = response.bytes_stream();
    let mut pending = Vec::new();
    let mut usage = Value::Null;
    while let Some(piece) = bytes.next().await {
        pending.extend_from_slice(&piece?);
        while let Some(end) = pending.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            match line.trim_end().strip_prefix("data: ") {
                Some("[DONE]") => {
                    say("");
                    return Ok(usage);
                }
                Some(event) => show_chunk(event, &mut usage)?,
                None => {}
            }
        }
        if pending.len() > EVENT_BYTES_MAX {
            bail!("an event of the stream is too long");
        }
    }
    bail!("the stream ended before its end")
}

fn show_chunk(event: &str, usage: &mut Value) -> anyhow::Result<()> {
    let chunk: Value = serde_json::from_str(event).context("an event that is not JSON")?;
    if let Some(error) = chunk.get("error") {
        bail!("the stream broke: {error}");
    }
    if let Some(text) = chunk["choices"][0]["delta"]["content"].as_str() {
        say_part(text);
    }
    if chunk["usage"].is_object() {
        *usage = chunk["usage"].clone();
    }
    Ok(())
}

#[derive(Deserialize)]
struct CostPage {
    data: Vec<CostBucket>,
}

#[derive(Deserialize)]
struct CostBucket {
    results: Vec<CostResult>,
}

#[derive(Deserialize)]
struct CostResult {
    amount: Amount,
}

#[derive(Deserialize)]
struct Amount {
    /// Kept as digits: a float would lose some.
    value: Box<RawValue>,
}

async fn totals(tenant: &Admin, since: i64) -> anyhow::Result<Totals> {
    let query = format!("start_time={since}&bucket_width=1m&limit=60");
    let usage: Value = tenant.get(&format!("/usage?{query}")).await?;
    let costs: CostPage = tenant.get(&format!("/costs?{query}")).await?;
    let mut totals = Totals::default();
    for bucket in usage["data"].as_array().into_iter().flatten() {
        for result in bucket["results"].as_array().into_iter().flatten() {
            let count = |key: &str| result[key].as_u64().unwrap_or(0);
            totals.requests += count("num_model_requests");
            totals.input += count("input_tokens");
            totals.cached += count("input_cached_tokens");
            totals.output += count("output_tokens");
        }
    }
    for result in costs.data.into_iter().flat_map(|bucket| bucket.results) {
        totals.amount +=
            result.amount.value.get().parse::<Decimal>().context("an amount that is not a number")?;
    }
    Ok(totals)
}
