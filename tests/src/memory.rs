//! What a process has of memory, by the kernel's word.

/// A size in `/proc/PID/status`, such as `VmRSS` or `VmHWM`, in bytes; nothing of a process that is gone.
pub fn bytes(pid: u32, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let size = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(size.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}
