//! What one turn of the step loop gave: records to write, in order, and one message for each session that it has
//! something to say to.

use std::sync::Arc;

use weir_schemas::records::ExecutionOutcome;
use weir_schemas::rpc::worker::StepMessage;

use super::attempt::{AttemptKey, ChoiceKey};
use crate::execution::{OpenExecution, Used};
use crate::session::Session;

/// What is to be recorded, in order, and then said: one message for each session.
#[derive(Default)]
pub(super) struct Parcel {
    pub(super) notes: Vec<Note>,
    /// By session, of which there is one for each gateway: few enough to look through.
    pub(super) messages: Vec<(Arc<Session>, StepMessage)>,
    /// The longest message of the turn before, which the next ones will hardly exceed.
    num_updates: usize,
}

/// Something for the execution log.
pub(super) enum Note {
    /// The engine has so many choices of it: its records come from here on.
    Opened(AttemptKey, OpenExecution, usize),
    Progress(ChoiceKey, Used),
    /// A choice is over, and so is its handle in the session.
    Closed(ChoiceKey, Used, ExecutionOutcome, (Arc<Session>, u64)),
    /// The engine does not have it.
    Refused(OpenExecution, ExecutionOutcome, (Arc<Session>, Vec<u64>)),
}

impl Parcel {
    pub(super) fn note(&mut self, note: Note) {
        self.notes.push(note);
    }

    /// What is to be said to a session. `place` is where it was the last time, and nearly always is again: then nobody has
    /// to look for it.
    #[inline]
    pub(super) fn message_to(&mut self, session: &Arc<Session>, place: &mut usize) -> &mut StepMessage {
        let is_it = |(known, _): &(Arc<Session>, StepMessage)| Arc::ptr_eq(known, session);
        if !self.messages.get(*place).is_some_and(is_it) {
            *place = self.messages.iter().position(is_it).unwrap_or_else(|| {
                self.messages.push((session.clone(), StepMessage::for_updates(self.num_updates)));
                self.messages.len() - 1
            });
        }
        &mut self.messages[*place].1
    }

    /// Nobody is told anything.
    pub(super) fn say_nothing(&mut self) {
        self.messages.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.notes.is_empty() && self.messages.is_empty()
    }

    /// All of it; what is left is empty.
    pub(super) fn take(&mut self) -> Self {
        let longest = self.messages.iter().map(|(_, message)| message.handles.len()).max();
        let num_updates = longest.unwrap_or(self.num_updates);
        std::mem::replace(self, Self { num_updates, ..Self::default() })
    }
}
