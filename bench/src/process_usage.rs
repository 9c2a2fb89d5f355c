//! Resource usage of a server from `/proc`: CPU time, memory and helpers.
//!
//! A server may use several processes, so all numbers cover its process tree without the workload:
//! the processes that a measure made it run. `bench_target` starts and stops servers.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Resource usage of a server and its helpers at one moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct ProcessUsage {
    /// Resident bytes of the server process.
    pub(crate) server_rss: u64,
    /// Sum of the resident bytes of its helpers. Helpers that share an address space count once;
    /// pages shared with the server count again.
    pub(crate) helper_rss: u64,
    /// Peak resident bytes of the server process since it started.
    pub(crate) server_peak: u64,
    /// Number of helpers.
    pub(crate) helpers: usize,
    /// Number of workload processes.
    pub(crate) workload: usize,
    /// Clock ticks used so far by the server, its helpers, and the children they reaped.
    ticks: u64,
}

impl ProcessUsage {
    /// Samples the process tree of `server`.
    ///
    /// Ticks of reaped children include workload processes that ended between two samples, so
    /// measures that compare CPU time keep their workload alive.
    pub(crate) fn sample(server: u32) -> Self {
        let stats: Vec<ProcStat> = all_pids().filter_map(ProcStat::read).collect();
        let mut usage = Self::default();
        let mut address_spaces = BTreeSet::new();
        (usage.server_rss, usage.server_peak) = resident_memory(server);
        for stat in process_tree(&stats, server) {
            if stat.pid != server {
                if is_workload(stat.pid) {
                    usage.workload += 1;
                    continue;
                }
                usage.helpers += 1;
                if stat.layout == (0, 0) || address_spaces.insert(stat.layout) {
                    usage.helper_rss += resident_memory(stat.pid).0;
                }
            }
            usage.ticks += stat.ticks + stat.reaped_ticks;
        }
        usage
    }

    /// Samples until memory stays within `STABLE_TOLERANCE` for `stable_for`, at most for `limit`.
    ///
    /// Returns the last sample and the peak of the total resident memory.
    pub(crate) fn sample_when_stable(
        server: u32,
        stable_for: Duration,
        limit: Duration,
    ) -> (Self, u64) {
        let started_at = Instant::now();
        let mut usage = Self::sample(server);
        let (mut level, mut stable_since) = (usage.rss(), started_at);
        let mut peak = level;
        while stable_since.elapsed() < stable_for && started_at.elapsed() < limit {
            thread::sleep(SAMPLE_INTERVAL);
            usage = Self::sample(server);
            peak = peak.max(usage.rss());
            if usage.rss().abs_diff(level) > STABLE_TOLERANCE {
                (level, stable_since) = (usage.rss(), Instant::now());
            }
        }
        (usage, peak)
    }

    /// Returns the resident bytes of server and helpers together.
    pub(crate) const fn rss(&self) -> u64 {
        self.server_rss + self.helper_rss
    }

    /// Returns the CPU seconds used since `earlier`.
    pub(crate) fn cpu_since(&self, earlier: &Self) -> f64 {
        let ticks = self.ticks.saturating_sub(earlier.ticks);
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64
    }
}

/// Returns the workload processes of `server`.
pub(crate) fn workload_pids(server: u32) -> Vec<u32> {
    let stats: Vec<ProcStat> = all_pids().filter_map(ProcStat::read).collect();
    let pids = process_tree(&stats, server)
        .into_iter()
        .map(|stat| stat.pid);
    pids.filter(|&pid| pid != server && is_workload(pid))
        .collect()
}

/// Returns the proportional memory of each process below `server` that was started as `name`.
pub(crate) fn memory_by_name(server: u32, name: &str) -> impl Iterator<Item = u64> {
    let stats: Vec<ProcStat> = all_pids().filter_map(ProcStat::read).collect();
    let pids = process_tree(&stats, server)
        .into_iter()
        .map(|stat| stat.pid);
    pids.filter(move |&pid| process_name(pid).as_deref() == Some(name))
        .filter_map(proportional_memory)
        .collect::<Vec<_>>()
        .into_iter()
}

