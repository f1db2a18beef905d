//! Receipts against the ledger: what must hold of every request, whatever was killed meanwhile.

use std::collections::{BTreeMap, HashMap};

use rust_decimal::Decimal;
use sqlx::{PgConnection, Row};

use super::receipt::{Outcome, Receipt, Tokens};

/// The ledger, as an auditor reads it.
#[derive(Debug, Default)]
pub struct Books {
    /// By the client's own request id; each row's sum is what its client pays.
    pub charges: BTreeMap<String, Vec<Charge>>,
    /// Generated tokens of a request's attempts, and whether any of them was closed from its last progress.
    pub executions: HashMap<String, (i64, bool)>,
    /// Roll-ups' sums: requests, input, cached input and output tokens, amount.
    pub rolled_up: (i64, i64, i64, i64, Decimal),
}

/// A row of `ledger_charges`.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the columns' names")]
pub struct Charge {
    pub request_id: String,
    pub entry: i16,
    pub tenant_id: String,
    pub finish_reason: String,
    pub tokens: Tokens,
    pub recovered: bool,
    pub chargeable: bool,
    pub amount: Decimal,
    /// Tokens of the kinds by their prices.
    pub expected_amount: Decimal,
}

/// What a run may excuse.
#[derive(Debug, Clone, Copy)]
pub struct Allowance {
    /// Tokens that one request generates between two notes of its progress, at most.
    pub progress_tokens: i64,
    /// Requests that were in flight when their gateway was killed.
    pub in_flight_at_kills: usize,
}

impl Books {
    /// Reads all of it. Charges of clients that set no id of ours are of nobody we know: they are listed under "".
    pub async fn read(connection: &mut PgConnection) -> Self {
        let mut books = Self::default();
        for row in sqlx::query("SELECT * FROM ledger_charges ORDER BY request_id, entry")
            .fetch_all(&mut *connection)
            .await
            .unwrap()
        {
            let price = |name: &str| row.get::<Option<Decimal>, _>(name).unwrap_or_default();
            let tokens = Tokens {
                prompt: row.get("prompt_tokens"),
                cached: row.get("cached_prompt_tokens"),
                generated: row.get("generated_tokens"),
            };
            let expected = price("prompt_per_million") * Decimal::from(tokens.prompt - tokens.cached)
                + price("cached_prompt_per_million") * Decimal::from(tokens.cached)
                + price("generated_per_million") * Decimal::from(tokens.generated);
            let client: Option<String> = row.get("client_request_id");
            books.charges.entry(client.unwrap_or_default()).or_default().push(Charge {
                request_id: row.get("request_id"),
                entry: row.get("entry"),
                tenant_id: row.get("tenant_id"),
                finish_reason: row.get("finish_reason"),
                tokens,
                recovered: row.get("recovered"),
                chargeable: row.get("chargeable"),
                amount: row.get("amount"),
                expected_amount: expected / Decimal::from(1_000_000),
            });
        }
        for row in sqlx::query(
            "SELECT request_id, sum(generated_tokens)::bigint AS generated, bool_or(recovered) AS recovered
             FROM ledger_executions GROUP BY request_id",
        )
        .fetch_all(&mut *connection)
        .await
        .unwrap()
        {
            books.executions.insert(row.get("request_id"), (row.get("generated"), row.get("recovered")));
        }
        let row = sqlx::query(
            "SELECT coalesce(sum(requests), 0)::bigint, coalesce(sum(input_tokens), 0)::bigint,
                    coalesce(sum(input_cached_tokens), 0)::bigint, coalesce(sum(output_tokens), 0)::bigint,
                    coalesce(sum(amount), 0) FROM ledger_usage_minutes",
        )
        .fetch_one(&mut *connection)
        .await
        .unwrap();
        books.rolled_up = (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4));
        books
    }
}

