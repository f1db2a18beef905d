//! The one token schedule that both faces of the backend follow: an engine whose steps take no time, or as long as they
//! are told to, and give each sequence that runs a token.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tonic::Status;
use weir_schemas::rpc::step_message::Update;
use weir_schemas::rpc::worker::{FinishReason, Finished, StepMessage};

/// What the tokens say, over and over: about the length of English ones, and nothing that JSON escapes.
const TEXTS: [&str; 8] = [" the", " quick", " brown", " fox", " jumps", " over", " lazy", " dogs"];

/// The text of a token by its place in the answer.
pub(crate) fn text(at: u32) -> &'static str {
    TEXTS[at as usize % TEXTS.len()]
}

/// Where a gateway of Weir hears of its sequences.
pub(crate) type Steps = mpsc::Sender<Result<StepMessage, Status>>;

/// A sequence that is to have so many tokens.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) num_tokens: u32,
    pub(crate) listener: Listener,
}

#[derive(Debug)]
pub(crate) enum Listener {
    /// All of a session's sequences share one message a step.
    Session { handle: u64, prompt_tokens: u64, steps: Steps },
    /// Told each token's place in the answer.
    Http(mpsc::UnboundedSender<u32>),
}

/// The way to the step loop.
#[derive(Debug, Clone, Default)]
pub(crate) struct Schedule {
    arrivals: Option<mpsc::UnboundedSender<Sequence>>,
    interval_ms: Arc<AtomicU64>,
    running: Arc<AtomicUsize>,
}

impl Schedule {
    /// With the step loop, which ends with the last clone of the schedule.
    pub(crate) fn new() -> (Self, impl Future<Output = ()>) {
        let (sender, arrivals) = mpsc::unbounded_channel();
        let schedule = Self { arrivals: Some(sender), ..Self::default() };
        let step_loop = Self { arrivals: None, ..schedule.clone() }.run(arrivals);
        (schedule, step_loop)
    }

    pub(crate) fn start(&self, sequence: Sequence) {
        if let Some(arrivals) = &self.arrivals {
            drop(arrivals.send(sequence));
        }
    }

    /// A token of each sequence in so many milliseconds; 0: at once.
    pub(crate) fn pace(&self, interval_ms: u64) {
        self.interval_ms.store(interval_ms, Ordering::Relaxed);
    }

    /// Sequences that have not ended.
    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    async fn run(self, mut arrivals: mpsc::UnboundedReceiver<Sequence>) {
        let mut running: Vec<Running> = Vec::new();
        let mut ticker = tokio::time::interval(Duration::from_millis(1));
        loop {
            if running.is_empty() {
                match arrivals.recv().await {
                    Some(sequence) => running.push(Running { sequence, told: 0 }),
                    None => return,
                }
            }
            match Duration::from_millis(self.interval_ms.load(Ordering::Relaxed)) {
                // The tasks that carry the last step's tokens away come first.
                Duration::ZERO => tokio::task::yield_now().await,
                interval => {
                    if ticker.period() != interval {
                        ticker = tokio::time::interval(interval);
                        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
                    }
                    ticker.tick().await;
                }
            }
            while let Ok(sequence) = arrivals.try_recv() {
                running.push(Running { sequence, told: 0 });
            }
            self.running.store(running.len(), Ordering::Relaxed);
            step(&mut running).await;
            self.running.store(running.len(), Ordering::Relaxed);
        }
    }
}

struct Running {
    sequence: Sequence,
    told: u32,
}

async fn step(running: &mut Vec<Running>) {
    let mut messages: Vec<(Steps, StepMessage)> = Vec::new();
    let together = running.len();
    running.retain_mut(|running| {
        let at = running.told;
        running.told += 1;
        match &running.sequence.listener {
            // A client that has gone needs no token more.
            Listener::Http(tokens) if tokens.send(at).is_err() => return false,
            Listener::Http(_) => {}
            Listener::Session { handle, prompt_tokens, steps } => {
                let known = messages.iter().position(|(other, _)| other.same_channel(steps));
                let place = known.unwrap_or_else(|| {
                    messages.push((steps.clone(), StepMessage::for_updates(together)));
                    messages.len() - 1
                });
                let finished = (running.told == running.sequence.num_tokens)
                    .then(|| finished(*prompt_tokens, running.told));
                messages[place].1.push(Update {
                    handle: *handle,
                    tokens: &[at],
                    text: text(at),
                    cached_prompt_tokens: (at == 0).then_some(0),
                    finished: finished.as_ref(),
                    logprobs: &[],
                });
            }
        }
        running.told < running.sequence.num_tokens
    });
    for (steps, message) in messages {
        // A session that ended has no one to tell.
        drop(steps.send(Ok(message)).await);
    }
}

fn finished(prompt_tokens: u64, generated: u32) -> Finished {
    Finished {
        reason: FinishReason::Length.into(),
        prompt_tokens,
        computed_prompt_tokens: prompt_tokens,
        generated_tokens: generated.into(),
        ..Finished::default()
    }
}
