//! The run: load from many tenants, each part killed in turn, and the books at the end.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::{Connection, PgConnection};

use super::books::{Allowance, Books, check};
use super::load::{Load, Progress, send};
use super::receipt::{Outcome, Receipt};
use super::tampering;
use crate::api::Tenant;
use crate::cluster::{Cluster, Part};
use crate::metrics::Scrape;

/// How long a part stays away.
const AWAY: Duration = Duration::from_secs(2);
/// Bytes of the disk that the gateway's record log shares with the file that fills it.
const DISK_MB: u64 = 64;
/// How long records may take to be charged after the last fault.
const SETTLING: Duration = Duration::from_secs(120);

/// The size of a run.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Everything that is chosen.
    pub seed: u64,
    /// Who asks.
    pub tenants: usize,
    /// How often, all together.
    pub requests: usize,
    /// Clients at once.
    pub at_once: usize,
    /// How long the broker is away under load at the end.
    pub outage: Duration,
}

impl Size {
    /// `make faults`.
    pub fn full(seed: u64) -> Self {
        Self { seed, tenants: 20, requests: 2_000, at_once: 24, outage: Duration::from_secs(300) }
    }

    /// The form that every test run takes.
    pub fn short(seed: u64) -> Self {
        Self { seed, tenants: 20, requests: 400, at_once: 16, outage: Duration::from_secs(10) }
    }
}

/// One fault of the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill(Part),
    KillPostgres,
    KillBroker,
    FillDisk,
    Rebalance,
}

/// In this order, spread evenly over the load.
const SCHEDULE: [Fault; 9] = [
    Fault::Kill(Part::Ledger),
    Fault::Kill(Part::Gateway),
    Fault::KillBroker,
    Fault::Kill(Part::Worker),
    Fault::KillPostgres,
    Fault::FillDisk,
    Fault::Rebalance,
    Fault::Kill(Part::ControlPlane),
    Fault::Kill(Part::Gateway),
];

/// A disk of the gateway's own, small enough to be filled.
#[derive(Debug)]
struct SmallDisk {
    folder: PathBuf,
    mounted: bool,
}

impl SmallDisk {
    /// Mounts one; without the right to, the folder is an ordinary one and the disk is not filled.
    fn mount() -> Self {
        let folder = tempfile::Builder::new().prefix("weir-disk-").tempdir().unwrap().keep();
        let size = format!("size={DISK_MB}m");
        let output =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "weir-faults"]).arg(&folder).output();
        Self { folder, mounted: output.is_ok_and(|output| output.status.success()) }
    }

    fn fill(&self) {
        // Until nothing more fits.
        let output =
            Command::new("dd").args(["if=/dev/zero", "bs=64k"]).arg(self.of_filler()).output().unwrap();
        assert!(!output.status.success(), "the disk took everything");
    }

    fn of_filler(&self) -> String {
        format!("of={}", self.filler().display())
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }

    fn free(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }

    fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if self.mounted {
            drop(Command::new("umount").arg(&self.folder).status());
        }
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

