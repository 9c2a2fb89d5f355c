//! The event loop of the spawner: receives frames, clones supervisors, reaps them, continues
//! stopped ones, and kills the orphans of killed ones.

use std::{
    collections::HashMap,
    ffi::c_int,
    io::IoSliceMut,
    mem::MaybeUninit,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send},
};

use super::{
    SpawnStage, SpawnerKind,
    command_spec::{MAX_FDS, MAX_FRAME_BYTES, PREFIX_BYTES},
    job::{CommandFrame, JobRegion, SpawnerContext},
    report::SupervisorReport,
    socket_helper, supervisor,
};
use crate::{
    network_namespace::SOCKET_REQUEST_BYTES, process_tree as tree, raw,
    sandbox_setup::current_account,
};

/// Most regions kept for reuse, so that short commands need not map memory.
const SPARE_REGIONS: usize = 64;

/// How often a supervisor may be stopped before its tree is killed. Nothing stops it that often by
/// accident, and continuing it delays others.
const MAX_STOPS: u32 = 100;
/// How long to wait before killing orphans again.
const KILL_RETRY_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};
/// After the server is gone: rounds of continuing supervisors before their trees are killed from
/// here, before they are killed themselves, and before the spawner gives up.
const SHUTDOWN_ROUNDS: [u32; 3] = [5, 50, 250];

/// Serves the socket on standard input until it closes. Never returns.
pub(super) fn run(kind: SpawnerKind) -> ! {
    match SpawnerLoop::new(kind) {
        Some(spawner) => spawner.run(),
        None => raw::exit(1),
    }
}

struct SpawnerLoop {
    kind: SpawnerKind,
    socket: BorrowedFd<'static>,
    /// Whether the request socket is open. A durable spawner outlives it.
    is_open: bool,
    signals: OwnedFd,
    pid: i32,
    account: (u32, u32),
    /// Supervisors and socket helpers.
    supervisors: HashMap<i32, SupervisorEntry>,
    spare_regions: Vec<JobRegion>,
    /// Regions of killed supervisors. Processes that use them may not have died yet.
    retired_regions: Vec<JobRegion>,
    /// Whether orphans of killed supervisors may be children of this process.
    has_orphans: bool,
    body: Vec<u8>,
}

/// A supervisor or a socket helper that was not reaped yet.
struct SupervisorEntry {
    region: JobRegion,
    stops: u32,
}

impl SpawnerLoop {
    fn new(kind: SpawnerKind) -> Option<Self> {
        // Children start with default dispositions, even if the server inherited others.
        for signal in 1..=64 {
            // Fails for SIGKILL and SIGSTOP.
            let _ = raw::reset_signal(signal);
        }
        let signals = block_signals(&[libc::SIGCHLD, libc::SIGCONT])?;
        raw::prctl(libc::PR_SET_NAME, c"exec-spawner".as_ptr() as usize).ok()?;
        raw::prctl(libc::PR_SET_CHILD_SUBREAPER, 1).ok()?;
        // The server's death closes the socket; this signal continues a stopped spawner to notice
        // it. The parent of a durable spawner is the keeper; its death has no effect here.
        raw::prctl(libc::PR_SET_PDEATHSIG, libc::SIGCONT as usize).ok()?;
        // Leaves the server's terminal and process group, so that keys typed there do not signal
        // it.
        let _ = raw::setsid();
        Some(Self {
            kind,
            is_open: true,
            socket: rustix::stdio::stdin(),
            signals,
            pid: raw::getpid(),
            account: current_account(),
            supervisors: HashMap::new(),
            spare_regions: Vec::new(),
            retired_regions: Vec::new(),
            has_orphans: false,
            body: Vec::new(),
        })
    }

