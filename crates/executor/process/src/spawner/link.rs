//! A spawner process and the socket to it, kept working against commands that stop or kill it.
//!
//! A stopped spawner is continued; one that cannot be continued is killed, and its user opens another.
//! When a spawner has died, what its commands left behind is killed, provided that this process is a
//! subreaper ([`adopt_orphans`]): orphans then become its children.

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
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
        SocketType, sendmsg, socketpair,
    },
    process::{
        Pid, PidfdFlags, Signal, WaitOptions, child_subreaper, getpid, pidfd_open,
        pidfd_send_signal, set_child_subreaper, waitpid,
    },
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{sleep, timeout},
};

use super::{
    boot::SPAWNER_NAME,
    frame::{MAX_FDS, Spec},
};
use crate::{
    register::register,
    tree::{self, ProcessStat},
};

/// How long a spawner may take for something before it is looked at.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often in a row a spawner may be found stopped, although it was continued, before it is killed.
const MAX_STOPS: u32 = 20;
/// How often orphans of a dead spawner are looked for.
const ORPHAN_CHECK: Duration = Duration::from_millis(20);
/// How many checks supervisors get to end their trees by themselves.
const GRACE_CHECKS: u32 = 5;
/// How many checks there are. What lives on is in uninterruptible sleep.
const MAX_CHECKS: u32 = 500;

/// Spawners of this process that have not been reaped. They belong to the process like its children do:
/// orphans come to the process, not to whoever started their ancestor.
static LIVE_SPAWNERS: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// Makes this process the one that orphans of its commands come to when supervisor and spawner were
/// killed, so that it can kill them. For programs that start processes through spawners only, or in their
/// own session: other children are left alone.
///
/// # Errors
/// When the kernel refuses.
pub fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// A spawner process and the socket to it.
pub(super) struct Link {
    socket: AsyncFd<OwnedFd>,
    process: Arc<SpawnerProcess>,
}

impl Link {
    pub(super) fn open(program: &Path) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let process = Arc::new(SpawnerProcess::start(program, theirs)?);
        tokio::spawn(attend_death(Arc::clone(&process), process.descriptor()?));
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
        let sent = self
            .process
            .attend(send(&self.socket, frame, spec, control));
        sent.await.unwrap_or(Err(Errno::PIPE.into()))
    }
}

async fn send(
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

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

/// A spawner as its parent sees it.
#[derive(Debug)]
pub(super) struct SpawnerProcess {
    pid: i32,
    /// Names the process, also when its number is another's.
    descriptor: OwnedFd,
    child: Mutex<process::Child>,
}

impl SpawnerProcess {
    fn start(program: &Path, socket: OwnedFd) -> io::Result<Self> {
        let mut command = process::Command::new(program);
        command
            .arg0(SPAWNER_NAME)
            .env_clear()
            .current_dir("/")
            .stdin(socket)
            .stdout(Stdio::null())
            .stderr(Stdio::inherit());
        // Whoever looks for orphans waits until it is known that this is none.
        let mut live = live_spawners();
        let child = command.spawn()?;
        let pid = child.id().cast_signed();
        live.push(pid);
        drop(live);
        // Its number is its own until it is reaped, which happens below only.
        let number = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
        let descriptor = pidfd_open(number, PidfdFlags::empty())?;
        Ok(Self {
            pid,
            descriptor,
            child: Mutex::new(child),
        })
    }

    fn descriptor(&self) -> io::Result<OwnedFd> {
        self.descriptor.try_clone()
    }

    /// Continues it, in case that somebody stopped it.
    pub(super) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Err(errno) = pidfd_send_signal(&self.descriptor, signal) {
            tracing::debug!(%errno, ?signal, "spawner was not signalled");
        }
    }

    /// Waits for something that the spawner has to do, and continues it as often as it is stopped
    /// meanwhile. `None`: it was stopped again and again, and was killed.
    pub(super) async fn attend<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        let mut stops = 0;
        loop {
            if let Ok(done) = timeout(PATIENCE, work.as_mut()).await {
                return Some(done);
            }
            let is_stopped = ProcessStat::read(self.pid).is_some_and(ProcessStat::is_stopped);
            stops = if is_stopped { stops + 1 } else { 0 };
            if stops > MAX_STOPS {
                tracing::error!("the spawner was stopped repeatedly and is replaced");
                self.signal(Signal::KILL);
                return None;
            }
            self.resume();
        }
    }

    /// Reaps it, if it has ended.
    fn reap(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let mut live = live_spawners();
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(_)) => live.retain(|pid| *pid != self.pid),
            Err(error) => tracing::debug!(%error, "spawner was not reaped"),
        }
    }
}

impl Drop for SpawnerProcess {
    fn drop(&mut self) {
        // It ends when its socket closes. One that is still on its way out is reaped with this process.
        self.reap();
    }
}

fn live_spawners() -> MutexGuard<'static, Vec<i32>> {
    LIVE_SPAWNERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a spawner's death, reaps it, and kills the orphans that it left to this process.
async fn attend_death(process: Arc<SpawnerProcess>, descriptor: OwnedFd) {
    let Ok(descriptor) = register(descriptor, Interest::READABLE) else {
        return;
    };
    // A descriptor of a process is readable from its death on.
    drop(descriptor.readable().await);
    process.reap();
    if !matches!(child_subreaper(), Ok(Some(_))) {
        return;
    }
    for check in 0..MAX_CHECKS {
        let orphans = tree::adopted_orphans(&live_spawners());
        if orphans.is_empty() {
            return;
        }
        for pid in orphans {
            // Supervisors among them were continued by the kernel and know what to do.
            if check < GRACE_CHECKS {
                tree::signal(pid, Signal::CONT);
            } else {
                tree::kill_descendants(pid);
                tree::signal(pid, Signal::KILL);
            }
            // Not reaped by anybody else: nobody here started it.
            let _ = waitpid(Pid::from_raw(pid), WaitOptions::NOHANG);
        }
        sleep(ORPHAN_CHECK).await;
    }
    tracing::error!("processes of a killed spawner cannot be killed");
}
