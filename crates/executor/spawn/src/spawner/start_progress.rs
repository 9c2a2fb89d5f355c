//! Progress that init and the child report to the supervisor through shared memory.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::SeqCst};

use super::SpawnStage;
use crate::{
    raw::{self, Errno},
    sandbox_setup::SetupFailure,
};

/// A failed start: the stage, the error number, and the step of the sandbox set-up.
pub(super) type StartFailure = (u32, Errno, (u32, u32));

/// Progress of a start, written through atomics while the supervisor reads it.
#[derive(Debug)]
pub(super) struct StartProgress {
    /// Futex; the kernel clears it when init exits.
    waiting: AtomicU32,
    /// Whether the command is running.
    running: AtomicBool,
    /// The command's pid as the supervisor sees it.
    command: AtomicI32,
    failure: [AtomicU32; 4],
    end: CommandExit,
    /// Socket on which init reports that the command has exited while descendants are left.
    pub(super) early_exit_tx: AtomicI32,
    /// Values that init passes to the child.
    pub(super) init_to_child: InitToChild,
}

/// How the command exited.
#[derive(Debug)]
struct CommandExit {
    known: AtomicBool,
    status: AtomicI32,
    user_us: AtomicU64,
    system_us: AtomicU64,
    max_rss_kib: AtomicU64,
}

/// Written by init before it clones the child.
#[derive(Debug)]
pub(super) struct InitToChild {
    /// Descriptor of the outer procfs. Negative: no init.
    pub(super) outer_proc: AtomicI32,
    /// Socket that receives the seccomp listener. Negative: no listener.
    pub(super) listener_to: AtomicI32,
    /// Umask and limits that init inherited and changed for itself.
    pub(super) umask: AtomicU32,
    pub(super) open_files: [AtomicU64; 2],
}

/// The supervisor is waiting.
const WAITING: u32 = 1;
/// The start has succeeded; the supervisor stops waiting.
const DECIDED: u32 = 2;

impl StartProgress {
    pub(super) fn new() -> Self {
        Self {
            waiting: AtomicU32::new(WAITING),
            running: AtomicBool::new(false),
            command: AtomicI32::new(0),
            failure: [const { AtomicU32::new(0) }; 4],
            end: CommandExit {
                known: AtomicBool::new(false),
                status: AtomicI32::new(0),
                user_us: AtomicU64::new(0),
                system_us: AtomicU64::new(0),
                max_rss_kib: AtomicU64::new(0),
            },
            early_exit_tx: AtomicI32::new(-1),
            init_to_child: InitToChild {
                outer_proc: AtomicI32::new(-1),
                listener_to: AtomicI32::new(-1),
                umask: AtomicU32::new(0),
                open_files: [const { AtomicU64::new(0) }; 2],
            },
        }
    }

    /// Returns the futex that the kernel clears when init exits.
    pub(super) fn init_futex(&self) -> &AtomicU32 {
        &self.waiting
    }

    /// Waits until the command is running or init has exited. Returns the pid of a running command.
    pub(super) fn wait(&self) -> Option<i32> {
        while self.waiting.load(SeqCst) == WAITING {
            raw::futex_wait(&self.waiting, WAITING);
        }
        self.running.load(SeqCst).then(|| self.command.load(SeqCst))
    }

    /// Reports to the supervisor that the command is running.
    pub(super) fn set_running(&self) {
        self.running.store(true, SeqCst);
        self.waiting.store(DECIDED, SeqCst);
        raw::futex_wake(&self.waiting);
    }

    pub(super) fn set_command(&self, number: i32) {
        self.command.store(number, SeqCst);
    }

    pub(super) fn fail(&self, (stage, errno, part): StartFailure) {
        let numbers = [stage, errno.unsigned_abs(), part.0, part.1];
        for (place, number) in self.failure.iter().zip(numbers) {
            place.store(number, SeqCst);
        }
    }

    pub(super) fn failure(&self) -> Option<StartFailure> {
        let [stage, errno, part, index] = &self.failure;
        let errno = errno.load(SeqCst);
        let part = (part.load(SeqCst), index.load(SeqCst));
        (errno != 0).then(|| (stage.load(SeqCst), errno.cast_signed(), part))
    }

    pub(super) fn set_command_exit(&self, status: i32, usage: &libc::rusage) {
        let micros = |time: libc::timeval| {
            let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
            seconds * 1_000_000 + u64::try_from(time.tv_usec).unwrap_or(0)
        };
        self.end.status.store(status, SeqCst);
        self.end.user_us.store(micros(usage.ru_utime), SeqCst);
        self.end.system_us.store(micros(usage.ru_stime), SeqCst);
        let kib = u64::try_from(usage.ru_maxrss).unwrap_or(0);
        self.end.max_rss_kib.store(kib, SeqCst);
        self.end.known.store(true, SeqCst);
    }

    /// Returns whether init has reaped the command.
    pub(super) fn command_has_exited(&self) -> bool {
        self.end.known.load(SeqCst)
    }

    /// Replaces the exit status of init by that of the command, if known.
    pub(super) fn apply_command_exit(&self, status: &mut i32, usage: &mut libc::rusage) {
        if !self.command_has_exited() {
            return;
        }
        let time = |micros: u64| libc::timeval {
            tv_sec: i64::try_from(micros / 1_000_000).unwrap_or(0),
            tv_usec: i64::try_from(micros % 1_000_000).unwrap_or(0),
        };
        *status = self.end.status.load(SeqCst);
        usage.ru_utime = time(self.end.user_us.load(SeqCst));
        usage.ru_stime = time(self.end.system_us.load(SeqCst));
        usage.ru_maxrss = i64::try_from(self.end.max_rss_kib.load(SeqCst)).unwrap_or(0);
    }
}

/// Creates the failure of a stage.
pub(super) fn failed_at(stage: SpawnStage) -> impl Fn(Errno) -> StartFailure {
    move |errno| (stage as u32, errno, (0, 0))
}

/// Creates the failure of a sandbox set-up step.
pub(super) fn setup_failure(failure: SetupFailure) -> StartFailure {
    (
        SpawnStage::SandboxSetup as u32,
        failure.errno,
        failure.step.numbers(),
    )
}