    fn run(mut self) -> ! {
        loop {
            let mut fds = [
                PollFd::new(&self.signals, PollFlags::IN),
                PollFd::from_borrowed_fd(self.socket, PollFlags::IN),
            ];
            let polled = if self.is_open { 2 } else { 1 };
            let timeout = self.has_orphans.then_some(&KILL_RETRY_INTERVAL);
            if matches!(poll(&mut fds[..polled], timeout), Err(error) if error != Errno::INTR) {
                raw::exit(1);
            }
            let [signals, socket] = fds.map(|fd| fd.revents());
            if self.is_open && !socket.is_empty() && self.receive_frame().is_none() {
                // The server is gone. Supervisors notice it through their own sockets.
                match self.kind {
                    SpawnerKind::Ordinary => self.shut_down(),
                    SpawnerKind::Durable => {
                        self.is_open = false;
                        // If the frame was malformed, the server must see the end.
                        let _ = raw::close(self.socket.as_raw_fd());
                    }
                }
            }
            if !signals.is_empty() {
                self.reap();
            }
            if self.has_orphans {
                self.kill_orphans();
            }
            if !self.is_open && self.supervisors.is_empty() && !self.has_orphans {
                raw::exit(0);
            }
        }
    }

    /// Waits until no supervisor is left, and kills the trees of those that are stopped.
    fn shut_down(mut self) -> ! {
        let [kill_trees, kill_supervisors, drop_privileges] = SHUTDOWN_ROUNDS;
        for round in 0..drop_privileges {
            self.reap();
            if self.supervisors.is_empty() && !self.has_orphans {
                raw::exit(0);
            }
            for supervisor in self.supervisors.keys().copied() {
                let alive = round >= kill_trees && tree::kill_descendants(supervisor);
                if round >= kill_supervisors && !alive {
                    let _ = raw::kill(supervisor, libc::SIGKILL);
                }
                let _ = raw::kill(supervisor, libc::SIGCONT);
            }
            self.kill_orphans();
            let mut fds = [PollFd::new(&self.signals, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&KILL_RETRY_INTERVAL));
        }
        raw::exit(1)
    }