/// Returns the private memory of `server` and its helpers: the pages that they wrote to and share
/// with no other process. Helpers that share an address space count once.
///
/// Not part of a sample: it walks the page tables, which a measured server would notice.
pub(crate) fn private_memory(server: u32) -> u64 {
    let stats: Vec<ProcStat> = all_pids().filter_map(ProcStat::read).collect();
    let mut address_spaces = BTreeSet::new();
    process_tree(&stats, server)
        .into_iter()
        .filter(|stat| stat.pid == server || !is_workload(stat.pid))
        .filter(|stat| stat.layout == (0, 0) || address_spaces.insert(stat.layout))
        .filter_map(|stat| memory_rollup(stat.pid, "Private_Dirty:"))
        .sum()
}

/// Time between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);

/// Change of memory that still counts as stable.
const STABLE_TOLERANCE: u64 = 128 * 1024;

/// Returns the processes of the tree below and including `root`, in no particular order.
fn process_tree(stats: &[ProcStat], root: u32) -> Vec<ProcStat> {
    let mut pids = BTreeSet::from([root]);
    // Pids wrap around, so a child may precede its parent: repeat until nothing is added.
    loop {
        let before = pids.len();
        for stat in stats {
            if pids.contains(&stat.parent) {
                pids.insert(stat.pid);
            }
        }
        if pids.len() == before {
            break;
        }
    }
    stats
        .iter()
        .filter(|stat| pids.contains(&stat.pid))
        .copied()
        .collect()
}

/// Fields of `/proc/PID/stat`. Times are in clock ticks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct ProcStat {
    /// Pid of the process.
    pid: u32,
    /// Pid of its parent.
    parent: u32,
    /// User and system time of the process itself.
    ticks: u64,
    /// User and system time of reaped children and their descendants.
    reaped_ticks: u64,
    /// Start addresses of stack and heap. The kernel randomises them for each started program, so
    /// processes that agree on both share one address space.
    layout: (u64, u64),
}

impl ProcStat {
    /// Reads a process; `None` if it has exited.
    fn read(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses a line. The process name in it may contain blanks and parentheses.
    fn parse(line: &str) -> Option<Self> {
        let (pid, _) = line.split_once(' ')?;
        let (_, rest) = line.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            pid: pid.parse().ok()?,
            parent: fields.get(1)?.parse().ok()?,
            ticks: field(11)? + field(12)?,
            reaped_ticks: field(13)? + field(14)?,
            layout: (field(25).unwrap_or(0), field(44).unwrap_or(0)),
        })
    }
}

/// Reads `VmRSS` and `VmHWM` of a process in bytes; both are 0 if it has exited.
fn resident_memory(pid: u32) -> (u64, u64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    (
        status_kib(&status, "VmRSS:") * 1024,
        status_kib(&status, "VmHWM:") * 1024,
    )
}

/// Resets `VmHWM` of a process, if permitted.
pub(crate) fn reset_peak(pid: u32) {
    // See proc_pid_clear_refs(5). If this fails, the peak since the start is used, which is never
    // lower.
    let _result = fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

fn status_kib(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|value| value.split_ascii_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Returns the first argument of a process, the name it was started as.
fn process_name(pid: u32) -> Option<String> {
    let cmdline = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let name = cmdline.split(|&byte| byte == 0).next()?;
    Some(String::from_utf8_lossy(name).into_owned())
}

/// Returns the proportional set size of a process: shared pages count in proportion.
fn proportional_memory(pid: u32) -> Option<u64> {
    memory_rollup(pid, "Pss:")
}

/// Returns a field of `/proc/PID/smaps_rollup` in bytes; `None` if the process has exited.
fn memory_rollup(pid: u32, name: &str) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    Some(status_kib(&rollup, name) << 10)
}

/// Returns the processes that run a program.
pub(crate) fn programs_of(program: &Path) -> Vec<u32> {
    let runs_it =
        |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|found| found == program);
    all_pids().filter(runs_it).collect()
}

/// Returns whether a process is workload that a measure made the server run.
pub(crate) fn is_workload(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|cmdline| is_workload_cmdline(&cmdline))
}

fn is_workload_cmdline(cmdline: &[u8]) -> bool {
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

/// Returns the pids of all processes.
fn all_pids() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Returns the process that listens on `port` of this machine, if it is visible to us.
///
/// If several share the socket, returns the one whose parent does not.
pub(crate) fn listener_pid(port: u16) -> Option<u32> {
    let mut inodes = BTreeSet::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        inodes.extend(listening_inodes(
            &fs::read_to_string(table).unwrap_or_default(),
            port,
        ));
    }
    let links: BTreeSet<String> = inodes
        .iter()
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    let owners: BTreeSet<u32> = all_pids()
        .filter(|&pid| holds_socket(pid, &links))
        .collect();
    owners
        .iter()
        .copied()
        .find(|&pid| ProcStat::read(pid).is_some_and(|s| !owners.contains(&s.parent)))
}

