//! The memory of one supervisor: its stack, the stacks of its init and child, the job they work
//! from, and the progress that init and the child report to the supervisor.

use std::{
    ffi::{c_char, c_int},
    io,
    os::fd::{AsRawFd, OwnedFd},
    ptr,
    sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::SeqCst},
    time::Duration,
};

use super::{
    SpawnStage,
    command_spec::{HEAD_BYTES, MAX_EXTRA, MAX_LIMITS},
    report::{ExitReport, micros},
};
use crate::{
    raw::{self, Errno},
    sandbox_setup::{EncodedSetup, SetupFailure},
};

/// Stack of a supervisor, with the job above it, and stack of its child before exec. Untouched
/// pages are not allocated.
const STACK_BYTES: usize = 32 << 10;
/// Stack of an init, which holds tables of mount slots and guards, and copies of paths.
const INIT_STACK_BYTES: usize = 128 << 10;
/// Offsets where each stack ends, and where the tables begin.
const INIT_STACK_TOP: usize = STACK_BYTES + INIT_STACK_BYTES;
const CHILD_STACK_TOP: usize = INIT_STACK_TOP + STACK_BYTES;
/// Size of the job, which lies above the supervisor's stack in a page that is touched anyway.
const JOB_BYTES: usize = size_of::<CommandJob>().next_multiple_of(16);
/// Granularity of region sizes, so that a spare region fits the next command.
const STEP_BYTES: usize = 256 << 10;

/// The job of a supervisor and its child: plain numbers, and pointers into the same region.
#[derive(Debug)]
pub(super) struct CommandJob {
    pub(super) control: c_int,
    pub(super) standard: [c_int; 3],
    pub(super) extra: [(c_int, c_int); MAX_EXTRA],
    pub(super) extra_count: usize,
    pub(super) terminal: bool,
    pub(super) limits: [(u32, u64); MAX_LIMITS],
    pub(super) limit_count: usize,
    pub(super) cwd: *const c_char,
    pub(super) candidates: *const *const c_char,
    pub(super) argv: *const *const c_char,
    pub(super) env: *const *const c_char,
    /// `/bin/sh`, a slot for the script, and the arguments: for text files without `#!`.
    pub(super) shell_argv: *mut *const c_char,
    /// The encoded sandbox set-up, if any.
    sandbox_setup: (*const u8, usize),
    pub(super) landlock: c_int,
    pub(super) listener_socket: c_int,
    /// User id and group id.
    pub(super) account: (u32, u32),
    pub(super) init_stack_top: *mut u8,
    pub(super) child_stack_top: *mut u8,
    /// Memory that is needed only until the child has executed the command.
    pub(super) discard: (*mut u8, usize),
    pub(super) spawner: i32,
    pub(super) signals: c_int,
    /// Progress that init and the child report to the supervisor.
    pub(super) progress: StartProgress,
}

impl CommandJob {
    /// Returns the sandbox set-up of the command.
    pub(super) fn sandbox_setup(&self) -> Option<EncodedSetup<'_>> {
        let (start, length) = self.sandbox_setup;
        if length == 0 {
            return None;
        }
        // SAFETY: the bytes lie in the job's region and are never written.
        EncodedSetup::from_checked(unsafe { std::slice::from_raw_parts(start, length) })
    }
}

/// Mapped memory for one job at a time.
#[derive(Debug)]
pub(super) struct JobRegion {
    start: *mut u8,
    length: usize,
}

impl JobRegion {
    /// Size of a region for a process that only needs a stack.
    pub(super) const STACK_ONLY_BYTES: usize = STACK_BYTES;

    /// Maps a region of at least this many bytes.
    pub(super) fn map(region_bytes: usize) -> io::Result<Self> {
        let length = region_bytes.next_multiple_of(STEP_BYTES);
        // SAFETY: an anonymous mapping at an address of the kernel's choice affects no other
        // memory.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            start: start.cast(),
            length,
        })
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Returns the end of the supervisor's stack.
    pub(super) fn stack_top(&self) -> *mut u8 {
        self.at(STACK_BYTES - JOB_BYTES)
    }

    /// Writes the input of a process without a command, in place of a job.
    pub(super) fn write_above_stack<T>(&self, value: T) -> *mut T {
        const { assert!(size_of::<T>() <= JOB_BYTES && align_of::<T>() <= 16) };
        let place = self.stack_top().cast::<T>();
        // SAFETY: the address is aligned to 16 bytes, inside the region, and used by nothing else.
        unsafe { place.write(value) };
        place
    }

    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.length, "offset exceeds the region");
        // SAFETY: the offset was just checked against the mapping.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for JobRegion {
    fn drop(&mut self) {
        // SAFETY: this region owns the mapping, and its supervisor was reaped before.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// A parsed frame, ready to be copied into a region.
#[derive(Debug)]
pub(super) struct CommandFrame<'a> {
    bytes: &'a [u8],
    candidates: usize,
    argv: usize,
    env: usize,
    setup: &'a [u8],
}

