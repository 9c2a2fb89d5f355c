//! Standard input and its forwarding to a process.
//!
//! Invariant: nothing is read ahead, no thread blocks in a read, and the descriptor's flags, which
//! other programs share, stay unchanged.

use std::{
    io, mem,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    str::FromStr,
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use exec_client::client::{ConnectionState, ExecServerClient};
use exec_env::process::{ExecProcess, ProcessError};
use exec_wire::process::{ProcessSignal, WriteStatus};
use futures_util::{StreamExt, stream::FuturesOrdered};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FileType, fstat, major, minor},
    io::Errno,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::command::{
    process_session::{output::write_all, signals::StopRequests},
    terminal::StandardStream,
};

/// Maximum bytes per read.
const READ_BYTES: usize = 64 << 10;

/// Standard input.
#[derive(Debug)]
pub(crate) struct StdinReader {
    source: StdinSource,
    /// Determined on opening: a terminal that hung up no longer looks like one.
    terminal: bool,
}

#[derive(Debug)]
enum StdinSource {
    /// Pollable: a pipe, a terminal or a socket.
    Waited(AsyncFd<OwnedFd>),
    /// Always ready: a file.
    Plain(BorrowedFd<'static>),
}

impl StdinReader {
    /// Opens stdin; `None` if it is `/dev/null` or closed.
    pub(crate) fn open() -> io::Result<Option<Self>> {
        let fd = StandardStream::Input.fd();
        if is_null(fd) {
            return Ok(None);
        }
        let terminal = StandardStream::Input.is_terminal();
        let source = match exec_process::register(fd.try_clone_to_owned()?, Interest::READABLE) {
            Ok(waited) => StdinSource::Waited(waited),
            Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
                StdinSource::Plain(fd)
            }
            Err(error) => return Err(error),
        };
        Ok(Some(Self { source, terminal }))
    }

    /// Returns whether it is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Returns whether it ended because the window was closed, not because the user typed
    /// end-of-file.
    pub(crate) fn is_hung_up(&self) -> bool {
        let StdinSource::Waited(waited) = &self.source else {
            return false;
        };
        let mut poll_fds = [PollFd::new(waited.get_ref(), PollFlags::IN)];
        let polled = poll(&mut poll_fds, Some(&Timespec::default()));
        let hang_up = PollFlags::HUP | PollFlags::ERR;
        self.terminal && polled.is_ok() && poll_fds[0].revents().intersects(hang_up)
    }

    /// Reads available bytes; empty at the end. Cancel-safe.
    pub(crate) async fn read(&mut self) -> io::Result<Bytes> {
        loop {
            match &mut self.source {
                StdinSource::Plain(fd) => match read(*fd) {
                    Err(Errno::INTR) => {}
                    outcome => return Ok(outcome?),
                },
                StdinSource::Waited(waited) => {
                    let mut ready = waited.readable().await?;
                    let fd = ready.get_inner().as_fd();
                    // Readiness is edge-triggered, and a read without data would block.
                    if !is_readable(fd)? {
                        ready.clear_ready();
                        continue;
                    }
                    let read = read(fd);
                    match read {
                        Err(Errno::INTR) => {}
                        Err(Errno::AGAIN) => ready.clear_ready(),
                        // The other side of the terminal is gone.
                        Err(Errno::IO) => return Ok(Bytes::new()),
                        outcome => return Ok(outcome?),
                    }
                }
            }
        }
    }
}

fn read(fd: BorrowedFd<'_>) -> Result<Bytes, Errno> {
    let mut buffer = BytesMut::zeroed(READ_BYTES);
    let read = rustix::io::read(fd, &mut buffer[..])?;
    buffer.truncate(read);
    // Do not hold 64 KiB for a keystroke.
    Ok(match read < READ_BYTES / 4 {
        true => Bytes::copy_from_slice(&buffer),
        false => buffer.freeze(),
    })
}

fn is_readable(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut poll_fds = [PollFd::new(&fd, PollFlags::IN)];
    match poll(&mut poll_fds, Some(&Timespec::default())) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether a descriptor is `/dev/null`: its end need not be forwarded.
fn is_null(fd: BorrowedFd<'_>) -> bool {
    fstat(fd).is_ok_and(|found| {
        FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice
            && (major(found.st_rdev), minor(found.st_rdev)) == (1, 3)
    })
}

/// Writes in flight: enough to fill a high-latency link, and few enough that a process that does
/// not read soon applies backpressure.
const ON_THE_WAY: usize = 8;
/// The same for key presses, which are small.
const KEYS_ON_THE_WAY: usize = 64;
/// Ctrl-C on a raw terminal.
const INTERRUPT: u8 = 3;
const BELL: &[u8] = b"\x07";
/// Limit for delivering input typed before the detach keys.
const LEAVING: Duration = Duration::from_millis(500);

/// Forwards local input to a process.
#[derive(Debug)]
pub(super) struct InputForwarder<'a> {
    pub(super) process: &'a dyn ExecProcess,
    pub(super) input: StdinReader,
    pub(super) keys: Option<DetachKeys>,
    /// Key presses arrive one by one.
    pub(super) raw: bool,
    pub(super) connection: watch::Receiver<ConnectionState>,
    /// Reconnects at once when a key is pressed.
    pub(super) client: ExecServerClient,
}

