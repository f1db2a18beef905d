//! Where a session puts what arrives for one sequence. It never blocks the session: what was said and counts accumulate
//! until the request's own task takes them, so one slow reader holds nobody back. Its size is bounded by the sequence's
//! `max_tokens` (each at most a kilobyte of text), and a reader that takes nothing is cut off by its connection.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use prometheus_client::metrics::histogram::Histogram;
use tokio::sync::Notify;
use weir_schemas::records::GapStats;
use weir_schemas::rpc::step_message::Update;
use weir_schemas::rpc::worker::{Finished, TokenLogprob};
use weir_text::{AnswerEvent, AnswerParser};

use crate::admission::Allowance;

/// How a sequence ended, as far as this gateway can tell.
#[derive(Debug, Clone)]
pub(crate) enum End {
    /// The worker said so, with the engine's counts.
    Finished(Box<Finished>),
    /// The worker or the way to it is gone; nothing more will come.
    Lost,
}

/// When tokens arrived here.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arrivals {
    pub(crate) tokens: u64,
    /// Those of them that arrived inside a thought, its marks included.
    pub(crate) reasoning_tokens: u64,
    /// Of the prompt, as the worker says with the first token; 0 until then.
    pub(crate) cached_prompt_tokens: u64,
    pub(crate) first_at: Option<Instant>,
    pub(crate) last_at: Option<Instant>,
    pub(crate) gaps: GapStats,
}

impl Arrivals {
    /// Those of a further choice of the same request, whose prompt counts once.
    pub(crate) fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.reasoning_tokens += other.reasoning_tokens;
        self.cached_prompt_tokens = self.cached_prompt_tokens.max(other.cached_prompt_tokens);
        self.first_at = [self.first_at, other.first_at].into_iter().flatten().min();
        self.last_at = self.last_at.max(other.last_at);
        self.gaps.merge(&other.gaps);
    }
}

/// What was taken out.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// What the text says.
    pub(crate) said: Vec<AnswerEvent>,
    /// It called a tool, now or before, and no call is unfinished.
    pub(crate) has_called: bool,
    /// Of the tokens that arrived with it, if they were asked for.
    pub(crate) logprobs: Vec<TokenLogprob>,
    /// Tokens that have arrived in all.
    pub(crate) tokens: u64,
    pub(crate) end: Option<End>,
}

/// One sequence's buffer; one reader.
#[derive(Debug)]
pub(crate) struct Mailbox {
    inner: Mutex<Inner>,
    /// Of all choices of a request.
    changed: Arc<Notify>,
    /// Of all choices, too. Without one nothing bounds it.
    allowance: Option<Arc<Allowance>>,
    gap_histogram: Histogram,
}

/// What is to be done after an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivered {
    /// More will come.
    More,
    /// That was the last.
    Last,
    /// The sequence has used up what it may: its worker is to stop it, and says when it has.
    Exhausted,
}

#[derive(Debug, Default)]
struct Inner {
    /// `None`: all text is content.
    parser: Option<AnswerParser>,
    said: Vec<AnswerEvent>,
    /// Calls that are complete.
    has_called: bool,
    is_calling: bool,
    logprobs: Vec<TokenLogprob>,
    arrivals: Arrivals,
    is_exhausted: bool,
    end: Option<End>,
}

impl Mailbox {
    /// `changed` is told whenever something arrives. Without a parser all text is content.
    pub(crate) fn new(
        gap_histogram: Histogram,
        changed: Arc<Notify>,
        parser: Option<AnswerParser>,
        allowance: Option<Arc<Allowance>>,
    ) -> Self {
        let inner = Mutex::new(Inner { parser, ..Inner::default() });
        Self { inner, changed, allowance, gap_histogram }
    }

