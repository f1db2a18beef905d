//! A step's plain data in device memory: written by the host in one copy, read by the kernels at fixed places, so that a recorded graph
//! serves every step of its size.

use super::attention::{QUERY_ROWS_MAX, SPLIT_POSITIONS, TILE_ROWS};
use crate::cuda::launch::Launch;
use crate::cuda::{CudaError, Device, DeviceBuffer, PinnedBuffer};
use crate::kv::BLOCK_TOKENS;

/// How large a step can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepLimits {
    /// New tokens over all rows.
    pub tokens: usize,
    /// Rows, and samples.
    pub rows: usize,
    /// Seats of block tables and of tokens sampled last.
    pub seats: usize,
    /// Blocks of a seat's table.
    pub max_blocks: usize,
    /// Pages of the pool.
    pub pages: usize,
    /// Parts of 256 positions into which the contexts of rows with one token are split, over all rows. Rows for which there
    /// is no room take the path of longer ones, with the same result.
    pub splits: usize,
    /// Query heads for each KV head.
    pub heads_per_kv: usize,
    /// The widest window of the model's layers; `None` if one sees all positions.
    pub window: Option<usize>,
}

/// The share of one sequence in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRow<'a> {
    /// Its seat.
    pub seat: usize,
    /// Absolute position of the first new token.
    pub start_position: usize,
    /// New tokens; `None`: one, that which the seat sampled last.
    pub tokens: Option<&'a [u32]>,
}

/// A token to be sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSample {
    /// The step's row after whose last token it stands.
    pub row: usize,
    /// Its mask among those of the step, if it has one.
    pub mask: Option<usize>,
}

/// A page that a seat's block table gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageEntry {
    /// Whose table.
    pub seat: usize,
    /// Which positions: `16 · block ..`.
    pub block: usize,
    /// The page.
    pub page: u32,
}

/// Where the arrays begin, in `i32`s from the start; each at a multiple of 16 bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// `[number of splits, number of tiles, number of page entries]`.
    pub(super) counts: usize,
    pub(super) rows: usize,
    pub(super) samples: usize,
    pub(super) row_splits: usize,
    pub(super) entries: usize,
    /// `[copies, 2]`: from, to.
    pub(super) copies: usize,
    pub(super) splits: usize,
    pub(super) tiles: usize,
    pub(super) tokens: usize,
    pub(super) token_row: usize,
    pub(super) token_position: usize,
    len: usize,
    max_tiles: usize,
    max_entries: usize,
}

impl Layout {
    fn new(limits: &StepLimits) -> Self {
        let mut len = 0;
        let mut array = |ints: usize| {
            let start = len;
            len += ints.next_multiple_of(4);
            start
        };
        let max_tiles = limits.rows + limits.tokens * limits.heads_per_kv / TILE_ROWS;
        // A row may begin in the middle of a block that is copied first. Whole tables go another way.
        let max_entries = 2 * limits.rows + limits.tokens / BLOCK_TOKENS;
        let (counts, rows, samples) = (array(4), array(4 * limits.rows), array(4 * limits.rows));
        let (row_splits, entries) = (array(2 * limits.rows), array(3 * max_entries));
        let copies = array(2 * max_entries);
        let (splits, tiles) = (array(2 * limits.splits), array(2 * max_tiles));
        let (tokens, token_row, token_position) =
            (array(limits.tokens), array(limits.tokens), array(limits.tokens));
        Self {
            counts,
            rows,
            samples,
            row_splits,
            entries,
            copies,
            splits,
            tiles,
            tokens,
            token_row,
            token_position,
            len,
            max_tiles,
            max_entries,
        }
    }
}

/// The arrays of the step to run next, and host buffers to write them in while earlier steps run.
#[derive(Debug)]
pub struct StepInputs {
    limits: StepLimits,
    layout: Layout,
    on_device: DeviceBuffer<i32>,
    staging: Vec<PinnedBuffer<i32>>,
    next: usize,
    num_copies: usize,
    is_split: bool,
}