/// Everything that is wrong; empty is the normal answer.
pub fn check(receipts: &[Receipt], books: &Books, allowance: Allowance) -> Vec<String> {
    let mut wrong = Vec::new();
    let known: HashMap<&str, &Receipt> =
        receipts.iter().map(|receipt| (receipt.id.as_str(), receipt)).collect();
    for (client, charges) in &books.charges {
        match known.get(client.as_str()) {
            Some(receipt) => one_request(receipt, charges, books, allowance, &mut wrong),
            None => wrong.push(format!("charged, but nobody asked: {client:?} {charges:?}")),
        }
    }
    for receipt in receipts {
        let charged = books.charges.contains_key(&receipt.id);
        if matches!(receipt.outcome, Outcome::Completed(_)) && !charged {
            wrong.push(format!("answered, but not charged: {receipt:?}"));
        }
    }
    let recovered =
        books.charges.values().flatten().filter(|charge| charge.entry == 0 && charge.recovered).count();
    if recovered > allowance.in_flight_at_kills {
        wrong.push(format!(
            "{recovered} requests were closed from their last progress, but only {} were in flight when gateways were killed",
            allowance.in_flight_at_kills
        ));
    }
    roll_ups(books, &mut wrong);
    wrong
}

fn one_request(
    receipt: &Receipt,
    charges: &[Charge],
    books: &Books,
    allowance: Allowance,
    wrong: &mut Vec<String>,
) {
    let mut say = |what: &str| wrong.push(format!("{what}: {receipt:?} {charges:?}"));
    let first = &charges[0];
    if charges.iter().filter(|charge| charge.entry == 0).count() != 1
        || charges.iter().any(|charge| charge.request_id != first.request_id)
    {
        return say("charged more than once");
    }
    if charges.iter().any(|charge| charge.tenant_id != receipt.tenant) {
        say("charged to another tenant");
    }
    if charges
        .iter()
        .any(|charge| charge.amount != if charge.chargeable { charge.expected_amount } else { Decimal::ZERO })
    {
        say("the amount is not tokens by prices");
    }
    let sum = |part: fn(&Tokens) -> i64| charges.iter().map(|charge| part(&charge.tokens)).sum::<i64>();
    let charged = Tokens {
        prompt: sum(|tokens| tokens.prompt),
        cached: sum(|tokens| tokens.cached),
        generated: sum(|tokens| tokens.generated),
    };
    match receipt.outcome {
        Outcome::Completed(told) => {
            if told != charged || !first.chargeable {
                say("the tokens are not those that the client was told");
            }
        }
        Outcome::Refused(_) => {
            if charges.iter().any(|charge| !charge.amount.is_zero()) {
                say("refused, but charged");
            }
        }
        Outcome::Left | Outcome::Fault | Outcome::Broken => {
            let (generated, worker_recovered) =
                books.executions.get(&first.request_id).copied().unwrap_or_default();
            let recovered = worker_recovered || charges.iter().any(|charge| charge.recovered);
            let bound = if recovered { allowance.progress_tokens } else { 0 };
            // A replica that died charges what was delivered; it had computed what nobody saw.
            let off = (charged.generated - generated).abs();
            if off > bound {
                say(&format!(
                    "charged {} generated tokens for {generated} that were generated",
                    charged.generated
                ));
            }
        }
    }
}

fn roll_ups(books: &Books, wrong: &mut Vec<String>) {
    let rows = books.charges.values().flatten();
    let sum = rows.fold((0, 0, 0, 0, Decimal::ZERO), |sum, charge| {
        let tokens = charge.tokens;
        let requests = i64::from(charge.entry == 0);
        (
            sum.0 + requests,
            sum.1 + tokens.prompt,
            sum.2 + tokens.cached,
            sum.3 + tokens.generated,
            sum.4 + charge.amount,
        )
    });
    if sum != books.rolled_up {
        wrong.push(format!("the roll-ups say {:?}, the charges {sum:?}", books.rolled_up));
    }
}
