//! A supervisor: the parent of one command and the reaper of its descendants.
//!
//! Shares the spawner's memory; nothing here allocates, locks or returns.

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use super::{
    SpawnStage, child_setup,
    job::{self, CommandJob, StartFailure},
    namespace_init,
    report::{ExitReport, ORDER_BYTES, SupervisorOrder, SupervisorReport},
};
use crate::raw;

/// How long a command runs before its supervisor discards the memory that only the start needed.
const DISCARD_DELAY_MS: u32 = 100;
/// How often a kill is repeated while processes are left. Orphans arrive as their parents die, and
/// each death also wakes the supervisor.
const KILL_RETRY_MS: u32 = 20;
/// How often a kill is repeated after the server is gone, before the supervisor gives up.
const MAX_ORPHANED_KILL_ROUNDS: u32 = 250;

/// Entry point of a supervisor.
pub(super) extern "C" fn enter(argument: *mut c_void) -> c_int {
    // Sent when the spawner dies, and read from the signalfd below. SIGCONT also continues a
    // stopped supervisor.
    let _ = raw::prctl(libc::PR_SET_PDEATHSIG, libc::SIGCONT as usize);
    // SAFETY: the spawner keeps the region until this process was reaped. Others write to the job
    // through atomics only.
    let job = unsafe { &*argument.cast::<CommandJob>() };
    if raw::getppid() != job.spawner || raw::prctl(libc::PR_SET_CHILD_SUBREAPER, 1).is_err() {
        raw::exit(1);
    }
    let namespaces = job.sandbox_setup().and_then(|parts| parts.namespaces());
    let started = match namespaces {
        Some(namespaces) => namespace_init::start(job, namespaces),
        None => start(job),
    };
    let StartedCommand {
        child,
        command,
        mount_namespace,
        early_exit_rx,
    } = match started {
        Ok(started) => started,
        Err((stage, errno, part)) => {
            send_report(job.control, SupervisorReport::Failed { stage, errno, part });
            raw::exit(1);
        }
    };
    // The command's pipe ends and the spawner's socket must not stay open here.
    let keep = [job.control, job.signals, mount_namespace, early_exit_rx];
    let _ = raw::close_from_except(0, keep.into_iter());
    let started = SupervisorReport::Started {
        pid: command.unsigned_abs(),
        supervisor: raw::getpid().unsigned_abs(),
    };
    send_report(job.control, started);
    Supervisor {
        job,
        child,
        command,
        early_exit_rx,
        exit_reported: false,
        reaped: false,
        killing: false,
        orphaned: false,
        kill_rounds: 0,
    }
    .run()
}

/// The processes of a started command.
#[derive(Debug)]
pub(super) struct StartedCommand {
    /// Pid of the command, or of its init.
    pub(super) child: i32,
    /// Pid of the command.
    pub(super) command: i32,
    /// Descriptor of the mount namespace, kept open while the supervisor lives. Negative: none.
    pub(super) mount_namespace: c_int,
    /// Readable when the command has exited before its init. Negative: no init.
    pub(super) early_exit_rx: c_int,
}

/// Starts a command without an init: child and command are the same process.
fn start(job: &CommandJob) -> Result<StartedCommand, StartFailure> {
    let argument = ptr::from_ref(job).cast_mut().cast();
    let (stack, flags) = (job.child_stack_top, libc::CLONE_VFORK);
    // SAFETY: the child's stack is used by the child only; this process is suspended until the
    // child has executed or exited.
    let child = unsafe { raw::clone_vm(child_setup::enter, stack, flags, argument, ptr::null()) };
    let child = child.map_err(job::failed_at(SpawnStage::Clone))?;
    match job.progress.failure() {
        Some(failure) => {
            raw::wait_for(child);
            Err(failure)
        }
        None => Ok(StartedCommand {
            child,
            command: child,
            mount_namespace: -1,
            early_exit_rx: -1,
        }),
    }
}

struct Supervisor<'a> {
    job: &'a CommandJob,
    /// Pid of the command, or of its init.
    child: i32,
    /// Pid of the command, and id of its process group.
    command: i32,
    /// Readable when the command has exited before its init. Negative: not polled.
    early_exit_rx: c_int,
    /// Whether the command's exit was reported.
    exit_reported: bool,
    /// Whether the child was reaped; the command is gone then, too.
    reaped: bool,
    /// Whether the tree is being killed.
    killing: bool,
    /// Whether the server is gone.
    orphaned: bool,
    kill_rounds: u32,
}

