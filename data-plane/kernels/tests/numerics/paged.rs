//! Keys and values in pages: what they hold, and where.

use half::{bf16, f16};
use weir_kernels::cuda::Device;
use weir_kernels::cuda::ops::{
    ActivationType, AttentionShape, DevicePages, Formats, KvElement, Operations, StepInputs, StepLimits,
    StepRow,
};

use crate::random::Random;

pub(crate) const BLOCK_TOKENS: usize = 16;
pub(crate) const KV_ELEMENTS: [KvElement; 3] = [KvElement::Bf16, KvElement::F16, KvElement::E4m3];
const NUM_LAYERS: usize = 2;
/// The one that tests use; the other must not be touched.
const LAYER: usize = 1;

/// All combinations of formats that there are kernels for.
pub(crate) fn all_formats() -> Vec<Formats> {
    let mut all = Vec::new();
    for activation in [ActivationType::Bf16, ActivationType::F16] {
        for kv in KV_ELEMENTS {
            all.extend([64, 128, 256].map(|head_dim| Formats { activation, kv, head_dim }));
        }
    }
    all
}

/// The value of an element's bytes.
pub(crate) fn element(kv: KvElement, bytes: &[u8]) -> f64 {
    match kv {
        KvElement::Bf16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
        KvElement::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
        KvElement::E4m3 => {
            let sign = if bytes[0] & 0x80 == 0 { 1.0 } else { -1.0 };
            let (exponent, mantissa) = (i32::from(bytes[0] >> 3 & 15), f64::from(bytes[0] & 7));
            match bytes[0] & 0x7f {
                0x7f => f64::NAN,
                0..=7 => sign * mantissa * 2.0_f64.powi(-9),
                _ => sign * (8.0 + mantissa) * 2.0_f64.powi(exponent - 10),
            }
        }
    }
}

/// Appends an element of at most one in magnitude.
fn push_element(random: &mut Random, kv: KvElement, to: &mut Vec<u8>) {
    match kv {
        KvElement::Bf16 => to.extend(bf16::from_f32(random.unit()).to_le_bytes()),
        KvElement::F16 => to.extend(f16::from_f32(random.unit()).to_le_bytes()),
        // Of the numbers below one more than half are below 2^-3: take those from there on more often.
        KvElement::E4m3 => {
            let sign = if random.below(2) == 0 { 0 } else { 0x80 };
            let from = if random.below(4) == 0 { 0 } else { 0x20 };
            to.push(sign | (from + random.below(0x38 - from)) as u8);
        }
    }
}

/// A pool and the pages of each seat, on the host.
pub(crate) struct Paged {
    pub(crate) formats: Formats,
    pub(crate) shape: AttentionShape,
    pub(crate) limits: StepLimits,
    page_bytes: usize,
    pub(crate) pool: Vec<u8>,
    /// By seat and block.
    pages: Vec<Vec<usize>>,
}

impl Paged {
    /// Seats whose contexts have these lengths, their pages scattered over a pool. The first page, and the other layer, hold
    /// nothing but NaN, as do slots behind a context's end. `limits`: all but what follows from here.
    pub(crate) fn new(
        random: &mut Random,
        formats: Formats,
        (num_heads, num_kv_heads): (usize, usize),
        contexts: &[usize],
        limits: StepLimits,
    ) -> Self {
        let shape = AttentionShape { num_heads, num_kv_heads, layer: LAYER };
        let page_bytes = NUM_LAYERS * DevicePages::layer_bytes(&formats, num_kv_heads);
        let blocks: Vec<usize> = contexts.iter().map(|length| length.div_ceil(BLOCK_TOKENS)).collect();
        let num_pages = 1 + blocks.iter().sum::<usize>();
        let mut free = random.permutation(num_pages - 1).into_iter().map(|page| page + 1);
        let pages = blocks.iter().map(|blocks| free.by_ref().take(*blocks).collect()).collect();
        let limits = StepLimits {
            seats: contexts.len(),
            max_blocks: *blocks.iter().max().unwrap(),
            pages: num_pages,
            heads_per_kv: num_heads / num_kv_heads,
            ..limits
        };
        let pool = vec![0xff; num_pages * page_bytes];
        let mut paged = Self { formats, shape, limits, page_bytes, pool, pages };
        let mut head = Vec::new();
        for (seat, length) in contexts.iter().enumerate() {
            for i in 0..length * num_kv_heads * 2 {
                let at = paged.head_at(seat, i / (2 * num_kv_heads), i / 2 % num_kv_heads, i % 2 == 1);
                head.clear();
                (0..formats.head_dim).for_each(|_| push_element(random, formats.kv, &mut head));
                paged.pool[at..at + head.len()].copy_from_slice(&head);
            }
        }
        paged
    }

