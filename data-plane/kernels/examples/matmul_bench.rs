//! Measures matrix multiplication beside this machine's own bounds.
//!
//! ```text
//! cargo run --release -p weir-kernels --example matmul_bench -- [threads] [isa]
//! ```
//!
//! For the weights of SmolLM2-135M and several numbers of rows: the best time, the weight bytes and multiply-adds a second that
//! this is, and the share of the bound: the larger of the time to read the weight once at the bandwidth measured first, and of
//! the time to multiply at the rate that the same kernel reaches on a weight that stays in the second cache level.
#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use weir_kernels::cpu::{Cpu, Isa, MatmulInput, MatmulOutput, PackedMatrix, ThreadPool};
use weir_kernels::quant::GgmlType;

const ROWS: [usize; 7] = [1, 2, 4, 8, 16, 32, 128];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(2);
    let wanted = arguments.next();
    let mut isas = Isa::available().into_iter();
    let isa = isas.find(|isa| wanted.as_deref() == Some(isa.name())).unwrap_or_else(Isa::detect);
    let cpu = Cpu::new(isa, threads);
    let bandwidth = read_bandwidth(cpu.num_threads());
    println!(
        "{} threads, {}, weights are read at {:.1} GB/s",
        cpu.num_threads(),
        isa.name(),
        bandwidth / 1e9
    );
    println!("{:<22} {:>5} {:>9} {:>7} {:>8} {:>8}", "weight", "rows", "us", "GB/s", "GMAC/s", "% bound");
    let weight = |name, ggml_type, columns, rows, copies| Shape { name, ggml_type, columns, rows, copies };
    for shape in [
        weight("gate and up, Q4_1", GgmlType::Q4_1, 576, 3072, 30),
        weight("down, Q4_1", GgmlType::Q4_1, 1536, 576, 30),
        weight("output head, Q8_0", GgmlType::Q8_0, 576, 49152, 1),
    ] {
        let near = Shape { rows: 2048, copies: 1, ..shape };
        for rows in ROWS {
            let multiply_s = near.seconds(&cpu, rows) * as_f64(shape.rows) / as_f64(near.rows);
            let bytes = as_f64(shape.pack().memory_bytes());
            let bound_s = multiply_s.max(bytes / bandwidth);
            let seconds = shape.seconds(&cpu, rows);
            println!(
                "{:<22} {rows:>5} {:>9.1} {:>7.1} {:>8.1} {:>8.0}",
                shape.name,
                seconds * 1e6,
                bytes / seconds / 1e9,
                as_f64(rows * shape.rows * shape.columns) / seconds / 1e9,
                100.0 * bound_s / seconds,
            );
        }
    }
}

#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    ggml_type: GgmlType,
    columns: usize,
    rows: usize,
    /// Different weights used in turn, so that none is in a near cache.
    copies: usize,
}

impl Shape {
    fn pack(&self) -> PackedMatrix {
        let blocks = self.rows * self.columns / self.ggml_type.block_elements();
        let data = vec![0x2c_u8; blocks * self.ggml_type.block_bytes()];
        PackedMatrix::pack(self.ggml_type, &data, self.rows, self.columns).expect("whole blocks")
    }

    /// Seconds of one multiplication: the mean over the copies of each copy's best, so that a disturbance spoils one call.
    fn seconds(&self, cpu: &Cpu, rows: usize) -> f64 {
        let weights = vec![self.pack(); self.copies];
        let x: Vec<f32> =
            (0_u16..).take(rows * self.columns).map(|i| f32::from(i % 251) / 251.0 - 0.5).collect();
        let mut out = vec![0.0; rows * self.rows];
        let mut best = vec![f64::INFINITY; self.copies];
        for _ in 0..if rows > 64 { 5 } else { 20 } {
            for (weight, best) in weights.iter().zip(&mut best) {
                let start = Instant::now();
                cpu.matmul(
                    MatmulInput::Rows(&x),
                    &mut [MatmulOutput { weight, out: &mut out, accumulate: false }],
                );
                *best = best.min(start.elapsed().as_secs_f64());
            }
        }
        best.iter().sum::<f64>() / as_f64(self.copies)
    }
}

/// Bytes a second at which all threads together read 96 MB (the size of SmolLM2's weights) from end to end, at best.
fn read_bandwidth(threads: usize) -> f64 {
    const PART: usize = 1 << 16;
    let pool = ThreadPool::new(threads);
    let words = vec![1_u64; 12 << 20];
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        let next = AtomicUsize::new(0);
        let start = Instant::now();
        pool.run(&|_| {
            while let Some(part) = words.chunks(PART).nth(next.fetch_add(1, Ordering::Relaxed)) {
                std::hint::black_box(part.iter().fold(0, |sum, word| sum ^ word));
            }
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    as_f64(size_of_val(words.as_slice())) / best
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
fn as_f64(count: usize) -> f64 {
    count as f64
}