impl Supervisor<'_> {
    fn run(mut self) -> ! {
        let mut discarded = false;
        loop {
            let control = if self.orphaned { -1 } else { self.job.control };
            let mut fds = [self.job.signals, control, self.early_exit_rx].map(raw::poll_in);
            let timeout = match (self.killing, discarded) {
                (true, _) => Some(KILL_RETRY_MS),
                (false, false) => Some(DISCARD_DELAY_MS),
                (false, true) => None,
            };
            if raw::poll(&mut fds, timeout) == Ok(0) && !discarded && !self.killing {
                let (start, length) = self.job.discard;
                raw::discard_pages(start, length);
                discarded = true;
            }
            if fds[1].revents != 0 {
                self.receive_order();
            }
            if fds[0].revents != 0 {
                self.drain_signals();
            }
            if fds[2].revents != 0 {
                // Readable once; also when init has exited.
                self.early_exit_rx = -1;
                if let Some(exit) = self.job.progress.command_exit() {
                    self.report_exit(exit);
                }
            }
            self.reap();
            if self.killing {
                self.kill_tree();
                self.reap();
            }
        }
    }

    fn receive_order(&mut self) {
        let mut order = [0; ORDER_BYTES];
        match raw::receive(self.job.control, &mut order) {
            Ok(ORDER_BYTES) => match SupervisorOrder::decode(order) {
                // The process group id is the command's own only until the command is reaped.
                Some(SupervisorOrder::Signal(signal)) if self.is_alive() => {
                    let _ = raw::kill(-self.command, signal);
                }
                Some(SupervisorOrder::Kill) => self.killing = true,
                Some(SupervisorOrder::Signal(_)) | None => {}
            },
            Err(libc::EAGAIN | libc::EINTR) => {}
            // The server dropped the process, or died.
            Ok(_) | Err(_) => {
                self.killing = true;
                self.orphaned = true;
            }
        }
    }

    /// Drains the signalfd. Any process of the account can send these signals, so they only mean
    /// "check again".
    fn drain_signals(&mut self) {
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        while raw::read(self.job.signals, &mut record).is_ok() {}
        if raw::getppid() != self.job.spawner {
            // The spawner is gone.
            self.killing = true;
            self.orphaned = true;
        }
    }

    /// Reaps all exited children. Exits when no child is left.
    fn reap(&mut self) {
        loop {
            let (mut status, mut usage) = (0, raw::zeroed_rusage());
            match raw::wait_any(&mut status, &mut usage) {
                Ok(0) | Err(libc::EINTR) => return,
                Ok(pid) if pid == self.child && !self.reaped => {
                    self.reaped = true;
                    // That of the child, unless init recorded another.
                    let recorded = self.job.progress.command_exit();
                    self.report_exit(recorded.unwrap_or_else(|| ExitReport::new(status, &usage)));
                }
                Ok(_) => {}
                Err(_) => raw::exit(0),
            }
        }
    }

    /// Reports the exit of the command, once.
    fn report_exit(&mut self, exit: ExitReport) {
        if !self.exit_reported {
            self.exit_reported = true;
            send_report(self.job.control, SupervisorReport::Exited(exit));
        }
    }

    fn is_alive(&self) -> bool {
        !self.reaped && !self.job.progress.command_has_exited()
    }

    /// Kills the command's group, every direct child and its group. Grandchildren become children
    /// as their parents die, and are found in the next round.
    fn kill_tree(&mut self) {
        self.kill_rounds += 1;
        if self.orphaned && self.kill_rounds > MAX_ORPHANED_KILL_ROUNDS {
            raw::exit(1);
        }
        if self.orphaned && raw::getppid() == self.job.spawner {
            // The server is gone. The spawner must run to kill trees of stopped supervisors.
            let _ = raw::kill(self.job.spawner, libc::SIGCONT);
        }
        if self.is_alive() {
            let _ = raw::kill(-self.command, libc::SIGKILL);
        }
        let own_group = raw::getpgid(0).unwrap_or(0);
        for_each_child(|pid| {
            if let Ok(group) = raw::getpgid(pid)
                && group > 1
                && group != own_group
            {
                let _ = raw::kill(-group, libc::SIGKILL);
            }
            let _ = raw::kill(pid, libc::SIGKILL);
        });
    }
}

/// Calls `each` with the pid of every child of this process.
fn for_each_child(mut each: impl FnMut(i32)) {
    let Ok(list) = raw::open_read(c"/proc/thread-self/children", 0) else {
        return for_each_child_in_proc(&mut each);
    };
    let mut buffer = [0; 2048];
    let mut pid = 0;
    while let Ok(length @ 1..) = raw::read(list, &mut buffer) {
        for byte in &buffer[..length] {
            if byte.is_ascii_digit() {
                pid = pid * 10 + i32::from(byte - b'0');
            } else if pid > 0 {
                each(std::mem::take(&mut pid));
            }
        }
    }
    if pid > 0 {
        each(pid);
    }
    let _ = raw::close(list);
}

/// Checks the parent of every process, for kernels without a list of children.
fn for_each_child_in_proc(each: &mut impl FnMut(i32)) {
    let own = raw::getpid();
    let Ok(proc) = raw::open_read(c"/proc", libc::O_DIRECTORY) else {
        return;
    };
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = raw::directory_entries(proc, &mut buffer) {
        let mut at = 0;
        // Layout of an entry: inode and offset (8 bytes each), length (2), type (1), name.
        while at + 19 < length {
            let entry = usize::from(u16::from_ne_bytes([buffer[at + 16], buffer[at + 17]]));
            let name = &buffer[at + 19..(at + entry).min(length)];
            if let Some(pid) = raw::leading_number(name)
                && parent_of(pid) == Some(own)
            {
                each(pid);
            }
            at += entry.max(20);
        }
    }
    let _ = raw::close(proc);
}

fn parent_of(pid: i32) -> Option<i32> {
    let file = raw::open_proc_file(pid, c"stat").ok()?;
    let mut stat = [0; 512];
    let length = raw::read(file, &mut stat).unwrap_or(0);
    let _ = raw::close(file);
    // The command name may contain anything; the parent is the second field after its last
    // parenthesis.
    let end = stat[..length].iter().rposition(|byte| *byte == b')')?;
    raw::leading_number(stat.get(end + 4..length)?)
}

/// Sends a report. Three fit into any socket buffer; the server may be gone.
fn send_report(control: c_int, report: SupervisorReport) {
    while raw::send(control, &report.encode()) == Err(libc::EINTR) {}
}