    /// Puts an update in.
    pub(crate) fn deliver(&self, update: Update<'_>, now: Instant) -> Delivered {
        let mut inner = self.inner.lock();
        if inner.end.is_some() {
            return Delivered::Last;
        }
        for _ in update.tokens {
            self.token_arrived(&mut inner.arrivals, now);
        }
        if let Some(cached) = update.cached_prompt_tokens {
            inner.arrivals.cached_prompt_tokens = cached;
        }
        inner.read(&update);
        inner.logprobs.extend_from_slice(update.logprobs);
        let allowed = self.allowance.as_ref().is_none_or(|all| all.arrived(update.tokens.len() as u64));
        inner.is_exhausted |= !allowed;
        let delivered = match update.finished {
            Some(finished) => {
                inner.end = Some(End::Finished(Box::new(finished.clone())));
                Delivered::Last
            }
            None if inner.is_exhausted => Delivered::Exhausted,
            None => Delivered::More,
        };
        drop(inner);
        self.changed.notify_one();
        delivered
    }

    /// It was stopped because it had used up what it may.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.inner.lock().is_exhausted
    }

    /// Nothing more will come. What came stays.
    pub(crate) fn lose(&self) {
        self.inner.lock().end.get_or_insert(End::Lost);
        self.changed.notify_one();
    }

    /// Takes what was said; the end stays visible.
    pub(crate) fn take(&self) -> Taken {
        let mut inner = self.inner.lock();
        let (said, logprobs) = (std::mem::take(&mut inner.said), std::mem::take(&mut inner.logprobs));
        let has_called = inner.has_called && !inner.is_calling;
        Taken { said, has_called, logprobs, tokens: inner.arrivals.tokens, end: inner.end.clone() }
    }

    /// How it ended, if it has.
    pub(crate) fn end(&self) -> Option<End> {
        self.inner.lock().end.clone()
    }

    /// Tokens that have arrived.
    pub(crate) fn tokens(&self) -> u64 {
        self.inner.lock().arrivals.tokens
    }

    pub(crate) fn arrivals(&self) -> Arrivals {
        self.inner.lock().arrivals.clone()
    }

    fn token_arrived(&self, arrivals: &mut Arrivals, now: Instant) {
        arrivals.tokens += 1;
        arrivals.first_at.get_or_insert(now);
        if let Some(last) = arrivals.last_at.replace(now) {
            let gap = now.saturating_duration_since(last);
            arrivals.gaps.record(u64::try_from(gap.as_micros()).unwrap_or(u64::MAX));
            self.gap_histogram.observe(gap.as_secs_f64());
        }
    }
}

