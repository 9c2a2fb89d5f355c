//! One fs worker: the server's handle to its process and the socket to it, and the main loop that
//! runs in the process.
//!
//! The executable becomes a worker when it is started under the name [`WORKER_ARGV0`], before
//! `main`. Every program that links this crate can therefore run its own workers. A worker enters
//! its sandbox, then serves one request at a time. A watch is the last request: the worker reports
//! changes until the watch ends.
#![expect(
    unsafe_code,
    reason = "a function that the loader calls, a raw descriptor, and an immediate exit"
)]

use std::{
    ffi::{CStr, OsStr},
    io,
    os::{
        fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::{self, ffi::OsStrExt},
    },
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use exec_env::filesystem::{FileError, MissingPathsRequest, WatchDepth, WatchPathRequest};
use exec_fs::{BlockFile, CancelFlag, WholeFile};
use exec_process::spawner::{CommandSpec, CommandStdio, InheritedFd, Spawner, SupervisedChild};
use exec_spawn::sandbox_setup::{self, SandboxSetup};
use exec_wire::{error::error_chain, path_uri::PathUri};
use futures_util::StreamExt;
use rustix::io::Errno;
use serde::Serialize;
use tokio::{io::Interest, net::UnixStream, time::timeout};

use super::worker_request::{
    EncodedChangeBatch, FrameReader, FrameStatus, FrameWriter, WorkerFrame, WorkerReply,
    WorkerRequest, status_of,
};

/// Sandboxed worker process. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct FsWorker {
    /// The server's end of the socket.
    socket: UnixStream,
    reader: FrameReader,
    child: SupervisedChild,
    started: Instant,
}

