//! A child's standard descriptors: pipes or a terminal, with the parent's ends registered with
//! tokio.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Weak},
};

use exec_wire::process::{OutputStream, TerminalSize};
use rustix::{
    fs::{Mode, OFlags, fcntl_setfl},
    pipe::{PipeFlags, fcntl_setpipe_size, pipe_with},
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{SpecialCodeIndex, Winsize, tcgetattr, tcsetwinsize},
};
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    launch::LaunchStdio,
    process_task::{OutputKind, OutputReader},
    stdin_queue::StdinQueue,
};

/// Capacity of an enlarged pipe, so that a busy child keeps writing while the server reads.
pub(crate) const LARGE_BYTES: usize = 256 << 10;

/// Both ends of a child's standard descriptors.
pub(crate) struct StdioEnds {
    pub(crate) parent: ParentEnds,
    pub(crate) child: [OwnedFd; 3],
    pub(crate) terminal: bool,
}

pub(crate) enum ParentEnds {
    Pipes {
        stdin: Option<OwnedFd>,
        stdout: OwnedFd,
        stderr: OwnedFd,
    },
    Terminal(OwnedFd),
}

impl StdioEnds {
    pub(crate) fn open(kind: LaunchStdio) -> io::Result<Self> {
        if let LaunchStdio::Terminal(size) = kind {
            let (parent, child) = open_terminal(size)?;
            let child = [child.try_clone()?, child.try_clone()?, child];
            return Ok(Self {
                parent: ParentEnds::Terminal(parent),
                child,
                terminal: true,
            });
        }
        let (stdin, child_stdin) = if kind == LaunchStdio::PipesWithStdin {
            let (parent, child) = pipe_to_child()?;
            (Some(parent), child)
        } else {
            (None, open_null()?)
        };
        let (stdout, child_stdout) = pipe_from_child()?;
        let (stderr, child_stderr) = pipe_from_child()?;
        Ok(Self {
            parent: ParentEnds::Pipes {
                stdin,
                stdout,
                stderr,
            },
            child: [child_stdin, child_stdout, child_stderr],
            terminal: false,
        })
    }
}

pub(crate) type RegisteredEnds = (
    StdinQueue,
    Vec<OutputReader>,
    Option<Weak<AsyncFd<OwnedFd>>>,
);

impl ParentEnds {
    /// Registers the parent's ends with tokio.
    pub(crate) fn register(self) -> io::Result<RegisteredEnds> {
        match self {
            Self::Pipes {
                stdin,
                stdout,
                stderr,
            } => {
                let register = |fd, interest| register(fd, interest).map(Arc::new);
                let input = match stdin {
                    Some(fd) => StdinQueue::pipe(register(fd, Interest::WRITABLE)?),
                    None => StdinQueue::none(),
                };
                let stdout = register(stdout, Interest::READABLE)?;
                let stderr = register(stderr, Interest::READABLE)?;
                let sources = vec![
                    OutputReader::new(stdout, OutputKind::Pipe(OutputStream::Stdout)),
                    OutputReader::new(stderr, OutputKind::Pipe(OutputStream::Stderr)),
                ];
                Ok((input, sources, None))
            }
            Self::Terminal(fd) => {
                let fd = Arc::new(register(fd, Interest::READABLE | Interest::WRITABLE)?);
                let terminal = Arc::downgrade(&fd);
                let input = StdinQueue::terminal(Arc::clone(&fd));
                Ok((
                    input,
                    vec![OutputReader::new(fd, OutputKind::Terminal)],
                    Some(terminal),
                ))
            }
        }
    }
}

/// Creates a pipe that the child writes to. Returns the parent's end, then the child's.
fn pipe_from_child() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    fcntl_setfl(&read, OFlags::NONBLOCK)?;
    Ok((read, write))
}

/// Creates a pipe that the child reads from. Returns the parent's end, then the child's.
pub(crate) fn pipe_to_child() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    fcntl_setfl(&write, OFlags::NONBLOCK)?;
    Ok((write, read))
}

/// Enlarges a busy pipe. The kernel limits the total per account; beyond that the pipe keeps its
/// size.
pub(crate) fn enlarge(pipe: &OwnedFd) {
    if let Err(errno) = fcntl_setpipe_size(pipe, LARGE_BYTES) {
        tracing::debug!(%errno, "failed to enlarge pipe");
    }
}

/// Opens `/dev/null`.
pub(crate) fn open_null() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(
        "/dev/null",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// Opens a terminal of this size. Returns the parent's end, then the child's.
pub(crate) fn open_terminal(size: TerminalSize) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let parent = openpt(flags)?;
    grantpt(&parent)?;
    unlockpt(&parent)?;
    let child = ioctl_tiocgptpeer(&parent, flags)?;
    resize(&parent, size)?;
    fcntl_setfl(&parent, OFlags::NONBLOCK)?;
    Ok((parent, child))
}

/// Sets the terminal size. The kernel sends SIGWINCH to the foreground process group.
pub(crate) fn resize(terminal: impl AsFd, size: TerminalSize) -> io::Result<()> {
    let TerminalSize { rows, cols } = size;
    let size = Winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(tcsetwinsize(terminal, size)?)
}

/// Returns the terminal's current end-of-file character.
pub(crate) fn end_of_file(terminal: impl AsFd) -> u8 {
    const CONTROL_D: u8 = 4;
    tcgetattr(terminal).map_or(CONTROL_D, |settings| {
        settings.special_codes[SpecialCodeIndex::VEOF]
    })
}

/// Registers a descriptor with tokio. A blocking descriptor must be polled before each use.
///
/// # Errors
/// Fails if the descriptor cannot be polled, such as a regular file.
#[expect(unsafe_code, reason = "tokio has no safe call that takes an `OwnedFd`")]
pub fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` owns its descriptor and returns the same number for as long as it lives.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(Into::into)
}
