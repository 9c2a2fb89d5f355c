//! A child's standard descriptors: pipes and terminals, our ends registered with the runtime.

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
    launch::LaunchIo,
    process_task::{OutputKind, OutputReader},
    stdin_queue::StdinQueue,
};

/// Capacity of a pipe that carries much: the child then writes while we read.
pub(crate) const LARGE_BYTES: usize = 256 << 10;

/// Both ends of a child's standard descriptors.
pub(crate) struct StdioEnds {
    pub(crate) ours: ParentEnds,
    pub(crate) theirs: [OwnedFd; 3],
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
    pub(crate) fn open(kind: LaunchIo) -> io::Result<Self> {
        if let LaunchIo::Terminal(size) = kind {
            let (ours, theirs) = open_terminal(size)?;
            let theirs = [theirs.try_clone()?, theirs.try_clone()?, theirs];
            return Ok(Self {
                ours: ParentEnds::Terminal(ours),
                theirs,
                terminal: true,
            });
        }
        let (stdin, their_stdin) = if kind == LaunchIo::PipesWithStdin {
            let (ours, theirs) = pipe_to_child()?;
            (Some(ours), theirs)
        } else {
            (None, open_null()?)
        };
        let (stdout, their_stdout) = pipe_from_child()?;
        let (stderr, their_stderr) = pipe_from_child()?;
        Ok(Self {
            ours: ParentEnds::Pipes {
                stdin,
                stdout,
                stderr,
            },
            theirs: [their_stdin, their_stdout, their_stderr],
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
    /// Hands our ends to the runtime.
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

/// A pipe that the child writes: our end, its end.
fn pipe_from_child() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    fcntl_setfl(&read, OFlags::NONBLOCK)?;
    Ok((read, write))
}

/// A pipe that the child reads: our end, its end.
pub(crate) fn pipe_to_child() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    fcntl_setfl(&write, OFlags::NONBLOCK)?;
    Ok((write, read))
}

/// Makes a busy pipe larger. An account has a budget for that; beyond it, pipes stay as they are.
pub(crate) fn enlarge(pipe: &OwnedFd) {
    if let Err(errno) = fcntl_setpipe_size(pipe, LARGE_BYTES) {
        tracing::debug!(%errno, "pipe stays small");
    }
}

/// Opens the device that reads as empty.
pub(crate) fn open_null() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(
        "/dev/null",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// A new terminal of this size: our end, the child's end.
pub(crate) fn open_terminal(size: TerminalSize) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let theirs = ioctl_tiocgptpeer(&ours, flags)?;
    resize(&ours, size)?;
    fcntl_setfl(&ours, OFlags::NONBLOCK)?;
    Ok((ours, theirs))
}

/// Sets the size; the foreground process group is told.
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

/// Returns the character that means end of file, as the terminal is set now.
pub(crate) fn end_of_file(terminal: impl AsFd) -> u8 {
    const CONTROL_D: u8 = 4;
    tcgetattr(terminal).map_or(CONTROL_D, |settings| {
        settings.special_codes[SpecialCodeIndex::VEOF]
    })
}

/// Registers a descriptor. One that is not in non-blocking mode must be polled before it is used.
///
/// # Errors
/// When it cannot be waited for, as a file cannot.
#[expect(unsafe_code, reason = "tokio has no safe call that takes an `OwnedFd`")]
pub fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` returns the same descriptor for as long as it lives, and owns it.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(Into::into)
}
