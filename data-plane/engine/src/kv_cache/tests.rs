//! Random operations against a model that knows what every page must contain.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::step::Page;

const BLOCK: u32 = 4;

/// A table's owner: its true tokens, and how many of them are written.
struct Owner {
    tokens: Vec<u32>,
    salt: BlockHash,
    table: BlockTable,
    published: usize,
}

/// Pages as an executor holds them: token by slot, so that a stale or shared page shows.
struct Model {
    cache: KvCache,
    pages: Vec<[u32; BLOCK as usize]>,
    owners: Vec<Owner>,
    /// What each hash has ever stood for.
    meaning: HashMap<BlockHash, (BlockHash, Vec<u32>)>,
}

#[derive(Clone, Debug)]
enum Operation {
    Start { prompt_kind: u32, len: u32, tenant: u8 },
    Append { owner: usize },
    Fork { owner: usize },
    Release { owner: usize },
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        2 => (0..3_u32, 1..20_u32, 0..2_u8)
            .prop_map(|(prompt_kind, len, tenant)| Operation::Start { prompt_kind, len, tenant }),
        8 => any::<usize>().prop_map(|owner| Operation::Append { owner }),
        1 => any::<usize>().prop_map(|owner| Operation::Fork { owner }),
        2 => any::<usize>().prop_map(|owner| Operation::Release { owner }),
    ]
}

impl Model {
    fn new(num_blocks: u32) -> Self {
        Self {
            cache: KvCache::new(num_blocks),
            pages: vec![[u32::MAX; BLOCK as usize]; num_blocks as usize],
            owners: Vec::new(),
            meaning: HashMap::new(),
        }
    }

    fn apply(&mut self, operation: &Operation) {
        match *operation {
            Operation::Start { prompt_kind, len, tenant } => self.start(prompt_kind, len, tenant),
            Operation::Append { owner } if !self.owners.is_empty() => self.append(owner % self.owners.len()),
            Operation::Fork { owner } if !self.owners.is_empty() => {
                let parent = &self.owners[owner % self.owners.len()];
                let (tokens, salt, published) = (parent.tokens.clone(), parent.salt, parent.published);
                let table = self.cache.fork(&parent.table);
                self.owners.push(Owner { tokens, salt, table, published });
            }
            Operation::Release { owner } if !self.owners.is_empty() => {
                let owner = self.owners.swap_remove(owner % self.owners.len());
                self.cache.release(&owner.table);
            }
            _ => {}
        }
    }

    fn start(&mut self, prompt_kind: u32, len: u32, tenant: u8) {
        let tokens: Vec<u32> = (0..len).map(|position| prompt_kind * 1000 + position).collect();
        let salt = BlockHash([tenant; 32]);
        let mut chain = Vec::new();
        let mut parent = salt;
        for block in tokens.chunks_exact(BLOCK as usize) {
            parent = hash_block(&parent, block);
            chain.push(parent);
        }
        let cached = self.cache.match_prefix(&chain).blocks;
        let before = self.cache.usage();
        let Ok(table) = self.cache.allocate(&chain[..cached as usize], len.div_ceil(BLOCK)) else {
            assert_eq!(self.cache.usage(), before, "a failed allocation changes nothing");
            return;
        };
        for (index, &hash) in chain[..cached as usize].iter().enumerate() {
            let (root, meaning) = &self.meaning[&hash];
            assert_eq!((*root, &meaning[..]), (salt, &tokens[..(index + 1) * BLOCK as usize]));
        }
        let mut owner = Owner { tokens: Vec::new(), salt, table, published: cached as usize };
        for (position, &token) in tokens.iter().enumerate() {
            if position >= cached as usize * BLOCK as usize {
                let page = owner.table.blocks()[position / BLOCK as usize];
                assert_eq!(self.cache.ref_count(page), 1, "a page being written has one reference");
                self.pages[page as usize][position % BLOCK as usize] = token;
            }
            owner.tokens.push(token);
        }
        self.publish(&mut owner);
        self.owners.push(owner);
    }

