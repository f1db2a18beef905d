//! How much memory this process may use: the smallest limit of its cgroup and that group's parents (version 2 or
//! 1), else what the machine has.

use std::path::{Path, PathBuf};

/// Where a number came from, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryLimit {
    pub(crate) bytes: u64,
    pub(crate) source: &'static str,
}

/// The limit in force for this process, if `/proc` tells one.
pub(crate) fn limit() -> Option<MemoryLimit> {
    limit_under(Path::new("/"))
}

fn limit_under(root: &Path) -> Option<MemoryLimit> {
    let machine = machine_bytes(&read(&root.join("proc/meminfo"))?)?;
    let groups = read(&root.join("proc/self/cgroup")).unwrap_or_default();
    let mut smallest = MemoryLimit { bytes: machine, source: "MemTotal" };
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (mount, file, source) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max", "cgroup v2 memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "cgroup v1 memory.limit_in_bytes")
            }
            _ => continue,
        };
        // In a container the group's path may be the host's, of which only the root is mounted here.
        for directory in ancestors(&root.join(mount), group) {
            // `max`, and version 1's huge number for "no limit", lose against the machine's own size.
            if let Some(bytes) = read(&directory.join(file)).and_then(|text| text.trim().parse::<u64>().ok())
                && bytes < smallest.bytes
            {
                smallest = MemoryLimit { bytes, source };
            }
        }
    }
    Some(smallest)
}

fn ancestors(mount: &Path, group: &str) -> Vec<PathBuf> {
    let group = Path::new(group.trim_start_matches('/'));
    group.ancestors().map(|part| mount.join(part)).collect()
}

fn machine_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], bytes: u64, source: &str) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\n")].iter().chain(files)
        {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let limit = limit_under(root.path()).unwrap();
        assert_eq!((limit.bytes, limit.source), (bytes, source));
    }

    #[test]
    fn the_smallest_limit_wins_in_both_versions() {
        check(&[], 1_024_000, "MemTotal");
        let v2 = ("proc/self/cgroup", "0::/a/b\n");
        check(&[v2, ("sys/fs/cgroup/a/b/memory.max", "max\n")], 1_024_000, "MemTotal");
        check(
            &[v2, ("sys/fs/cgroup/a/b/memory.max", "5000\n"), ("sys/fs/cgroup/a/memory.max", "4000\n")],
            4000,
            "cgroup v2 memory.max",
        );
        // A container that sees the host's path of its group, but only its own group mounted.
        check(&[v2, ("sys/fs/cgroup/memory.max", "3000\n")], 3000, "cgroup v2 memory.max");
        let v1 = ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/c\n");
        let unlimited = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        check(&[v1, unlimited], 1_024_000, "MemTotal");
        check(
            &[v1, unlimited, ("sys/fs/cgroup/memory/c/memory.limit_in_bytes", "2000\n")],
            2000,
            "cgroup v1 memory.limit_in_bytes",
        );
    }

    #[test]
    fn this_machine_has_some() {
        assert!(limit().unwrap().bytes > 0);
    }
}