/// Facts about the spawner that a job needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpawnerContext {
    pub(super) pid: i32,
    pub(super) signals: c_int,
    pub(super) account: (u32, u32),
}

impl<'a> CommandFrame<'a> {
    /// Parses a frame and checks its counts.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let counts = HEAD_BYTES - 16;
        let setup = read_u32(bytes, counts + 12)?;
        let (bytes, setup) = bytes.split_at_checked(bytes.len().checked_sub(setup)?)?;
        if !setup.is_empty() {
            EncodedSetup::parse(setup)?;
        }
        let body = Self {
            bytes,
            setup,
            candidates: read_u32(bytes, counts)?,
            argv: read_u32(bytes, counts + 4)?,
            env: read_u32(bytes, counts + 8)?,
        };
        let texts = bytes.get(HEAD_BYTES..)?;
        let expected = 1 + body
            .candidates
            .checked_add(body.argv)?
            .checked_add(body.env)?;
        (texts.iter().filter(|byte| **byte == 0).count() == expected).then_some(body)
    }

    /// Returns the required size of a region.
    pub(super) fn region_bytes(&self) -> usize {
        // Each table ends with a null pointer; the shell's has two more entries than argv.
        let pointers = self.candidates + self.argv * 2 + self.env + 6;
        let bytes = self.bytes.len() + self.setup.len();
        CHILD_STACK_TOP + pointers * size_of::<usize>() + bytes
    }

    /// Writes the job into `region`. `fds` are the control socket, the three standard descriptors,
    /// the inherited ones, and those of the sandbox set-up.
    pub(super) fn write_job(
        &self,
        region: &JobRegion,
        fds: &[OwnedFd],
        origin: SpawnerContext,
    ) -> Option<*mut CommandJob> {
        let raw: Vec<c_int> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let (&[control, stdin, stdout, stderr], extra_fds) = raw.split_first_chunk::<4>()?;
        let mut extra = [(0, 0); MAX_EXTRA];
        let extra_at = 8 + MAX_LIMITS * 12;
        let extra_count = read_u32(self.bytes, extra_at)?;
        let (extra_fds, setup_fds) = extra_fds.split_at_checked(extra_count)?;
        if extra_count > MAX_EXTRA {
            return None;
        }
        let parts = EncodedSetup::from_checked(self.setup);
        let (landlock, listener_socket) = match (parts.map(|parts| parts.descriptors()), setup_fds)
        {
            (Some((true, true)), &[landlock, listener_socket]) => (landlock, listener_socket),
            (Some((true, false)), &[landlock]) => (landlock, -1),
            (Some((false, true)), &[listener_socket]) => (-1, listener_socket),
            (Some((false, false)) | None, []) => (-1, -1),
            _ => return None,
        };
        for (index, fd) in extra_fds.iter().enumerate() {
            extra[index] = (
                *fd,
                c_int::try_from(read_u32(self.bytes, extra_at + 4 + index * 4)?).ok()?,
            );
        }
        let limit_count = read_u32(self.bytes, 4)?;
        let mut limits = [(0, 0); MAX_LIMITS];
        for (index, limit) in limits.iter_mut().enumerate().take(limit_count) {
            let at = 8 + index * 12;
            let value = self.bytes.get(at + 4..at + 12)?.try_into().ok()?;
            *limit = (
                u32::try_from(read_u32(self.bytes, at)?).ok()?,
                u64::from_le_bytes(value),
            );
        }

        let job = region.stack_top().cast::<CommandJob>();
        let tables = region.at(CHILD_STACK_TOP);
        let pointers = self.candidates + self.argv * 2 + self.env + 6;
        let texts_at = CHILD_STACK_TOP + pointers * size_of::<usize>();
        let texts = region.at(texts_at);
        let source = &self.bytes[HEAD_BYTES..];
        let setup = region.at(texts_at + source.len());
        // SAFETY: `region_bytes` counted these bytes, and the region belongs to this job alone.
        unsafe { ptr::copy_nonoverlapping(self.setup.as_ptr(), setup, self.setup.len()) };
        // SAFETY: `region_bytes` counted these bytes, and the region belongs to this job alone.
        unsafe { ptr::copy_nonoverlapping(source.as_ptr(), texts, source.len()) };

        let mut table = PointerTable {
            next: tables.cast(),
            text: texts.cast(),
            source,
        };
        let cwd = table.skip_text();
        let candidates = table.texts(self.candidates);
        let argv = table.texts(self.argv);
        let env = table.texts(self.env);
        let shell_argv = table.next;
        table.push(c"/bin/sh".as_ptr());
        table.push(ptr::null());
        for index in 1..=self.argv {
            // SAFETY: argv has this many entries, followed by a null pointer.
            let pointer = unsafe { argv.add(index) };
            // SAFETY: the entry was just written.
            table.push(unsafe { pointer.read() });
        }

        let filled = CommandJob {
            control,
            standard: [stdin, stdout, stderr],
            extra,
            extra_count,
            terminal: read_u32(self.bytes, 0)? == 1,
            limits,
            limit_count: limit_count.min(MAX_LIMITS),
            cwd,
            candidates,
            argv,
            env,
            shell_argv,
            sandbox_setup: (setup, self.setup.len()),
            landlock,
            listener_socket,
            account: origin.account,
            init_stack_top: region.at(INIT_STACK_TOP),
            child_stack_top: region.at(CHILD_STACK_TOP),
            // Init keeps using its stack, and reads the guarded names in place.
            discard: match parts {
                Some(parts) if parts.has_guards() => (region.at(INIT_STACK_TOP), STACK_BYTES),
                Some(_) | None => (region.at(INIT_STACK_TOP), region.length - INIT_STACK_TOP),
            },
            spawner: origin.pid,
            signals: origin.signals,
            progress: StartProgress::new(),
        };
        // SAFETY: the address is aligned to 16 bytes, inside the region, and used by nothing else.
        unsafe { job.write(filled) };
        Some(job)
    }
}

