//! The async side of a spawner: starts it, sends it commands, and hears from supervisors.
//!
//! `exec-spawn` has the spawner itself, the supervisors, and what they send each other.

#[cfg(test)]
mod tests;

use std::{
    fmt,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use exec_spawn::{
    enclosure::{SetupStep, StepCode},
    process_tree as tree,
    spawner::{
        MAX_EXTRA, MAX_FDS, MAX_FRAME_BYTES, REPORT_BYTES, SpawnerProcess, SupervisorOrder,
        is_subreaper, stop_orphans,
    },
};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        SocketFlags, SocketType, recv, send, sendmsg, socketpair,
    },
    process::Signal,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::Mutex,
    time::{sleep, timeout},
};

use crate::stdio::register;

pub use exec_spawn::spawner::{
    ExitReport, Extra, LimitedResource, ResourceLimit, SpawnError, Spec, Stage, SupervisorReport,
};
pub use exec_spawn::spawner::{adopt_orphans, run_if_spawner}; // MOVED

/// The executable of this process, also when its file was replaced or removed.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Starts commands through a spawner process, which is started with the first of them and again
/// should it die.
#[derive(Clone, Debug)]
pub struct Spawner {
    program: Arc<Path>,
    link: Arc<Mutex<Option<SpawnerLink>>>,
}

impl Default for Spawner {
    /// Makes this program its own spawner.
    fn default() -> Self {
        Self::of(Path::new(THIS_PROGRAM))
    }
}

impl Spawner {
    /// Makes `program` the spawner. It must be one that links this version of the crate.
    pub fn of(program: &Path) -> Self {
        Self {
            program: program.into(),
            link: Arc::default(),
        }
    }

    /// Starts the spawner process now, so that the first command need not wait for it.
    pub async fn warm_up(&self) -> Result<(), SpawnError> {
        let mut link = self.link.lock().await;
        if link.is_none() {
            *link = Some(self.open_link()?);
        }
        Ok(())
    }

    /// Starts a command. Dropping the future leaves nothing running.
    pub async fn spawn(&self, mut spec: Spec) -> Result<Child, SpawnError> {
        if let Some(enclosure) = &spec.enclosure
            && enclosure.namespaces.is_none()
            && !enclosure.guards.is_empty()
        {
            return Err(SpawnError::Enclosure {
                part: SetupStep::Guard(enclosure.guards.first().cloned()),
                source: io::Error::from_raw_os_error(libc::EINVAL),
            });
        }
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(|errno| SpawnError::host(Stage::Setup, errno.into()))?;
        let control = register(ours, Interest::READABLE)
            .map_err(|error| SpawnError::host(Stage::Setup, error))?;
        let process = self.send(&spec, theirs).await?;
        let (steps, guards) = spec
            .enclosure
            .as_mut()
            .map(SetupStep::take_names)
            .unwrap_or_default();
        drop(spec);
        let child = Child {
            control,
            pid: 0,
            supervisor: 0,
            kill_ordered: AtomicBool::new(false),
            process: Arc::clone(&process),
            _spawner: self.clone(),
        };
        match await_spawner(&process, child.report()).await.flatten() {
            Some(SupervisorReport::Started { pid, supervisor }) => Ok(Child {
                pid,
                supervisor: supervisor.cast_signed(),
                ..child
            }),
            Some(SupervisorReport::Failed { stage, errno, part }) => {
                let source = io::Error::from_raw_os_error(errno);
                let stage = Stage::from_number(stage);
                Err(if stage == Stage::Enclosure {
                    let part =
                        SetupStep::new(StepCode::from_numbers(part.0, part.1), &steps, &guards);
                    SpawnError::Enclosure { part, source }
                } else {
                    SpawnError::host(stage, source)
                })
            }
            Some(SupervisorReport::Exited(_)) | None => Err(SpawnError::Lost),
        }
    }