/// Why forwarding ended.
#[derive(Debug)]
pub(super) enum ForwardOutcome {
    /// The input ended, or the process accepts no more.
    Ended,
    /// The user typed the detach keys.
    Detached,
    /// The window was closed.
    HungUp,
    /// The user pressed Ctrl-C repeatedly while keys could not be delivered.
    GivenUp,
    /// Input could not be delivered.
    Failed(ProcessError),
}

/// Rings the bell for a lost key, like a terminal with a full buffer.
fn ring_bell() {
    drop(write_all(StandardStream::Error.fd(), BELL));
}

impl InputForwarder<'_> {
    pub(super) async fn run(mut self) -> ForwardOutcome {
        let mut writes = FuturesOrdered::new();
        let mut stop_requests = StopRequests::default();
        let most = if self.raw {
            KEYS_ON_THE_WAY
        } else {
            ON_THE_WAY
        };
        // Deadline for leaving after the detach keys: a stopped process accepts none of the earlier
        // input.
        let mut leave_at: Option<Instant> = None;
        loop {
            let (out, full) = (self.is_out(), writes.len() >= most);
            let detached = leave_at.is_some();
            if detached && (out || full || writes.is_empty()) {
                return ForwardOutcome::Detached;
            }
            tokio::select! {
                biased;
                // The connection state decides whether Ctrl-C gives up.
                Ok(()) = self.connection.changed() => {}
                () = sleep_until(leave_at.unwrap_or_else(Instant::now)), if detached => {
                    return ForwardOutcome::Detached;
                }
                Some(written) = writes.next(), if !writes.is_empty() => match written {
                    Ok(WriteStatus::Accepted) => {}
                    Ok(WriteStatus::StdinClosed | WriteStatus::UnknownProcess | WriteStatus::Starting)
                    | Err(ProcessError::Terminated | ProcessError::Disconnected(_)) if detached => {
                        return ForwardOutcome::Detached;
                    }
                    // The key was in flight when the connection broke. Others may follow, such as
                    // the detach keys.
                    Err(ProcessError::Disconnected(_)) if self.raw => ring_bell(),
                    Ok(WriteStatus::StdinClosed | WriteStatus::UnknownProcess | WriteStatus::Starting)
                    // The process's events report its end.
                    | Err(ProcessError::Terminated | ProcessError::Disconnected(_)) => {
                        return ForwardOutcome::Ended;
                    }
                    Err(error) => return ForwardOutcome::Failed(error),
                },
                // Keys are read even if the process accepts none, because some are for us.
                read = self.input.read(), if !detached && (!full || self.raw) => {
                    // A read error counts as the end of input.
                    let mut data = read.unwrap_or_default();
                    if data.is_empty() {
                        if self.input.is_hung_up() {
                            return ForwardOutcome::HungUp;
                        }
                        break;
                    }
                    if out {
                        self.client.retry_now();
                    }
                    if self.raw && (out || full) && is_given_up(&data, &mut stop_requests) {
                        return ForwardOutcome::GivenUp;
                    }
                    if let Some(keys) = &mut self.keys {
                        data = match keys.match_typed(&data) {
                            KeyMatch::Keys(data) => data,
                            KeyMatch::Detach(data) => {
                                leave_at = Some(Instant::now() + LEAVING);
                                data
                            }
                        };
                    }
                    if full {
                        ring_bell();
                    } else if !data.is_empty() {
                        writes.push_back(self.process.write(None, data));
                    }
                }
            }
        }
        // Ordered after the pending writes.
        let closed = self.process.close_stdin(None);
        while let Some(written) = writes.next().await {
            match written {
                Ok(_) | Err(ProcessError::Terminated | ProcessError::Disconnected(_)) => {}
                Err(error) => return ForwardOutcome::Failed(error),
            }
        }
        drop(closed.await);
        ForwardOutcome::Ended
    }

    fn is_out(&self) -> bool {
        *self.connection.borrow() == ConnectionState::Reconnecting
    }
}

/// While the connection is lost, or the process accepts no input, Ctrl-C is for us.
fn is_given_up(keys: &[u8], stop_requests: &mut StopRequests) -> bool {
    let now = Instant::now();
    let mut presses = keys.iter().filter(|key| **key == INTERRUPT);
    presses.any(|_| stop_requests.is_exhausted(ProcessSignal::Interrupt, now))
}