impl Inner {
    /// Reads the text here, update by update, and not where it is taken, so that it does not depend on the reader's pace
    /// which tokens count as reasoning.
    fn read(&mut self, update: &Update<'_>) {
        let Some(parser) = &mut self.parser else {
            match self.said.last_mut() {
                Some(AnswerEvent::Content(said)) => said.push_str(update.text),
                _ if update.text.is_empty() => {}
                _ => self.said.push(AnswerEvent::Content(update.text.to_owned())),
            }
            return;
        };
        let was_thinking = parser.is_thinking();
        let told = self.said.len();
        parser.push(update.text, &mut self.said);
        if was_thinking || parser.is_thinking() {
            self.arrivals.reasoning_tokens += update.tokens.len() as u64;
        }
        if update.finished.is_some() {
            parser.finish(&mut self.said);
        }
        for event in &self.said[told..] {
            match event {
                AnswerEvent::ToolCallBegin { .. } => self.is_calling = true,
                AnswerEvent::ToolCallEnd { .. } => (self.has_called, self.is_calling) = (true, false),
                AnswerEvent::Content(_) | AnswerEvent::Reasoning(_) | AnswerEvent::Arguments { .. } => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus_client::metrics::histogram::exponential_buckets;
    use weir_text::{AnswerForm, CallableTools, ModelText};

    use super::*;
    use crate::testing_text::byte_level;

    fn mailbox(parser: Option<AnswerParser>) -> Mailbox {
        Mailbox::new(Histogram::new(exponential_buckets(0.001, 2.0, 4)), Arc::default(), parser, None)
    }

    fn update<'a>(tokens: &'a [u32], text: &'a str, finished: Option<&'a Finished>) -> Update<'a> {
        let cached_prompt_tokens = (tokens == [1]).then_some(16);
        Update { handle: 1, tokens, text, finished, cached_prompt_tokens, ..Update::default() }
    }

    #[test]
    fn what_is_not_taken_adds_up_and_the_end_comes_after_it() {
        let mailbox = mailbox(None);
        let start = Instant::now();
        assert_eq!(mailbox.deliver(update(&[1], "a", None), start), Delivered::More);
        mailbox.deliver(update(&[2], "", None), start + Duration::from_micros(10));
        let finished = Finished { generated_tokens: 3, ..Finished::default() };
        let last = mailbox.deliver(update(&[3], "bc", Some(&finished)), start + Duration::from_micros(40));
        assert_eq!(last, Delivered::Last);
        let taken = mailbox.take();
        assert_eq!((taken.said, taken.tokens), (vec![AnswerEvent::Content("abc".into())], 3));
        assert!(matches!(taken.end, Some(End::Finished(_))));
        assert!(matches!(mailbox.end(), Some(End::Finished(finished)) if finished.generated_tokens == 3));
        assert_eq!((mailbox.tokens(), mailbox.arrivals().cached_prompt_tokens), (3, 16));
        let gaps = mailbox.arrivals().gaps;
        assert_eq!((gaps.count, gaps.sum_us, gaps.max_us), (2, 40, 30));
    }

    #[test]
    fn a_lost_sequence_stays_lost_and_a_finished_one_finished() {
        let mailbox = mailbox(None);
        mailbox.lose();
        let late = mailbox.deliver(update(&[1], "late", Some(&Finished::default())), Instant::now());
        assert_eq!(late, Delivered::Last);
        assert!(matches!(mailbox.end(), Some(End::Lost)));
        assert_eq!(mailbox.take().said, []);
    }

    #[test]
    fn tokens_of_thoughts_are_counted_update_by_update_and_calls_are_seen() {
        let thinks =
            ModelText { chat_template: Some("{{ tools }}<tool_call></think>".into()), ..byte_level() };
        let tools = CallableTools { names: vec!["f".into()], parallel: true, required: false };
        let parser = AnswerParser::new(&AnswerForm::of(&thinks), false, Some(tools));
        let mailbox = mailbox(Some(parser));
        let finished = Finished::default();
        for (text, finished) in [
            ("<think>", None),
            ("why", None),
            (" not", None),
            ("</think>", None),
            ("Yes", None),
            ("<tool_call>{\"name\": \"f\"}</tool_call>", None),
            ("", Some(&finished)),
        ] {
            mailbox.deliver(update(&[1], text, finished), Instant::now());
        }
        let taken = mailbox.take();
        assert_eq!((taken.said.len(), taken.has_called), (5, true));
        assert_eq!(
            taken.said[..2],
            [AnswerEvent::Reasoning("why not".into()), AnswerEvent::Content("Yes".into())]
        );
        assert_eq!((mailbox.arrivals().reasoning_tokens, mailbox.arrivals().tokens), (4, 7));
        assert!(mailbox.take().has_called);
    }

    /// A stop string, or the length, within the arguments: who acted on them would act on half of them.
    #[test]
    fn an_unfinished_call_is_none() {
        let tools = CallableTools { names: vec!["f".into()], parallel: true, required: true };
        let parser = AnswerParser::new(&AnswerForm::of(&byte_level()), false, Some(tools));
        let mailbox = mailbox(Some(parser));
        let first = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
        mailbox.deliver(update(&[1], first, None), Instant::now());
        assert!(mailbox.take().has_called);
        let finished = Finished::default();
        let second = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"";
        mailbox.deliver(update(&[2], second, Some(&finished)), Instant::now());
        let taken = mailbox.take();
        assert!(!taken.has_called, "{taken:?}");
    }
}
