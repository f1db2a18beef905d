//! Byte-pair merging: joins adjacent symbols, best rank first, leftmost among equals, until no rule applies.
//!
//! One algorithm for both tokenizer models, which differ only in their [`MergeRule`]. Source: Sennrich et al. 2016;
//! the order of merges is that of Hugging Face's `tokenizers` and of SentencePiece. O(n log n) for n symbols, so a
//! long word without spaces is no attack.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::vocabulary::Vocabulary;

/// No neighbour, or (as an id) no token yet.
const NONE: u32 = u32::MAX;

/// A stretch of the word that is one token, or one character that no token stands for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Symbol {
    pub(crate) id: u32,
    start: u32,
    /// Equal to `start` once merged into its left neighbour; then there is no `next` either.
    end: u32,
    previous: u32,
    next: u32,
}

/// What two neighbours become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Merge {
    /// Lower is merged earlier.
    pub(crate) rank: u32,
    pub(crate) id: u32,
}

pub(crate) trait MergeRule {
    /// What `left` and `right` become if they are merged; `joined` are their bytes together.
    fn merge(&self, left: u32, right: u32, joined: &[u8]) -> Option<Merge>;
}

/// Merge rules by pair of token ids: `gpt2`.
#[derive(Debug, Default)]
pub(crate) struct PairRanks {
    ranks: HashMap<(u32, u32), Merge, FixedState>,
}

impl PairRanks {
    /// The first rule for a pair counts.
    pub(crate) fn insert(&mut self, left: u32, right: u32, merge: Merge) {
        self.ranks.entry((left, right)).or_insert(merge);
    }
}

impl MergeRule for PairRanks {
    fn merge(&self, left: u32, right: u32, _joined: &[u8]) -> Option<Merge> {
        self.ranks.get(&(left, right)).copied()
    }
}

/// Whatever joins to a token may merge, by that token's score: `llama`.
#[derive(Debug)]
pub(crate) struct ScoreRanks<'a> {
    pub(crate) vocabulary: &'a Vocabulary,
    /// By token id; equal scores have equal ranks.
    pub(crate) ranks: &'a [u32],
}

impl MergeRule for ScoreRanks<'_> {
    fn merge(&self, _left: u32, _right: u32, joined: &[u8]) -> Option<Merge> {
        let id = self.vocabulary.find(joined)?;
        Some(Merge { rank: self.ranks[id as usize], id })
    }
}

/// A possible merge, as one number so that the heap stays small: rank, then position of the left symbol. Whether it is
/// still possible is asked again when its turn comes.
type Candidate = Reverse<u64>;

/// One word being merged. Its buffers are kept from word to word.
#[derive(Debug, Default)]
pub(crate) struct Word {
    symbols: Vec<Symbol>,
    candidates: BinaryHeap<Candidate>,
}

impl Word {
    pub(crate) fn clear(&mut self) {
        self.symbols.clear();
    }

    /// Appends a symbol; `id` is `None` for a character that no token stands for.
    pub(crate) fn push(&mut self, id: Option<u32>, start: usize, end: usize) {
        let index = as_u32(self.symbols.len());
        if let Some(last) = self.symbols.last_mut() {
            last.next = index;
        }
        let previous = index.checked_sub(1).unwrap_or(NONE);
        let (start, end) = (as_u32(start), as_u32(end));
        self.symbols.push(Symbol { id: id.unwrap_or(NONE), start, end, previous, next: NONE });
    }

    /// Merges all that the rule allows. `text` is what `push`'s offsets refer to.
    pub(crate) fn merge_all(&mut self, text: &[u8], rule: &impl MergeRule) {
        let mut candidates = std::mem::take(&mut self.candidates).into_vec();
        candidates.clear();
        candidates
            .extend((0..as_u32(self.symbols.len())).filter_map(|left| self.candidate(left, text, rule)));
        self.candidates = BinaryHeap::from(candidates);
        while let Some(Reverse(candidate)) = self.candidates.pop() {
            let (rank, left) = unpack(candidate);
            let Some(merge) = self.possible(left, text, rule).filter(|merge| merge.rank == rank) else {
                continue;
            };
            let Symbol { previous, next, .. } = self.symbols[left as usize];
            let right = &mut self.symbols[next as usize];
            let (right_end, after) = (right.end, right.next);
            right.start = right_end;
            right.next = NONE;
            let merged = &mut self.symbols[left as usize];
            (merged.id, merged.end, merged.next) = (merge.id, right_end, after);
            if after != NONE {
                self.symbols[after as usize].previous = left;
            }
            self.candidates.extend(self.candidate(left, text, rule));
            if previous != NONE {
                self.candidates.extend(self.candidate(previous, text, rule));
            }
        }
    }

