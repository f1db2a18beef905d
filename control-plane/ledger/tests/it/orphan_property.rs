//! Whatever way records, resends, passes for orphans, late closes and late prices interleave: each request owes what
//! its close says, or its execution if it has none, and roll-ups are the sums.

use std::cell::Cell;

use proptest::prelude::*;
use rust_decimal::Decimal;
use weir_ledger::price_unpriced;
use weir_schemas::ids::GatewayId;

use crate::orphans::{billed, passes};
use crate::support::{Ledger, UNPRICED, VERSION, WORKER, at, charge_of, clock, execution};
use crate::verify::check;

/// From this second on every execution here is older than the grace: the tests' ledger has one time for all records.
const GRACE_OVER: i64 = 60;

#[derive(Debug, Clone)]
struct Drawn {
    prompt: u64,
    generated: u64,
    /// What the gateway knew less of than the worker: it had died.
    unknown: u64,
    has_close: bool,
    has_price: bool,
    is_billed: bool,
}

impl Drawn {
    fn known(&self) -> u64 {
        self.generated - self.unknown.min(self.generated)
    }

    /// What the request owes in the end: input, cached, output.
    fn owed(&self) -> (u64, u64, u64) {
        let output = if self.has_close { self.known() } else { self.generated };
        (self.prompt, self.prompt / 3, output)
    }
}

const CORRECTED: Drawn =
    Drawn { prompt: 40, generated: 20, unknown: 5, has_close: true, has_price: true, is_billed: true };

/// What happens next; numbers are taken modulo the requests.
#[derive(Debug, Clone)]
enum Step {
    Execution(usize),
    Close(usize),
    Pass,
    LatePrice,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    (0..300u64, 0..60u64, 0..8u64, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(prompt, generated, unknown, has_close, has_price, is_billed)| Drawn {
            prompt,
            generated,
            unknown,
            has_close,
            has_price,
            is_billed,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<usize>().prop_map(Step::Execution),
        4 => any::<usize>().prop_map(Step::Close),
        2 => Just(Step::Pass),
        1 => Just(Step::LatePrice),
    ]
}

/// One case: its requests, and what has been sent of them.
struct Case<'a> {
    ledger: &'a Ledger,
    gateway: GatewayId,
    requests: &'a [Drawn],
    executed: Vec<bool>,
    next_execution: &'a Cell<u64>,
}

impl Case<'_> {
    fn number(&self, index: usize) -> u128 {
        self.gateway.as_u128() * 1_000 + index as u128
    }

    async fn run(&mut self, step: &Step) {
        match step {
            Step::Execution(index) => self.execute(index % self.requests.len()).await,
            Step::Close(index) => self.close(index % self.requests.len()).await,
            Step::Pass => self.pass().await,
            Step::LatePrice => drop(price_unpriced(&self.ledger.pool, &clock()).await.unwrap()),
        }
    }

    async fn execute(&mut self, index: usize) {
        if std::mem::replace(&mut self.executed[index], true) {
            return;
        }
        let sequence = self.next_execution.get();
        self.next_execution.set(sequence + 1);
        let drawn = &self.requests[index];
        let record = execution(sequence, self.number(index), |data| {
            if drawn.is_billed {
                billed(data);
                data.billing.as_mut().unwrap().gateway = self.gateway;
            }
            data.version = if drawn.has_price { VERSION } else { UNPRICED };
            (data.prompt_tokens, data.cached_tokens) = (drawn.prompt, drawn.prompt / 3);
            (data.computed_tokens, data.generated_tokens) =
                (drawn.prompt - drawn.prompt / 3, drawn.generated);
        });
        self.ledger.try_append(&WORKER.to_string(), vec![record]).await.unwrap();
    }

    /// Sends a close, for the first time or again. Its number is its rank among those that have one.
    async fn close(&self, index: usize) {
        let drawn = &self.requests[index];
        if !drawn.has_close {
            return;
        }
        let rank = self.requests[..=index].iter().filter(|drawn| drawn.has_close).count() as u64;
        let record = charge_of(self.gateway, rank, self.number(index), |data| {
            data.version = if drawn.has_price { VERSION } else { UNPRICED };
            (data.prompt_tokens, data.cached_prompt_tokens) = (drawn.prompt, drawn.prompt / 3);
            (data.generated_tokens, data.recovered) = (drawn.known(), drawn.unknown > 0);
        });
        self.ledger.try_append(&self.gateway.to_string(), vec![record]).await.unwrap();
    }

    async fn pass(&self) {
        passes(self.ledger, GRACE_OVER..=GRACE_OVER).await;
    }
}

