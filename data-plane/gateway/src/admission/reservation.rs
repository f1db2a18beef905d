//! What an admitted request holds. Ended exactly once: settled with the real count, or, dropped without that,
//! abandoned as if it had never been. While it runs, its answer may outgrow it, as far as the limits have room.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use weir_schemas::ids::VersionId;

use super::account::{Account, Hold, Used};
use super::{Admission, LimitScope};
use crate::authenticate::Principal;

/// Taken at once by an answer that outgrows its reservation: few beside what may be owed, enough not to ask at each step.
const GROWTH_TOKENS: u64 = 16;

/// A drop guard over the holds on each account; one a request, however many attempts.
#[derive(Debug)]
pub(crate) struct Reservation {
    allowance: Arc<Allowance>,
}

/// How much a running request may generate, told of each token that arrives.
#[derive(Debug)]
pub(crate) struct Allowance {
    admission: Arc<Admission>,
    of: ReservedFor,
    /// Of all choices together; more than this it does not ask for.
    max_tokens: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` once ended.
    holds: Option<[Hold; LimitScope::ALL.len()]>,
    /// Generated tokens that the holds are enough for; `None` where no limit counts them.
    covers: Option<u64>,
    arrived: u64,
}

/// Whose accounts are held.
#[derive(Debug, Clone)]
pub(super) struct ReservedFor {
    pub(super) principal: Principal,
    /// As the client named it.
    pub(super) model: Arc<str>,
    pub(super) version: VersionId,
}

impl Reservation {
    pub(super) fn new(
        admission: Arc<Admission>,
        of: ReservedFor,
        max_tokens: u64,
        holds: [Hold; LimitScope::ALL.len()],
    ) -> Self {
        let covers = holds.iter().filter_map(|hold| hold.covers).min();
        let state = Mutex::new(State { holds: Some(holds), covers, arrived: 0 });
        Self { allowance: Arc::new(Allowance { admission, of, max_tokens, state }) }
    }

    /// For whoever counts the tokens that arrive.
    pub(crate) fn allowance(&self) -> Arc<Allowance> {
        self.allowance.clone()
    }

    /// Ends the reservation: the request used these many prompt and generated tokens. `complete` answers teach what
    /// to expect of the next.
    pub(crate) fn settle(self, prompt_tokens: u64, generated_tokens: u64, complete: bool) {
        let Allowance { admission, of, .. } = &*self.allowance;
        let used = Used { prompt_tokens, generated_tokens };
        let ended = self.allowance.end(|account, hold, now| account.settle(hold, used, now));
        let Some(holds) = ended.filter(|_| complete) else { return };
        let choices = holds[0].sequences.max(1);
        let mut accounts = admission.accounts.lock();
        let expected = accounts.expected(of);
        (0..choices).for_each(|_| expected.record(generated_tokens / choices));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.allowance.end(|account, hold, now| account.abandon(hold, now));
    }
}

impl Allowance {
    /// Counts `tokens` that were generated. False: the limits have no room for them, nor for more, and the answer has to
    /// end here.
    pub(crate) fn arrived(&self, tokens: u64) -> bool {
        let mut state = self.state.lock();
        state.arrived = state.arrived.saturating_add(tokens);
        let (Some(covered), arrived) = (state.covers, state.arrived) else { return true };
        if arrived <= covered {
            return true;
        }
        let wanted = (arrived - covered).max(GROWTH_TOKENS).min(self.max_tokens.saturating_sub(covered));
        let covered = covered + state.holds.as_mut().map_or(0, |holds| self.grow(holds, wanted));
        state.covers = Some(covered);
        arrived <= covered
    }

    /// Holds as much of `wanted` as every account has room for, and says how much.
    fn grow(&self, holds: &mut [Hold; LimitScope::ALL.len()], wanted: u64) -> u64 {
        let mut accounts = self.admission.accounts.lock();
        let now = self.admission.stopwatch.elapsed();
        let mut held = accounts.of(&self.of);
        let room = held.iter_mut().map(|account| account.room_to_grow(now)).min().unwrap_or(u64::MAX);
        let granted = wanted.min(room);
        held.into_iter().zip(holds).for_each(|(account, hold)| account.grow(hold, granted));
        granted
    }

    /// Takes the holds and ends them on each account; `None` if they were ended before.
    fn end(&self, each: impl Fn(&mut Account, &Hold, Duration)) -> Option<[Hold; LimitScope::ALL.len()]> {
        let holds = self.state.lock().holds.take()?;
        let mut accounts = self.admission.accounts.lock();
        let now = self.admission.stopwatch.elapsed();
        for (account, hold) in accounts.of(&self.of).into_iter().zip(&holds) {
            each(account, hold, now);
        }
        Some(holds)
    }
}
