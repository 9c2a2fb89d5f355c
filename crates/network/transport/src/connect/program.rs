//! A server that is started for one link, and ends with it.
//!
//! Its standard input and output are the link; what it says on standard error is logged. It leads a
//! process group of its own, which is ended when the link is dropped: SIGTERM, then SIGKILL for who
//! is still there. One task keeps the child ([`keeper`]); reader and writer of the link hold it
//! ([`link`]), and report how it ended.
//! Invariant: the group is never signalled after its leader was reaped, so that nobody else is hit.

mod child_task;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    ffi::{OsStr, OsString},
    fmt, fs, io,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    pin::Pin,
    process::{ExitStatus, Stdio},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use exec_wire::outgoing::Outgoing;
use futures_util::future::{FutureExt, Shared};
use tokio::{
    process::{ChildStdin, ChildStdout, Command},
    sync::oneshot,
    time::{Sleep, sleep},
};

use self::child_task::{ChildTask, ProcessGroup, StderrLines};
use super::ConnectError;
use crate::{
    lines,
    link::{Encoding, Link, MessageReader, MessageWriter, ReadError, Role},
};

/// A program that is a server on its standard input and output. `Debug` hides the values of its
/// environment.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Program {
    /// The program: a path, or a name that is looked for in `PATH`.
    pub program: OsString,
    /// What it is given.
    pub args: Vec<OsString>,
    /// Variables that it has beside those of this process, or instead of them.
    pub env: BTreeMap<OsString, OsString>,
    /// Where it works; where this process does, if absent.
    pub cwd: Option<PathBuf>,
}

impl Program {
    /// Describes a program without arguments.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            program: program.into(),
            ..Self::default()
        }
    }

    /// Starts it. It ends when the link is dropped, with its process group: SIGTERM, and SIGKILL two
    /// seconds later. Where the runtime ends before, it has less time.
    ///
    /// # Errors
    /// When it cannot be started. Then nothing runs.
    pub fn start(&self) -> Result<Link, ConnectError> {
        let mut command = Command::new(&self.program);
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        let child = command
            .args(&self.args)
            .envs(&self.env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn();
        let mut child = child.map_err(|source| self.start_error(source))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let stderr = StderrLines::new(child.stderr.take());
        let group = ProcessGroup::new(child).map_err(|source| self.start_error(source))?;
        let pipes = pipes.ok_or_else(|| self.start_error(io::ErrorKind::BrokenPipe.into()))?;
        let (handle, released) = ProgramHandle::new();
        let (exit, exited) = oneshot::channel();
        let task = ChildTask {
            program: self.name(),
            group,
            stderr,
            released,
            exit,
        };
        tokio::spawn(task.run());
        Ok(program_link(pipes, &handle, exited, &self.name()))
    }

    /// Tells a program that is not there from a directory that is not.
    fn start_error(&self, source: io::Error) -> ConnectError {
        let bad_directory = self.cwd.as_ref().and_then(|path| {
            let source = match fs::metadata(path) {
                Ok(found) if found.is_dir() => return None,
                Ok(_) => io::ErrorKind::NotADirectory.into(),
                Err(error) => error,
            };
            let path = path.clone();
            Some(ConnectError::WorkingDirectory { path, source })
        });
        bad_directory.unwrap_or_else(|| ConnectError::Start {
            program: self.name(),
            source,
        })
    }

    fn name(&self) -> String {
        self.program.to_string_lossy().into_owned()
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let env: Vec<&OsStr> = self.env.keys().map(OsString::as_os_str).collect();
        f.debug_struct("Program")
            .field("program", &self.program)
            .field("args", &self.args)
            .field("env", &env)
            .field("cwd", &self.cwd)
            .finish()
    }
}

