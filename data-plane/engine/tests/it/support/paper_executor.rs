//! An executor without a model. Each page slot holds the token that was written there, and a sampled token is a
//! function of the whole context *as read through the block table*. So a wrong table, a stale page or a page
//! with two owners gives wrong tokens. Plans run as late as the seam allows: when they are collected.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use weir_engine::{
    BlockTables, Capacity, Executor, ExecutorError, LayoutId, Page, PlanRow, RowInput, Sample, Seat,
    SeatSetup, StepOutput, StepPlan, Ticket, TokenId, TokenMask,
};

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

/// A plan, and its masks once it has all.
type Outstanding = (Ticket, StepPlan, Option<Vec<Option<TokenMask>>>);

pub struct PaperExecutor {
    capacity: Capacity,
    pages: Vec<[Option<TokenId>; BLOCK as usize]>,
    shared: Arc<Mutex<Shared>>,
    seats: HashMap<Seat, (SeatSetup, Option<TokenId>)>,
    /// The tables as of the plan that is to run next, and as of the one submitted last.
    tables: BlockTables,
    told: BlockTables,
    outstanding: VecDeque<Outstanding>,
    next_ticket: u64,
}

impl PaperExecutor {
    pub fn new(
        num_pages: u32,
        max_seats: u32,
        max_step_tokens: u32,
        max_in_flight: u32,
    ) -> (Self, Arc<Mutex<Shared>>) {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let capacity = Capacity {
            num_pages,
            page_bytes: 64,
            layout: LayoutId::of("paper"),
            num_layer_groups: 1,
            num_host_pages: 0,
            block_tokens: BLOCK,
            max_seats,
            max_step_tokens,
            max_in_flight,
            context_limit: 4096,
            vocab_size: VOCAB,
        };
        let executor = Self {
            capacity,
            pages: vec![[None; BLOCK as usize]; num_pages as usize],
            shared: Arc::clone(&shared),
            seats: HashMap::new(),
            tables: BlockTables::new(max_seats, 1),
            told: BlockTables::new(max_seats, 1),
            outstanding: VecDeque::new(),
            next_ticket: 0,
        };
        (executor, shared)
    }

    fn run(&mut self, plan: &StepPlan, masks: &[Option<TokenMask>]) -> StepOutput {
        for setup in &plan.seats {
            self.seats.insert(setup.seat, (setup.clone(), None));
        }
        plan.block_tables.iter().for_each(|table| self.tables.set(table));
        for copy in &plan.copies {
            let (Page::Pool(from), Page::Pool(to)) = (copy.from, copy.to) else { panic!("no host pages") };
            self.pages[to as usize] = self.pages[from as usize];
        }
        let mut written = HashSet::new();
        for row in &plan.rows {
            for (token, position) in self.input(plan, row).into_iter().zip(row.start_position..) {
                let page = self.tables.blocks(row.seat, 0)[(position / BLOCK) as usize];
                let slot = position % BLOCK;
                assert!(written.insert((page, slot)), "two rows write slot {slot} of page {page}");
                self.pages[page as usize][slot as usize] = Some(token);
            }
        }
        let shared = self.shared.lock().unwrap();
        let mut output = StepOutput::default();
        let mut masks = masks.iter();
        for row in &plan.rows {
            if row.sample == Sample::No {
                continue;
            }
            let context = (0..row.end_position()).map(|position| {
                let page = self.tables.blocks(row.seat, 0)[(position / BLOCK) as usize];
                self.pages[page as usize][(position % BLOCK) as usize].expect("a context is written")
            });
            let (setup, last) = self.seats.get_mut(&row.seat).expect("a seat is set up");
            assert_eq!(setup.sequence, row.sequence, "a seat is one sequence's");
            let mut token = token_after(context, setup.sampling.seed);
            if row.sample == Sample::Masked {
                token = allowed_from(token, masks.next().expect("a mask for each").as_ref());
            }
            let is_usable = !shared.unusable.contains(&row.sequence.0);
            *last = is_usable.then_some(token);
            output.num_tokens.push(u32::from(is_usable));
            output.tokens.extend(*last);
        }
        if shared.truncate_output {
            output.num_tokens.pop();
        }
        output
    }

    fn input(&self, plan: &StepPlan, row: &PlanRow) -> Vec<TokenId> {
        match &row.input {
            RowInput::Tokens(range) => plan.tokens[range.clone()].to_vec(),
            // A sequence that is over by now may have none; what follows from it is discarded.
            RowInput::LastSampled => vec![self.seats[&row.seat].1.unwrap_or(0)],
        }
    }
}

/// The first allowed token from `token` on, going round.
pub fn allowed_from(token: TokenId, mask: Option<&TokenMask>) -> TokenId {
    let is_allowed =
        |token: TokenId| mask.is_none_or(|mask| mask[token as usize / 32] >> (token % 32) & 1 == 1);
    (token..VOCAB).chain(0..token).find(|&token| is_allowed(token)).expect("some token is allowed")
}

impl Executor for PaperExecutor {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn submit(&mut self, plan: StepPlan) -> Result<Ticket, ExecutorError> {
        let Capacity { max_step_tokens, max_seats, num_pages, .. } = self.capacity;
        plan.check_tables(max_seats, 1, num_pages).unwrap();
        plan.block_tables.iter().for_each(|table| self.told.set(table));
        plan.check(max_step_tokens, max_seats, BLOCK, &self.told).unwrap();
        assert!(self.outstanding.len() < self.capacity.max_in_flight as usize);
        assert!(
            self.outstanding.iter().all(|(_, _, masks)| masks.is_some()),
            "nothing follows a missing mask"
        );
        {
            let mut shared = self.shared.lock().unwrap();
            if std::mem::take(&mut shared.fail_submit) {
                return Err(ExecutorError::InvalidPlan("asked to fail"));
            }
            let rows = plan.rows.iter().map(|row| SeenRow {
                sequence: row.sequence.0,
                start: row.start_position,
                end: row.end_position(),
                samples: row.samples(),
            });
            shared.plans.push(rows.collect());
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let masks = (plan.num_masked() == 0).then(Vec::new);
        self.outstanding.push_back((ticket, plan, masks));
        Ok(ticket)
    }

    fn supply_masks(&mut self, ticket: Ticket, masks: Vec<Option<TokenMask>>) -> Result<(), ExecutorError> {
        assert_eq!(self.outstanding.len(), 1, "what the masks follow from is collected");
        let (latest, plan, waiting) = self.outstanding.back_mut().unwrap();
        assert_eq!((*latest, plan.num_masked()), (ticket, masks.len()));
        assert!(waiting.replace(masks).is_none(), "once");
        Ok(())
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, ExecutorError> {
        let Some((oldest, plan, masks)) = self.outstanding.pop_front() else {
            return Err(ExecutorError::UnknownTicket(ticket));
        };
        assert_eq!(oldest, ticket);
        let Some(masks) = masks else { return Err(ExecutorError::InvalidPlan("no masks")) };
        if std::mem::take(&mut self.shared.lock().unwrap().fail_collect) {
            self.outstanding.clear();
            return Err(ExecutorError::Device("asked to fail".into()));
        }
        let output = self.run(&plan, &masks);
        let mut shared = self.shared.lock().unwrap();
        shared.unusable.clear();
        shared.truncate_output = false;
        Ok(output)
    }

    fn host_page(&mut self, _page: u32) -> &mut [u8] {
        unreachable!("the scheduler does not swap")
    }
}
