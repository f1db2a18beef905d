//! How long a request would wait for its first token on one replica, in milliseconds. Pure.

use weir_schemas::rpc::worker::VersionLoad;

/// Assumed where nothing was measured and no other replica of the version can lend its rate: a small model on a CPU.
pub(crate) const UNMEASURED_PREFILL_TOKENS_PER_S: f64 = 500.0;
/// Assumed until a decode rate was measured.
const UNMEASURED_DECODE_TOKENS_PER_S: f64 = 20.0;
/// Tokens that a running sequence still has to go, on average, before it frees its seat and pages.
const REMAINING_TOKENS: f64 = 64.0;
/// Tokens of a page, as the engine has them.
const BLOCK_TOKENS: u64 = 16;

/// What was sent to a replica since the report that is looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SentSince {
    pub(crate) sequences: u64,
    pub(crate) prompt_tokens: u64,
}

/// Expected milliseconds to the first token: prefill work ahead and its own over the measured rate, plus a wait for a
/// seat and for pages where there are none.
pub(crate) fn expected_ttft_ms(
    load: &VersionLoad,
    sent: SentSince,
    prompt_tokens: u64,
    borrowed_prefill_tokens_per_s: f64,
) -> f64 {
    let prefill_rate = positive_or(load.prefill_tokens_per_s, borrowed_prefill_tokens_per_s);
    let decode_rate = positive_or(load.decode_tokens_per_s, UNMEASURED_DECODE_TOKENS_PER_S);
    let prefill_tokens = load.queued_prefill_tokens + sent.prompt_tokens + prompt_tokens;
    let prefill_ms = prefill_tokens as f64 / prefill_rate * 1000.0;
    // Each round of seats turns over in about the time that its sequences' remaining tokens take together.
    let waiting = u64::from(load.waiting_interactive) + u64::from(load.waiting_batch) + sent.sequences;
    let occupied = u64::from(load.running) + waiting;
    let seats = u64::from(load.seats.max(1));
    let seats_short = (occupied + 1).saturating_sub(seats);
    let seat_ms = seats_short as f64 * REMAINING_TOKENS / decode_rate * 1000.0;
    let usable_pages = load.pages_free + load.pages_cached;
    let wanted_pages = (sent.prompt_tokens + prompt_tokens).div_ceil(BLOCK_TOKENS);
    let pages_short = wanted_pages.saturating_sub(usable_pages);
    let page_ms = (pages_short * BLOCK_TOKENS) as f64 / decode_rate * 1000.0;
    prefill_ms + seat_ms.max(page_ms)
}

fn positive_or(measured: f64, otherwise: f64) -> f64 {
    if measured.is_finite() && measured > 0.0 { measured } else { otherwise }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle() -> VersionLoad {
        VersionLoad {
            seats: 8,
            pages: 100,
            pages_free: 100,
            prefill_tokens_per_s: 1_000.0,
            decode_tokens_per_s: 100.0,
            ..VersionLoad::default()
        }
    }

    #[test]
    fn counts_prefill_ahead_seats_and_pages() {
        let check = |change: fn(&mut VersionLoad), sent: SentSince, prompt: u64, expected_ms: f64| {
            let mut load = idle();
            change(&mut load);
            assert_eq!(expected_ttft_ms(&load, sent, prompt, 500.0), expected_ms);
        };
        let none = SentSince::default();
        check(|_| (), none, 100, 100.0);
        check(|load| load.queued_prefill_tokens = 400, none, 100, 500.0);
        check(|_| (), SentSince { sequences: 1, prompt_tokens: 400 }, 100, 500.0);
        check(|load| load.prefill_tokens_per_s = 0.0, none, 100, 200.0);
        check(|load| load.prefill_tokens_per_s = f64::NAN, none, 100, 200.0);
        check(|load| load.running = 8, none, 0, 640.0);
        check(|load| load.running = 7, none, 0, 0.0);
        check(|load| load.pages_free = 0, none, 16, 16.0 + 160.0);
    }
}
