//! The server's side: starts the spawner, sends it commands, hears from supervisors.

use std::{
    io,
    os::fd::OwnedFd,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use rustix::{
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair},
    process::Signal,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::Mutex,
};

use exec_spawn::{
    enclosure::{At, Part},
    spawner::{
        MAX_EXTRA, MAX_FRAME_BYTES, Order, REPORT_BYTES, Report, SpawnError, SpawnerProcess, Spec,
        Stage,
    },
    tree,
};

use super::link::{Link, attend};
use crate::register::register;

/// The executable of this process, also when its file was replaced or removed.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Starts commands through a spawner process, which is started with the first of them and again
/// should it die.
#[derive(Clone, Debug)]
pub struct Spawner {
    program: Arc<Path>,
    link: Arc<Mutex<Option<Link>>>,
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
                part: Part::Guard(enclosure.guards.first().cloned()),
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
        let (steps, guards) = spec.enclosure.as_mut().map(Part::names).unwrap_or_default();
        drop(spec);
        let child = Child {
            control,
            pid: 0,
            supervisor: 0,
            kill_ordered: AtomicBool::new(false),
            process: Arc::clone(&process),
            _spawner: self.clone(),
        };
        match attend(&process, child.report()).await.flatten() {
            Some(Report::Started { pid, supervisor }) => Ok(Child {
                pid,
                supervisor: supervisor.cast_signed(),
                ..child
            }),
            Some(Report::Failed { stage, errno, part }) => {
                let source = io::Error::from_raw_os_error(errno);
                let stage = Stage::from_number(stage);
                Err(if stage == Stage::Enclosure {
                    let part = Part::new(At::from_numbers(part.0, part.1), &steps, &guards);
                    SpawnError::Enclosure { part, source }
                } else {
                    SpawnError::host(stage, source)
                })
            }
            Some(Report::Exited(_)) | None => Err(SpawnError::Lost),
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

    fn open_link(&self) -> Result<Link, SpawnError> {
        Link::open(&self.program).map_err(|error| SpawnError::host(Stage::Setup, error))
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
    pub async fn report(&self) -> Option<Report> {
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
            .and_then(|bytes| Report::decode(&bytes))
    }

    /// Signals the command's process group. After the command has ended nothing happens.
    pub fn signal(&self, signal: i32) {
        self.order(Order::Signal(signal));
    }

    /// Kills the command and everything that descends from it. Its supervisor does that; see
    /// `Child::force_kill` for one that does not.
    pub fn kill_tree(&self) {
        self.kill_ordered.store(true, Relaxed);
        self.order(Order::Kill);
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

    fn order(&self, order: Order) {
        // A supervisor that is gone has nothing left to signal.
        if let Err(errno) = send(&self.control, &order.encode(), SendFlags::NOSIGNAL) {
            tracing::debug!(%errno, ?order, "supervisor did not take an order");
        }
    }
}