    /// Sends a command to the spawner, and returns which one took it.
    async fn send(&self, spec: &Spec, control: OwnedFd) -> Result<Arc<SpawnerProcess>, SpawnError> {
        let frame = spec.encode();
        if frame.len() > MAX_FRAME_BYTES || spec.extra.len() > MAX_EXTRA {
            let error = io::Error::from_raw_os_error(libc::E2BIG);
            return Err(SpawnError::host(Stage::Exec, error));
        }
        let mut link = self.link.lock().await;
        if let Some(open) = link.as_mut()
            && open.send(&frame, spec, &control).await.is_ok()
        {
            return Ok(Arc::clone(open.process()));
        }
        // There is none, or it died: whatever it ran is lost, and a new one takes over.
        let mut fresh = self.open_link()?;
        let sent = fresh.send(&frame, spec, &control).await;
        let process = Arc::clone(fresh.process());
        *link = Some(fresh);
        sent.map_err(|error| SpawnError::host(Stage::Setup, error))?;
        Ok(process)
    }

    fn open_link(&self) -> Result<SpawnerLink, SpawnError> {
        SpawnerLink::open(&self.program).map_err(|error| SpawnError::host(Stage::Setup, error))
    }
}

/// A command that runs. When it is dropped, everything that descends from it is killed.
#[derive(Debug)]
pub struct Child {
    control: AsyncFd<OwnedFd>,
    pid: u32,
    supervisor: i32,
    /// The tree was ordered to be killed.
    kill_ordered: AtomicBool,
    process: Arc<SpawnerProcess>,
    /// Supervisors end with their spawner, which lives as long as somebody needs it.
    _spawner: Spawner,
}

impl Child {
    /// Returns the operating system's number for it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits for the next report. `None`: the supervisor is gone, and with it the whole tree.
    /// Cancelling loses nothing.
    pub async fn report(&self) -> Option<SupervisorReport> {
        let received = self
            .control
            .async_io(Interest::READABLE, |control| {
                let mut bytes = [0; REPORT_BYTES];
                let received = match recv(control, &mut bytes, RecvFlags::empty()) {
                    // The supervisor ended with orders unread: the kernel says so once, before what
                    // the supervisor had sent.
                    Err(Errno::CONNRESET) => recv(control, &mut bytes, RecvFlags::empty()),
                    received => received,
                };
                let (count, _) = received?;
                Ok((count == REPORT_BYTES).then_some(bytes))
            })
            .await;
        received
            .ok()
            .flatten()
            .and_then(|bytes| SupervisorReport::decode(&bytes))
    }

    /// Signals the command's process group. After the command has ended nothing happens.
    pub fn signal(&self, signal: i32) {
        self.order(SupervisorOrder::Signal(signal));
    }

    /// Kills the command and everything that descends from it. Its supervisor does that; see
    /// `Child::force_kill` for one that does not.
    pub fn kill_tree(&self) {
        self.kill_ordered.store(true, Relaxed);
        self.order(SupervisorOrder::Kill);
        self.process.resume();
        self.resume_supervisor();
    }

    /// Tells whether [`Child::kill_tree`] was called.
    pub(crate) fn is_kill_ordered(&self) -> bool {
        self.kill_ordered.load(Relaxed)
    }

    /// Kills everything below the supervisor without its help, and lets it report that. If it does not
    /// end although nothing is left below it, `last` has it killed too. Reads `/proc`: blocks for moments.
    pub(crate) fn force_kill(&self, last: bool) {
        if !self.is_supervised() {
            return;
        }
        self.process.resume();
        let alive = tree::kill_descendants(self.supervisor);
        if last && !alive && self.is_supervised() {
            tree::signal(self.supervisor, Signal::KILL);
        } else {
            self.resume_supervisor();
        }
    }

    /// Continues the supervisor, in case that the command stopped it.
    fn resume_supervisor(&self) {
        if self.is_supervised() {
            tree::signal(self.supervisor, Signal::CONT);
        }
    }

    /// Tells whether the supervisor lives, so that its number is its own. Its end of the socket is also
    /// open in a spawner that was stopped in the middle of a start; that one has not reaped it either.
    fn is_supervised(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peeked = recv(&self.control, &mut [0; REPORT_BYTES], flags);
        match peeked {
            Ok((count, _)) => count > 0,
            Err(errno) => errno == Errno::AGAIN,
        }
    }

