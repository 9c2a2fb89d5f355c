//! Standard input, read only when somebody takes the bytes.
//! Invariant: nothing is read ahead, no thread waits in a read, and the descriptor's flags, which
//! other programs share, stay as they are.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use bytes::{Bytes, BytesMut};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FileType, fstat, major, minor},
    io::Errno,
};
use tokio::io::{Interest, unix::AsyncFd};

use crate::command::terminal::Standard;

/// Most that is read at once.
const READ_BYTES: usize = 64 << 10;

/// Standard input.
#[derive(Debug)]
pub(crate) struct Input {
    source: Source,
    /// Asked when it is opened: a terminal that was hung up does not look like one any more.
    terminal: bool,
}

#[derive(Debug)]
enum Source {
    /// Something that can be waited for: a pipe, a terminal, a socket.
    Waited(AsyncFd<OwnedFd>),
    /// Something that never makes a reader wait: a file.
    Plain(BorrowedFd<'static>),
}

impl Input {
    /// Takes standard input; `None` if there can be nothing in it.
    pub(crate) fn open() -> io::Result<Option<Self>> {
        let fd = Standard::Input.fd();
        if is_null(fd) {
            return Ok(None);
        }
        let terminal = Standard::Input.is_terminal();
        let source = match exec_process::register(fd.try_clone_to_owned()?, Interest::READABLE) {
            Ok(waited) => Source::Waited(waited),
            Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
                Source::Plain(fd)
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
        let Source::Waited(waited) = &self.source else {
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
                Source::Plain(fd) => match read(*fd) {
                    Err(Errno::INTR) => {}
                    outcome => return Ok(outcome?),
                },
                Source::Waited(waited) => {
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