impl StepInputs {
    /// Allocates for steps of which at most `in_flight` are under way.
    ///
    /// # Errors
    /// [`CudaError::Memory`] or [`CudaError::Driver`].
    pub fn new(device: &Device, limits: StepLimits, in_flight: usize) -> Result<Self, CudaError> {
        let layout = Layout::new(&limits);
        let on_device = device.zeros(layout.len)?;
        let staging = (0..in_flight).map(|_| device.pinned(layout.len)).collect::<Result<_, _>>()?;
        Ok(Self { limits, layout, on_device, staging, next: 0, num_copies: 0, is_split: false })
    }

    /// The sizes it was made for.
    pub fn limits(&self) -> &StepLimits {
        &self.limits
    }

    /// Page copies of the step that was written last.
    pub fn num_copies(&self) -> usize {
        self.num_copies
    }

    /// Whether every row of the step that was written last has one token and room among the splits.
    pub fn is_split(&self) -> bool {
        self.is_split
    }

    /// Page entries, and page copies, that one step can take.
    pub fn max_entries(&self) -> usize {
        self.layout.max_entries
    }

    /// Writes a step and submits its copy: rows, samples, what the block tables get, pages to copy (from, to). Whatever is beyond it is inactive: kernels may be launched for more tokens, rows and
    /// samples than there are. Panics if the step is larger than the limits or names what does not exist.
    ///
    /// # Errors
    /// [`CudaError::Driver`]; also if more steps are in flight than was said.
    pub fn submit(
        &mut self,
        device: &Device,
        rows: &[StepRow<'_>],
        samples: &[StepSample],
        entries: &[PageEntry],
        copies: &[(u32, u32)],
    ) -> Result<(), CudaError> {
        let staging = &mut self.staging[self.next];
        let mut writer = Writer { ints: staging.elements()?, limits: &self.limits, layout: &self.layout };
        self.is_split = writer.write(rows, samples, entries);
        writer.write_copies(copies);
        self.num_copies = copies.len();
        device.upload(staging, self.layout.len, &mut self.on_device)?;
        self.next = (self.next + 1) % self.staging.len();
        Ok(())
    }

    /// Tiles of queries that a step can have.
    pub(super) fn max_tiles(&self) -> usize {
        self.layout.max_tiles
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn device(&self) -> &DeviceBuffer<i32> {
        &self.on_device
    }

    /// Adds the tokens to a launch's arguments.
    pub(super) fn tokens<'a>(&self, launch: Launch<'a>) -> Launch<'a> {
        launch.reads_from(&self.on_device, self.layout.tokens)
    }

    /// Adds the rows that tokens belong to.
    pub(super) fn row_of_tokens<'a>(&self, launch: Launch<'a>) -> Launch<'a> {
        launch.reads_from(&self.on_device, self.layout.token_row)
    }
}

/// Writes a step's arrays to host memory.
struct Writer<'a> {
    ints: &'a mut [i32],
    limits: &'a StepLimits,
    layout: &'a Layout,
}

/// In place of a token: the seat's last one; in place of a row or an index: none.
const NONE: i32 = -1;

fn int(value: usize) -> i32 {
    i32::try_from(value).expect("steps are far smaller than 2^31")
}

