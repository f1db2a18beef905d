//! Writes and reads the columns of a [`StepMessage`], one sequence's update at a time.

use super::worker::{CachedPrompt, Ended, Finished, Logprobs, StepMessage, TokenLogprob};

/// About what a token is in most languages' text.
const TEXT_BYTES_OF_TOKEN: usize = 5;

/// What a step gave for one sequence.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Update<'a> {
    /// Whose it is.
    pub handle: u64,
    /// Every sampled token, the ending one included.
    pub tokens: &'a [u32],
    /// What may be shown of them.
    pub text: &'a str,
    /// With the first token: prompt tokens that came from the prefix cache.
    pub cached_prompt_tokens: Option<u64>,
    /// With the last update of this handle.
    pub finished: Option<&'a Finished>,
    /// For each of `tokens`, if the request asked for them.
    pub logprobs: &'a [TokenLogprob],
}

/// The columns contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the columns of a step message do not fit each other")]
pub struct MalformedStep;

impl StepMessage {
    /// An empty one with room for so many updates of a token each.
    pub fn for_updates(count: usize) -> Self {
        Self {
            handles: Vec::with_capacity(count),
            num_tokens: Vec::with_capacity(count),
            tokens: Vec::with_capacity(count),
            text_bytes: Vec::with_capacity(count),
            text: String::with_capacity(count * TEXT_BYTES_OF_TOKEN),
            ..Self::default()
        }
    }

    /// Appends an update. What is said next of the same sequence is added to it.
    #[inline]
    pub fn push(&mut self, update: Update<'_>) {
        if self.handles.last() != Some(&update.handle) {
            self.handles.push(update.handle);
            self.num_tokens.push(0);
            self.text_bytes.push(0);
        }
        let last = self.handles.len() - 1;
        self.num_tokens[last] += length(update.tokens.len());
        // Nearly always one, for which a copy of memory is the longer way.
        for &token in update.tokens {
            self.tokens.push(token);
        }
        self.text_bytes[last] += length(update.text.len());
        self.text.push_str(update.text);
        if update.cached_prompt_tokens.is_some() || update.finished.is_some() || !update.logprobs.is_empty() {
            self.note(length(last), update);
        }
    }

    /// What is said once of a sequence, or of few of them.
    #[cold]
    fn note(&mut self, entry: u32, update: Update<'_>) {
        if let Some(tokens) = update.cached_prompt_tokens {
            self.cached.push(CachedPrompt { entry, tokens });
        }
        if let Some(finished) = update.finished {
            self.ended.push(Ended { entry, finished: Some(finished.clone()) });
        }
        if !update.logprobs.is_empty() {
            self.logprobs.push(Logprobs { entry, tokens: update.logprobs.to_vec() });
        }
    }

    /// The updates in the order in which they were pushed.
    pub fn updates(&self) -> Updates<'_> {
        Updates {
            message: self,
            entry: 0,
            tokens: &self.tokens,
            text: &self.text,
            cached: &self.cached,
            ended: &self.ended,
            logprobs: &self.logprobs,
            is_broken: false,
        }
    }
}

/// Walks the columns. Ends with [`MalformedStep`] where they contradict each other.
#[derive(Debug, Clone)]
pub struct Updates<'a> {
    message: &'a StepMessage,
    entry: usize,
    /// What is left of each column.
    tokens: &'a [u32],
    text: &'a str,
    cached: &'a [CachedPrompt],
    ended: &'a [Ended],
    logprobs: &'a [Logprobs],
    is_broken: bool,
}

impl<'a> Updates<'a> {
    fn read(&mut self) -> Option<Update<'a>> {
        let handle = *self.message.handles.get(self.entry)?;
        let num_tokens = *self.message.num_tokens.get(self.entry)? as usize;
        let text_bytes = *self.message.text_bytes.get(self.entry)? as usize;
        let (tokens, text);
        (tokens, self.tokens) = self.tokens.split_at_checked(num_tokens)?;
        (text, self.text) = self.text.split_at_checked(text_bytes)?;
        let mut update = Update { handle, tokens, text, ..Update::default() };
        if let [first, rest @ ..] = self.cached
            && first.entry as usize == self.entry
        {
            update.cached_prompt_tokens = Some(first.tokens);
            self.cached = rest;
        }
        if let [first, rest @ ..] = self.ended
            && first.entry as usize == self.entry
        {
            update.finished = Some(first.finished.as_ref()?);
            self.ended = rest;
        }
        if let [first, rest @ ..] = self.logprobs
            && first.entry as usize == self.entry
        {
            update.logprobs = &first.tokens;
            self.logprobs = rest;
        }
        self.entry += 1;
        Some(update)
    }

    fn is_at_end(&self) -> bool {
        let StepMessage { handles, num_tokens, text_bytes, .. } = self.message;
        [handles.len(), num_tokens.len(), text_bytes.len()] == [self.entry; 3]
            && self.tokens.is_empty()
            && self.text.is_empty()
            && self.cached.is_empty()
            && self.ended.is_empty()
            && self.logprobs.is_empty()
    }
}