/// How the program at the other end of a link ended.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Exit {
    /// What it left; unknown if it was given up.
    pub status: Option<ExitStatus>,
    /// The last line it wrote to standard error.
    pub last_words: Option<String>,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status.map(|status| (status.code(), status.signal())) {
            Some((Some(code), _)) => write!(f, "exited with status {code}")?,
            Some((None, Some(signal))) => write!(f, "was ended by signal {signal}")?,
            Some((None, None)) | None => f.write_str("ended")?,
        }
        match &self.last_words {
            Some(line) => write!(f, ": {line}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Exit {}

/// How far apart the end of a program and the end of its output may be. It may close its output and
/// live on, and others may hold its output when it is gone.
const MAX_EXIT_SKEW: Duration = Duration::from_secs(1);

/// Keeps a program for as long as it is held.
#[derive(Clone, Debug)]
struct ProgramHandle {
    _sender: Arc<oneshot::Sender<Infallible>>,
}

impl ProgramHandle {
    /// Makes a hold, and what resolves when its last clone is dropped.
    fn new() -> (Self, oneshot::Receiver<Infallible>) {
        let (sender, released) = oneshot::channel();
        let handle = Self {
            _sender: Arc::new(sender),
        };
        (handle, released)
    }
}

/// Makes a link of a program's input and output.
fn program_link(
    (input, output): (ChildStdin, ChildStdout),
    handle: &ProgramHandle,
    exit: oneshot::Receiver<Exit>,
    peer: &str,
) -> Link {
    let link = lines::link(output, input, Role::Client, peer);
    let exit = ExitFuture::Pending(exit.shared());
    Link {
        reader: Box::new(ProgramReader {
            lines: link.reader,
            output_ended: false,
            timeout: LazyTimeout::default(),
            exit: exit.clone(),
            _handle: handle.clone(),
        }),
        writer: Box::new(ProgramWriter {
            lines: link.writer,
            timeout: LazyTimeout::default(),
            exit,
            _handle: handle.clone(),
        }),
        ..link
    }
}

/// Messages from a program.
#[derive(Debug)]
struct ProgramReader {
    lines: Box<dyn MessageReader>,
    /// Whether its output has ended.
    output_ended: bool,
    timeout: LazyTimeout,
    exit: ExitFuture,
    _handle: ProgramHandle,
}

impl MessageReader for ProgramReader {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, ReadError>> {
        if !self.output_ended {
            match self.lines.poll_message(cx) {
                Poll::Ready(Ok(None)) => self.output_ended = true,
                Poll::Pending => {}
                message @ Poll::Ready(_) => return message,
            }
        }
        let exit = self.exit.poll_exit(cx);
        match (self.output_ended, &exit) {
            (false, Poll::Pending) => return Poll::Pending,
            (true, Poll::Ready(_)) => {}
            (true, Poll::Pending) | (false, Poll::Ready(_)) => {
                ready!(self.timeout.poll_elapsed(cx))
            }
        }
        Poll::Ready(match exit {
            Poll::Ready(exit) => Err(ReadError::Exited(exit)),
            Poll::Pending => Ok(None),
        })
    }
}

/// Messages to a program.
#[derive(Debug)]
struct ProgramWriter {
    lines: Box<dyn MessageWriter>,
    timeout: LazyTimeout,
    exit: ExitFuture,
    _handle: ProgramHandle,
}

impl ProgramWriter {
    /// Waits for the reason why nobody reads any more.
    fn poll_exit_reason(
        &mut self,
        cx: &mut Context<'_>,
        written: io::Result<()>,
    ) -> Poll<io::Result<()>> {
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                let Poll::Ready(exit) = self.exit.poll_exit(cx) else {
                    ready!(self.timeout.poll_elapsed(cx));
                    return Poll::Ready(Err(error));
                };
                Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::BrokenPipe,
                    ReadError::Exited(exit),
                )))
            }
            written => Poll::Ready(written),
        }
    }
}

impl MessageWriter for ProgramWriter {
    fn push(&mut self, message: Outgoing, encoding: Encoding) {
        self.lines.push(message, encoding);
    }

    fn buffered(&self) -> usize {
        self.lines.buffered()
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = ready!(self.lines.poll_flush(cx));
        self.poll_exit_reason(cx, written)
    }

    fn poll_upkeep(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.lines.poll_upkeep(cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = ready!(self.lines.poll_close(cx));
        self.poll_exit_reason(cx, written)
    }
}

/// How the program ended, for whoever asks.
#[derive(Clone, Debug)]
enum ExitFuture {
    Pending(Shared<oneshot::Receiver<Exit>>),
    Ready(Exit),
}

impl ExitFuture {
    fn poll_exit(&mut self, cx: &mut Context<'_>) -> Poll<Exit> {
        let exit = match self {
            Self::Ready(exit) => exit.clone(),
            Self::Pending(exit) => {
                // Its keeper is gone without a word when the runtime is shut down.
                let exit = ready!(Pin::new(exit).poll(cx)).unwrap_or_default();
                *self = Self::Ready(exit.clone());
                exit
            }
        };
        Poll::Ready(exit)
    }
}

/// A wait that begins when it is first asked for.
#[derive(Debug, Default)]
struct LazyTimeout(Option<Pin<Box<Sleep>>>);

impl LazyTimeout {
    /// Resolves when patience has run out.
    fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let wait = self.0.get_or_insert_with(|| Box::pin(sleep(MAX_EXIT_SKEW)));
        wait.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_shows_status_and_last_stderr_line() {
        let exit = |raw, words: Option<&str>| Exit {
            status: Some(ExitStatus::from_raw(raw)),
            last_words: words.map(str::to_owned),
        };
        assert_eq!(exit(0, None).to_string(), "exited with status 0");
        assert_eq!(
            exit(1 << 8, Some("no")).to_string(),
            "exited with status 1: no"
        );
        assert_eq!(exit(9, None).to_string(), "was ended by signal 9");
    }
}