    /// Receives one frame and starts its supervisor or socket helper. `None`: the socket is closed or
    /// broken.
    fn receive_frame(&mut self) -> Option<()> {
        let mut prefix = [0; PREFIX_BYTES];
        let mut fds = Vec::new();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut filled = 0;
        while filled < PREFIX_BYTES {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut slices = [IoSliceMut::new(&mut prefix[filled..])];
            match recvmsg(
                self.socket,
                &mut slices,
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            ) {
                Ok(message) if message.bytes > 0 => filled += message.bytes,
                Err(Errno::INTR) => continue,
                Ok(_) | Err(_) => return None,
            }
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(received) = message {
                    fds.extend(received);
                }
            }
        }
        let [a, b, c, d, e, f, g, h] = prefix;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > MAX_FRAME_BYTES || fds.len() != u32::from_le_bytes([e, f, g, h]) as usize {
            return None;
        }
        self.body.resize(length, 0);
        let mut filled = 0;
        while filled < length {
            match rustix::io::read(self.socket, &mut self.body[filled..]) {
                Ok(0) => return None,
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        if self.body.len() == SOCKET_REQUEST_BYTES {
            // If it does not start, the server notices that the other end of its socket is closed.
            self.start_socket_helper(&fds);
        } else if self.start_supervisor(&fds).is_none()
            && let Some(control) = fds.first()
        {
            let report = SupervisorReport::Failed {
                stage: SpawnStage::Clone as u32,
                errno: libc::EAGAIN,
                part: (0, 0),
            };
            // The server may have closed its end.
            let _ = send(
                control,
                &report.encode(),
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            );
        }
        if self.body.capacity() > 1 << 20 {
            self.body = Vec::new();
        }
        Some(())
    }

    fn start_supervisor(&mut self, fds: &[OwnedFd]) -> Option<()> {
        let frame = CommandFrame::parse(&self.body)?;
        let region = take_region(&mut self.spare_regions, frame.region_bytes())?;
        let origin = SpawnerContext {
            pid: self.pid,
            signals: self.signals.as_raw_fd(),
            account: self.account,
        };
        let job = frame.write_job(&region, fds, origin)?;
        let stack = region.stack_top();
        // SAFETY: the stack belongs to the region, which is kept until the supervisor was reaped.
        // `enter` neither allocates nor locks nor returns.
        let supervisor =
            unsafe { raw::clone_vm(supervisor::enter, stack, 0, job.cast(), std::ptr::null()) };
        let supervisor = supervisor.ok()?;
        self.supervisors
            .insert(supervisor, SupervisorEntry { region, stops: 0 });
        Some(())
    }

    fn start_socket_helper(&mut self, fds: &[OwnedFd]) {
        let region = take_region(&mut self.spare_regions, JobRegion::STACK_ONLY_BYTES);
        let Some(region) = region else { return };
        match socket_helper::start(&region, &self.body, fds) {
            Some(pid) => {
                let entry = SupervisorEntry { region, stops: 0 };
                self.supervisors.insert(pid, entry);
            }
            None => self.spare_regions.push(region),
        }
    }

    fn reap(&mut self) {
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        while rustix::io::read(&self.signals, &mut record).is_ok() {}
        loop {
            let mut status = 0;
            match raw::wait_any_or_stopped(&mut status) {
                Ok(pid @ 1..) if libc::WIFSTOPPED(status) => self.resume_supervisor(pid),
                Ok(pid @ 1..) => self.remove_supervisor(pid, status),
                // No child is left.
                Err(libc::ECHILD) => {
                    self.retired_regions.clear();
                    self.has_orphans = false;
                    break;
                }
                Ok(_) | Err(_) => break,
            }
        }
    }

    /// Continues a stopped supervisor. Kills the tree of a command that stops it repeatedly.
    fn resume_supervisor(&mut self, pid: i32) {
        let Some(supervisor) = self.supervisors.get_mut(&pid) else {
            return;
        };
        supervisor.stops += 1;
        if supervisor.stops > MAX_STOPS {
            tree::kill_descendants(pid);
        }
        let _ = raw::kill(pid, libc::SIGCONT);
    }

    /// Removes a supervisor that has exited, and keeps its region for reuse.
    fn remove_supervisor(&mut self, pid: i32, status: i32) {
        let Some(SupervisorEntry { region, .. }) = self.supervisors.remove(&pid) else {
            return;
        };
        // A supervisor that gave up, or did not start its command, exits with an error.
        self.has_orphans |= status != 0;
        if libc::WIFSIGNALED(status) {
            self.retired_regions.push(region);
        } else if self.spare_regions.len() < SPARE_REGIONS {
            self.spare_regions.push(region);
        }
    }

    /// Kills orphans of killed supervisors, which this process has adopted. Repeated until none is
    /// left, because an orphan's children are adopted only when it has died.
    fn kill_orphans(&mut self) {
        self.has_orphans = false;
        for pid in tree::children(self.pid) {
            if !self.supervisors.contains_key(&pid) {
                self.has_orphans = true;
                tree::kill_descendants(pid);
                let _ = raw::kill(pid, libc::SIGKILL);
            }
        }
    }
}

/// Returns a region of at least this many bytes.
fn take_region(spare: &mut Vec<JobRegion>, needed: usize) -> Option<JobRegion> {
    let fits = spare.iter().rposition(|region| region.length() >= needed);
    match fits {
        Some(index) => Some(spare.swap_remove(index)),
        None => JobRegion::map(needed).ok(),
    }
}

/// Blocks every signal, here and in supervisors, and returns a signalfd for those in `watched`.
pub(crate) fn block_signals(watched: &[c_int]) -> Option<OwnedFd> {
    use std::os::fd::FromRawFd;

    let mut all = MaybeUninit::uninit();
    // SAFETY: the call initialises the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the call above initialised it.
    let all = unsafe { all.assume_init() };
    // SAFETY: the set is valid, and a null pointer for the old mask is allowed.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut()) };
    let mut signals = MaybeUninit::uninit();
    // SAFETY: the call initialises the set.
    unsafe { libc::sigemptyset(signals.as_mut_ptr()) };
    // SAFETY: the call above initialised it.
    let mut signals = unsafe { signals.assume_init() };
    for signal in watched {
        // SAFETY: the set is valid; a signal that does not exist is an error without effect.
        unsafe { libc::sigaddset(&raw mut signals, *signal) };
    }
    // SAFETY: the set is valid; -1 requests a new descriptor.
    let fd = unsafe {
        libc::signalfd(
            -1,
            &raw const signals,
            libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
        )
    };
    // SAFETY: the descriptor is new and owned by nothing else.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}