impl Writer<'_> {
    /// Returns whether every row is split.
    fn write(&mut self, rows: &[StepRow<'_>], samples: &[StepSample], entries: &[PageEntry]) -> bool {
        let Layout { counts, token_row, .. } = *self.layout;
        assert!(
            rows.len() <= self.limits.rows && samples.len() <= self.limits.rows,
            "rows within the limits"
        );
        self.ints[token_row..token_row + self.limits.tokens].fill(NONE);
        let (mut first_token, mut num_splits, mut num_tiles) = (0, 0, 0);
        for index in 0..self.limits.rows {
            let Some(row) = rows.get(index) else {
                self.put(self.layout.rows + 4 * index, [0; 4]);
                self.put(self.layout.row_splits + 2 * index, [0; 2]);
                continue;
            };
            let num_tokens = self.write_tokens(index, row, first_token);
            let row_ints = [int(row.seat), int(row.start_position), int(first_token), int(num_tokens)];
            self.put(self.layout.rows + 4 * index, row_ints);
            let splits = self.write_splits(index, row, num_tokens, num_splits);
            self.put(self.layout.row_splits + 2 * index, [int(num_splits), int(splits)]);
            if splits == 0 {
                num_tiles += self.write_tiles(index, num_tokens, num_tiles);
            }
            num_splits += splits;
            first_token += num_tokens;
        }
        for index in 0..self.limits.rows {
            let sample =
                samples.get(index).map_or([NONE, 0, 0, NONE], |sample| self.sample(sample, rows.len()));
            self.put(self.layout.samples + 4 * index, sample);
        }
        self.write_entries(entries);
        self.put(counts, [int(num_splits), int(num_tiles), int(entries.len())]);
        num_tiles == 0
    }

    fn put<const N: usize>(&mut self, at: usize, ints: [i32; N]) {
        self.ints[at..at + N].copy_from_slice(&ints);
    }

    fn write_tokens(&mut self, index: usize, row: &StepRow<'_>, first_token: usize) -> usize {
        let num_tokens = row.tokens.map_or(1, <[u32]>::len);
        assert!(num_tokens > 0 && first_token + num_tokens <= self.limits.tokens, "tokens within the limits");
        assert!(row.seat < self.limits.seats, "a seat that exists");
        let end = row.start_position + num_tokens;
        assert!(end <= self.limits.max_blocks * BLOCK_TOKENS, "positions of the block table");
        for i in 0..num_tokens {
            let at = first_token + i;
            // An id beyond `i32` is in no vocabulary; nor is its stand-in.
            let token = row.tokens.map_or(NONE, |tokens| i32::try_from(tokens[i]).unwrap_or(i32::MAX));
            self.ints[self.layout.tokens + at] = token;
            self.ints[self.layout.token_row + at] = int(index);
            self.ints[self.layout.token_position + at] = int(row.start_position + i);
        }
        num_tokens
    }

    /// The splits of a row with one token, if they have room; returns their number.
    fn write_splits(&mut self, index: usize, row: &StepRow<'_>, num_tokens: usize, written: usize) -> usize {
        let position = row.start_position;
        let seen_from = self.limits.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let parts = seen_from / SPLIT_POSITIONS..position / SPLIT_POSITIONS + 1;
        let has_room = written + parts.len() <= self.limits.splits;
        if num_tokens > 1 || self.limits.heads_per_kv > QUERY_ROWS_MAX || !has_room {
            return 0;
        }
        let count = parts.len();
        for (i, part) in parts.enumerate() {
            self.put(self.layout.splits + 2 * (written + i), [int(index), int(part)]);
        }
        count
    }

    /// The tiles of a row of any length; returns their number.
    fn write_tiles(&mut self, index: usize, num_tokens: usize, written: usize) -> usize {
        let tiles = (num_tokens * self.limits.heads_per_kv).div_ceil(TILE_ROWS);
        assert!(written + tiles <= self.layout.max_tiles, "a tile begins in its row");
        for part in 0..tiles {
            self.put(self.layout.tiles + 2 * (written + part), [int(index), int(part)]);
        }
        tiles
    }

    fn sample(&self, sample: &StepSample, num_rows: usize) -> [i32; 4] {
        assert!(sample.row < num_rows, "a row of the step");
        assert!(sample.mask.is_none_or(|mask| mask < self.limits.rows), "a mask for each row at most");
        let row = &self.ints[self.layout.rows + 4 * sample.row..][..4];
        let (seat, start_position, first_token, num_tokens) = (row[0], row[1], row[2], row[3]);
        let mask = sample.mask.map_or(NONE, int);
        [first_token + num_tokens - 1, seat, start_position + num_tokens, mask]
    }

    fn write_entries(&mut self, entries: &[PageEntry]) {
        assert!(entries.len() <= self.layout.max_entries, "page entries within the limits");
        for (i, entry) in entries.iter().enumerate() {
            assert!(
                entry.seat < self.limits.seats && entry.block < self.limits.max_blocks,
                "an entry of a table"
            );
            let page = self.page(entry.page);
            self.put(self.layout.entries + 3 * i, [int(entry.seat), int(entry.block), page]);
        }
    }

    fn write_copies(&mut self, copies: &[(u32, u32)]) {
        assert!(copies.len() <= self.layout.max_entries, "page copies within the limits");
        for (i, &(from, to)) in copies.iter().enumerate() {
            let pages = [self.page(from), self.page(to)];
            self.put(self.layout.copies + 2 * i, pages);
        }
    }

    fn page(&self, page: u32) -> i32 {
        let page = page as usize;
        assert!(page < self.limits.pages, "a page of the pool");
        int(page)
    }
}

#[cfg(test)]
mod tests;
