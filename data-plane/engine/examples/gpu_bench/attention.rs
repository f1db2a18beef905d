//! Bandwidth of decode attention.

use std::error::Error;
use std::time::Duration;

use weir_kernels::cuda::ops::{
    ActivationType, AttentionScratch, AttentionShape, DevicePages, Formats, KvElement, Operations,
    StepInputs, StepLimits, StepRow,
};
use weir_kernels::cuda::{CudaError, Device, DeviceBuffer, Peaks};
use weir_kernels::kv::BLOCK_TOKENS;

use super::report::{Measurement, Work};
use super::{Outcome, peaks, timing};

/// Positions of a split of the decode kernel.
const SPLIT_POSITIONS: usize = 256;
/// Rows, and positions that each of them sees.
const CASES: [(usize, usize); 5] = [(1, 8192), (1, 131_072), (16, 8192), (64, 4096), (256, 1024)];
const TINY_CASES: [(usize, usize); 2] = [(1, 300), (3, 40)];

/// Heads of a Llama 3 8B, or fewer.
#[derive(Clone, Copy)]
struct Heads {
    queries: usize,
    kv: usize,
    dim: usize,
}

pub(crate) fn run(is_tiny: bool) -> Outcome {
    let device = Device::open(0)?;
    let peaks = peaks(&device)?;
    let heads = match is_tiny {
        true => Heads { queries: 4, kv: 1, dim: 64 },
        false => Heads { queries: 32, kv: 8, dim: 128 },
    };
    for kv in [KvElement::Bf16, KvElement::E4m3] {
        for &(rows, positions) in if is_tiny { &TINY_CASES[..] } else { &CASES[..] } {
            let seconds = measure(&device, &peaks, (heads, kv), (rows, positions), is_tiny)?;
            let kv_bytes = (2 * rows * positions * heads.kv * heads.dim * kv.bytes()) as f64;
            let dot_products = 4.0 * (rows * positions * heads.queries * heads.dim) as f64;
            Measurement {
                what: format!("decode attention, {kv:?}, {rows} rows of {positions} positions"),
                amount: kv_bytes / 1e9,
                unit: "GB/s",
                seconds,
                work: Work { bytes: kv_bytes, flops: dot_products },
                peaks: &peaks,
            }
            .print();
        }
    }
    Ok(())
}

/// Seconds of one layer's attention: as many layers in turn as are needed for four times what the cache holds.
fn measure(
    device: &Device,
    peaks: &Peaks,
    (heads, kv): (Heads, KvElement),
    (rows, positions): (usize, usize),
    is_tiny: bool,
) -> Result<f64, Box<dyn Error>> {
    let formats = Formats { activation: ActivationType::Bf16, kv, head_dim: heads.dim };
    let operations = Operations::load(device, formats)?;
    let layer_bytes = DevicePages::layer_bytes(&formats, heads.kv);
    let max_blocks = positions.div_ceil(BLOCK_TOKENS);
    let num_pages = rows * max_blocks;
    let layers = if is_tiny { 2 } else { (4 * peaks.cache_bytes).div_ceil(num_pages * layer_bytes).max(1) };
    let limits = StepLimits {
        tokens: rows,
        rows,
        seats: rows,
        max_blocks,
        pages: num_pages,
        splits: rows * positions.div_ceil(SPLIT_POSITIONS),
        heads_per_kv: heads.queries / heads.kv,
        window: None,
    };
    let mut step = StepInputs::new(device, limits, 1)?;
    let mut pages = DevicePages::new(device, layers * layer_bytes, num_pages, (rows, max_blocks), 1)?;
    fill(device, &mut pages, kv, layers * layer_bytes)?;
    write_tables(device, &mut pages, max_blocks)?;
    let row = |seat| StepRow { seat, start_position: positions - 1, tokens: Some(&[0]) };
    step.submit(device, &(0..rows).map(row).collect::<Vec<_>>(), &[], &[], &[])?;
    let qkv: DeviceBuffer<u16> = device.zeros(rows * (heads.queries + 2 * heads.kv) * heads.dim)?;
    let mut out: DeviceBuffer<u16> = device.zeros(rows * heads.queries * heads.dim)?;
    let mut scratch = AttentionScratch::new(device, limits.splits, heads.queries, heads.dim)?;
    Ok(timing::seconds(device, is_tiny, |turn| {
        let shape = AttentionShape { num_heads: heads.queries, num_kv_heads: heads.kv, layer: turn % layers };
        let rules = (0.1, None);
        operations.attention(shape, rules, &step, (rows, rows), true, &qkv, &pages, &mut scratch, &mut out)
    })?)
}

/// Numbers below two in every page.
fn fill(device: &Device, pages: &mut DevicePages, kv: KvElement, page_bytes: usize) -> Result<(), CudaError> {
    let mut host = device.pinned::<u8>(page_bytes)?;
    // Without the highest bit of each element's exponent.
    let mask = match kv {
        KvElement::Bf16 | KvElement::F16 => 0xbfff,
        KvElement::E4m3 => 0xbfbf_u16,
    };
    let mut noise = 1_u16;
    for bytes in host.elements()?.chunks_exact_mut(2) {
        noise = noise.wrapping_mul(25_173).wrapping_add(13_849);
        bytes.copy_from_slice(&(noise & mask).to_le_bytes());
    }
    (0..pages.num_pages()).try_for_each(|page| pages.page_from_host(device, &mut host, 0, page))?;
    device.record()?.wait(Duration::from_secs(60))
}

/// Gives each seat the pages that follow those of the seat before it.
fn write_tables(device: &Device, pages: &mut DevicePages, max_blocks: usize) -> Result<(), Box<dyn Error>> {
    let all = (0..u32::try_from(pages.num_pages())?).collect::<Vec<_>>();
    let tables: Vec<_> = all.chunks(max_blocks).enumerate().collect();
    Ok(pages.set_tables(device, &tables)?)
}
