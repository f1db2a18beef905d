//! Processes that are measured: started, ended with their owner, and what the kernel says they used.

use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use weir_tests::memory;

/// The unit of times in `/proc/<pid>/stat`: USER_HZ, the same on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// A process that ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Child {
    child: tokio::process::Child,
    pub(crate) address: SocketAddr,
}

impl Child {
    /// This program in another role, which prints its address and ends with its standard input.
    pub(crate) async fn of_this_program(arguments: &[&str]) -> Self {
        let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.next_line().await.unwrap().expect("it says where it listens");
        Self { child, address: address.parse().unwrap() }
    }

    /// Another program, which answers at this address once it is ready; what it prints goes to a file.
    pub(crate) fn of_another(mut command: Command, address: SocketAddr, screen: &Path) -> Self {
        let screen = std::fs::File::create(screen).unwrap();
        command.stdin(Stdio::null()).stdout(screen.try_clone().unwrap()).stderr(screen);
        let mut command = tokio::process::Command::from(command);
        Self { child: command.kill_on_drop(true).spawn().unwrap(), address }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }
}

/// What a process and all that it started have used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    /// On all cores, in user and in kernel mode.
    pub(crate) cpu: Duration,
    /// The most that it held since [`reset_peak`].
    pub(crate) peak_bytes: u64,
}

/// From now on the peak is counted anew.
pub(crate) fn reset_peak(pid: u32) {
    for process in with_descendants(pid) {
        std::fs::write(format!("/proc/{process}/clear_refs"), "5").unwrap();
    }
}

pub(crate) fn usage(pid: u32) -> Usage {
    let mut total = Usage::default();
    for process in with_descendants(pid) {
        let Some(stat) = Stat::of(process) else { continue };
        total.cpu += TICK * u32::try_from(stat.ticks).unwrap();
        total.peak_bytes += memory::bytes(process, "VmHWM").unwrap_or(0);
    }
    total
}

fn with_descendants(pid: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let all: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let parents: Vec<(u32, u32)> =
        all.into_iter().filter_map(|process| Some((process, Stat::of(process)?.parent))).collect();
    let mut found = vec![pid];
    let mut at = 0;
    while at < found.len() {
        let parent = found[at];
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(process, _)| *process));
        at += 1;
    }
    found
}

struct Stat {
    parent: u32,
    /// User and kernel time of all threads.
    ticks: u64,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        let mut text = String::new();
        std::fs::File::open(format!("/proc/{pid}/stat")).ok()?.read_to_string(&mut text).ok()?;
        // The name stands in brackets and may hold anything; the fields behind it begin with the third.
        let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self { parent: u32::try_from(field(4)?).ok()?, ticks: field(14)? + field(15)? })
    }
}