    fn append(&mut self, index: usize) {
        let mut owner = self.owners.swap_remove(index);
        let position = u32::try_from(owner.tokens.len()).unwrap();
        let mut copies = Vec::new();
        let grown =
            self.cache.prepare_write(&mut owner.table, position / BLOCK + 1, position / BLOCK, &mut copies);
        for copy in copies {
            let (Page::Pool(from), Page::Pool(to)) = (copy.from, copy.to) else { panic!("in the pool") };
            self.pages[to as usize] = self.pages[from as usize];
        }
        if grown.is_ok() {
            let page = owner.table.blocks()[(position / BLOCK) as usize];
            assert_eq!(self.cache.ref_count(page), 1, "a page being written has one reference");
            let token = position * 7 + self.owners.len() as u32;
            self.pages[page as usize][(position % BLOCK) as usize] = token;
            owner.tokens.push(token);
            self.publish(&mut owner);
        } else {
            assert_eq!(self.cache.num_available(), 0);
        }
        self.owners.push(owner);
    }

    fn publish(&mut self, owner: &mut Owner) {
        let mut parent = owner.salt;
        for (index, block) in owner.tokens.chunks_exact(BLOCK as usize).enumerate() {
            parent = hash_block(&parent, block);
            if index >= owner.published {
                self.cache.publish(owner.table.blocks()[index], parent);
                let prefix = owner.tokens[..(index + 1) * BLOCK as usize].to_vec();
                self.meaning.insert(parent, (owner.salt, prefix));
                owner.published = index + 1;
            }
        }
    }

    fn check(&self) {
        self.cache.check_integrity(self.owners.iter().map(|owner| &owner.table)).unwrap();
        for owner in &self.owners {
            for (position, &token) in owner.tokens.iter().enumerate() {
                let page = owner.table.blocks()[position / BLOCK as usize];
                assert_eq!(self.pages[page as usize][position % BLOCK as usize], token);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_table_reads_its_own_tokens(
        num_blocks in 1..24_u32,
        operations in prop::collection::vec(operation(), 1..120),
    ) {
        let mut model = Model::new(num_blocks);
        for operation in &operations {
            model.apply(operation);
            model.check();
        }
        for owner in std::mem::take(&mut model.owners) {
            model.cache.release(&owner.table);
        }
        model.check();
        prop_assert_eq!(model.cache.usage().referenced, 0);
        prop_assert_eq!(model.cache.num_available(), num_blocks);
    }
}

fn chain(salt: u8, tokens: &[u32]) -> Vec<BlockHash> {
    let mut parent = BlockHash([salt; 32]);
    tokens
        .chunks_exact(BLOCK as usize)
        .map(|block| {
            parent = hash_block(&parent, block);
            parent
        })
        .collect()
}

#[test]
fn another_salt_finds_nothing() {
    let mut cache = KvCache::new(8);
    let tokens: Vec<u32> = (0..8).collect();
    let mine = chain(1, &tokens);
    let table = cache.allocate(&[], 2).unwrap();
    for (&block, &hash) in table.blocks().iter().zip(&mine) {
        cache.publish(block, hash);
    }
    assert_eq!(cache.match_prefix(&mine), PrefixMatch { blocks: 2, unreferenced: 0 });
    cache.release(&table);
    assert_eq!(cache.match_prefix(&mine), PrefixMatch { blocks: 2, unreferenced: 2 });
    assert_eq!(cache.match_prefix(&chain(2, &tokens)), PrefixMatch::default());
    assert_eq!(cache.usage(), BlockUsage { free: 6, cached: 2, referenced: 0 });
}

#[test]
fn deep_blocks_are_forgotten_before_their_roots_and_old_before_new() {
    let mut cache = KvCache::new(4);
    let (first, second) = (chain(1, &[0; 8]), chain(1, &[9; 8]));
    for chain in [&first, &second] {
        let table = cache.allocate(&[], 2).unwrap();
        for (&block, &hash) in table.blocks().iter().zip(chain) {
            cache.publish(block, hash);
        }
        cache.release(&table);
    }
    let found = |cache: &KvCache| [cache.match_prefix(&first).blocks, cache.match_prefix(&second).blocks];
    let mut held = Vec::new();
    for expected in [[1, 2], [0, 2], [0, 1], [0, 0]] {
        held.push(cache.allocate(&[], 1).unwrap());
        assert_eq!(found(&cache), expected);
    }
    assert_eq!(cache.allocate(&[], 1), Err(OutOfBlocks));
    cache.check_integrity(&held).unwrap();
}

#[test]
fn integrity_check_sees_a_lost_reference() {
    let mut cache = KvCache::new(4);
    let table = cache.allocate(&[], 2).unwrap();
    assert!(cache.check_integrity([]).is_err());
    assert!(cache.check_integrity([&table, &table]).is_err());
    assert!(cache.check_integrity([&table]).is_ok());
}