#[test]
fn each_request_owes_what_its_close_says_or_else_its_execution() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let ledger = runtime.block_on(Ledger::start());
    let (case, next_execution) = (Cell::new(0u128), Cell::new(1));
    let (requests, tokens) = (Cell::new(0), Cell::new((0, 0, 0)));
    // Micro-cents that the requests owe, so that sums stay whole: 0.5, 0.125 and 1.5 per million; unpriced 0.7, 0.1, 2.3.
    let owed = Cell::new(Decimal::ZERO);
    runtime.block_on(passes(&ledger, 0..=GRACE_OVER));
    let config = ProptestConfig { cases: 20, max_shrink_iters: 30, ..ProptestConfig::default() };
    let run = |drawn: &[Drawn], steps: &[Step]| {
        case.set(case.get() + 1);
        let mut running = Case {
            ledger: &ledger,
            gateway: GatewayId::from_u128(case.get() + 1_000),
            requests: drawn,
            executed: vec![false; drawn.len()],
            next_execution: &next_execution,
        };
        runtime.block_on(async {
            for step in steps {
                running.run(step).await;
            }
            for index in 0..drawn.len() {
                running.execute(index).await;
                running.close(index).await;
            }
            running.pass().await;
        });
        for drawn in drawn {
            let (input, cached, output) = drawn.owed();
            let sum = tokens.get();
            tokens.set((sum.0 + input, sum.1 + cached, sum.2 + output));
            requests.set(requests.get() + 1);
            let [prompt, cache, generated] =
                if drawn.has_price { [500, 125, 1_500] } else { [700, 100, 2_300] };
            let milli = prompt * (input - cached) + cache * cached + generated * output;
            owed.set(owed.get() + Decimal::new(i64::try_from(milli).unwrap(), 9));
        }
    };
    // Whatever else is drawn: a request charged from its execution, which its close then corrects.
    run(&[CORRECTED], &[Step::Execution(0), Step::Pass, Step::Close(0)]);
    let drawn = (prop::collection::vec(drawn(), 1..8), prop::collection::vec(step(), 0..30));
    proptest!(config, |((drawn, steps) in drawn)| run(&drawn, &steps));
    runtime.block_on(async {
        ledger.price(UNPRICED, at(-3600), "0.7", "0.1", "2.3").await;
        price_unpriced(&ledger.pool, &clock()).await.unwrap();
        passes(&ledger, GRACE_OVER..=GRACE_OVER).await;
        let (input, cached, output) = tokens.get();
        for (rolled, charged, expected) in [
            ("requests", "requests", requests.get()),
            ("input_tokens", "prompt_tokens", input),
            ("input_cached_tokens", "cached_prompt_tokens", cached),
            ("output_tokens", "generated_tokens", output),
        ] {
            assert_eq!(ledger.sum(rolled, "ledger_usage_minutes").await, expected.into(), "{rolled}");
            assert_eq!(ledger.sum(charged, "ledger_charges").await, expected.into(), "{charged}");
        }
        assert_eq!(ledger.sum("amount", "ledger_usage_minutes").await, owed.get());
        assert_eq!(ledger.sum("amount", "ledger_charges").await, owed.get());
        assert_eq!(ledger.count("ledger_dead_letters").await, 0);
        let report = check(&ledger).await;
        assert!(report.is_clean(), "{report:?}");
        assert!(report.counts.from_executions > 0 && report.counts.corrections > 0, "{:?}", report.counts);
    });
}