/// Maximum keys of a sequence.
const MAX_KEYS: usize = 8;

/// Key sequence, such as `ctrl-p,ctrl-q`, and the matched prefix of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DetachKeys {
    keys: Vec<u8>,
    typed: usize,
}

/// Result of matching typed bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum KeyMatch {
    /// Bytes for the process. A prefix of the sequence is held back until it is decided.
    Keys(Bytes),
    /// The sequence was typed; these bytes came before it.
    Detach(Bytes),
}

impl DetachKeys {
    /// Matches typed bytes against the sequence.
    pub(crate) fn match_typed(&mut self, typed: &[u8]) -> KeyMatch {
        let mut passed = BytesMut::with_capacity(typed.len() + self.typed);
        for &key in typed {
            if key == self.keys[self.typed] {
                self.typed += 1;
                if self.typed == self.keys.len() {
                    self.typed = 0;
                    return KeyMatch::Detach(passed.freeze());
                }
                continue;
            }
            let matched = mem::take(&mut self.typed);
            passed.put_slice(&self.keys[..matched]);
            if key == self.keys[0] {
                self.typed = 1;
            } else {
                passed.put_u8(key);
            }
        }
        KeyMatch::Keys(passed.freeze())
    }
}

impl FromStr for DetachKeys {
    type Err = DetachKeysError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let keys = text.split(',').map(key).collect::<Result<Vec<_>, _>>()?;
        if keys.len() > MAX_KEYS {
            return Err(DetachKeysError::TooMany);
        }
        Ok(Self { keys, typed: 0 })
    }
}

fn key(text: &str) -> Result<u8, DetachKeysError> {
    let unknown = || DetachKeysError::Unknown(text.to_owned());
    let only = |text: &str| match text.as_bytes() {
        [key] if key.is_ascii_graphic() => Some(key.to_ascii_lowercase()),
        _ => None,
    };
    match text.strip_prefix("ctrl-") {
        Some(name) => match only(name).ok_or_else(unknown)? {
            letter @ b'a'..=b'z' => Ok(letter - b'a' + 1),
            b'@' => Ok(0),
            sign @ b'['..=b'_' => Ok(sign - b'[' + 27),
            _ => Err(unknown()),
        },
        None => match text.as_bytes() {
            [key] if key.is_ascii_graphic() => Ok(*key),
            _ => Err(unknown()),
        },
    }
}

/// Why a text is not a key sequence.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DetachKeysError {
    /// Caller: unknown key name.
    #[error("unknown key `{0}`: expected a character, or ctrl- and one of a-z @ [ \\ ] ^ _")]
    Unknown(String),
    /// Caller: too many keys.
    #[error("expected at most {MAX_KEYS} keys")]
    TooMany,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> DetachKeys {
        text.parse().unwrap()
    }

    fn passed(text: &'static [u8]) -> KeyMatch {
        KeyMatch::Keys(Bytes::from_static(text))
    }

    #[test]
    fn detach_sequence_is_found_across_reads_and_earlier_keys_are_forwarded() {
        let mut keys = keys("ctrl-p,ctrl-q");
        assert_eq!(keys.match_typed(b"ab"), passed(b"ab"));
        assert_eq!(keys.match_typed(b"c\x10"), passed(b"c"));
        let detach = KeyMatch::Detach(Bytes::new());
        assert_eq!(keys.match_typed(b"\x11rest"), detach);
    }

    #[test]
    fn partial_detach_sequence_is_forwarded_when_it_does_not_match() {
        let mut keys = keys("ctrl-p,ctrl-q");
        assert_eq!(keys.match_typed(b"\x10"), passed(b""));
        assert_eq!(keys.match_typed(b"x"), passed(b"\x10x"));
        assert_eq!(keys.match_typed(b"\x10\x10"), passed(b"\x10"));
        assert_eq!(keys.match_typed(b"\x11"), KeyMatch::Detach(Bytes::new()));
    }

    #[test]
    fn key_names_are_parsed() {
        assert_eq!(
            keys("ctrl-a,ctrl-@,ctrl-[,ctrl-_,d").keys,
            b"\x01\0\x1b\x1fd"
        );
        assert_eq!(keys("ctrl-A").keys, b"\x01");
        for wrong in ["", "ctrl-", "ctrl-1", "ab", "a,", "é"] {
            assert!(wrong.parse::<DetachKeys>().is_err(), "{wrong}");
        }
        let many = ["a"; 9].join(",");
        assert_eq!(many.parse::<DetachKeys>(), Err(DetachKeysError::TooMany));
    }
}
