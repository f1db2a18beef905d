//! One attempt at a request: its sequences at one worker, and how it gets there.

use std::sync::Arc;

use tokio::sync::Notify;
use weir_schemas::ids::WorkerId;
use weir_schemas::records::FinishReason;

use super::progress::WatchedRecord;
use super::{Admitted, GenerationParts};
use crate::routing::{Link, Mailbox, NoReplica, Wanted};

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
}

impl Attempt {
    pub(super) fn handles(&self) -> std::ops::Range<u64> {
        self.handle..self.handle + self.mailboxes.len() as u64
    }

    pub(super) fn has_ended(&self) -> bool {
        self.mailboxes.iter().all(|mailbox| mailbox.end().is_some())
    }

    pub(super) fn has_tokens(&self) -> bool {
        self.mailboxes.iter().any(|mailbox| mailbox.tokens() > 0)
    }

    /// Waits until every choice has ended.
    pub(super) async fn ended(&self) {
        while !self.has_ended() {
            self.changed.notified().await;
        }
    }

    /// Asks the worker to drop the request if it still waits. Its first choice stands for all, which wait in order.
    pub(super) fn give_up(&self) -> impl Future<Output = ()> + use<> {
        let (link, handle) = (self.link.clone(), self.handle);
        async move { link.cancel_if_waiting(handle).await }
    }

    /// Stops what is left of an attempt that another one has taken the place of.
    pub(super) async fn cancel(self) {
        for handle in self.handles() {
            self.link.cancel(handle).await;
        }
    }
}

/// Sends the request to the replica that was chosen for it, or else to the best one that was not tried; a replica whose
/// session just broke is passed over.
pub(super) fn dispatch(
    parts: &GenerationParts,
    admitted: &Admitted,
    mut chosen: Option<Arc<Link>>,
    record: &WatchedRecord,
    tried: &mut Vec<WorkerId>,
) -> Result<Attempt, NoReplica> {
    let Admitted { config, version, generate, .. } = admitted;
    let mut passed_over = tried.clone();
    loop {
        let link = match chosen.take() {
            Some(link) => link,
            None => parts.registry.choose(config, *version, Wanted::by(generate), &passed_over)?.link,
        };
        let worker = link.worker();
        passed_over.push(worker);
        let mut generate = generate.clone();
        generate.attempt = u32::try_from(tried.len()).unwrap_or(u32::MAX).saturating_add(1);
        let (choices, changed) = (generate.n.max(1), Arc::new(Notify::new()));
        let mailbox = |_| {
            Arc::new(Mailbox::new(
                parts.metrics.inter_token(&admitted.model),
                changed.clone(),
                admitted.parser.clone(),
                Some(admitted.reservation.allowance()),
            ))
        };
        let mailboxes: Vec<_> = (0..choices).map(mailbox).collect();
        if let Some(handle) = link.dispatch(generate, &mailboxes) {
            tried.push(worker);
            record.attempt(worker, &mailboxes);
            let told = vec![None; mailboxes.len()];
            return Ok(Attempt { link, handle, mailboxes, changed, told });
        }
    }
}