impl<'a> Iterator for Updates<'a> {
    type Item = Result<Update<'a>, MalformedStep>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_broken || self.is_at_end() {
            return None;
        }
        let update = self.read().ok_or(MalformedStep);
        if update.is_err() {
            // Nothing that follows can be trusted.
            self.is_broken = true;
        }
        Some(update)
    }
}

#[inline]
fn length(length: usize) -> u32 {
    u32::try_from(length).expect("a step is far smaller than 2^32")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> StepMessage {
        let mut message = StepMessage::default();
        message.push(Update {
            handle: 3,
            tokens: &[7, 8],
            text: "né",
            cached_prompt_tokens: Some(16),
            ..Update::default()
        });
        let logprobs = &[TokenLogprob { token: 9, logprob: -0.5, ..TokenLogprob::default() }];
        message.push(Update { handle: 5, tokens: &[9], logprobs, ..Update::default() });
        let finished = Finished { generated_tokens: 4, ..Finished::default() };
        message.push(Update { handle: 4, text: "!", finished: Some(&finished), ..Update::default() });
        message
    }

    #[test]
    fn what_is_pushed_is_read() {
        let message = sample();
        let finished = Finished { generated_tokens: 4, ..Finished::default() };
        let logprobs = &[TokenLogprob { token: 9, logprob: -0.5, ..TokenLogprob::default() }];
        let updates: Vec<_> = message.updates().map(Result::unwrap).collect();
        assert_eq!(
            updates,
            [
                Update {
                    handle: 3,
                    tokens: &[7, 8],
                    text: "né",
                    cached_prompt_tokens: Some(16),
                    ..Update::default()
                },
                Update { handle: 5, tokens: &[9], logprobs, ..Update::default() },
                Update { handle: 4, text: "!", finished: Some(&finished), ..Update::default() },
            ]
        );
        assert_eq!(StepMessage::default().updates().next(), None);
    }

    #[test]
    fn what_follows_on_a_sequence_is_one_update() {
        let mut message = StepMessage::default();
        message.push(Update {
            handle: 3,
            tokens: &[7],
            text: "n",
            cached_prompt_tokens: Some(16),
            ..Update::default()
        });
        let finished = Finished { generated_tokens: 1, ..Finished::default() };
        message.push(Update { handle: 3, text: "é", finished: Some(&finished), ..Update::default() });
        message.push(Update { handle: 4, tokens: &[8], ..Update::default() });
        let updates: Vec<_> = message.updates().map(Result::unwrap).collect();
        let merged = Update {
            handle: 3,
            tokens: &[7],
            text: "né",
            cached_prompt_tokens: Some(16),
            finished: Some(&finished),
            ..Update::default()
        };
        assert_eq!(updates, [merged, Update { handle: 4, tokens: &[8], ..Update::default() }]);
    }

    #[test]
    fn columns_that_contradict_each_other_are_an_error_and_the_end() {
        let breaks: [fn(&mut StepMessage); 10] = [
            |message| message.tokens.truncate(2),
            |message| message.tokens.push(1),
            |message| message.text.truncate(3),
            |message| message.text.push('x'),
            |message| message.text_bytes[0] = 2,
            |message| message.num_tokens.truncate(2),
            |message| message.handles.push(6),
            |message| message.cached[0].entry = 7,
            |message| message.ended[0].finished = None,
            |message| message.logprobs[0].entry = 9,
        ];
        for (index, break_it) in breaks.into_iter().enumerate() {
            let mut message = sample();
            break_it(&mut message);
            let updates: Vec<_> = message.updates().collect();
            assert_eq!(updates.last(), Some(&Err(MalformedStep)), "{index}");
            assert_eq!(updates.iter().filter(|update| update.is_err()).count(), 1, "{index}");
        }
    }
}
