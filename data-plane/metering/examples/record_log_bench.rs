//! What the record log costs: `cargo run --release -p weir-metering --example record_log_bench [directory]`.
//!
//! One thread writes requests as a gateway does (open, one progress, close with a charge record of about 1.2 kB);
//! CPU time is that of the whole process, so the keeper's fsyncs are in it.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::allow_attributes)]

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use serde_json::Value;
use weir_metering::{LogOptions, RecordLog};
use weir_schemas::records::{ChargeRecord, USAGE_TOPIC};

const REQUESTS: u32 = 200_000;
const SAMPLE: &str = include_str!("../../../schemas/samples/weir.request.finished.v1.json");

fn main() {
    let place = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, Into::into);
    let dir = tempfile::tempdir_in(place).unwrap();
    let (log, _) = RecordLog::open(dir.path(), LogOptions::new("gtw_bench")).unwrap();
    let open: Value = serde_json::from_str(
        r#"{"request":"req_00000000000000000000000005","tenant":"ten_00000000000000000000000001","key":"key_00000000000000000000000002","version":"ver_00000000000000000000000003","prompt_tokens":400,"received_at":"2026-09-21T14:13:20Z"}"#,
    )
    .unwrap();
    let progress: Value =
        serde_json::from_str(r#"{"prompt_tokens":400,"cached":320,"generated":117}"#).unwrap();
    let mut record: ChargeRecord = serde_json::from_str(SAMPLE).unwrap();
    for gap in 0..40 {
        record.data.inter_token.record(5_000 + gap * 700);
    }
    let bytes = serde_json::to_vec(&record).unwrap().len();

    let (started, cpu_before) = (Instant::now(), cpu());
    for number in 0..REQUESTS {
        let mut entry = log.begin(&open).unwrap();
        entry.progress(&progress).unwrap();
        record.data.sequence = u64::from(number) + 1;
        entry.close(USAGE_TOPIC, "ten_00000000000000000000000001", |_| &record).unwrap();
        // The ledger keeps up, so that segments are deleted as in service.
        if number % 1_000 == 0 {
            log.set_watermark(log.stats().last_sequence);
        }
    }
    let (wall, cpu) = (started.elapsed(), cpu() - cpu_before);
    let per_request = |spent: Duration| spent.as_secs_f64() * 1e6 / f64::from(REQUESTS);
    println!(
        "record log, {REQUESTS} requests of open + progress + close ({bytes} B record), one thread, {}",
        dir.path().display()
    );
    println!(
        "  wall  {:8.2} us a request  {:9.0} records/s",
        per_request(wall),
        f64::from(REQUESTS) / wall.as_secs_f64()
    );
    println!(
        "  CPU   {:8.2} us a request  {:9.0} records/s a core",
        per_request(cpu),
        f64::from(REQUESTS) / cpu.as_secs_f64()
    );
}

fn cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let total_us = [usage.user_time(), usage.system_time()]
        .map(|time| time.tv_sec() * 1_000_000 + time.tv_usec())
        .iter()
        .sum::<i64>();
    Duration::from_micros(total_us.unsigned_abs())
}
