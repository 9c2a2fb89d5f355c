//! Writes stdout and stderr in order, and shows the connection state.
//!
//! Invariant: a write that may block runs on the blocking pool, so that signals and the connection
//! are served meanwhile.

use std::{io, os::fd::BorrowedFd, pin::pin, process::ExitCode};

use bytes::Bytes;
use exec_client::client::{ConnectionState, ExecServerClient};
use exec_wire::process::OutputStream;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use crate::command::{
    failure::CommandFailure, print::printable, process_session::output_failure,
    terminal::StandardStream,
};

/// Bytes that a ready pipe accepts without blocking: the smallest `PIPE_BUF` on Linux.
const SMALL_BYTES: usize = 4096;

/// Writes a whole chunk of process output to the descriptor of its stream.
pub(crate) async fn write_output(stream: OutputStream, data: Bytes) -> io::Result<()> {
    let fd = match stream {
        OutputStream::Stdout | OutputStream::Pty => StandardStream::Output.fd(),
        OutputStream::Stderr => StandardStream::Error.fd(),
    };
    if data.len() <= SMALL_BYTES && is_writable(fd)? {
        return write_all(fd, &data);
    }
    let written = tokio::task::spawn_blocking(move || write_all(fd, &data)).await;
    written.map_err(io::Error::other)?
}

/// Writes everything, also to a non-blocking descriptor.
pub(super) fn write_all(fd: BorrowedFd<'_>, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        match rustix::io::write(fd, data) {
            Ok(written) => data = &data[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(fd, None).map(drop)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn is_writable(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(wait(fd, Some(&Timespec::default()))? > 0)
}

fn wait(fd: BorrowedFd<'_>, limit: Option<&Timespec>) -> io::Result<usize> {
    let mut poll_fds = [PollFd::new(&fd, PollFlags::OUT)];
    match poll(&mut poll_fds, limit) {
        Err(Errno::INTR) => Ok(0),
        outcome => Ok(outcome?),
    }
}

/// Prints a line to stderr, next to the process's own output.
pub(crate) fn print_notice(text: &str) {
    let line = format!("exec-server: {}\n", printable(text));
    // A broken stderr cannot be reported.
    drop(write_all(StandardStream::Error.fd(), line.as_bytes()));
}

/// Prints notices on lines of their own between the output of a process.
#[derive(Debug)]
pub(crate) struct NoticeWriter {
    /// Line end on stderr.
    line_end: &'static str,
    /// Streams that share a line with stderr.
    shared: [bool; 2],
    is_at_line_start: bool,
}

impl NoticeWriter {
    /// Creates a writer. A terminal in raw mode needs a carriage return.
    pub(crate) fn new(is_raw: bool) -> Self {
        let is_terminal = StandardStream::Error.is_terminal();
        Self::with(is_raw, is_terminal, StandardStream::Output.is_terminal())
    }

    fn with(is_raw: bool, is_terminal: bool, is_output_terminal: bool) -> Self {
        Self {
            line_end: match is_raw && is_terminal {
                true => "\r\n",
                false => "\n",
            },
            shared: [is_terminal && is_output_terminal, true],
            is_at_line_start: true,
        }
    }

    /// Notes where output leaves the cursor.
    pub(crate) fn observe(&mut self, stream: OutputStream, data: &[u8]) {
        let [output, error] = self.shared;
        let is_shared = match stream {
            OutputStream::Stdout | OutputStream::Pty => output,
            OutputStream::Stderr => error,
        };
        if let (true, Some(last)) = (is_shared, data.last()) {
            self.is_at_line_start = *last == b'\n';
        }
    }

    /// Prints a notice to stderr.
    pub(crate) fn print(&mut self, text: &str) {
        write_stderr(&self.line(text));
    }

    fn line(&mut self, text: &str) -> String {
        let end = self.line_end;
        let start = match std::mem::replace(&mut self.is_at_line_start, true) {
            true => "",
            false => end,
        };
        format!("{start}exec-server: {}{end}", printable(text))
    }
}

/// Prints the result of a command.
pub(crate) fn write_result(text: &str) -> Result<ExitCode, CommandFailure> {
    write_result_bytes(text.as_bytes())
}

/// Prints a result that may not be UTF-8.
pub(crate) fn write_result_bytes(bytes: &[u8]) -> Result<ExitCode, CommandFailure> {
    match write_all(StandardStream::Output.fd(), bytes) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => output_failure(&error),
    }
}

/// Message about the connection on stderr.
#[derive(Debug)]
pub(crate) struct ConnectionNotice {
    terminal: bool,
    is_shown: bool,
}

impl ConnectionNotice {
    /// Creates a notice that shows nothing yet.
    pub(crate) fn new() -> Self {
        Self {
            terminal: StandardStream::Error.is_terminal(),
            is_shown: false,
        }
    }

    /// Shows a change of state once.
    pub(crate) fn show(&mut self, state: ConnectionState) {
        let is_out = match state {
            ConnectionState::Connected => false,
            ConnectionState::Reconnecting => true,
            // The caller reports the loss.
            ConnectionState::Lost => return self.erase(),
        };
        if is_out == self.is_shown {
            return;
        }
        self.is_shown = is_out;
        match (self.terminal, is_out) {
            (true, true) => write_stderr(SHOW),
            (true, false) => write_stderr(ERASE),
            (false, true) => write_stderr("exec-server: reconnecting…\n"),
            (false, false) => write_stderr("exec-server: reconnected\n"),
        }
    }

    fn erase(&mut self) {
        if std::mem::take(&mut self.is_shown) && self.terminal {
            write_stderr(ERASE);
        }
    }
}

impl Drop for ConnectionNotice {
    /// Erases the notice, so that later output does not follow it.
    fn drop(&mut self) {
        self.erase();
    }
}

/// Saves the cursor position, so that text before it, such as a prompt, stays.
const SHOW: &str = "\x1b7reconnecting…";
const ERASE: &str = "\x1b8\x1b[K";

fn write_stderr(text: &str) {
    // A broken stderr cannot be reported.
    drop(write_all(StandardStream::Error.fd(), text.as_bytes()));
}

/// Runs `work`, and shows meanwhile when the connection is lost.
pub(crate) async fn show_outages<T>(client: &ExecServerClient, work: impl Future<Output = T>) -> T {
    let (mut connection, mut notice) = (client.connection(), ConnectionNotice::new());
    // It may already be lost.
    notice.show(*connection.borrow_and_update());
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            Ok(()) = connection.changed() => notice.show(*connection.borrow_and_update()),
            output = &mut work => return output,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notice_starts_and_ends_a_line_of_the_terminal() {
        let mut writer = NoticeWriter::with(true, true, true);
        writer.observe(OutputStream::Pty, b"$ ");
        assert_eq!(writer.line("one"), "\r\nexec-server: one\r\n");
        assert_eq!(writer.line("two"), "exec-server: two\r\n");
        writer.observe(OutputStream::Pty, b"line\r\n");
        assert_eq!(writer.line("\x1b"), "exec-server: ?\r\n");
    }

    #[test]
    fn stdout_elsewhere_does_not_break_lines_of_stderr() {
        let mut writer = NoticeWriter::with(false, false, false);
        writer.observe(OutputStream::Stdout, b"partial");
        assert_eq!(writer.line("one"), "exec-server: one\n");
        writer.observe(OutputStream::Stderr, b"partial");
        assert_eq!(writer.line("two"), "\nexec-server: two\n");
    }
}
