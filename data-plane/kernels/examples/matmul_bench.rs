//! Measures matrix multiplication beside this machine's own bounds.
//!
//! ```text
//! cargo run --release -p weir-kernels --example matmul_bench -- [threads] [isa]
//! ```
//!
//! For each shape of SmolLM2-135M and number of rows it prints the best time of many, the weight bytes and multiply-adds
//! a second that this is, and both as a share of the bound: the larger of the time to read the weights at the bandwidth
//! measured first and (for few rows this one hardly counts) to do the multiply-adds at the rate the same kernel reaches on
//! a weight that stays in the first cache level.
#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::time::Instant;

use weir_kernels::cpu::{Cpu, Isa, MatmulInput, MatmulOutput, PackedMatrix};
use weir_kernels::quant::GgmlType;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(2);
    let wanted = arguments.next();
    let isas = Isa::available();
    let isa =
        isas.iter().copied().find(|isa| wanted.as_deref() == Some(isa.name())).unwrap_or_else(Isa::detect);
    let cpu = Cpu::new(isa, threads);
    let bandwidth = read_bandwidth(&cpu);
    println!("{} threads, {}, weights are read at up to {bandwidth:.1} GB/s", cpu.num_threads(), isa.name());
    println!("{:<24} {:>5} {:>9} {:>7} {:>8} {:>7}", "weight", "rows", "us", "GB/s", "GMAC/s", "% read");
    let layer = Shape {
        name: "Q4_1 layer (30 of it)",
        ggml_type: GgmlType::Q4_1,
        columns: 576,
        rows: 6144,
        copies: 30,
    };
    let down = Shape {
        name: "Q4_1 down (30 of it)",
        ggml_type: GgmlType::Q4_1,
        columns: 1536,
        rows: 576,
        copies: 30,
    };
    let head = Shape { name: "Q8_0 head", ggml_type: GgmlType::Q8_0, columns: 576, rows: 49152, copies: 1 };
    for shape in [layer, down, head] {
        for rows in [1, 2, 4, 8, 16, 32, 128] {
            shape.measure(&cpu, rows, bandwidth);
        }
    }
}

struct Shape {
    name: &'static str,
    ggml_type: GgmlType,
    columns: usize,
    rows: usize,
    /// Different weights used in turn, so that none is in a near cache.
    copies: usize,
}

impl Shape {
    fn measure(&self, cpu: &Cpu, rows: usize, bandwidth: f64) {
        let blocks = self.rows * self.columns / self.ggml_type.block_elements();
        let data = vec![1_u8; blocks * self.ggml_type.block_bytes()];
        let packed =
            PackedMatrix::pack(self.ggml_type, &data, self.rows, self.columns).expect("whole blocks");
        let weights = vec![packed; self.copies];
        let x: Vec<f32> =
            (0_u16..).take(rows * self.columns).map(|i| f32::from(i % 251) / 251.0 - 0.5).collect();
        let mut out = vec![0.0; rows * self.rows];
        // Each weight's best apart, in turns: a disturbance spoils one call, not the whole round.
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
        let seconds = best.iter().sum::<f64>() / as_f64(self.copies);
        let bytes = as_f64(weights[0].memory_bytes());
        let multiplies = as_f64(rows * self.rows * self.columns);
        println!(
            "{:<24} {rows:>5} {:>9.1} {:>7.1} {:>8.1} {:>7.0}",
            self.name,
            seconds * 1e6,
            bytes / seconds / 1e9,
            multiplies / seconds / 1e9,
            100.0 * bytes / bandwidth / 1e9 / seconds,
        );
    }
}

/// GB/s at which all threads of the pool together read 96 MB (the size of SmolLM2's weights) from end to end.
fn read_bandwidth(cpu: &Cpu) -> f64 {
    let pool = weir_kernels::cpu::ThreadPool::new(cpu.num_threads());
    let words = vec![1_u64; 12 << 20];
    let part = words.len() / pool.num_threads();
    let seconds = best_of(10, || {
        pool.run(&|thread| {
            let sum = words[thread * part..][..part].chunks_exact(32).fold([0_u64; 32], |mut sums, chunk| {
                sums.iter_mut().zip(chunk).for_each(|(sum, word)| *sum ^= word);
                sums
            });
            std::hint::black_box(sum);
        });
    });
    as_f64(part * pool.num_threads() * 8) / seconds / 1e9
}

fn best_of(times: usize, mut work: impl FnMut()) -> f64 {
    let timed = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    (0..times).map(timed).fold(f64::INFINITY, f64::min)
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
fn as_f64(count: usize) -> f64 {
    count as f64
}