/// Runs it all; panics with what is wrong.
pub async fn run(size: Size) {
    let disk = SmallDisk::mount();
    let cluster = Cluster::start(Some(disk.folder())).await;
    let tenants = create_tenants(&cluster, size.tenants).await;
    say(&format!("{} tenants, {} requests, seed {}", size.tenants, size.requests, size.seed));

    let progress = Arc::new(Progress::default());
    let load = Load { seed: size.seed, requests: size.requests, at_once: size.at_once };
    let faults = async {
        let mut in_flight = 0;
        for (number, fault) in SCHEDULE.into_iter().enumerate() {
            let due = size.requests * (number + 1) / (SCHEDULE.len() + 1);
            while progress.done.load(Ordering::Relaxed) < due {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            say(&format!("{due:>5} requests are over: {fault:?}"));
            in_flight += strike(&cluster, &disk, &progress, fault).await;
            cluster.serves().await;
        }
        in_flight
    };
    let started = Instant::now();
    let ((), in_flight_at_kills) = tokio::join!(send(load, &tenants, progress.clone()), faults);
    say(&format!("the load is over after {:.0} s", started.elapsed().as_secs_f64()));

    outage(&cluster, &tenants, &progress, size).await;
    cluster.check_running();
    settle(&cluster).await;
    let receipts = progress.receipts();
    summary(&receipts);
    let allowance = Allowance { progress_tokens: progress_tokens(&receipts), in_flight_at_kills };
    say(&format!(
        "{in_flight_at_kills} requests in flight at the gateway's kills; a progress interval is at most {} tokens",
        allowance.progress_tokens
    ));
    let mut connection = PgConnection::connect(cluster.database_url()).await.unwrap();
    let books = Books::read(&mut connection).await;
    let wrong = check(&receipts, &books, allowance);
    assert!(wrong.is_empty(), "{} findings:\n{}", wrong.len(), wrong.join("\n"));
    verify_is_clean(&cluster);
    say("every receipt is in the books, and nothing else is");
    tampering::is_noticed(&cluster, &receipts, allowance).await;
    say("removed, doubled and altered charges are noticed");
}

async fn create_tenants(cluster: &Cluster, count: usize) -> Vec<Tenant> {
    let operator = cluster.operator();
    let mut tenants = Vec::new();
    for number in 0..count {
        tenants
            .push(operator.create_tenant(&format!("tenant-{number}"), json!({}), chrono::Utc::now()).await);
    }
    tenants
}

/// Does it; how many requests were in flight where it killed a gateway.
async fn strike(cluster: &Cluster, disk: &SmallDisk, progress: &Progress, fault: Fault) -> usize {
    let in_flight = || progress.in_flight();
    match fault {
        Fault::Kill(part) => {
            let before = in_flight();
            cluster.kill(part);
            let after = in_flight();
            tokio::time::sleep(AWAY).await;
            cluster.run(part);
            // One that began or ended during the kill counts.
            if part == Part::Gateway { before.max(after) } else { 0 }
        }
        Fault::KillPostgres => {
            cluster.postgres.crash();
            tokio::time::sleep(AWAY).await;
            cluster.postgres.resume();
            0
        }
        Fault::KillBroker => {
            cluster.kafka().kill();
            tokio::time::sleep(AWAY).await;
            cluster.kafka().resume();
            0
        }
        Fault::FillDisk if disk.mounted => {
            disk.fill();
            tokio::time::sleep(AWAY).await;
            cluster.check_running();
            disk.free();
            0
        }
        Fault::FillDisk => {
            say("      (no right to mount a small disk: it is not filled)");
            0
        }
        Fault::Rebalance => {
            cluster.run(Part::SecondLedger);
            tokio::time::sleep(AWAY).await;
            assert!(cluster.stop(Part::SecondLedger), "the second ledger ends in order");
            0
        }
    }
}

/// The broker is away under load: nobody notices, and the backlog drains. Then its disk is lost.
async fn outage(cluster: &Cluster, tenants: &[Tenant], progress: &Arc<Progress>, size: Size) {
    let before = half_load(tenants, size, 1, Duration::from_secs(10)).await;
    say(&format!("the broker is away for {} s", size.outage.as_secs()));
    cluster.kafka().kill();
    let during = half_load(tenants, size, 2, size.outage).await;
    cluster.kafka().resume();
    say("the broker is back; then records that only it has are lost with its disk");
    cluster.kill(Part::Ledger);
    let lost = half_load(tenants, size, 3, AWAY).await;
    cluster.kafka().kill();
    cluster.kafka().wipe();
    cluster.kafka().resume();
    cluster.run(Part::Ledger);
    for (name, receipts) in [("with the broker", &before), ("without", &during), ("before the loss", &lost)] {
        let failed: Vec<_> = receipts.iter().filter(|receipt| !served(receipt)).collect();
        assert!(failed.is_empty(), "requests failed {name}: {failed:?}");
        say(&format!("{name:>16}: {}", histogram(receipts)));
    }
    progress.adopt([before, during, lost].concat());
}

fn served(receipt: &Receipt) -> bool {
    matches!(receipt.outcome, Outcome::Completed(_) | Outcome::Left)
}

/// Half as many clients for a time: latencies are compared, so nothing else may be the bottleneck.
async fn half_load(tenants: &[Tenant], size: Size, round: u64, time: Duration) -> Vec<Receipt> {
    let progress = Arc::new(Progress::default());
    let until = Instant::now() + time;
    let mut batch = round << 32;
    while Instant::now() < until {
        batch += 1;
        let load = Load { seed: size.seed ^ batch, requests: size.at_once * 2, at_once: size.at_once / 2 };
        send(load, tenants, progress.clone()).await;
    }
    progress.receipts()
}

/// Times to the first byte of the answers that were read to their end, in milliseconds.
fn histogram(receipts: &[Receipt]) -> String {
    let mut times: Vec<f64> = receipts
        .iter()
        .filter(|receipt| matches!(receipt.outcome, Outcome::Completed(_)))
        .filter_map(|receipt| receipt.first_byte)
        .map(|time| time.as_secs_f64() * 1e3)
        .collect();
    times.sort_by(f64::total_cmp);
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    format!(
        "{} answers; first byte p10 {:.0}, p50 {:.0}, p90 {:.0}, p99 {:.0} ms",
        times.len(),
        at(10),
        at(50),
        at(90),
        at(99)
    )
}

/// Waits until every record that was written is in the ledger.
async fn settle(cluster: &Cluster) {
    let started = Instant::now();
    loop {
        let mut depth = 0.0;
        for (part, prefix) in [(Part::Gateway, "weir_gateway"), (Part::Worker, "weir_worker")] {
            let scrape = Scrape::at(&cluster.metrics_url(part)).await;
            depth += scrape.sum(&format!("{prefix}_record_log_depth"), "");
        }
        if depth == 0.0 {
            say(&format!("all records are in the ledger after {:.0} s", started.elapsed().as_secs_f64()));
            return;
        }
        assert!(started.elapsed() < SETTLING, "{depth} records are not in the ledger");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn verify_is_clean(cluster: &Cluster) {
    let output = cluster.verify_all();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "weir ledger verify: {said}{}", String::from_utf8_lossy(&output.stderr));
    say(&format!("weir ledger verify says:\n{said}"));
}

/// What the fastest stream was given in a second: the bound of what a crash can lose of one request.
fn progress_tokens(receipts: &[Receipt]) -> i64 {
    let peak = receipts.iter().map(|receipt| receipt.peak_pieces_a_second).max().unwrap_or_default();
    i64::try_from(peak).unwrap()
}

fn summary(receipts: &[Receipt]) {
    let count = |is: fn(&Outcome) -> bool| receipts.iter().filter(|receipt| is(&receipt.outcome)).count();
    say(&format!(
        "{} receipts: {} answered, {} left early, {} told of a fault, {} broken, {} refused",
        receipts.len(),
        count(|outcome| matches!(outcome, Outcome::Completed(_))),
        count(|outcome| *outcome == Outcome::Left),
        count(|outcome| *outcome == Outcome::Fault),
        count(|outcome| *outcome == Outcome::Broken),
        count(|outcome| matches!(outcome, Outcome::Refused(_))),
    ));
}

#[expect(clippy::print_stdout, reason = "a long run says where it is")]
fn say(line: &str) {
    println!("faults: {line}");
}
