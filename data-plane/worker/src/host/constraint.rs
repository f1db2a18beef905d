//! What holds one answer to its grammar, inside the engine's commit.

use std::sync::mpsc::Receiver;

use weir_engine::{TokenId, TokenMask};
use weir_text::GrammarMatcher;

use super::mask_pool::{Made, MaskPool};

/// A matcher, and its mask ahead of time.
#[derive(Debug)]
pub(super) struct Constraint {
    pool: MaskPool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// In the pool.
    Making(Receiver<Made>),
    /// The mask of the tokens so far. A sequence that gives way asks for it again.
    Made(Box<GrammarMatcher>, TokenMask),
    /// Between two of the others.
    Moving,
}

impl Constraint {
    /// At the beginning of an answer, whose first mask begins to be made.
    pub(super) fn new(matcher: GrammarMatcher, pool: MaskPool) -> Self {
        let state = State::Making(pool.begin(Box::new(matcher)));
        Self { pool, state }
    }

    /// Takes a token; true if nothing may follow it. Else the next mask begins to be made.
    pub(super) fn commit(&mut self, token: TokenId) -> bool {
        let (mut matcher, _) = self.made();
        matcher.consume(token);
        let is_complete = matcher.must_end();
        self.state = if is_complete {
            let mask = matcher.mask();
            State::Made(matcher, mask)
        } else {
            State::Making(self.pool.begin(matcher))
        };
        is_complete
    }

    /// The tokens that may come next; waits until that is known. None of them, which ends the sequence with an error, if
    /// the grammar can be followed no further.
    pub(super) fn mask(&mut self) -> TokenMask {
        let (matcher, mask) = self.made();
        if matcher.is_failed() {
            tracing::warn!("a grammar could not be followed to its end");
        }
        self.state = State::Made(matcher, mask.clone());
        mask
    }

    fn made(&mut self) -> Made {
        match std::mem::replace(&mut self.state, State::Moving) {
            State::Making(made) => made.recv().expect("the pool answers"),
            State::Made(matcher, mask) => (matcher, mask),
            State::Moving => unreachable!("left by no method"),
        }
    }
}
