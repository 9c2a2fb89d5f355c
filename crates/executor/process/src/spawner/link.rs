//! A spawner process and the socket to it, kept working against commands that stop or kill it.
//!
//! A stopped spawner is continued; one that cannot be continued is killed, and its user opens another.
//! When a spawner has died, what its commands left behind is killed, provided that this process is a
//! subreaper ([`exec_spawn::spawner::adopt_orphans`]): orphans then become its children.

use std::{
    fmt,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::Arc,
    time::Duration,
};

use exec_spawn::spawner::{MAX_FDS, SpawnerProcess, Spec, adopts_orphans, end_orphans};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
        SocketType, sendmsg, socketpair,
    },
    process::Signal,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{sleep, timeout},
};

use crate::register::register;

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
        let sent = attend(&self.process, send(&self.socket, frame, spec, control));
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

/// Waits for something that the spawner has to do, and continues it as often as it is stopped
/// meanwhile. `None`: it was stopped again and again, and was killed.
pub(super) async fn attend<T>(
    process: &SpawnerProcess,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = std::pin::pin!(work);
    let mut stops = 0;
    loop {
        if let Ok(done) = timeout(PATIENCE, work.as_mut()).await {
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
async fn attend_death(process: Arc<SpawnerProcess>, descriptor: OwnedFd) {
    let Ok(descriptor) = register(descriptor, Interest::READABLE) else {
        return;
    };
    // A descriptor of a process is readable from its death on.
    drop(descriptor.readable().await);
    process.reap();
    if !adopts_orphans() {
        return;
    }
    for check in 0..MAX_CHECKS {
        if !end_orphans(check >= GRACE_CHECKS) {
            return;
        }
        sleep(ORPHAN_CHECK).await;
    }
    tracing::error!("processes of a killed spawner cannot be killed");
}
