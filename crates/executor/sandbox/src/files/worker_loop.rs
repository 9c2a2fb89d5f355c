//! The hand's own loop: is enclosed, then does what it is asked, one request at a time.
//!
//! One operation, done by the hand.
//!
//! How the executable becomes a hand: by the name it is started under, before `main`.
//!
//! As with the spawner of `exec-process`, every program that links this crate can be its own hand.
#![expect(
    unsafe_code,
    reason = "a function that the loader calls, a descriptor by its number, and ending at once"
)]

use std::{
    ffi::{CStr, OsStr},
    os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
};

use exec_env::filesystem::FileError;
use exec_fs::{BlockFile, Stop, WholeFile};
use exec_spawn::enclosure::{self, Enclosure};
use rustix::io::Errno;
use serde::Serialize;

use super::{
    watch_server,
    worker_frame::{FrameReader, FrameStatus, FrameWriter, WorkerFrame},
    worker_request::{Request, status_of},
};

/// Serves the socket. `None` says that the server is gone, or does not understand us; in either case
/// we are done.
pub(super) fn run_worker(socket: &OwnedFd) -> Option<()> {
    // The name is for those who list processes.
    rustix::thread::set_name(c"exec-files").ok();
    let mut reader = FrameReader::default();
    enter_sandbox(socket, &mut reader)?;
    serve_requests(socket, &mut reader)
}

/// Takes the first frame, which says what encloses this process.
fn enter_sandbox(socket: &OwnedFd, reader: &mut FrameReader) -> Option<()> {
    let frame = receive_frame(socket, reader)?;
    let outcome = Enclosure::decode(&frame.text, frame.descriptors)
        .ok_or_else(|| "enclosure is garbled".to_owned())
        .and_then(|enclosure| enclosure::enter(enclosure).map_err(|error| error_chain(&error)));
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
        let request: Request = serde_json::from_slice(&frame.text).ok()?;
        if let Request::Watch { path, tree } = request {
            return watch_server::watch(socket, path, tree);
        }
        if let Request::WatchMissing { missing, present } = request {
            return watch_server::watch_missing(socket, missing, present);
        }
        let is_small = request.is_small();
        send_answer(socket, perform_request(request, &frame.data))?;
        drop(frame);
        if !is_small {
            // Threads have each taken memory of their own. Nobody waits for this.
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

/// Sends a frame. `None`: nobody takes it.
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

/// Says an error with what caused it.
fn error_chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// What is sent back.
#[derive(Debug, Default)]
pub(super) struct WorkerAnswer {
    pub(super) text: Vec<u8>,
    pub(super) data: Vec<u8>,
    pub(super) file: Option<OwnedFd>,
}

/// Does what is asked. Nobody asks it to stop: who does not wait any more kills this process, and
/// changes run to their end.
pub(super) fn perform_request(request: Request, data: &[u8]) -> Result<WorkerAnswer, FileError> {
    let stop = Stop::default();
    match request {
        Request::ReadFile(read) => {
            let file = WholeFile::open(&read)?;
            // One that is made up as it is read says 0, and is read by whom it was opened.
            if file.size() > SMALL_FILE_BYTES {
                return Ok(file_answer(file.into_file()));
            }
            let data = file.read()?;
            Ok(WorkerAnswer {
                data,
                ..WorkerAnswer::default()
            })
        }
        Request::Open { path, mode } => Ok(file_answer(BlockFile::open(&path, mode)?.into_file())),
        Request::WriteFile(write) => json_answer(&exec_fs::write_file(&write, data)?),
        Request::CreateDirectory(create) => json_answer(&exec_fs::create_directory(&create)?),
        Request::Metadata(get) => json_answer(&exec_fs::metadata(&get)?),
        Request::Canonicalize(request) => json_answer(&exec_fs::canonicalize(&request)?),
        Request::ReadDirectory(read) => json_answer(&exec_fs::read_directory(&read)?),
        Request::Walk(walk) => json_answer(&exec_fs::walk(&walk, &stop)?),
        Request::Remove(remove) => json_answer(&exec_fs::remove(&remove, &stop)?),
        Request::Copy(copy) => json_answer(&exec_fs::copy(&copy, &stop)?),
        Request::Rename(rename) => json_answer(&exec_fs::rename(&rename)?),
        Request::Search(search) => json_answer(&exec_fs::search(&search, &stop)?),
        Request::Find(find) => json_answer(&exec_fs::find(&find, &stop)?),
        Request::Watch { .. } | Request::WatchMissing { .. } => Err(FileError::Host(
            "a watch is not one answer but many".to_owned(),
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
        .map_err(|error| FileError::Host(format!("result has no JSON: {error}")))?;
    Ok(WorkerAnswer {
        text,
        ..WorkerAnswer::default()
    })
}

/// Content that is sent back: above it, the server reads from what was opened, when it has room.
const SMALL_FILE_BYTES: u64 = 64 << 10;

/// The name under which the executable is a hand.
pub(super) const WORKER_ARGV0: &CStr = c"exec-server-files";
/// Where a hand finds its socket.
pub(super) const WORKER_SOCKET_FD: u8 = 3;

/// Serves as a hand, and never returns, if this process was started as one.
pub fn run_if_hand() {
    let name = std::env::args_os().next();
    if name.as_deref().map(OsStr::as_encoded_bytes) != Some(WORKER_ARGV0.to_bytes()) {
        return;
    }
    // SAFETY: nothing has run yet that could own a descriptor; whoever starts a hand gives it this
    // one, and if it is not open, the first call on it says so.
    let socket = unsafe { OwnedFd::from_raw_fd(WORKER_SOCKET_FD.into()) };
    let _ = run_worker(&socket);
    // SAFETY: ends this process, and nothing else.
    unsafe { libc::_exit(0) }
}

/// Gives back memory that was used and is free.
pub(super) fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes free memory from the allocator, which knows what is free.
    unsafe {
        libc::malloc_trim(0);
    }
}

extern "C" fn before_main() {
    run_if_hand();
}

#[used]
// SAFETY: the section holds pointers to functions without arguments; the loader calls each once.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;
