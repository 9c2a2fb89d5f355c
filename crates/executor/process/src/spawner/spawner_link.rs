//! The connection to a spawner process: sends frames, and watches the process.

use std::{
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
    time::Duration,
};

use exec_spawn::{
    keeper::{DurableSpawner, KeeperHandle},
    spawner::{MAX_FDS, SpawnerProcess, is_subreaper, stop_orphans},
};
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
    task::spawn_blocking,
    time::{sleep, timeout},
};

use super::{SpawnError, SpawnStage};
use crate::stdio::register;

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
#[derive(Debug)]
pub(super) struct SpawnerLink {
    socket: AsyncFd<OwnedFd>,
    process: Arc<SpawnerProcess>,
}

impl SpawnerLink {
    /// Starts a spawner as a child of this process.
    pub(super) fn open(program: &Path) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Self::new(ours, SpawnerProcess::start(program, theirs)?)
    }

    /// Starts a durable spawner through the keeper.
    pub(super) async fn open_durable(
        program: Arc<Path>,
        keeper: Arc<dyn KeeperHandle>,
    ) -> Result<Self, SpawnError> {
        let host = |error| SpawnError::host(SpawnStage::Setup, error);
        let start = move || keeper.start_spawner(&program);
        let DurableSpawner { socket, pidfd, .. } = spawn_blocking(start)
            .await
            .map_err(|error| host(error.into()))?
            .map_err(SpawnError::Keeper)?;
        SpawnerProcess::from_pidfd(pidfd)
            .and_then(|process| Self::new(socket, process))
            .map_err(host)
    }

    fn new(socket: OwnedFd, process: SpawnerProcess) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let process = Arc::new(process);
        watch_spawner(&process)?;
        Ok(Self {
            socket: register(socket, Interest::WRITABLE)?,
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
        text: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        self.process.resume();
        let sent = await_spawner(&self.process, send_frame(&self.socket, text, descriptors));
        sent.await.unwrap_or(Err(Errno::PIPE.into()))
    }
}

async fn send_frame(
    socket: &AsyncFd<OwnedFd>,
    text: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut sent = 0;
    while sent < text.len() {
        sent += socket
            .async_io(Interest::WRITABLE, |socket| {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                if sent == 0 {
                    ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
                }
                let slices = [IoSlice::new(&text[sent..])];
                sendmsg(socket, &slices, &mut ancillary, SendFlags::NOSIGNAL)
                    .map_err(io::Error::from)
            })
            .await?;
    }
    Ok(())
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

/// Starts the task that waits until a spawner exits.
pub(super) fn watch_spawner(process: &Arc<SpawnerProcess>) -> io::Result<()> {
    let descriptor = process.descriptor()?;
    tokio::spawn(watch_spawner_exit(Arc::clone(process), descriptor));
    Ok(())
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
