//! Threads that make the masks of constrained rows, from the moment a token is committed, so that they are ready, or soon
//! will be, when the forward pass that they belong to runs.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use parking_lot::Mutex;
use weir_engine::TokenMask;
use weir_text::GrammarMatcher;

use super::spawn_guarded;

/// A mask takes some ten microseconds, seldom more than a millisecond: a few threads keep up with a full batch.
const MAX_THREADS: usize = 8;

/// A matcher on its way to make its mask, and where both go then.
type Job = (Box<GrammarMatcher>, SyncSender<Made>);

/// A matcher and the tokens that may come next.
pub(super) type Made = (Box<GrammarMatcher>, TokenMask);

/// Its threads end when the last of these is dropped.
#[derive(Debug, Clone)]
pub(super) struct MaskPool {
    jobs: Sender<Job>,
}

impl MaskPool {
    /// Takes a quarter of the machine's threads: the forward pass wants them too.
    pub(super) fn start(name: &str) -> std::io::Result<Self> {
        let (jobs, receiver) = channel::<Job>();
        let receiver = Arc::new(Mutex::new(receiver));
        let num_threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() / 4);
        for number in 0..num_threads.clamp(1, MAX_THREADS) {
            let receiver = Arc::clone(&receiver);
            spawn_guarded(format!("mask-{number}-{name}"), move || serve(&receiver))?;
        }
        Ok(Self { jobs })
    }

    /// Where the matcher will be once it has made its mask.
    pub(super) fn begin(&self, matcher: Box<GrammarMatcher>) -> Receiver<Made> {
        let (reply, made) = sync_channel(1);
        self.jobs.send((matcher, reply)).expect("the pool's threads outlive it");
        made
    }
}

fn serve(jobs: &Mutex<Receiver<Job>>) {
    loop {
        let job = jobs.lock().recv();
        let Ok((mut matcher, reply)) = job else { return };
        let mask = matcher.mask();
        // Nobody waits for it once its sequence is over.
        drop(reply.send((matcher, mask)));
    }
}
