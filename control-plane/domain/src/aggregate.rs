//! The shape every aggregate has.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::event::Event;
use crate::refusal::Refusal;

/// A consistency boundary whose state is the fold of its own events.
pub trait Aggregate: Sized + Clone + Debug + Send + Sync + 'static {
    /// Its id; printed, it names the event stream.
    type Id: Display + FromStr + Copy + Debug + Send + Sync;
    /// What may be asked of it.
    type Command: Send;
    /// What can have happened to it.
    type Event: Serialize + DeserializeOwned + Into<Event> + TryFrom<Event> + Clone + Debug + Send + Sync;
    /// What it is called in messages to people.
    const NOUN: &'static str;

    /// The events that `command` leads to, none if it changes nothing, or why it is refused.
    fn decide(current: Option<&Self>, command: Self::Command) -> Result<Vec<Self::Event>, Refusal>;

    /// The state after `event`; `None` when the aggregate is no more. Never fails: what was stored did happen.
    fn evolve(current: Option<Self>, event: &Self::Event) -> Option<Self>;

    /// The state after all of `events`.
    fn replay<'a>(events: impl IntoIterator<Item = &'a Self::Event>) -> Option<Self>
    where
        Self::Event: 'a,
    {
        events.into_iter().fold(None, Self::evolve)
    }
}

/// The current state, or the refusal that says it is not there.
pub(crate) fn existing<A: Aggregate>(current: Option<&A>) -> Result<&A, Refusal> {
    current.ok_or(Refusal::Absent { noun: A::NOUN })
}

/// Nothing, or the refusal that says it is there already.
pub(crate) fn vacant<A: Aggregate>(current: Option<&A>) -> Result<(), Refusal> {
    match current {
        None => Ok(()),
        Some(_) => Err(Refusal::Exists { noun: A::NOUN }),
    }
}

/// Given these events, when this command, then these events or this refusal.
#[cfg(test)]
#[track_caller]
pub(crate) fn check<A: Aggregate>(given: &[A::Event], when: A::Command, then: Result<Vec<A::Event>, Refusal>)
where
    A::Event: PartialEq,
{
    assert_eq!(A::decide(A::replay(given).as_ref(), when), then);
}