    fn candidate(&self, left: u32, text: &[u8], rule: &impl MergeRule) -> Option<Candidate> {
        self.possible(left, text, rule).map(|merge| Reverse(pack(merge.rank, left)))
    }

    /// What the symbol at `left` and its right neighbour become now, if both exist.
    fn possible(&self, left: u32, text: &[u8], rule: &impl MergeRule) -> Option<Merge> {
        let left = self.symbols[left as usize];
        let right = self.symbols.get(left.next as usize)?;
        rule.merge(left.id, right.id, &text[left.start as usize..right.end as usize])
    }

    /// What is left, in order: a token, or the stretch of text that has none.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Result<u32, std::ops::Range<usize>>> + '_ {
        self.symbols.iter().filter(|symbol| symbol.start != symbol.end).map(|symbol| match symbol.id {
            NONE => Err(symbol.start as usize..symbol.end as usize),
            id => Ok(id),
        })
    }
}

fn pack(rank: u32, left: u32) -> u64 {
    u64::from(rank) << 32 | u64::from(left)
}

fn unpack(candidate: u64) -> (u32, u32) {
    let low = u32::try_from(candidate & u64::from(u32::MAX)).expect("masked");
    (u32::try_from(candidate >> 32).expect("shifted"), low)
}

fn as_u32(value: usize) -> u32 {
    u32::try_from(value).expect("a text is shorter than 4 GiB, checked on entry")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(text: &str, rules: &[(&str, u32)]) -> Vec<String> {
        // Ids are positions of first appearance, so that rules can be written as strings.
        struct Rules<'a>(&'a [(&'a str, u32)]);
        impl MergeRule for Rules<'_> {
            fn merge(&self, _: u32, _: u32, joined: &[u8]) -> Option<Merge> {
                let id = self.0.iter().position(|(name, _)| name.as_bytes() == joined)?;
                Some(Merge { rank: self.0[id].1, id: as_u32(id) })
            }
        }
        let mut word = Word::default();
        for (start, character) in text.char_indices() {
            word.push(None, start, start + character.len_utf8());
        }
        word.merge_all(text.as_bytes(), &Rules(rules));
        word.pieces()
            .map(|piece| match piece {
                Ok(id) => rules[id as usize].0.to_owned(),
                Err(range) => text[range].to_owned(),
            })
            .collect()
    }

    #[test]
    fn best_rank_first_then_leftmost() {
        assert_eq!(merged("abc", &[("ab", 1), ("bc", 0)]), ["a", "bc"]);
        assert_eq!(merged("abc", &[("ab", 0), ("bc", 0)]), ["ab", "c"]);
        assert_eq!(merged("aaaaa", &[("aa", 0)]), ["aa", "aa", "a"]);
        assert_eq!(merged("aaaaa", &[("aa", 1), ("aaaa", 0)]), ["aaaa", "a"]);
        assert_eq!(merged("", &[]), [""; 0]);
    }

    /// Naive reading of the definition: find the best pair anew after every merge.
    fn naive(text: &str, rules: &[(&str, u32)]) -> Vec<String> {
        let mut parts: Vec<String> = text.chars().map(String::from).collect();
        loop {
            let rank = |joined: &str| rules.iter().find(|rule| rule.0 == joined).map(|rule| rule.1);
            let best =
                (1..parts.len()).filter_map(|i| Some((rank(&(parts[i - 1].clone() + &parts[i]))?, i))).min();
            let Some((_, right)) = best else { return parts };
            let tail = parts.remove(right);
            parts[right - 1] += &tail;
        }
    }

    proptest::proptest! {
        #[test]
        fn equals_the_naive_reading(text in "[abc]{0,24}", names in proptest::collection::vec(("[abc]{2,5}", 0u32..6), 0..12)) {
            let mut rules: Vec<(&str, u32)> = vec![];
            for (name, rank) in &names {
                if rules.iter().all(|rule| rule.0 != name) {
                    rules.push((name, *rank));
                }
            }
            proptest::prop_assert_eq!(merged(&text, &rules), naive(&text, &rules));
        }
    }
}
