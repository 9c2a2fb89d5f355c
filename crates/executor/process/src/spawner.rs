//! The async handle of the spawner: starts it, sends it commands, and receives reports of
//! supervisors.
//!
//! Commands without a sandbox can stop or kill the spawner. A stopped spawner is continued; one
//! that keeps being stopped is killed and replaced. If this process is a subreaper
//! ([`exec_spawn::spawner::adopt_orphans`]), orphans of a dead spawner become its children and are
//! killed.
//!
//! Elsewhere: the spawner process itself, the supervisors and their messages (`exec-spawn`).

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
    process_tree as tree,
    sandbox_setup::{SetupStep, StepCode},
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
    CommandSpec, ExitReport, InheritedFd, LimitedResource, ResourceLimit, SpawnError, SpawnStage,
    SupervisorReport,
};

/// The executable of this process, even if its file was replaced or removed.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Starts commands through a spawner process. The spawner is started with the first command, and
/// again after it dies.
#[derive(Clone, Debug)]
pub struct Spawner {
    program: Arc<Path>,
    link: Arc<Mutex<Option<SpawnerLink>>>,
}

impl Default for Spawner {
    /// Uses this program as its own spawner.
    fn default() -> Self {
        Self::with_program(Path::new(THIS_PROGRAM))
    }
}

impl Spawner {
    /// Uses `program` as the spawner. It must link this version of the crate.
    pub fn with_program(program: &Path) -> Self {
        Self {
            program: program.into(),
            link: Arc::default(),
        }
    }

    /// Starts the spawner process ahead of the first command.
    pub async fn warm_up(&self) -> Result<(), SpawnError> {
        let mut link = self.link.lock().await;
        if link.is_none() {
            *link = Some(self.open_link()?);
        }
        Ok(())
    }

    /// Starts a command. If the future is dropped, the command is killed.
    pub async fn spawn(&self, mut spec: CommandSpec) -> Result<SupervisedChild, SpawnError> {
        if let Some(setup) = &spec.sandbox_setup
            && setup.namespaces.is_none()
            && !setup.guards.is_empty()
        {
            return Err(SpawnError::SandboxSetup {
                part: SetupStep::Guard(setup.guards.first().cloned()),
                source: io::Error::from_raw_os_error(libc::EINVAL),
            });
        }
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(|errno| SpawnError::host(SpawnStage::Setup, errno.into()))?;
        let control = register(ours, Interest::READABLE)
            .map_err(|error| SpawnError::host(SpawnStage::Setup, error))?;
        let process = self.send(&spec, theirs).await?;
        let (steps, guards) = spec
            .sandbox_setup
            .as_mut()
            .map(SetupStep::take_names)
            .unwrap_or_default();
        drop(spec);
        let child = SupervisedChild {
            control,
            pid: 0,
            supervisor: 0,
            kill_ordered: AtomicBool::new(false),
            process: Arc::clone(&process),
            _spawner: self.clone(),
        };
        match await_spawner(&process, child.report()).await.flatten() {
            Some(SupervisorReport::Started { pid, supervisor }) => Ok(SupervisedChild {
                pid,
                supervisor: supervisor.cast_signed(),
                ..child
            }),
            Some(SupervisorReport::Failed { stage, errno, part }) => {
                let source = io::Error::from_raw_os_error(errno);
                let stage = SpawnStage::from_number(stage);
                Err(if stage == SpawnStage::SandboxSetup {
                    let part =
                        SetupStep::new(StepCode::from_numbers(part.0, part.1), &steps, &guards);
                    SpawnError::SandboxSetup { part, source }
                } else {
                    SpawnError::host(stage, source)
                })
            }
            Some(SupervisorReport::Exited(_)) | None => Err(SpawnError::Lost),
        }
    }

    /// Sends a command to the spawner, and returns the spawner process that received it.
    async fn send(
        &self,
        spec: &CommandSpec,
        control: OwnedFd,
    ) -> Result<Arc<SpawnerProcess>, SpawnError> {
        let frame = spec.encode();
        if frame.len() > MAX_FRAME_BYTES || spec.inherited_fds.len() > MAX_EXTRA {
            let error = io::Error::from_raw_os_error(libc::E2BIG);
            return Err(SpawnError::host(SpawnStage::Exec, error));
        }
        let mut link = self.link.lock().await;
        if let Some(open) = link.as_mut()
            && open.send(&frame, spec, &control).await.is_ok()
        {
            return Ok(Arc::clone(open.process()));
        }
        // No spawner is running, or it died and its commands are lost: start a new one.
        let mut fresh = self.open_link()?;
        let sent = fresh.send(&frame, spec, &control).await;
        let process = Arc::clone(fresh.process());
        *link = Some(fresh);
        sent.map_err(|error| SpawnError::host(SpawnStage::Setup, error))?;
        Ok(process)
    }

