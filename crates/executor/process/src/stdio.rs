//! A child's standard descriptors: pipes or a terminal, with the parent's ends registered with
//! tokio.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Weak},
};

use exec_spawn::keeper::{KeeperSlot, SlotDescriptor};
use exec_wire::{
    id::WriteId,
    process::{OutputStream, TerminalSize},
};
use rustix::{
    fs::{Mode, OFlags, fcntl_setfl},
    pipe::{PipeFlags, fcntl_setpipe_size, pipe_with},
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{SpecialCodeIndex, Winsize, tcgetattr, tcsetwinsize},
};
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    child_input::ChildInput,
    durable_record::{DurableRecord, HoldingPipe},
    journaled_stdin::{JournaledStdin, JournaledTarget},
    launch::LaunchStdio,
    process_task::{OutputKind, OutputReader},
    spawner::CommandStdio,
    stdin_queue::StdinQueue,
};

/// Capacity of an enlarged pipe, so that a busy child keeps writing while the server reads.
pub(crate) const LARGE_BYTES: usize = 256 << 10;

/// Both ends of a child's standard descriptors.
pub(crate) struct StdioEnds {
    pub(crate) parent: ParentEnds,
    pub(crate) child: CommandStdio,
}

#[derive(Debug)]
pub(crate) enum ParentEnds {
    /// Absent: the child has no such pipe, or the pipe is at its end.
    Pipes {
        stdin: Option<OwnedFd>,
        stdout: Option<OwnedFd>,
        stderr: Option<OwnedFd>,
    },
    Terminal(OwnedFd),
}

impl StdioEnds {
    pub(crate) fn open(kind: LaunchStdio) -> io::Result<Self> {
        if let LaunchStdio::Terminal(size) = kind {
            let (parent, child) = open_terminal(size)?;
            let fds = [child.try_clone()?, child.try_clone()?, child];
            return Ok(Self {
                parent: ParentEnds::Terminal(parent),
                child: CommandStdio {
                    fds,
                    terminal: true,
                },
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
                stdout: Some(stdout),
                stderr: Some(stderr),
            },
            child: CommandStdio {
                fds: [child_stdin, child_stdout, child_stderr],
                terminal: false,
            },
        })
    }
}

pub(crate) type RegisteredEnds = (
    Box<dyn ChildInput>,
    Vec<OutputReader>,
    Option<Weak<AsyncFd<OwnedFd>>>,
);

/// Where input of a child is written to.
enum InputEnd {
    /// The child has no stdin, or the pipe is at its end.
    Closed,
    Pipe(Arc<AsyncFd<OwnedFd>>),
    Terminal(Arc<AsyncFd<OwnedFd>>),
}

impl InputEnd {
    fn terminal(&self) -> Option<Weak<AsyncFd<OwnedFd>>> {
        match self {
            Self::Terminal(fd) => Some(Arc::downgrade(fd)),
            Self::Closed | Self::Pipe(_) => None,
        }
    }
}

impl ParentEnds {
    /// Registers the parent's ends with tokio.
    pub(crate) fn register(self) -> io::Result<RegisteredEnds> {
        let (input, sources) = self.split()?;
        let terminal = input.terminal();
        let queue = match input {
            InputEnd::Closed => StdinQueue::none(),
            InputEnd::Pipe(fd) => StdinQueue::pipe(fd),
            InputEnd::Terminal(fd) => StdinQueue::terminal(fd),
        };
        Ok((Box::new(queue), sources, terminal))
    }

    /// Registers the ends for input and output.
    fn split(self) -> io::Result<(InputEnd, Vec<OutputReader>)> {
        let register = |fd, interest| register(fd, interest).map(Arc::new);
        match self {
            Self::Pipes {
                stdin,
                stdout,
                stderr,
            } => {
                let input = match stdin {
                    Some(fd) => InputEnd::Pipe(register(fd, Interest::WRITABLE)?),
                    None => InputEnd::Closed,
                };
                let outputs = [
                    (stdout, OutputStream::Stdout),
                    (stderr, OutputStream::Stderr),
                ];
                let mut sources = Vec::new();
                for (fd, stream) in outputs {
                    let Some(fd) = fd else { continue };
                    let fd = register(fd, Interest::READABLE)?;
                    sources.push(OutputReader::new(fd, OutputKind::Pipe(stream)));
                }
                Ok((input, sources))
            }
            Self::Terminal(fd) => {
                let fd = register(fd, Interest::READABLE | Interest::WRITABLE)?;
                let source = OutputReader::new(Arc::clone(&fd), OutputKind::Terminal);
                Ok((InputEnd::Terminal(fd), vec![source]))
            }
        }
    }
}