    fn order(&self, order: SupervisorOrder) {
        // A supervisor that is gone has nothing left to signal.
        if let Err(errno) = send(&self.control, &order.encode(), SendFlags::NOSIGNAL) {
            tracing::debug!(%errno, ?order, "supervisor did not take an order");
        }
    }
}

/// How long a spawner may take for something before it is looked at.
const STALL_TIMEOUT: Duration = Duration::from_millis(100);
/// How often in a row a spawner may be found stopped, although it was continued, before it is killed.
const MAX_STOPS: u32 = 20;
/// How often orphans of a dead spawner are looked for.
const ORPHAN_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// How many checks supervisors get to end their trees by themselves.
const GRACE_CHECKS: u32 = 5;
/// How many checks there are. What lives on is in uninterruptible sleep.
const MAX_CHECKS: u32 = 500;

/// A spawner process and the socket to it.
pub(super) struct SpawnerLink {
    socket: AsyncFd<OwnedFd>,
    process: Arc<SpawnerProcess>,
}

impl SpawnerLink {
    pub(super) fn open(program: &Path) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let process = Arc::new(SpawnerProcess::start(program, theirs)?);
        tokio::spawn(watch_spawner_exit(
            Arc::clone(&process),
            process.descriptor()?,
        ));
        Ok(Self {
            socket: register(ours, Interest::WRITABLE)?,
            process,
        })
    }

    pub(super) fn process(&self) -> &Arc<SpawnerProcess> {
        &self.process
    }

    /// Sends a frame whole. If the future is dropped in between, the link is of no further use;
    /// that is why frames that fit go out in one call.
    pub(super) async fn send(
        &mut self,
        frame: &[u8],
        spec: &Spec,
        control: &OwnedFd,
    ) -> io::Result<()> {
        self.process.resume();
        let sent = await_spawner(
            &self.process,
            send_frame(&self.socket, frame, spec, control),
        );
        sent.await.unwrap_or(Err(Errno::PIPE.into()))
    }
}

async fn send_frame(
    socket: &AsyncFd<OwnedFd>,
    frame: &[u8],
    spec: &Spec,
    control: &OwnedFd,
) -> io::Result<()> {
    let descriptors = spec.descriptors(control.as_fd());
    let mut sent = 0;
    while sent < frame.len() {
        sent += socket
            .async_io(Interest::WRITABLE, |socket| {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                if sent == 0 {
                    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
                }
                let slices = [IoSlice::new(&frame[sent..])];
                sendmsg(socket, &slices, &mut ancillary, SendFlags::NOSIGNAL)
                    .map_err(io::Error::from)
            })
            .await?;
    }
    Ok(())
}

impl fmt::Debug for SpawnerLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpawnerLink")
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

/// Waits for something that the spawner has to do, and continues it as often as it is stopped
/// meanwhile. `None`: it was stopped again and again, and was killed.
pub(super) async fn await_spawner<T>(
    process: &SpawnerProcess,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = std::pin::pin!(work);
    let mut stops = 0;
    loop {
        if let Ok(done) = timeout(STALL_TIMEOUT, work.as_mut()).await {
            return Some(done);
        }
        let is_stopped = process.is_stopped();
        stops = if is_stopped { stops + 1 } else { 0 };
        if stops > MAX_STOPS {
            tracing::error!("the spawner was stopped repeatedly and is replaced");
            process.signal(Signal::KILL);
            return None;
        }
        process.resume();
    }
}

/// Waits for a spawner's death, reaps it, and kills the orphans that it left to this process.
async fn watch_spawner_exit(process: Arc<SpawnerProcess>, descriptor: OwnedFd) {
    let Ok(descriptor) = register(descriptor, Interest::READABLE) else {
        return;
    };
    // A descriptor of a process is readable from its death on.
    drop(descriptor.readable().await);
    process.reap();
    if !is_subreaper() {
        return;
    }
    for check in 0..MAX_CHECKS {
        if !stop_orphans(check >= GRACE_CHECKS) {
            return;
        }
        sleep(ORPHAN_CHECK_INTERVAL).await;
    }
    tracing::error!("processes of a killed spawner cannot be killed");
}
