//! Standard input, read only when somebody takes the bytes.
//! Invariant: nothing is read ahead, no thread waits in a read, and the descriptor's flags, which
//! other programs share, stay as they are.

use std::{
    io, mem,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    str::FromStr,
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use exec_client::{client::ExecServerClient, connection::ConnectionState};
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

/// Most that is read at once.
const READ_BYTES: usize = 64 << 10;

/// Standard input.
#[derive(Debug)]
pub(crate) struct StdinReader {
    source: StdinSource,
    /// Asked when it is opened: a terminal that was hung up does not look like one any more.
    terminal: bool,
}

#[derive(Debug)]
enum StdinSource {
    /// Something that can be waited for: a pipe, a terminal, a socket.
    Waited(AsyncFd<OwnedFd>),
    /// Something that never makes a reader wait: a file.
    Plain(BorrowedFd<'static>),
}

impl StdinReader {
    /// Takes standard input; `None` if there can be nothing in it.
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

    /// Tells whether it is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Tells whether it ended because its window was closed. An end that a person typed is none.
    pub(crate) fn is_hung_up(&self) -> bool {
        let StdinSource::Waited(waited) = &self.source else {
            return false;
        };
        let mut asked = [PollFd::new(waited.get_ref(), PollFlags::IN)];
        let polled = poll(&mut asked, Some(&Timespec::default()));
        let gone = PollFlags::HUP | PollFlags::ERR;
        self.terminal && polled.is_ok() && asked[0].revents().intersects(gone)
    }

    /// Reads what there is; empty at the end. Dropping the future loses nothing.
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
                    // Whether it is ready is told once, not as long as it is; and a read that finds
                    // nothing would wait.
                    if !is_readable(fd)? {
                        ready.clear_ready();
                        continue;
                    }
                    let read = read(fd);
                    match read {
                        Err(Errno::INTR) => {}
                        Err(Errno::AGAIN) => ready.clear_ready(),
                        // A terminal whose other side is gone.
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
    // Of a keystroke nobody keeps 64 KiB.
    Ok(match read < READ_BYTES / 4 {
        true => Bytes::copy_from_slice(&buffer),
        false => buffer.freeze(),
    })
}

fn is_readable(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut asked = [PollFd::new(&fd, PollFlags::IN)];
    match poll(&mut asked, Some(&Timespec::default())) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Tells whether a descriptor is `/dev/null`: no need to tell a command that its input ended.
fn is_null(fd: BorrowedFd<'_>) -> bool {
    fstat(fd).is_ok_and(|found| {
        FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice
            && (major(found.st_rdev), minor(found.st_rdev)) == (1, 3)
    })
}

/// Writes that may be on their way: enough to fill a long line, and few enough that a process which
/// does not read soon pauses whoever writes to us.
const ON_THE_WAY: usize = 8;
/// The same for keys, which are small.
const KEYS_ON_THE_WAY: usize = 64;
/// What Ctrl-C is on a raw terminal.
const INTERRUPT: u8 = 3;
const BELL: &[u8] = b"\x07";
/// How long what was typed before the keys that leave may take to reach the process.
const LEAVING: Duration = Duration::from_millis(500);

/// Our input, on its way to a process.
#[derive(Debug)]
pub(super) struct InputForwarder<'a> {
    pub(super) process: &'a dyn ExecProcess,
    pub(super) input: StdinReader,
    pub(super) keys: Option<DetachKeys>,
    /// Keys come as they are pressed.
    pub(super) raw: bool,
    pub(super) connection: watch::Receiver<ConnectionState>,
    /// Connects again at once when a key is pressed.
    pub(super) client: ExecServerClient,
}

/// Why nothing more is passed on.
#[derive(Debug)]
pub(super) enum ForwardOutcome {
    /// Our input ended, or the process takes no more.
    Ended,
    /// Somebody typed the keys for it.
    Detached,
    /// The window was closed.
    HungUp,
    /// Somebody pressed Ctrl-C often enough while the keys reached nobody.
    GivenUp,
    /// Something that was read could not be passed on.
    Failed(ProcessError),
}

/// Tells that a key was lost, as a terminal does when it has no room for one.
fn ring() {
    drop(write_all(StandardStream::Error.fd(), BELL));
}

impl InputForwarder<'_> {
    pub(super) async fn run(mut self) -> ForwardOutcome {
        let mut writes = FuturesOrdered::new();
        let mut patience = StopRequests::default();
        let most = if self.raw {
            KEYS_ON_THE_WAY
        } else {
            ON_THE_WAY
        };
        // When somebody who typed the keys for it leaves at the latest: a process that is stopped takes
        // nothing of what was typed before.
        let mut leave_at: Option<Instant> = None;
        loop {
            let (out, full) = (self.is_out(), writes.len() >= most);
            let detached = leave_at.is_some();
            if detached && (out || full || writes.is_empty()) {
                return ForwardOutcome::Detached;
            }
            tokio::select! {
                biased;
                // Who may leave changes with it.
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
                    // A key that was on its way when the connection broke. Others may follow, if only those
                    // that leave.
                    Err(ProcessError::Disconnected(_)) if self.raw => ring(),
                    Ok(WriteStatus::StdinClosed | WriteStatus::UnknownProcess | WriteStatus::Starting)
                    // What became of the process is told by its events.
                    | Err(ProcessError::Terminated | ProcessError::Disconnected(_)) => {
                        return ForwardOutcome::Ended;
                    }
                    Err(error) => return ForwardOutcome::Failed(error),
                },
                // Keys are looked at also when the process takes none: some of them are for us.
                read = self.input.read(), if !detached && (!full || self.raw) => {
                    // There is nothing to be read where nothing can be.
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
                    if self.raw && (out || full) && is_given_up(&data, &mut patience) {
                        return ForwardOutcome::GivenUp;
                    }
                    if let Some(keys) = &mut self.keys {
                        data = match keys.metadata_if_exists(&data) {
                            KeyMatch::Keys(data) => data,
                            KeyMatch::Detach(data) => {
                                leave_at = Some(Instant::now() + LEAVING);
                                data
                            }
                        };
                    }
                    if full {
                        ring();
                    } else if !data.is_empty() {
                        writes.push_back(self.process.write(None, data));
                    }
                }
            }
        }
        // Its place is behind the writes.
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

/// Keys reach nobody while the connection is out, or the process takes none: Ctrl-C is then for us.
fn is_given_up(keys: &[u8], patience: &mut StopRequests) -> bool {
    let now = Instant::now();
    let mut presses = keys.iter().filter(|key| **key == INTERRUPT);
    presses.any(|_| patience.is_over(ProcessSignal::Interrupt, now))
}

/// Most keys in a sequence.
const MAX_KEYS: usize = 8;

/// A sequence of keys, such as `ctrl-p,ctrl-q`, and how much of it was typed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DetachKeys {
    keys: Vec<u8>,
    typed: usize,
}

/// What was typed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum KeyMatch {
    /// Keys for the process. A beginning of the sequence is kept back until it is clear what it is.
    Keys(Bytes),
    /// The sequence; these came before it.
    Detach(Bytes),
}

impl DetachKeys {
    /// Looks at what was typed.
    pub(crate) fn metadata_if_exists(&mut self, typed: &[u8]) -> KeyMatch {
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
            let kept = mem::take(&mut self.typed);
            passed.put_slice(&self.keys[..kept]);
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
        Some(rest) => match only(rest).ok_or_else(unknown)? {
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

/// Why a text is no sequence of keys.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DetachKeysError {
    /// Caller: a key that there is no name for.
    #[error("`{0}` is no key: expected a character, or ctrl- and one of a-z @ [ \\ ] ^ _")]
    Unknown(String),
    /// Caller: nobody would type that.
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
    fn the_sequence_is_found_across_reads_and_what_came_before_it_is_passed_on() {
        let mut keys = keys("ctrl-p,ctrl-q");
        assert_eq!(keys.metadata_if_exists(b"ab"), passed(b"ab"));
        assert_eq!(keys.metadata_if_exists(b"c\x10"), passed(b"c"));
        let left = KeyMatch::Detach(Bytes::new());
        assert_eq!(keys.metadata_if_exists(b"\x11rest"), left);
    }

    #[test]
    fn a_beginning_that_goes_on_otherwise_is_passed_on_whole() {
        let mut keys = keys("ctrl-p,ctrl-q");
        assert_eq!(keys.metadata_if_exists(b"\x10"), passed(b""));
        assert_eq!(keys.metadata_if_exists(b"x"), passed(b"\x10x"));
        assert_eq!(keys.metadata_if_exists(b"\x10\x10"), passed(b"\x10"));
        assert_eq!(
            keys.metadata_if_exists(b"\x11"),
            KeyMatch::Detach(Bytes::new())
        );
    }

    #[test]
    fn keys_have_names() {
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
