//! Main loop of an fs worker: enters the sandbox, then serves one request at a time.
//!
//! The executable becomes a worker when it is started under the name [`WORKER_ARGV0`], before
//! `main`. Every program that links this crate can therefore run its own workers.
#![expect(
    unsafe_code,
    reason = "a function that the loader calls, a raw descriptor, and an immediate exit"
)]

use std::{
    ffi::{CStr, OsStr},
    os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
};

use exec_env::filesystem::FileError;
use exec_fs::{BlockFile, CancelFlag, WholeFile};
use exec_spawn::sandbox_setup::{self, SandboxSetup};
use rustix::io::Errno;
use serde::Serialize;

use super::{
    watch_server,
    worker_frame::{FrameReader, FrameStatus, FrameWriter, WorkerFrame},
    worker_request::{WorkerRequest, status_of},
};

/// Serves the socket. Returns `None` when the server is gone or sends an invalid frame.
pub(super) fn run_worker(socket: &OwnedFd) -> Option<()> {
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
        .ok_or_else(|| "invalid enclosure".to_owned())
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
            return watch_server::watch(socket, path, tree);
        }
        if let WorkerRequest::WatchMissing { missing, present } = request {
            return watch_server::watch_missing(socket, missing, present);
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
        Err(error) => {
            let (status, text) = status_of(error);
            send(socket, status, text.as_bytes(), &[], &[])
        }
    }
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

/// Formats an error with its cause.
fn error_chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
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
pub(super) fn perform_request(
    request: WorkerRequest,
    data: &[u8],
) -> Result<WorkerAnswer, FileError> {
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
        WorkerRequest::Canonicalize(request) => json_answer(&exec_fs::canonicalize(&request)?),
        WorkerRequest::ReadDirectory(read) => json_answer(&exec_fs::read_directory(&read)?),
        WorkerRequest::Walk(walk) => json_answer(&exec_fs::walk(&walk, &stop)?),
        WorkerRequest::Remove(remove) => json_answer(&exec_fs::remove(&remove, &stop)?),
        WorkerRequest::Copy(copy) => json_answer(&exec_fs::copy(&copy, &stop)?),
        WorkerRequest::Rename(rename) => json_answer(&exec_fs::rename(&rename)?),
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
pub(super) const WORKER_ARGV0: &CStr = c"exec-server-files";
/// Descriptor of the socket in an fs worker.
pub(super) const WORKER_SOCKET_FD: u8 = 3;

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
pub(super) fn trim_heap() {
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
