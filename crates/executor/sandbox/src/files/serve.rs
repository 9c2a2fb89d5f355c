//! The hand's own loop: is enclosed, then does what it is asked, one request at a time.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use exec_env::filesystem::FileError;
use exec_process::enclosure::{self, Enclosure};
use rustix::io::Errno;

use super::{
    boot::give_back_memory,
    frame::{Class, Frame, Incoming, Outgoing},
    perform::{Answer, perform},
    request::{Request, class_of},
    tell,
};

/// Serves the socket. `None` says that the server is gone, or does not understand us; in either case
/// we are done.
pub(super) fn run(socket: &OwnedFd) -> Option<()> {
    // The name is for those who list processes.
    rustix::thread::set_name(c"exec-files").ok();
    let mut incoming = Incoming::default();
    enter(socket, &mut incoming)?;
    serve(socket, &mut incoming)
}

/// Takes the first frame, which says what encloses this process.
fn enter(socket: &OwnedFd, incoming: &mut Incoming) -> Option<()> {
    let frame = next(socket, incoming)?;
    let entered = Enclosure::decode(&frame.text, frame.descriptors)
        .ok_or_else(|| "enclosure is garbled".to_owned())
        .and_then(|enclosure| enclosure::enter(enclosure).map_err(|error| explain(&error)));
    match entered {
        Ok(()) => send(socket, Class::Good, &[], &[], &[]),
        Err(text) => {
            let text = format!("sandbox: {text}");
            send(socket, Class::Refused, text.as_bytes(), &[], &[])?;
            None
        }
    }
}

fn serve(socket: &OwnedFd, incoming: &mut Incoming) -> Option<()> {
    loop {
        let frame = next(socket, incoming)?;
        let request: Request = serde_json::from_slice(&frame.text).ok()?;
        if let Request::Watch { path, tree } = request {
            return tell::watch(socket, path, tree);
        }
        if let Request::WatchMissing { missing, present } = request {
            return tell::watch_missing(socket, missing, present);
        }
        let is_small = request.is_small();
        answer(socket, perform(request, &frame.data))?;
        drop(frame);
        if !is_small {
            // Threads have each taken memory of their own. Nobody waits for this.
            give_back_memory();
        }
    }
}

fn answer(socket: &OwnedFd, outcome: Result<Answer, FileError>) -> Option<()> {
    match outcome {
        Ok(Answer { text, data, file }) => {
            let descriptors: Vec<_> = file.iter().map(AsFd::as_fd).collect();
            send(socket, Class::Good, &text, &data, &descriptors)
        }
        Err(error) => {
            let (class, text) = class_of(error);
            send(socket, class, text.as_bytes(), &[], &[])
        }
    }
}

/// Sends a frame. `None`: nobody takes it.
pub(super) fn send(
    socket: &OwnedFd,
    class: Class,
    text: &[u8],
    data: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Option<()> {
    let mut outgoing = Outgoing::new(class, text, data).with(descriptors);
    loop {
        match outgoing.send(socket) {
            Ok(true) => return Some(()),
            Ok(false) => {}
            Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
            Err(_) => return None,
        }
    }
}

fn next(socket: &OwnedFd, incoming: &mut Incoming) -> Option<Frame> {
    loop {
        match incoming.receive(socket) {
            Ok(Some(frame)) => return Some(frame),
            Ok(None) => {}
            Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
            Err(_) => return None,
        }
    }
}

/// Says an error with what caused it.
fn explain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