/// The server's ends of a durable child's descriptors.
#[derive(Debug)]
pub(crate) struct DurableEnds {
    pub(crate) ends: ParentEnds,
    /// Pipes behind and in front of a terminal: for output and for input.
    pub(crate) holding_pipes: Option<[HoldingPipe; 2]>,
}

impl DurableEnds {
    /// Adds the holding pipes of a terminal.
    pub(crate) fn new(ends: ParentEnds) -> io::Result<Self> {
        let holding_pipes = match ends {
            ParentEnds::Pipes { .. } => None,
            ParentEnds::Terminal(_) => Some([HoldingPipe::open()?, HoldingPipe::open()?]),
        };
        Ok(Self {
            ends,
            holding_pipes,
        })
    }

    /// Returns the descriptors that the keeper must hold, with their purposes.
    pub(crate) fn slots(&self) -> Vec<SlotDescriptor<'_>> {
        let mut slots = match &self.ends {
            ParentEnds::Pipes {
                stdin,
                stdout,
                stderr,
            } => {
                let mut slots = Vec::new();
                slots.extend(stdin.as_ref().map(|fd| (KeeperSlot::Stdin, fd.as_fd())));
                slots.extend(stdout.as_ref().map(|fd| (KeeperSlot::Stdout, fd.as_fd())));
                slots.extend(stderr.as_ref().map(|fd| (KeeperSlot::Stderr, fd.as_fd())));
                slots
            }
            ParentEnds::Terminal(fd) => vec![(KeeperSlot::Terminal, fd.as_fd())],
        };
        if let Some([output, input]) = &self.holding_pipes {
            slots.extend([
                (KeeperSlot::HoldRead, output.read.as_fd()),
                (KeeperSlot::HoldWrite, output.write.as_fd()),
                (KeeperSlot::InputHoldRead, input.read.as_fd()),
                (KeeperSlot::InputHoldWrite, input.write.as_fd()),
            ]);
        }
        slots
    }

    /// Takes the descriptors that the keeper has held. `None`: some are missing.
    pub(crate) fn from_slots(held: &mut BTreeMap<KeeperSlot, OwnedFd>) -> Option<Self> {
        let mut take = |slot| held.remove(&slot);
        let Some(terminal) = take(KeeperSlot::Terminal) else {
            let ends = ParentEnds::Pipes {
                stdin: take(KeeperSlot::Stdin),
                stdout: take(KeeperSlot::Stdout),
                stderr: take(KeeperSlot::Stderr),
            };
            return Some(Self {
                ends,
                holding_pipes: None,
            });
        };
        let mut pipe = |read, write| {
            Some(HoldingPipe {
                read: take(read)?,
                write: take(write)?,
            })
        };
        let output = pipe(KeeperSlot::HoldRead, KeeperSlot::HoldWrite)?;
        let input = pipe(KeeperSlot::InputHoldRead, KeeperSlot::InputHoldWrite)?;
        Some(Self {
            ends: ParentEnds::Terminal(terminal),
            holding_pipes: Some([output, input]),
        })
    }

    /// Registers the ends with tokio. Output and input go through the journal of `record`;
    /// `accepted` and `ended` describe input that an earlier server has accepted.
    pub(crate) fn register(
        self,
        record: &Arc<DurableRecord>,
        accepted: Vec<WriteId>,
        ended: bool,
    ) -> io::Result<RegisteredEnds> {
        let (input, sources) = self.ends.split()?;
        let terminal = input.terminal();
        let (mut output_pipe, input_pipe) = match self.holding_pipes {
            Some([output, input]) => (Some(output), Some(input)),
            None => (None, None),
        };
        let target = match (input, input_pipe) {
            (InputEnd::Pipe(fd), _) => JournaledTarget::Pipe(fd),
            (InputEnd::Terminal(fd), Some(pipe)) => JournaledTarget::Terminal(fd, pipe),
            (InputEnd::Closed, _) | (InputEnd::Terminal(_), None) => JournaledTarget::Closed,
        };
        let journaled =
            |reader: OutputReader| reader.journaled(Arc::clone(record), output_pipe.take());
        let sources = sources.into_iter().map(journaled).collect();
        let input = JournaledStdin::new(Arc::clone(record), target, accepted, ended);
        Ok((Box::new(input), sources, terminal))
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