    fn open_link(&self) -> Result<SpawnerLink, SpawnError> {
        SpawnerLink::open(&self.program).map_err(|error| SpawnError::host(SpawnStage::Setup, error))
    }
}

/// A running command. Dropping it kills the command and all of its descendants.
#[derive(Debug)]
pub struct SupervisedChild {
    control: AsyncFd<OwnedFd>,
    pid: u32,
    supervisor: i32,
    /// Whether the tree was ordered to be killed.
    kill_ordered: AtomicBool,
    process: Arc<SpawnerProcess>,
    /// Keeps the spawner alive: supervisors exit with it.
    _spawner: Spawner,
}

impl SupervisedChild {
    /// Returns the pid of the command.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits for the next report. `None`: the supervisor is gone, and the whole tree with it.
    /// Cancel safe.
    pub async fn report(&self) -> Option<SupervisorReport> {
        let received = self
            .control
            .async_io(Interest::READABLE, |control| {
                let mut bytes = [0; REPORT_BYTES];
                let received = match recv(control, &mut bytes, RecvFlags::empty()) {
                    // The supervisor exited with unread orders. The kernel reports this once,
                    // before the messages that the supervisor had sent.
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

    /// Signals the command's process group. Does nothing after the command has exited.
    pub fn signal(&self, signal: i32) {
        self.order(SupervisorOrder::Signal(signal));
    }

    /// Kills the command and all of its descendants through the supervisor. `force_kill` handles a
    /// supervisor that does not respond.
    pub fn kill_tree(&self) {
        self.kill_ordered.store(true, Relaxed);
        self.order(SupervisorOrder::Kill);
        self.process.resume();
        self.resume_supervisor();
    }

    /// Returns whether [`Self::kill_tree`] was called.
    pub(crate) fn is_kill_ordered(&self) -> bool {
        self.kill_ordered.load(Relaxed)
    }

    /// Kills all descendants of the supervisor without its help; the supervisor then reports the
    /// exit. If `last` is set and no descendant is left, kills the supervisor, too. Reads `/proc`,
    /// so it blocks briefly.
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

    /// Continues the supervisor, in case the command stopped it.
    fn resume_supervisor(&self) {
        if self.is_supervised() {
            tree::signal(self.supervisor, Signal::CONT);
        }
    }

    /// Returns whether the supervisor is alive, so that its pid is still its own. Its end of the
    /// socket may also be open in a spawner that was stopped while starting it; such a spawner has
    /// not reaped it either.
    fn is_supervised(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peeked = recv(&self.control, &mut [0; REPORT_BYTES], flags);
        match peeked {
            Ok((count, _)) => count > 0,
            Err(errno) => errno == Errno::AGAIN,
        }
    }

    fn order(&self, order: SupervisorOrder) {
        // A supervisor that is gone has no process left to signal.
        if let Err(errno) = send(&self.control, &order.encode(), SendFlags::NOSIGNAL) {
            tracing::debug!(%errno, ?order, "failed to send order to supervisor");
        }
    }
}

/// How long to wait for a spawner before checking whether it is stopped.
const STALL_TIMEOUT: Duration = Duration::from_millis(100);
/// How often in a row a spawner may be found stopped, despite being continued, before it is killed.
const MAX_STOPS: u32 = 20;
/// How often to look for orphans of a dead spawner.
const ORPHAN_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// How many checks supervisors get to kill their own trees.
const GRACE_CHECKS: u32 = 5;
/// Most checks. Processes that survive them are in uninterruptible sleep.
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

    /// Sends a whole frame. If the future is dropped half-way, the link is unusable, so frames that
    /// fit are sent in one call.
    pub(super) async fn send(
        &mut self,
        frame: &[u8],
        spec: &CommandSpec,
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
    spec: &CommandSpec,
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

/// Waits for a result of the spawner, and continues the spawner whenever it is found stopped.
/// `None`: it was stopped too often and has been killed.
pub(super) async fn await_spawner<T>(
    process: &SpawnerProcess,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = std::pin::pin!(work);
    let mut stops = 0;
    loop {
        if let Ok(output) = timeout(STALL_TIMEOUT, work.as_mut()).await {
            return Some(output);
        }
        let is_stopped = process.is_stopped();
        stops = if is_stopped { stops + 1 } else { 0 };
        if stops > MAX_STOPS {
            tracing::error!("replacing the spawner: it was stopped repeatedly");
            process.signal(Signal::KILL);
            return None;
        }
        process.resume();
    }
}

/// Waits until a spawner exits, reaps it, and kills the orphans it left to this process.
async fn watch_spawner_exit(process: Arc<SpawnerProcess>, descriptor: OwnedFd) {
    let Ok(descriptor) = register(descriptor, Interest::READABLE) else {
        return;
    };
    // A pidfd becomes readable when its process exits.
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
    tracing::error!("failed to kill orphans of a dead spawner");
}