/// Fills pointer tables from consecutive strings.
struct PointerTable<'a> {
    next: *mut *const c_char,
    text: *const c_char,
    source: &'a [u8],
}

impl PointerTable<'_> {
    fn push(&mut self, pointer: *const c_char) {
        // SAFETY: `region_bytes` counted every entry.
        unsafe { self.next.write(pointer) };
        // SAFETY: the next entry is inside the region, or the end of the tables.
        self.next = unsafe { self.next.add(1) };
    }

    fn skip_text(&mut self) -> *const c_char {
        let text = self.text;
        let length = self
            .source
            .iter()
            .position(|byte| *byte == 0)
            .map_or(0, |end| end + 1);
        self.source = &self.source[length..];
        // SAFETY: the copied strings are as long as the source that was just advanced.
        self.text = unsafe { self.text.add(length) };
        text
    }

    fn texts(&mut self, count: usize) -> *const *const c_char {
        let table = self.next;
        for _ in 0..count {
            let text = self.skip_text();
            self.push(text);
        }
        self.push(ptr::null());
        table.cast_const()
    }
}

fn read_u32(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_le_bytes(word) as usize)
}

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
    max_rss_bytes: AtomicU64,
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
                max_rss_bytes: AtomicU64::new(0),
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
        for (slot, number) in self.failure.iter().zip(numbers) {
            slot.store(number, SeqCst);
        }
    }

    pub(super) fn failure(&self) -> Option<StartFailure> {
        let [stage, errno, part, index] = &self.failure;
        let errno = errno.load(SeqCst);
        let part = (part.load(SeqCst), index.load(SeqCst));
        (errno != 0).then(|| (stage.load(SeqCst), errno.cast_signed(), part))
    }

    pub(super) fn set_command_exit(&self, exit: ExitReport) {
        self.end.status.store(exit.status, SeqCst);
        self.end.user_us.store(micros(exit.user), SeqCst);
        self.end.system_us.store(micros(exit.system), SeqCst);
        self.end.max_rss_bytes.store(exit.max_rss_bytes, SeqCst);
        self.end.known.store(true, SeqCst);
    }

    /// Returns whether init has reaped the command.
    pub(super) fn command_has_exited(&self) -> bool {
        self.end.known.load(SeqCst)
    }

    /// Returns how the command exited, if init has reaped it.
    pub(super) fn command_exit(&self) -> Option<ExitReport> {
        self.command_has_exited().then(|| ExitReport {
            status: self.end.status.load(SeqCst),
            user: Duration::from_micros(self.end.user_us.load(SeqCst)),
            system: Duration::from_micros(self.end.system_us.load(SeqCst)),
            max_rss_bytes: self.end.max_rss_bytes.load(SeqCst),
        })
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