/// Returns the port of a `ws://HOST:PORT` address.
pub(crate) fn url_port(url: &str) -> Option<u16> {
    let authority = url.strip_prefix("ws://")?.split('/').next()?;
    authority.rsplit_once(':')?.1.parse().ok()
}

/// Returns the inodes of the sockets that listen on `port`.
fn listening_inodes(table: &str, port: u16) -> Vec<u64> {
    let suffix = format!(":{port:04X}");
    let lines = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (local, state) = (fields.get(1)?, *fields.get(3)?);
        // 0A is TCP_LISTEN.
        (local.ends_with(&suffix) && state == "0A").then_some(())?;
        fields.get(9)?.parse().ok()
    });
    lines.collect()
}

fn holds_socket(pid: u32, links: &BTreeSet<String>) -> bool {
    let fds = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd"));
    fds.into_iter().flatten().flatten().any(|fd| {
        fs::read_link(fd.path())
            .is_ok_and(|link| link.to_str().is_some_and(|link| links.contains(link)))
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn tree_contains_grandchildren_and_no_other_processes() {
        let stat = |pid, parent| ProcStat {
            pid,
            parent,
            ticks: 0,
            reaped_ticks: 0,
            layout: (0, 0),
        };
        let stats = [stat(3, 9), stat(9, 5), stat(5, 1), stat(6, 1), stat(1, 0)];
        let mut pids: Vec<u32> = process_tree(&stats, 5)
            .iter()
            .map(|stat| stat.pid)
            .collect();
        pids.sort_unstable();
        assert_eq!(pids, [3, 5, 9]);
    }

    #[test]
    fn this_process_has_memory_and_no_helpers() {
        let usage = ProcessUsage::sample(std::process::id());
        assert!(usage.server_rss > 0);
        assert!(usage.server_peak >= usage.server_rss / 2);
        assert_eq!(usage.rss(), usage.server_rss + usage.helper_rss);
    }

    #[test]
    fn private_memory_is_part_of_resident_memory() {
        let private = private_memory(std::process::id());
        assert!(private > 0);
        assert!(private <= ProcessUsage::sample(std::process::id()).rss());
    }

    #[test]
    fn process_name_with_parentheses_is_parsed() {
        let line = "12 (a) b) S 7 12 12 0 -1 64 1 2 3 4 50 60 70 80 20 0 1 0 99 1 1";
        let stat = ProcStat {
            pid: 12,
            parent: 7,
            ticks: 110,
            reaped_ticks: 150,
            layout: (0, 0),
        };
        assert_eq!(ProcStat::parse(line), Some(stat));
        assert_eq!(ProcStat::parse("12 (a"), None);
    }

    #[test]
    fn memory_fields_are_found_by_name() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(status_kib(status, "VmRSS:"), 1024);
        assert_eq!(status_kib(status, "VmHWM:"), 2048);
        assert_eq!(status_kib(status, "VmSwap:"), 0);
    }

    #[test]
    fn helper_processes_are_not_workload() {
        assert!(is_workload_cmdline(b"sleep\x001000\0"));
        assert!(is_workload_cmdline(b"/a/exec-bench\0emit\x005\0"));
        assert!(!is_workload_cmdline(b"/a/exec-server\0--spawner\0"));
        assert!(!is_workload_cmdline(b""));
    }

    #[test]
    fn only_listening_sockets_of_the_port_are_found() {
        let table = "  sl  local rem st\n\
            0: 0100007F:1F90 00000000:0000 0A 0:0 00:0 0 0 0 111 1\n\
            1: 0100007F:1F90 0100007F:AAAA 01 0:0 00:0 0 0 0 222 1\n\
            2: 0100007F:1F91 00000000:0000 0A 0:0 00:0 0 0 0 333 1\n";
        assert_eq!(listening_inodes(table, 8080), [111]);
    }

    #[test]
    fn owner_of_our_socket_is_this_process() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(listener_pid(port), Some(std::process::id()));
    }

    #[test]
    fn port_is_parsed_from_the_address() {
        assert_eq!(url_port("ws://127.0.0.1:46755"), Some(46755));
        assert_eq!(url_port("ws://[::1]:80/x"), Some(80));
        assert_eq!(url_port("ws://host"), None);
    }
}
