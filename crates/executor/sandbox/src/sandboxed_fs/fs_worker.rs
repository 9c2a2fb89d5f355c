//! The server's handle to one fs worker: its process and the socket to it.

use std::{
    fs::File,
    hint, io,
    num::NonZeroUsize,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix,
    },
    thread,
    time::{Duration, Instant},
};

use exec_env::filesystem::FileError;
use exec_process::spawner::{CommandSpec, InheritedFd, Spawner, SupervisedChild};
use exec_spawn::sandbox_setup::SandboxSetup;
use tokio::{io::Interest, net::UnixStream, time::timeout};

use super::{
    worker_frame::{FrameReader, FrameStatus, FrameWriter, WorkerFrame},
    worker_loop,
    worker_request::WorkerReply,
};

/// Sandboxed worker process. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct FsWorker {
    channel: WorkerChannel,
    child: SupervisedChild,
    started: Instant,
}

impl FsWorker {
    /// Starts a worker and waits until it has entered its sandbox.
    pub(super) async fn start(spawner: &Spawner, setup: SandboxSetup) -> Result<Self, FileError> {
        let start = async {
            let failed = |error: &dyn std::error::Error| start_failed(&error.to_string());
            let (channel, worker_end) = WorkerChannel::pair().map_err(|error| failed(&error))?;
            let spec = worker_spec(worker_end.into()).map_err(|error| failed(&error))?;
            let child = spawner.spawn(spec).await;
            let child = child.map_err(|error| start_failed(&error.explained()))?;
            let mut worker = Self {
                channel,
                child,
                started: Instant::now(),
            };
            let text = setup.encode();
            let descriptors = setup.descriptors();
            let reply = worker.channel.exchange(&text, &[], &descriptors).await;
            WorkerReply::from_frame(reply.map_err(worker_lost)?)?;
            Ok(worker)
        };
        timeout(START_TIMEOUT, start)
            .await
            .unwrap_or_else(|_| Err(start_failed("timed out")))
    }

    /// Sends a request and waits for the answer. If the future is dropped, the worker must not be
    /// used again.
    pub(super) async fn exchange(
        &mut self,
        text: &[u8],
        data: &[u8],
    ) -> Result<WorkerFrame, ExchangeError> {
        self.channel.exchange(text, data, &[]).await
    }

    /// Waits for the next frame of a watch. Cancel safe.
    pub(super) async fn next_frame(&mut self) -> io::Result<WorkerFrame> {
        self.channel.next_frame().await
    }

    /// Returns the time since the start.
    pub(super) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.pid()
    }
}

/// Describes the loss of a worker.
pub(super) fn worker_lost(error: ExchangeError) -> FileError {
    let (ExchangeError::Unsent(source) | ExchangeError::Unanswered(source)) = error;
    if source.kind() == io::ErrorKind::InvalidData {
        return FileError::Host("fs worker broke the protocol".to_owned());
    }
    FileError::Host("fs worker ended".to_owned())
}

fn start_failed(why: &str) -> FileError {
    FileError::Host(format!("fs worker could not be started: {why}"))
}

/// Passes no environment variable of the server to the worker.
fn worker_spec(socket: OwnedFd) -> io::Result<CommandSpec> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let duplicate = || null.as_fd().try_clone_to_owned();
    Ok(CommandSpec {
        candidates: vec![c"/proc/self/exe".to_owned()],
        argv: vec![worker_loop::WORKER_ARGV0.to_owned()],
        env: Vec::new(),
        cwd: c"/".to_owned(),
        stdin: duplicate()?,
        stdout: duplicate()?,
        stderr: duplicate()?,
        terminal: false,
        inherited_fds: vec![InheritedFd {
            fd: socket,
            target: worker_loop::WORKER_SOCKET_FD,
        }],
        limits: Vec::new(),
        sandbox_setup: None,
    })
}

/// Timeout for start and sandbox setup, which take milliseconds even on a busy host.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// The server's end of the socket.
#[derive(Debug)]
pub(super) struct WorkerChannel {
    socket: UnixStream,
    reader: FrameReader,
    busy_poll: Duration,
}

/// Busy-poll time before the thread sleeps: most answers arrive sooner than a sleeping core wakes
/// up. Not used on a single core, where the worker could not run meanwhile.
const BUSY_POLL: Duration = Duration::from_micros(80);

/// Failure of an exchange.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    /// The worker was gone before it received any byte.
    #[error("request was not sent")]
    Unsent(#[source] io::Error),
    /// The worker may have received and performed the request.
    #[error("request was not answered")]
    Unanswered(#[source] io::Error),
}

impl WorkerChannel {
    /// Creates the channel and the worker's end of the socket.
    pub(super) fn pair() -> io::Result<(Self, unix::net::UnixStream)> {
        let (server_end, worker_end) = unix::net::UnixStream::pair()?;
        server_end.set_nonblocking(true)?;
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let channel = Self {
            socket: UnixStream::from_std(server_end)?,
            reader: FrameReader::default(),
            busy_poll: if cores > 1 { BUSY_POLL } else { Duration::ZERO },
        };
        Ok((channel, worker_end))
    }

    /// Sends a request and waits for the answer. If the future is dropped, the channel must not be
    /// used again.
    pub(super) async fn exchange(
        &mut self,
        text: &[u8],
        data: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<WorkerFrame, ExchangeError> {
        let mut writer =
            FrameWriter::new(FrameStatus::Success, text, data).with_descriptors(descriptors);
        loop {
            let send = || writer.send(&self.socket);
            match self.socket.async_io(Interest::WRITABLE, send).await {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) if writer.has_sent() => return Err(ExchangeError::Unanswered(error)),
                Err(error) => return Err(ExchangeError::Unsent(error)),
            }
        }
        let sent_at = Instant::now();
        while sent_at.elapsed() < self.busy_poll {
            // Polls the socket directly: the runtime's readiness is updated only when its driver
            // runs.
            match self.reader.receive(&self.socket) {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => hint::spin_loop(),
                Err(error) => return Err(ExchangeError::Unanswered(error)),
            }
        }
        self.next_frame().await.map_err(ExchangeError::Unanswered)
    }

    /// Waits for the next frame. Cancel safe.
    pub(super) async fn next_frame(&mut self) -> io::Result<WorkerFrame> {
        loop {
            let reader = &mut self.reader;
            let receive = || reader.receive(&self.socket);
            if let Some(frame) = self.socket.async_io(Interest::READABLE, receive).await? {
                return Ok(frame);
            }
        }
    }
}
