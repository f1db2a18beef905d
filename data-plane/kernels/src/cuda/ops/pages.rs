//! The pool of KV pages in device memory, its block tables, and copies of whole pages.

use super::{Formats, Operations, StepInputs};
use crate::cuda::launch::Kernel;
use crate::cuda::{CudaError, Device, DeviceBuffer, PinnedBuffer};
use crate::kv::BLOCK_TOKENS;

/// Equal pages, and which of them hold a seat's positions. A page holds, layer by layer and KV head by KV head, keys
/// `[16, head_dim]`, then values `[16, head_dim]`.
#[derive(Debug)]
pub struct DevicePages {
    pub(super) pool: DeviceBuffer<u8>,
    /// `[seats, max_blocks]`.
    pub(super) tables: DeviceBuffer<i32>,
    pub(super) page_bytes: usize,
    pub(super) max_blocks: usize,
    /// Host memory for tables that are sent whole, `[seats, max_blocks]` each, used in turn.
    staging: Vec<PinnedBuffer<i32>>,
    next: usize,
}

impl DevicePages {
    /// Bytes of one layer's keys and values in a page.
    pub fn layer_bytes(formats: &Formats, num_kv_heads: usize) -> usize {
        num_kv_heads * 2 * BLOCK_TOKENS * formats.head_dim * formats.kv.bytes()
    }

    /// Allocates pages of `page_bytes`, a multiple of 16, and tables of `max_blocks` for each seat, for steps of which at most
    /// `in_flight` are under way.
    ///
    /// # Errors
    /// [`CudaError::Memory`].
    pub fn new(
        device: &Device,
        page_bytes: usize,
        num_pages: usize,
        (num_seats, max_blocks): (usize, usize),
        in_flight: usize,
    ) -> Result<Self, CudaError> {
        assert!(page_bytes > 0 && page_bytes.is_multiple_of(16), "pages of whole vectors");
        let pool = device.zeros(page_bytes.saturating_mul(num_pages))?;
        let tables = device.zeros(num_seats * max_blocks)?;
        let staging = (0..in_flight).map(|_| device.pinned(num_seats * max_blocks));
        let staging = staging.collect::<Result<_, _>>()?;
        Ok(Self { pool, tables, page_bytes, max_blocks, staging, next: 0 })
    }

    /// Pages in the pool.
    pub fn num_pages(&self) -> usize {
        self.pool.len() / self.page_bytes
    }

    /// Seats that have a table.
    pub fn num_seats(&self) -> usize {
        self.tables.len() / self.max_blocks
    }

    /// Submits copies of whole block tables, (seat, pages), each seat once. Panics if a seat, a block or a page does not exist.
    ///
    /// # Errors
    /// [`CudaError::Driver`]; also if more steps are in flight than was said.
    pub fn set_tables(&mut self, device: &Device, tables: &[(usize, &[u32])]) -> Result<(), CudaError> {
        if tables.is_empty() {
            return Ok(());
        }
        let (max_blocks, num_pages) = (self.max_blocks, self.num_pages());
        let staging = &mut self.staging[self.next];
        let rows = staging.elements()?;
        for &(seat, pages) in tables {
            for (entry, &page) in rows[seat * max_blocks..][..max_blocks][..pages.len()].iter_mut().zip(pages)
            {
                assert!((page as usize) < num_pages, "a page of the pool");
                *entry = i32::try_from(page).expect("pools have far fewer pages");
            }
        }
        for &(seat, pages) in tables {
            let first = seat * max_blocks;
            device.upload_range(staging, first, pages.len(), &mut self.tables, first)?;
        }
        self.next = (self.next + 1) % self.staging.len();
        Ok(())
    }

    /// The pages of each seat's blocks, `[seats, max_blocks]`: what [`DevicePages::set_tables`] and
    /// [`Operations::set_block_tables`] have put there.
    pub fn block_tables(&self) -> &DeviceBuffer<i32> {
        &self.tables
    }

    /// Submits a copy of a page to host memory, from byte `at` of it on.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn page_to_host(
        &self,
        device: &Device,
        page: usize,
        host: &mut PinnedBuffer<u8>,
        at: usize,
    ) -> Result<(), CudaError> {
        device.download_range(&self.pool, page * self.page_bytes, self.page_bytes, host, at)
    }

    /// Submits a copy of host memory, from byte `at` of it on, to a page.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn page_from_host(
        &mut self,
        device: &Device,
        host: &mut PinnedBuffer<u8>,
        at: usize,
        page: usize,
    ) -> Result<(), CudaError> {
        device.upload_range(host, at, self.page_bytes, &mut self.pool, page * self.page_bytes)
    }
}

const BLOCK: usize = 256;
/// Bytes of a page that a block copies.
const COPIED_BYTES: usize = 16 * BLOCK;

#[derive(Debug)]
pub(super) struct Kernels {
    copy_pages: Kernel,
    set_tables: Kernel,
}

impl Kernels {
    pub(super) fn load(device: &Device) -> Result<Self, CudaError> {
        let kernel = |name| Kernel::load(device, name, 0);
        Ok(Self { copy_pages: kernel("copy_pages")?, set_tables: kernel("set_block_tables")? })
    }
}

impl Operations {
    /// Makes the step's page copies, in their order.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn copy_pages(&self, step: &StepInputs, pages: &mut DevicePages) -> Result<(), CudaError> {
        assert!(step.limits().pages <= pages.num_pages(), "pages that the step may name");
        if step.num_copies() == 0 {
            return Ok(());
        }
        let page_bytes = pages.page_bytes;
        let launch = self.launch(&self.pages.copy_pages).writes(&mut pages.pool);
        let launch = launch.reads_from(step.device(), step.layout().copies).int(step.num_copies());
        // SAFETY: the arguments of `copy_pages`; the pages were checked when the step was written.
        unsafe { launch.long(page_bytes).submit((page_bytes.div_ceil(COPIED_BYTES), 1), BLOCK) }
    }

    /// Puts the step's page entries into the block tables, before any row of it runs.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn set_block_tables(&self, step: &StepInputs, pages: &mut DevicePages) -> Result<(), CudaError> {
        let (limits, layout) = (step.limits(), step.layout());
        assert!(
            limits.seats == pages.num_seats() && limits.max_blocks == pages.max_blocks,
            "the step's tables"
        );
        let max_blocks = pages.max_blocks;
        let launch = self.launch(&self.pages.set_tables).writes(&mut pages.tables);
        let launch =
            launch.reads_from(step.device(), layout.entries).reads_from(step.device(), layout.counts + 2);
        // SAFETY: the arguments of `set_block_tables`; the entries were checked when the step was written.
        unsafe { launch.int(max_blocks).submit((step.max_entries().div_ceil(BLOCK), 1), BLOCK) }
    }
}