impl FsWorker {
    /// Starts a worker and waits until it has entered its sandbox.
    pub(super) async fn start(spawner: &Spawner, setup: SandboxSetup) -> Result<Self, FileError> {
        let start = async {
            let failed = |error: &dyn std::error::Error| start_failed(&error.to_string());
            let (socket, worker_end) = socket_pair().map_err(|error| failed(&error))?;
            let stdio = CommandStdio::null().map_err(|error| failed(&error))?;
            let spawned = spawner.spawn(worker_command(worker_end.into()), stdio);
            let child = spawned.await;
            let child = child.map_err(|error| start_failed(&error.explained()))?;
            let mut worker = Self {
                socket,
                reader: FrameReader::default(),
                child,
                started: Instant::now(),
            };
            let text = setup.encode();
            let descriptors = setup.descriptors();
            let reply = worker.exchange(&text, &[], &descriptors).await;
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
        self.next_frame().await.map_err(ExchangeError::Unanswered)
    }

    /// Waits for the next frame, such as of a watch. Cancel safe.
    pub(super) async fn next_frame(&mut self) -> io::Result<WorkerFrame> {
        loop {
            let reader = &mut self.reader;
            let receive = || reader.receive(&self.socket);
            if let Some(frame) = self.socket.async_io(Interest::READABLE, receive).await? {
                return Ok(frame);
            }
        }
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
fn worker_command(socket: OwnedFd) -> CommandSpec {
    CommandSpec {
        program: "/proc/self/exe".into(),
        argv: vec![OsStr::from_bytes(WORKER_ARGV0.to_bytes()).to_owned()],
        cwd: "/".into(),
        inherited_fds: vec![InheritedFd {
            fd: socket,
            target: WORKER_SOCKET_FD,
        }],
        ..CommandSpec::default()
    }
}

/// Timeout for start and sandbox setup, which take milliseconds even on a busy host.
const START_TIMEOUT: Duration = Duration::from_secs(10);

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

/// Creates the server's and the worker's end of a socket.
fn socket_pair() -> io::Result<(UnixStream, unix::net::UnixStream)> {
    let (server_end, worker_end) = unix::net::UnixStream::pair()?;
    server_end.set_nonblocking(true)?;
    Ok((UnixStream::from_std(server_end)?, worker_end))
}

/// Serves the socket. Returns `None` when the server is gone or sends an invalid frame.
fn run_worker(socket: &OwnedFd) -> Option<()> {
    // Shown in process listings.
    rustix::thread::set_name(c"exec-files").ok();
    let mut reader = FrameReader::default();
    enter_sandbox(socket, &mut reader)?;
    serve_requests(socket, &mut reader)
}

/// Receives the sandbox set-up in the first frame and enters the sandbox.
fn enter_sandbox(socket: &OwnedFd, reader: &mut FrameReader) -> Option<()> {
    let frame = receive_frame(socket, reader)?;
    let outcome = SandboxSetup::decode(&frame.text, frame.descriptors)
        .ok_or_else(|| "invalid sandbox set-up".to_owned())
        .and_then(|setup| sandbox_setup::enter_sandbox(setup).map_err(|error| error_chain(&error)));
    match outcome {
        Ok(()) => send(socket, FrameStatus::Success, &[], &[], &[]),
        Err(text) => {
            let text = format!("sandbox: {text}");
            send(socket, FrameStatus::Refused, text.as_bytes(), &[], &[])?;
            None
        }
    }
}

fn serve_requests(socket: &OwnedFd, reader: &mut FrameReader) -> Option<()> {
    loop {
        let frame = receive_frame(socket, reader)?;
        let request: WorkerRequest = serde_json::from_slice(&frame.text).ok()?;
        if let WorkerRequest::Watch { path, tree } = request {
            return watch(socket, path, tree);
        }
        if let WorkerRequest::WatchMissing { missing, present } = request {
            return watch_missing(socket, missing, present);
        }
        let is_small = request.is_small();
        send_answer(socket, perform_request(request, &frame.data))?;
        drop(frame);
        if !is_small {
            // Threads leave memory in their own arenas. The answer is already sent, so nothing
            // waits for this.
            trim_heap();
        }
    }
}

fn send_answer(socket: &OwnedFd, outcome: Result<WorkerAnswer, FileError>) -> Option<()> {
    match outcome {
        Ok(WorkerAnswer { text, data, file }) => {
            let descriptors: Vec<_> = file.iter().map(AsFd::as_fd).collect();
            send(socket, FrameStatus::Success, &text, &data, &descriptors)
        }
        Err(error) => send_error(socket, error),
    }
}

fn send_error(socket: &OwnedFd, error: FileError) -> Option<()> {
    let (status, text) = status_of(error);
    send(socket, status, text.as_bytes(), &[], &[])
}

/// Sends a frame. Returns `None` if the server is gone.
pub(super) fn send(
    socket: &OwnedFd,
    status: FrameStatus,
    text: &[u8],
    data: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Option<()> {
    let mut writer = FrameWriter::new(status, text, data).with_descriptors(descriptors);
    loop {
        match writer.send(socket) {
            Ok(true) => return Some(()),
            Ok(false) => {}
            Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
            Err(_) => return None,
        }
    }
}

fn receive_frame(socket: &OwnedFd, reader: &mut FrameReader) -> Option<WorkerFrame> {
    loop {
        match reader.receive(socket) {
            Ok(Some(frame)) => return Some(frame),
            Ok(None) => {}
            Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
            Err(_) => return None,
        }
    }
}

/// Answer to one request.
#[derive(Debug, Default)]
pub(super) struct WorkerAnswer {
    pub(super) text: Vec<u8>,
    pub(super) data: Vec<u8>,
    pub(super) file: Option<OwnedFd>,
}

/// Performs a request. Requests cannot be cancelled: the server kills the process to abandon a
/// read, and changes run to completion.
fn perform_request(request: WorkerRequest, data: &[u8]) -> Result<WorkerAnswer, FileError> {
    let stop = CancelFlag::default();
    match request {
        WorkerRequest::ReadFile(read) => {
            let file = WholeFile::open(&read)?;
            // A generated file (`/proc`) reports size 0 and must be read by the process that opened
            // it.
            if file.size() > SMALL_FILE_BYTES {
                return Ok(file_answer(file.into_file()));
            }
            let data = file.read()?;
            Ok(WorkerAnswer {
                data,
                ..WorkerAnswer::default()
            })
        }
        WorkerRequest::Open { path, mode } => {
            Ok(file_answer(BlockFile::open(&path, mode)?.into_file()))
        }
        WorkerRequest::WriteFile(write) => json_answer(&exec_fs::write_file(&write, data)?),
        WorkerRequest::CreateDirectory(create) => json_answer(&exec_fs::create_directory(&create)?),
        WorkerRequest::Metadata(get) => json_answer(&exec_fs::metadata(&get)?),
        WorkerRequest::SetMetadata(set) => json_answer(&exec_fs::set_metadata(&set)?),
        WorkerRequest::Canonicalize(request) => json_answer(&exec_fs::canonicalize(&request)?),
        WorkerRequest::ReadDirectory(read) => json_answer(&exec_fs::read_directory(&read)?),
        WorkerRequest::Walk(walk) => json_answer(&exec_fs::walk(&walk, &stop)?),
        WorkerRequest::Remove(remove) => json_answer(&exec_fs::remove(&remove, &stop)?),
        WorkerRequest::Copy(copy) => json_answer(&exec_fs::copy(&copy, &stop)?),
        WorkerRequest::Rename(rename) => json_answer(&exec_fs::rename(&rename)?),
        WorkerRequest::CreateSymlink(create) => json_answer(&exec_fs::create_symlink(&create)?),
        WorkerRequest::Search(search) => json_answer(&exec_fs::search(&search, &stop)?),
        WorkerRequest::Find(find) => json_answer(&exec_fs::find(&find, &stop)?),
        WorkerRequest::Watch { .. } | WorkerRequest::WatchMissing { .. } => Err(FileError::Host(
            "a watch is not a single request".to_owned(),
        )),
    }
}

fn file_answer(file: OwnedFd) -> WorkerAnswer {
    WorkerAnswer {
        file: Some(file),
        ..WorkerAnswer::default()
    }
}

fn json_answer(result: &impl Serialize) -> Result<WorkerAnswer, FileError> {
    let text = serde_json::to_vec(result)
        .map_err(|error| FileError::Host(format!("cannot encode result as JSON: {error}")))?;
    Ok(WorkerAnswer {
        text,
        ..WorkerAnswer::default()
    })
}

/// Largest content that is sent inline. The server reads larger files from the descriptor, when its
/// buffers have room.
const SMALL_FILE_BYTES: u64 = 64 << 10;

/// `argv[0]` of an fs worker.
const WORKER_ARGV0: &CStr = c"exec-server-files";
/// Descriptor of the socket in an fs worker.
const WORKER_SOCKET_FD: u8 = 3;

/// Runs as an fs worker and never returns, if this process was started as one.
pub fn run_if_fs_worker() {
    let name = std::env::args_os().next();
    if name.as_deref().map(OsStr::as_encoded_bytes) != Some(WORKER_ARGV0.to_bytes()) {
        return;
    }
    // SAFETY: no code that owns descriptors has run yet. The server passes the socket as this
    // descriptor; if it is not open, the first call on it fails.
    let socket = unsafe { OwnedFd::from_raw_fd(WORKER_SOCKET_FD.into()) };
    let _ = run_worker(&socket);
    // SAFETY: ends this process and has no other effect.
    unsafe { libc::_exit(0) }
}

/// Returns free heap memory to the system.
fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: releases only memory that the allocator itself considers free.
    unsafe {
        libc::malloc_trim(0);
    }
}

extern "C" fn before_main() {
    run_if_fs_worker();
}

#[used]
// SAFETY: the section holds pointers to functions without arguments; the loader calls each once.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;

/// Watches a path and reports changes until the watch ends or the server is gone.
pub(super) fn watch(socket: &OwnedFd, path: PathUri, tree: bool) -> Option<()> {
    let depth = if tree {
        WatchDepth::Tree
    } else {
        WatchDepth::Entries
    };
    let watcher = exec_fs::watch(&WatchPathRequest {
        path,
        depth,
        sandbox: None,
    });
    let mut watcher = match watcher {
        Ok(watcher) => watcher,
        Err(error) => return send_error(socket, error),
    };
    send_json(socket, &watcher.path)?;
    while let Some(changes) = block_on(watcher.changes.next()) {
        send_json(socket, &EncodedChangeBatch::from(changes))?;
    }
    send(socket, FrameStatus::Ended, &[], &[], &[])
}

/// Watches for missing paths and reports once.
pub(super) fn watch_missing(
    socket: &OwnedFd,
    missing: Vec<PathUri>,
    present: Option<PathUri>,
) -> Option<()> {
    let started = exec_fs::watch_missing(&MissingPathsRequest {
        missing,
        present,
        sandbox: None,
    });
    match started {
        Ok(Some(change)) => {
            send_json(socket, &true)?;
            block_on(change);
            send(socket, FrameStatus::Ended, &[], &[], &[])
        }
        Ok(None) => send_json(socket, &false),
        Err(error) => send_error(socket, error),
    }
}

fn send_json(socket: &OwnedFd, value: &impl serde::Serialize) -> Option<()> {
    let text = serde_json::to_vec(value).ok()?;
    send(socket, FrameStatus::Success, &text, &[], &[])
}

/// Blocks this thread until the future completes. The watch thread wakes it.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(ThreadWaker(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
