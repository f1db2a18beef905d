//! Each rule by itself, then a model of sender, broker and ledger under every fault that loses records.

use super::*;
use proptest::prelude::*;

const MINUTE: Duration = Duration::from_secs(60);

fn at(watermark: u64, generation: u64) -> Standing {
    Standing { watermark, generation }
}

#[test]
fn a_direct_answer_that_lacks_something_rewinds_once_and_then_rarely() {
    let mut rewinds = Rewinds::at_once(MINUTE, 10 * MINUTE);
    let start = Instant::now();
    let mut due = |watermark, sent, now| rewinds.due(at(watermark, 0), sent, now);
    let at_once = Some(Rewind { rest_is_lost: true });
    assert_eq!(due(5, 5, start), None);
    assert_eq!(due(5, 8, start), at_once, "nobody else can have what the log has deleted");
    assert_eq!(due(5, 8, start + MINUTE / 2), None);
    assert_eq!(due(6, 8, start + MINUTE / 2), at_once, "another watermark is another loss");
    assert!(due(6, 8, start + 2 * MINUTE).is_some(), "not never again");
}

#[test]
fn a_ledger_that_moves_is_left_alone_one_that_stands_is_not() {
    let mut rewinds = Rewinds::patient(MINUTE, 10 * MINUTE);
    let start = Instant::now();
    for second in 0..600 {
        let due = rewinds.due(at(second, 0), 10_000, start + Duration::from_secs(second));
        assert!(due.is_none() || second == 0, "the first word of all counts as another generation");
    }
    let stands = start + Duration::from_secs(599);
    let mut due = Vec::new();
    for second in 1..3_000 {
        if let Some(rewind) = rewinds.due(at(599, 0), 10_000, stands + Duration::from_secs(second)) {
            due.push((second, rewind.rest_is_lost));
        }
    }
    // 1, 2, 4, 8, then at most 10 minutes apart; what only the broker may have is given up late.
    let sent_again = [60, 180, 420, 900].map(|second| (second, false));
    assert_eq!(due[..4], sent_again);
    assert_eq!(due[4..], [1500, 2100, 2700].map(|second| (second, true)));
    let later = |seconds| stands + Duration::from_secs(seconds);
    assert_eq!(rewinds.due(at(10_000, 0), 10_000, later(3_000)), None);
    assert_eq!(rewinds.due(at(10_000, 0), 10_001, later(3_001)), None, "a new clock");
}

#[test]
fn another_generation_rewinds_at_once_but_only_if_something_is_missing() {
    let mut rewinds = Rewinds::patient(MINUTE, 10 * MINUTE);
    let now = Instant::now();
    let mut due = |watermark, generation, sent| rewinds.due(at(watermark, generation), sent, now);
    let at_once = Some(Rewind { rest_is_lost: false });
    assert_eq!(due(0, 3, 0), None);
    assert_eq!(due(4, 3, 9), None);
    assert_eq!(due(4, 4, 9), at_once);
    assert_eq!(due(4, 4, 9), None);
    assert_eq!(due(9, 5, 9), None);
    assert_eq!(due(9, 2, 12), at_once, "a restored ledger may count from lower");
}

#[test]
fn what_was_sent_before_the_ledger_was_first_heard_is_sent_again() {
    let mut rewinds = Rewinds::patient(MINUTE, 10 * MINUTE);
    assert_eq!(rewinds.due(at(4, 7), 9, Instant::now()), Some(Rewind { rest_is_lost: false }));
}

#[test]
fn time_in_which_the_ledger_could_not_move_does_not_count() {
    let mut rewinds = Rewinds::patient(MINUTE, 10 * MINUTE);
    let start = Instant::now();
    assert_eq!(rewinds.due(at(4, 0), 4, start), None);
    assert_eq!(rewinds.due(at(4, 0), 9, start), None);
    rewinds.restart_clock(start + 5 * MINUTE);
    assert_eq!(rewinds.due(at(4, 0), 9, start + 5 * MINUTE + MINUTE / 2), None);
    assert!(rewinds.due(at(4, 0), 9, start + 6 * MINUTE).is_some());
}

