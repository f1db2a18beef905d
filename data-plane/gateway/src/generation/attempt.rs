//! One attempt at a request: its sequences at one worker, and how it gets there.

use std::sync::Arc;

use tokio::sync::Notify;
use weir_schemas::ids::WorkerId;
use weir_schemas::records::FinishReason;

use super::progress::WatchedRecord;
use super::{Admitted, GenerationParts};
use crate::routing::{Chosen, Expected, Link, Mailbox, NoReplica};

/// One sequence for each choice, at one worker.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) link: Arc<Link>,
    /// Of the first choice; the others' follow it.
    handle: u64,
    /// By choice.
    pub(super) mailboxes: Vec<Arc<Mailbox>>,
    /// Something arrived in one of them.
    pub(super) changed: Arc<Notify>,
    /// How each choice ended, once the holder was told.
    pub(super) told: Vec<Option<FinishReason>>,
    pub(super) expected: Expected,
}

impl Attempt {
    pub(super) fn handles(&self) -> std::ops::Range<u64> {
        self.handle..self.handle + self.mailboxes.len() as u64
    }

    pub(super) fn has_ended(&self) -> bool {
        self.mailboxes.iter().all(|mailbox| mailbox.end().is_some())
    }

    /// Waits until every choice has ended.
    pub(super) async fn ended(&self) {
        while !self.has_ended() {
            self.changed.notified().await;
        }
    }

    /// Stops what is left of an attempt that another one has taken the place of.
    pub(super) async fn cancel(self) {
        for handle in self.handles() {
            self.link.cancel(handle).await;
        }
    }
}

/// Sends the request to the best replica that was not tried; a replica whose session just broke is passed over.
pub(super) fn dispatch(
    parts: &GenerationParts,
    admitted: &Admitted,
    record: &WatchedRecord,
    tried: &mut Vec<WorkerId>,
) -> Result<Attempt, NoReplica> {
    let prompt_tokens = admitted.generate.prompt.len() as u64;
    let max_tokens = u64::from(admitted.generate.max_tokens);
    let mut passed_over = tried.clone();
    loop {
        let Chosen { link, expected } = parts.registry.choose(
            &admitted.config,
            admitted.version,
            prompt_tokens,
            max_tokens,
            &passed_over,
            parts.request_timeout.saturating_sub(admitted.arrived.elapsed()),
        )?;
        let worker = link.worker();
        passed_over.push(worker);
        let mut generate = admitted.generate.clone();
        generate.attempt = u32::try_from(tried.len()).unwrap_or(u32::MAX).saturating_add(1);
        let (choices, changed) = (generate.n.max(1), Arc::new(Notify::new()));
        let mailbox = |_| {
            Arc::new(Mailbox::new(
                parts.metrics.inter_token(&admitted.model),
                changed.clone(),
                admitted.parser.clone(),
            ))
        };
        let mailboxes: Vec<_> = (0..choices).map(mailbox).collect();
        if let Some(handle) = link.dispatch(generate, &mailboxes) {
            tried.push(worker);
            record.attempt(worker, &mailboxes);
            let told = vec![None; mailboxes.len()];
            return Ok(Attempt { link, handle, mailboxes, changed, told, expected });
        }
    }
}
