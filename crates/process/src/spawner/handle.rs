//! The server's side: starts the spawner, sends it commands, hears from supervisors.

use std::{
    fmt,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::{self, Stdio},
    sync::Arc,
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        SocketFlags, SocketType, recv, send, sendmsg, socketpair,
    },
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::Mutex,
};

use super::{
    boot::SPAWNER_NAME,
    frame::{MAX_EXTRA, MAX_FDS, MAX_FRAME_BYTES, Spec},
    report::{Order, REPORT_BYTES, Report},
};
use crate::{
    enclosure::{At, Part},
    register::register,
};

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
            *link = Some(Link::open(&self.program)?);
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
        self.send(&spec, theirs).await?;
        let (steps, guards) = spec.enclosure.as_mut().map(Part::names).unwrap_or_default();
        drop(spec);
        let child = Child {
            control,
            pid: 0,
            _spawner: self.clone(),
        };
        match child.report().await {
            Some(Report::Started(pid)) => Ok(Child { pid, ..child }),
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

    async fn send(&self, spec: &Spec, control: OwnedFd) -> Result<(), SpawnError> {
        let frame = spec.encode();
        if frame.len() > MAX_FRAME_BYTES || spec.extra.len() > MAX_EXTRA {
            let error = io::Error::from_raw_os_error(libc::E2BIG);
            return Err(SpawnError::host(Stage::Exec, error));
        }
        let mut link = self.link.lock().await;
        if let Some(open) = link.as_mut()
            && open.send(&frame, spec, &control).await.is_ok()
        {
            return Ok(());
        }
        // There is none, or it died: whatever it ran is lost, and a new one takes over.
        let mut fresh = Link::open(&self.program)?;
        let sent = fresh.send(&frame, spec, &control).await;
        *link = Some(fresh);
        sent.map_err(|error| SpawnError::host(Stage::Setup, error))
    }
}

/// A spawner process and the socket to it.
struct Link {
    socket: AsyncFd<OwnedFd>,
    process: process::Child,
}

impl Link {
    fn open(program: &Path) -> Result<Self, SpawnError> {
        let open = || -> io::Result<Self> {
            let flags = SocketFlags::CLOEXEC;
            let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            rustix::io::ioctl_fionbio(&ours, true)?;
            let process = process::Command::new(program)
                .arg0(SPAWNER_NAME)
                .env_clear()
                .current_dir("/")
                .stdin(theirs)
                .stdout(Stdio::null())
                .stderr(Stdio::inherit())
                .spawn()?;
            Ok(Self {
                socket: register(ours, Interest::WRITABLE)?,
                process,
            })
        };
        open().map_err(|error| SpawnError::host(Stage::Setup, error))
    }

    /// Sends a frame whole. If the future is dropped in between, the link is of no further use;
    /// that is why frames that fit go out in one call.
    async fn send(&mut self, frame: &[u8], spec: &Spec, control: &OwnedFd) -> io::Result<()> {
        let descriptors = spec.descriptors(control.as_fd());
        let mut sent = 0;
        while sent < frame.len() {
            sent += self
                .socket
                .async_io(Interest::WRITABLE, |socket| {
                    let mut space =
                        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
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
}

impl Drop for Link {
    fn drop(&mut self) {
        // It ends when its socket closes; reaping it is all that is left, and a spawner that is
        // still on its way out is reaped with this process.
        if let Err(error) = self.process.try_wait() {
            tracing::debug!(%error, "spawner was not reaped");
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("pid", &self.process.id())
            .finish_non_exhaustive()
    }
}

/// A command that runs. When it is dropped, everything that descends from it is killed.
#[derive(Debug)]
pub struct Child {
    control: AsyncFd<OwnedFd>,
    pid: u32,
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

    /// Kills the command and everything that descends from it.
    pub fn kill_tree(&self) {
        self.order(Order::Kill);
    }

    fn order(&self, order: Order) {
        // A supervisor that is gone has nothing left to signal.
        if let Err(errno) = send(&self.control, &order.encode(), SendFlags::NOSIGNAL) {
            tracing::debug!(%errno, ?order, "supervisor did not take an order");
        }
    }
}

/// Where starting a command can fail.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Stage {
    /// Descriptors, session, terminal.
    Setup = 1,
    /// The working directory.
    Chdir = 2,
    /// A resource limit.
    Limit = 3,
    /// The program.
    Exec = 4,
    /// The process itself.
    Clone = 5,
    /// What encloses it.
    Enclosure = 6,
}

impl Stage {
    fn from_number(number: u32) -> Self {
        match number {
            2 => Self::Chdir,
            3 => Self::Limit,
            4 => Self::Exec,
            5 => Self::Clone,
            6 => Self::Enclosure,
            _ => Self::Setup,
        }
    }
}

/// Why a command does not run. In every case nothing is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// Host: a step failed.
    #[error("process could not be started")]
    Host {
        /// The step.
        stage: Stage,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Host: it was not enclosed. It is never run without.
    #[error("cannot {part}")]
    Enclosure {
        /// What the host refused.
        part: Part,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Caller: the operating system's texts end at a NUL byte.
    #[error("{0} must not contain a NUL byte")]
    Nul(&'static str),
    /// Host: the supervisor vanished before it said anything.
    #[error("process supervisor is gone")]
    Lost,
}

impl SpawnError {
    /// Tells whether an enclosure was refused because a path is not there any more, or is a link now.
    pub fn is_about_missing_files(&self) -> bool {
        let Self::Enclosure { source, .. } = self else {
            return false;
        };
        let errno = source.raw_os_error();
        [libc::ENOENT, libc::ENOTDIR, libc::ELOOP]
            .map(Some)
            .contains(&errno)
    }

    fn host(stage: Stage, source: io::Error) -> Self {
        Self::Host { stage, source }
    }
}