/// What can happen to one sender's records on their way.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The sender writes so many.
    Write(u64),
    /// The relay sends so many.
    Send(u64),
    /// The ledger reads so many messages.
    Read(usize),
    /// The relay hears from the ledger.
    Hear,
    /// Time passes, in seconds.
    Wait(u64),
    /// The broker loses everything; the ledger notices, or (a partition cut short unseen) does not.
    Wipe { noticed: bool },
    /// The relay's process dies and comes back.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1u64..20).prop_map(Step::Write),
        6 => (1u64..20).prop_map(Step::Send),
        5 => (1usize..30).prop_map(Step::Read),
        4 => Just(Step::Hear),
        2 => (1u64..90).prop_map(Step::Wait),
        1 => any::<bool>().prop_map(|noticed| Step::Wipe { noticed }),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..200)
}

/// Sender, broker and ledger at their simplest.
struct World {
    rewinds: Rewinds,
    now: Instant,
    written: u64,
    sent: u64,
    /// As the sender's disk has it.
    heard: u64,
    broker: Vec<u64>,
    read: usize,
    ledger: std::collections::BTreeSet<u64>,
    generation: u64,
    sent_again: u64,
}

impl World {
    fn new() -> Self {
        Self {
            rewinds: Rewinds::patient(MINUTE, 10 * MINUTE),
            now: Instant::now(),
            written: 0,
            sent: 0,
            heard: 0,
            broker: Vec::new(),
            read: 0,
            ledger: std::collections::BTreeSet::new(),
            generation: 0,
            sent_again: 0,
        }
    }

    fn watermark(&self) -> u64 {
        (1..).take_while(|sequence| self.ledger.contains(sequence)).last().unwrap_or(0)
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Write(records) => self.written += records,
            Step::Send(records) => {
                let last = (self.sent + records).min(self.written);
                self.broker.extend(self.sent + 1..=last);
                self.sent = last;
            }
            Step::Read(messages) => {
                let until = (self.read + messages).min(self.broker.len());
                self.ledger.extend(&self.broker[self.read..until]);
                self.read = until;
            }
            Step::Hear => {
                self.heard = self.heard.max(self.watermark());
                let standing = Standing { watermark: self.watermark(), generation: self.generation };
                if self.rewinds.due(standing, self.sent, self.now).is_some() {
                    self.sent_again += self.sent - standing.watermark;
                    self.sent = standing.watermark;
                }
            }
            Step::Wait(seconds) => self.now += Duration::from_secs(seconds),
            Step::Wipe { noticed } => {
                self.broker.clear();
                self.read = 0;
                self.generation += u64::from(noticed);
            }
            Step::Restart => {
                self.rewinds = Rewinds::patient(MINUTE, 10 * MINUTE);
                self.sent = self.heard;
            }
        }
    }
}

proptest! {
    /// Whatever the broker loses, the ledger has everything in the end, within the longest patience after the last
    /// fault.
    #[test]
    fn nothing_is_lost_for_good(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
        }
        for _ in 0..12 {
            for calm in [Step::Hear, Step::Send(u64::MAX / 2), Step::Read(usize::MAX / 2), Step::Wait(60)] {
                world.take(calm);
            }
        }
        prop_assert_eq!(world.watermark(), world.written);
    }

    /// Without a loss, and with a ledger that is heard before anything is sent and that moves within its patience,
    /// nothing is sent twice.
    #[test]
    fn nothing_is_sent_again_without_a_reason(
        rounds in prop::collection::vec((1u64..20, 1usize..5, 1u64..59), 1..200)
    ) {
        let mut world = World::new();
        world.take(Step::Hear);
        for (records, messages, seconds) in rounds {
            for step in [
                Step::Write(records), Step::Send(records), Step::Read(messages), Step::Hear, Step::Wait(seconds),
            ] {
                world.take(step);
            }
        }
        prop_assert_eq!(world.sent_again, 0);
    }
}