    /// The byte of the pool where a head's key or value begins.
    pub(crate) fn head_at(&self, seat: usize, position: usize, kv_head: usize, is_value: bool) -> usize {
        let head_bytes = self.formats.head_dim * self.formats.kv.bytes();
        let slot = (2 * kv_head + usize::from(is_value)) * BLOCK_TOKENS + position % BLOCK_TOKENS;
        let page = self.pages[seat][position / BLOCK_TOKENS];
        page * self.page_bytes
            + LAYER * DevicePages::layer_bytes(&self.formats, self.shape.num_kv_heads)
            + slot * head_bytes
    }

    /// A head's key or value in a pool of this layout.
    pub(crate) fn head(
        &self,
        pool: &[u8],
        seat: usize,
        position: usize,
        kv_head: usize,
        is_value: bool,
    ) -> Vec<f64> {
        let bytes = self.formats.kv.bytes();
        let at = self.head_at(seat, position, kv_head, is_value);
        let head = &pool[at..at + self.formats.head_dim * bytes];
        head.chunks_exact(bytes).map(|element| self::element(self.formats.kv, element)).collect()
    }

    /// The pool on the device; then the step of these rows. Seats get their tables but for blocks before `seen_from`, which keep
    /// the first page.
    pub(crate) fn load(
        &self,
        operations: &Operations,
        limits: StepLimits,
        rows: &[StepRow<'_>],
        seen_from: impl Fn(usize) -> usize,
    ) -> (DevicePages, StepInputs) {
        let device = operations.device();
        let tables = (limits.seats, limits.max_blocks);
        let mut pages = DevicePages::new(device, self.page_bytes, limits.pages, tables, 1).unwrap();
        let mut host = device.pinned(self.pool.len()).unwrap();
        host.elements().unwrap().copy_from_slice(&self.pool);
        for page in 0..limits.pages {
            pages.page_from_host(device, &mut host, page * self.page_bytes, page).unwrap();
        }
        let page_of =
            |seat: usize, block: usize| if block < seen_from(seat) { 0 } else { self.pages[seat][block] };
        let tables: Vec<Vec<u32>> = (0..limits.seats)
            .map(|seat| (0..self.pages[seat].len()).map(|block| page_of(seat, block) as u32).collect())
            .collect();
        let tables: Vec<(usize, &[u32])> = tables.iter().map(|table| &table[..]).enumerate().collect();
        pages.set_tables(device, &tables).unwrap();
        let mut step = StepInputs::new(device, limits, 1).unwrap();
        step.submit(device, rows, &[], &[], &[]).unwrap();
        (pages, step)
    }

    /// The device's pool.
    pub(crate) fn read(&self, device: &Device, pages: &DevicePages) -> Vec<u8> {
        let mut host = device.pinned(self.pool.len()).unwrap();
        for page in 0..pages.num_pages() {
            pages.page_to_host(device, page, &mut host, page * self.page_bytes).unwrap();
        }
        device.record().unwrap().wait(std::time::Duration::from_secs(60)).unwrap();
        host.elements().unwrap().to_vec()
    }
}
