//! How long a request would wait for its first token on one replica, in milliseconds. Pure.

use weir_schemas::rpc::worker::{Class, VersionLoad};

/// Assumed where nothing was measured and no other replica of the version can lend its rate: a small model on a CPU.
pub(crate) const UNMEASURED_PREFILL_TOKENS_PER_S: f64 = 500.0;
/// Of each seat, assumed until a decode rate was measured.
const UNMEASURED_DECODE_TOKENS_PER_S: f64 = 20.0;
/// Length of an answer, assumed until one has ended.
const UNMEASURED_ANSWER_TOKENS: f64 = 64.0;
/// Tokens of a page, as the engine has them.
const BLOCK_TOKENS: u64 = 16;

/// What was sent to a replica since the report that is looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SentSince {
    pub(crate) interactive: Sent,
    pub(crate) batch: Sent,
}

/// Of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) sequences: u64,
    pub(crate) prompt_tokens: u64,
}

/// What a request has to expect of a replica.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Expected {
    /// Until it begins to be computed: the prompts before it, and a wait for a seat and for pages where there are none.
    pub(crate) wait_ms: f64,
    /// Of its own prompt.
    pub(crate) prefill_ms: f64,
    /// There is no seat for it, nor for the first of its choices.
    pub(crate) is_full: bool,
    /// Of its choices, those that find none.
    pub(crate) would_wait: u64,
    /// Sequences that want a seat before it and find none, as far as is known.
    pub(crate) queue_depth: u64,
}

impl Expected {
    pub(crate) fn ttft_ms(&self) -> f64 {
        self.wait_ms + self.prefill_ms
    }
}

/// What is asked for, as far as it matters here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) class: Class,
    pub(crate) prompt_tokens: u64,
    /// Sequences that it runs as; the first answers first.
    pub(crate) choices: u64,
}

/// What a request has to expect. An interactive one goes before all of class batch, which gives its
/// seats up to it.
pub(crate) fn expect(
    load: &VersionLoad,
    sent: SentSince,
    Asked { class, prompt_tokens, choices }: Asked,
    borrowed_prefill_tokens_per_s: f64,
) -> Expected {
    let prefill_rate = positive_or(load.prefill_tokens_per_s, borrowed_prefill_tokens_per_s);
    let seats = u64::from(load.seats.max(1));
    let decode_rate = positive_or(load.decode_tokens_per_s, UNMEASURED_DECODE_TOKENS_PER_S * seats as f64);
    let answer_tokens = positive_or(load.answer_tokens, UNMEASURED_ANSWER_TOKENS);
    let (interactive, batch) = (u64::from(load.waiting_interactive), u64::from(load.waiting_batch));
    let mut ahead = Ahead {
        running: u64::from(load.running),
        waiting: interactive + sent.interactive.sequences,
        prefill_tokens: load.queued_prefill_tokens,
        sent_tokens: sent.interactive.prompt_tokens,
    };
    match class {
        Class::Batch | Class::Unspecified => {
            ahead.waiting += batch + sent.batch.sequences;
            ahead.sent_tokens += sent.batch.prompt_tokens;
        }
        Class::Interactive => {
            ahead.running = ahead.running.saturating_sub(u64::from(load.running_batch));
            // Whose they are is not told: shared out as the sequences are.
            let share = u128::from(ahead.prefill_tokens) * u128::from(interactive);
            let of_interactive = share.checked_div(u128::from(interactive + batch));
            let of_interactive = of_interactive.and_then(|tokens| u64::try_from(tokens).ok());
            ahead.prefill_tokens = of_interactive.unwrap_or(ahead.prefill_tokens);
        }
    }
    let short_by = |choices: u64| (ahead.running + ahead.waiting + choices).saturating_sub(seats);
    let seats_short = short_by(1);
    // A full batch ends one answer in the time in which it gives as many tokens as one has.
    let seat_ms = seats_short as f64 * answer_tokens / decode_rate * 1000.0;
    let usable_pages = load.pages_free + load.pages_cached;
    let wanted_pages = (ahead.sent_tokens + prompt_tokens).div_ceil(BLOCK_TOKENS);
    let pages_short = wanted_pages.saturating_sub(usable_pages);
    let page_ms = (pages_short * BLOCK_TOKENS) as f64 / decode_rate * 1000.0;
    let prefill_ms = |tokens: u64| tokens as f64 / prefill_rate * 1000.0;
    Expected {
        wait_ms: prefill_ms(ahead.prefill_tokens + ahead.sent_tokens) + seat_ms.max(page_ms),
        prefill_ms: prefill_ms(prompt_tokens),
        is_full: seats_short > 0,
        would_wait: short_by(choices).min(choices),
        // Of those that were sent since the report, some find a seat.
        queue_depth: ahead.waiting.min(seats_short.saturating_sub(1)),
    }
}

