//! What was sent to a worker since its last report, so that requests in quick succession do not all take the replica that
//! was idle a moment ago. Summed as it changes: every request asks, and a thousand may be under way.

use std::collections::{BTreeMap, HashMap};

use weir_schemas::rpc::worker::Class;

use super::expected_ttft::{Sent, SentSince};

/// Requests on their way to one worker.
#[derive(Debug, Default)]
pub(super) struct Unreported {
    /// By the handle of its first choice.
    requests: BTreeMap<u64, Request>,
    /// Of those, by version; one that has none is not here.
    sums: HashMap<String, SentSince>,
}

#[derive(Debug)]
struct Request {
    version: String,
    class: Class,
    sent: Sent,
}

impl Unreported {
    pub(super) fn add(&mut self, handle: u64, version: String, class: Class, sent: Sent) {
        let sum = of_class(self.sums.entry(version.clone()).or_default(), class);
        sum.sequences += sent.sequences;
        sum.prompt_tokens += sent.prompt_tokens;
        self.requests.insert(handle, Request { version, class, sent });
    }

    /// It has ended.
    pub(super) fn remove(&mut self, handle: u64) {
        if let Some(request) = self.requests.remove(&handle) {
            self.subtract(&request);
        }
    }

    /// A report includes all handles up to this one.
    pub(super) fn reported(&mut self, last_handle: u64) {
        while let Some(first) = self.requests.first_entry()
            && *first.key() <= last_handle
        {
            let request = first.remove();
            self.subtract(&request);
        }
    }

    pub(super) fn of(&self, version: &str) -> SentSince {
        self.sums.get(version).copied().unwrap_or_default()
    }

    fn subtract(&mut self, Request { version, class, sent }: &Request) {
        let Some(sums) = self.sums.get_mut(version) else { return };
        let sum = of_class(sums, *class);
        sum.sequences -= sent.sequences;
        sum.prompt_tokens -= sent.prompt_tokens;
        if *sums == SentSince::default() {
            self.sums.remove(version);
        }
    }
}

fn of_class(sums: &mut SentSince, class: Class) -> &mut Sent {
    match class {
        Class::Interactive => &mut sums.interactive,
        Class::Batch | Class::Unspecified => &mut sums.batch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_follow_what_is_sent_reported_and_ended() {
        let mut unreported = Unreported::default();
        for (handle, version, class, prompt_tokens) in [
            (1, "a", Class::Interactive, 10),
            (2, "b", Class::Batch, 5),
            (3, "a", Class::Batch, 7),
            (6, "a", Class::Interactive, 1),
        ] {
            unreported.add(handle, version.to_owned(), class, Sent { sequences: 2, prompt_tokens });
        }
        let sums = |unreported: &Unreported, version| {
            let SentSince { interactive, batch } = unreported.of(version);
            [interactive, batch].map(|sent| (sent.sequences, sent.prompt_tokens))
        };
        assert_eq!([sums(&unreported, "a"), sums(&unreported, "b")], [[(4, 11), (2, 7)], [(0, 0), (2, 5)]]);
        unreported.remove(3);
        unreported.remove(3);
        assert_eq!(sums(&unreported, "a"), [(4, 11), (0, 0)]);
        unreported.reported(5);
        assert_eq!([sums(&unreported, "a"), sums(&unreported, "b")], [[(2, 1), (0, 0)], [(0, 0); 2]]);
        unreported.reported(u64::MAX);
        assert!(unreported.requests.is_empty() && unreported.sums.is_empty());
    }
}
