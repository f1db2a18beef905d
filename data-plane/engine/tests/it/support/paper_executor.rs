//! An executor without a model. Each page slot holds the token that was written there, and a sampled token is a
//! function of the whole context *as read through the block table*. So a wrong table, a stale page or a page
//! with two owners gives wrong tokens.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use weir_engine::{Capacity, Executor, ExecutorError, StepOutput, StepPlan, Ticket, TokenId};

pub const BLOCK: u32 = 16;
pub const VOCAB: u32 = 997;

/// The token that follows a context: what every sequence must get, whatever ran beside it.
pub fn token_after(context: impl IntoIterator<Item = TokenId>, seed: u64) -> TokenId {
    let mut hash = seed ^ 0xcbf2_9ce4_8422_2325;
    for token in context {
        hash = (hash ^ u64::from(token)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    }
    (hash % u64::from(VOCAB)) as TokenId
}

/// One row as the executor saw it.
#[derive(Clone, Debug)]
pub struct SeenRow {
    pub sequence: u64,
    pub start: u32,
    pub end: u32,
    pub samples: bool,
}

/// What a test may look at and change while the engine owns the executor.
#[derive(Debug, Default)]
pub struct Shared {
    pub plans: Vec<Vec<SeenRow>>,
    pub fail_submit: bool,
    pub fail_collect: bool,
    /// Rows of the next step whose logits are no numbers, by sequence.
    pub unusable: HashSet<u64>,
    /// Return one token less than was asked for.
    pub truncate_output: bool,
}

pub struct PaperExecutor {
    capacity: Capacity,
    pages: Vec<[Option<TokenId>; BLOCK as usize]>,
    shared: Arc<Mutex<Shared>>,
    outstanding: Option<(Ticket, StepOutput)>,
    next_ticket: u64,
}

impl PaperExecutor {
    pub fn new(num_pages: u32, max_seats: u32, max_step_tokens: u32) -> (Self, Arc<Mutex<Shared>>) {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let capacity = Capacity {
            num_pages,
            page_bytes: 64,
            block_tokens: BLOCK,
            max_seats,
            max_step_tokens,
            context_limit: 4096,
            vocab_size: VOCAB,
        };
        let executor = Self {
            capacity,
            pages: vec![[None; BLOCK as usize]; num_pages as usize],
            shared: Arc::clone(&shared),
            outstanding: None,
            next_ticket: 0,
        };
        (executor, shared)
    }

    fn run(&mut self, plan: &StepPlan) -> StepOutput {
        for copy in &plan.copies {
            self.pages[copy.to as usize] = self.pages[copy.from as usize];
        }
        let mut written = HashSet::new();
        for row in &plan.rows {
            for (&token, position) in plan.row_tokens(row).iter().zip(row.start_position..) {
                let page = row.block_table.blocks()[(position / BLOCK) as usize];
                let slot = position % BLOCK;
                assert!(written.insert((page, slot)), "two rows write slot {slot} of page {page}");
                self.pages[page as usize][slot as usize] = Some(token);
            }
        }
        let shared = self.shared.lock().unwrap();
        let mut output = StepOutput::default();
        for row in &plan.rows {
            let Some(sampling) = row.sample else { continue };
            assert_eq!(row.sample_position(), row.end_position());
            let context = (0..row.end_position()).map(|position| {
                let page = row.block_table.blocks()[(position / BLOCK) as usize];
                self.pages[page as usize][(position % BLOCK) as usize].expect("a context is written")
            });
            let token = token_after(context, sampling.seed);
            output.sampled.push((!shared.unusable.contains(&row.sequence.0)).then_some(token));
        }
        if shared.truncate_output {
            output.sampled.pop();
        }
        output
    }
}

impl Executor for PaperExecutor {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn submit(&mut self, plan: StepPlan) -> Result<Ticket, ExecutorError> {
        plan.check(self.capacity.max_step_tokens, self.capacity.max_seats, BLOCK).unwrap();
        assert!(self.outstanding.is_none());
        {
            let mut shared = self.shared.lock().unwrap();
            if std::mem::take(&mut shared.fail_submit) {
                return Err(ExecutorError::InvalidPlan("asked to fail"));
            }
            let rows = plan.rows.iter().map(|row| SeenRow {
                sequence: row.sequence.0,
                start: row.start_position,
                end: row.end_position(),
                samples: row.sample.is_some(),
            });
            shared.plans.push(rows.collect());
        }
        let output = self.run(&plan);
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.outstanding = Some((ticket, output));
        Ok(ticket)
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, ExecutorError> {
        let (outstanding, output) = self.outstanding.take().ok_or(ExecutorError::UnknownTicket(ticket))?;
        assert_eq!(outstanding, ticket);
        let mut shared = self.shared.lock().unwrap();
        shared.unusable.clear();
        shared.truncate_output = false;
        if std::mem::take(&mut shared.fail_collect) {
            return Err(ExecutorError::Device("asked to fail".into()));
        }
        Ok(output)
    }
}