/// Sequences that wait for a seat, of both classes.
pub(crate) fn num_waiting(load: &VersionLoad) -> u64 {
    u64::from(load.waiting_interactive) + u64::from(load.waiting_batch)
}

/// What comes before the request.
struct Ahead {
    running: u64,
    waiting: u64,
    /// As reported.
    prefill_tokens: u64,
    /// Since then.
    sent_tokens: u64,
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

    fn small(class: Class) -> Asked {
        Asked { class, prompt_tokens: 0, choices: 1 }
    }

    #[test]
    fn each_choice_wants_a_seat() {
        let load = VersionLoad { running: 5, ..idle() };
        let of = |choices, waiting_interactive| {
            let load = VersionLoad { waiting_interactive, ..load.clone() };
            let asked = Asked { choices, ..small(Class::Interactive) };
            let Expected { is_full, would_wait, queue_depth, .. } =
                expect(&load, SentSince::default(), asked, 1.0);
            (is_full, would_wait, queue_depth)
        };
        assert_eq!(of(3, 0), (false, 0, 0));
        assert_eq!(of(8, 0), (false, 5, 0));
        assert_eq!(of(2, 4), (true, 2, 1));
    }

    fn ttft_ms(change: impl Fn(&mut VersionLoad), sent: SentSince, class: Class, prompt: u64) -> f64 {
        let mut load = idle();
        change(&mut load);
        expect(&load, sent, Asked { class, prompt_tokens: prompt, choices: 1 }, 500.0).ttft_ms()
    }

    fn sent(sequences: u64, prompt_tokens: u64) -> Sent {
        Sent { sequences, prompt_tokens }
    }

    #[test]
    fn counts_prefill_ahead_seats_and_pages() {
        let check = |change: fn(&mut VersionLoad), interactive: Sent, prompt: u64, expected_ms: f64| {
            let sent = SentSince { interactive, ..SentSince::default() };
            for class in [Class::Interactive, Class::Batch] {
                assert_eq!(ttft_ms(change, sent, class, prompt), expected_ms);
            }
        };
        let none = sent(0, 0);
        check(|_| (), none, 100, 100.0);
        check(|load| load.queued_prefill_tokens = 400, none, 100, 500.0);
        check(|_| (), sent(1, 400), 100, 500.0);
        check(|load| load.prefill_tokens_per_s = 0.0, none, 100, 200.0);
        check(|load| load.prefill_tokens_per_s = f64::NAN, none, 100, 200.0);
        check(|load| load.running = 8, none, 0, 640.0);
        check(|load| (load.running, load.answer_tokens) = (8, 10.0), none, 0, 100.0);
        check(|load| (load.running, load.decode_tokens_per_s) = (8, 0.0), none, 0, 64.0 / 160.0 * 1000.0);
        check(|load| load.running = 7, none, 0, 0.0);
        check(|load| load.pages_free = 0, none, 16, 16.0 + 160.0);
    }

    #[test]
    fn batch_waits_for_interactive_and_not_the_other_way_round() {
        let full = |load: &mut VersionLoad| {
            (load.running, load.running_batch, load.answer_tokens) = (8, 3, 10.0);
            (load.waiting_interactive, load.waiting_batch, load.queued_prefill_tokens) = (1, 3, 400);
        };
        let sent = SentSince { interactive: sent(1, 10), batch: sent(2, 1_000) };
        // Two of the three seats of batch are spoken for; a quarter of the prompts, and what was sent, goes before.
        assert_eq!(ttft_ms(full, sent, Class::Interactive, 0), 110.0);
        // Everybody waits before it: seven, and it takes the eighth seat that is free again.
        assert_eq!(ttft_ms(full, sent, Class::Batch, 0), 400.0 + 1_010.0 + 800.0);
        let mut load = idle();
        full(&mut load);
        let depths = [Class::Interactive, Class::Batch]
            .map(|class| expect(&load, sent, small(class), 1.0).queue_depth);
        assert_eq!(depths, [0, 7]);
        load.running_batch = 0;
        assert_eq!(expect(&load, sent, small(Class::Interactive), 1.0).queue_depth, 2);
        // The seats that are left go to the first of those that were sent.
        let burst =
            SentSince { interactive: Sent { sequences: 8, prompt_tokens: 0 }, ..SentSince::default() };
        let of_burst = |running| {
            let load = VersionLoad { running, ..idle() };
            let expected = expect(&load, burst, small(Class::Interactive), 1.0);
            (expected.is_full, expected.queue_depth)
        };
        assert_eq!([0, 1, 8].map(of_burst), [(true, 0), (true, 1), (true, 8)]);
    }
}
