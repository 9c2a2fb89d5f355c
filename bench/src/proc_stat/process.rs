//! One process: `/proc/PID/stat`, `status` and `cmdline`.

use std::fs;

/// The part of `/proc/PID/stat` that matters here. Times are in clock ticks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Stat {
    /// The process.
    pub(super) pid: u32,
    /// Its parent.
    pub(super) parent: u32,
    /// User and system time of the process itself.
    pub(super) ticks: u64,
    /// User and system time of the children it has reaped, and of theirs.
    pub(super) reaped_ticks: u64,
    /// Where its stack and its heap begin. Randomised for each program that is started: processes
    /// that agree on both share one address space.
    pub(super) layout: (u64, u64),
}

impl Stat {
    /// Reads a process; `None` once it is gone.
    pub(super) fn read(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses a line. The name in it may hold anything, also blanks and parentheses.
    fn parse(line: &str) -> Option<Self> {
        let (pid, _) = line.split_once(' ')?;
        let (_, rest) = line.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self {
            pid: pid.parse().ok()?,
            parent: fields.get(1)?.parse().ok()?,
            ticks: field(11)? + field(12)?,
            reaped_ticks: field(13)? + field(14)?,
            layout: (field(25).unwrap_or(0), field(44).unwrap_or(0)),
        })
    }
}

/// Reads `VmRSS` and `VmHWM` of a process in bytes; a process that is gone has none.
pub(super) fn memory(pid: u32) -> (u64, u64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    (
        kibibytes(&status, "VmRSS:") * 1024,
        kibibytes(&status, "VmHWM:") * 1024,
    )
}

/// Makes the kernel count `VmHWM` of a process from now on, if we may.
pub(crate) fn reset_peak(pid: u32) {
    // proc_pid_clear_refs(5). Without it the peak is that since the start, which is never less.
    let _refused = fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

fn kibibytes(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|value| value.split_ascii_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Returns the name that a process was started under.
pub(super) fn name(pid: u32) -> Option<String> {
    let cmdline = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let name = cmdline.split(|&byte| byte == 0).next()?;
    Some(String::from_utf8_lossy(name).into_owned())
}

/// Returns the memory of a process, with its share of what it has in common with others.
pub(super) fn share(pid: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    Some(kibibytes(&rollup, "Pss:") << 10)
}

/// Returns whether a process is one that a measure made the server run.
pub(crate) fn is_workload(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|cmdline| workload_cmdline(&cmdline))
}

fn workload_cmdline(cmdline: &[u8]) -> bool {
    let mut args = cmdline.split(|&byte| byte == 0);
    let program = args
        .next()
        .and_then(|path| path.rsplit(|&byte| byte == b'/').next());
    let first = args.next();
    match program {
        Some(b"sleep") => first == Some(b"1000"),
        Some(b"exec-bench") => first == Some(b"emit"),
        _ => false,
    }
}

/// All process ids there are.
pub(super) fn all() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_with_parentheses_is_parsed() {
        let line = "12 (a) b) S 7 12 12 0 -1 64 1 2 3 4 50 60 70 80 20 0 1 0 99 1 1";
        let stat = Stat {
            pid: 12,
            parent: 7,
            ticks: 110,
            reaped_ticks: 150,
            layout: (0, 0),
        };
        assert_eq!(Stat::parse(line), Some(stat));
        assert_eq!(Stat::parse("12 (a"), None);
    }

    #[test]
    fn memory_fields_are_found_by_name() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(kibibytes(status, "VmRSS:"), 1024);
        assert_eq!(kibibytes(status, "VmHWM:"), 2048);
        assert_eq!(kibibytes(status, "VmSwap:"), 0);
    }

    #[test]
    fn helper_processes_are_not_workload() {
        assert!(workload_cmdline(b"sleep\x001000\0"));
        assert!(workload_cmdline(b"/a/exec-bench\0emit\x005\0"));
        assert!(!workload_cmdline(b"/a/exec-server\0--spawner\0"));
        assert!(!workload_cmdline(b""));
    }
}
