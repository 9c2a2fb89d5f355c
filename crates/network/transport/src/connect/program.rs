//! A server program that is started for one link and stopped with it.
//!
//! The program's stdin and stdout are the link; its stderr lines are logged. It leads its own
//! process group. Dropping the link stops the group: SIGTERM, then SIGKILL. The task in
//! [`child_task`] owns the child; reader and writer of the link keep it alive and report its exit.
//! Invariant: the group is never signalled after its leader was reaped, so no unrelated process is
//! hit.

mod child_task;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    ffi::{OsStr, OsString},
    fmt, fs,
    future::poll_fn,
    io,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    pin::Pin,
    process::{ExitStatus, Stdio},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use exec_wire::outgoing_message::OutgoingMessage;
use futures_util::future::{FutureExt, Shared};
use rustix::process::Pid;
use tokio::{
    io::{Join, join},
    process::{ChildStdin, ChildStdout, Command},
    sync::oneshot,
    time::{Sleep, sleep, timeout},
};

use self::child_task::{ChildTask, ProcessGroup, StderrLines};
use super::{ConnectError, websocket_connector};
use crate::{
    lines,
    link::{DataEncoding, Link, LinkReadError, LinkRole, MessageReader, MessageWriter},
    websocket::{LinkOptions, UpgradedStream},
};

/// A program that serves on its stdin and stdout. `Debug` hides the values of its environment.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct ServerProgram {
    /// The program: a path, or a name to look up in `PATH`.
    pub program: OsString,
    /// Command-line arguments.
    pub args: Vec<OsString>,
    /// Variables added to, or overriding, the environment of this process.
    pub env: BTreeMap<OsString, OsString>,
    /// Working directory. Default: that of this process.
    pub cwd: Option<PathBuf>,
}

impl ServerProgram {
    /// Describes a program without arguments.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            program: program.into(),
            ..Self::default()
        }
    }

    /// Starts the program. When the link is dropped, its process group gets SIGTERM, and SIGKILL
    /// two seconds later. The grace period is shorter if the runtime shuts down first.
    ///
    /// # Errors
    /// Fails if the program cannot be started. Then nothing runs.
    pub fn start(&self) -> Result<Link, ConnectError> {
        self.open().map(ProgramPipes::into_link)
    }

    /// Starts the program for a conversation that comes before the protocol. Dropping the pipes
    /// stops it as [`ServerProgram::start`] says.
    ///
    /// # Errors
    /// Fails if the program cannot be started. Then nothing runs.
    pub fn open(&self) -> Result<ProgramPipes, ConnectError> {
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
        let (input, output) =
            pipes.ok_or_else(|| self.start_error(io::ErrorKind::BrokenPipe.into()))?;
        let leader = group.leader();
        let (handle, released) = oneshot::channel();
        let (exit, exited) = oneshot::channel();
        let task = ChildTask {
            program: self.name(),
            group,
            stderr,
            released,
            exit,
        };
        tokio::spawn(task.run());
        Ok(ProgramPipes {
            stream: join(output, input),
            handle: Arc::new(handle),
            exit: ExitFuture::Pending(exited.shared()),
            name: self.name(),
            group: leader,
        })
    }

    /// Distinguishes a missing program from an unusable working directory.
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

impl fmt::Debug for ServerProgram {
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

/// How the program at the other end of a link exited.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ProgramExit {
    /// Exit status. `None` if it was not observed.
    pub status: Option<ExitStatus>,
    /// The last lines it wrote to standard error.
    pub stderr_lines: Vec<String>,
}

impl fmt::Display for ProgramExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status.map(|status| (status.code(), status.signal())) {
            Some((Some(code), _)) => write!(f, "exited with status {code}")?,
            Some((None, Some(signal))) => write!(f, "was killed by signal {signal}")?,
            Some((None, None)) | None => f.write_str("ended")?,
        }
        match self.stderr_lines.last() {
            Some(line) => write!(f, ": {line}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ProgramExit {}

/// How far the exit of a program and the end of its output may be apart. A program may close its
/// stdout and run on, and a descendant may keep stdout open after it has exited.
const MAX_EXIT_SKEW: Duration = Duration::from_secs(1);

/// Keeps the child running until the last clone is dropped.
type ProgramHandle = Arc<oneshot::Sender<Infallible>>;

/// Stdin and stdout of a program that does not speak the protocol yet. Dropping it stops the
/// program.
#[derive(Debug)]
pub struct ProgramPipes {
    /// Reads its stdout and writes its stdin.
    pub stream: Join<ChildStdout, ChildStdin>,
    handle: ProgramHandle,
    exit: ExitFuture,
    name: String,
    group: Pid,
}

impl ProgramPipes {
    /// Returns the process group of the program.
    pub fn group(&self) -> Pid {
        self.group
    }

    /// Waits until the program has exited. Cancel safe.
    pub async fn exit(&mut self) -> ProgramExit {
        poll_fn(|cx| self.exit.poll_exit(cx)).await
    }

    /// Makes a link of a program that speaks the protocol from now on, one message a line.
    pub fn into_link(self) -> Link {
        let (output, input) = self.stream.into_inner();
        let link = lines::link(output, input, LinkRole::Client, &self.name);
        program_link(link, self.handle, self.exit)
    }

    /// Makes a link of a program that passes bytes to a websocket server from now on.
    ///
    /// # Errors
    /// Fails if the server does not accept the websocket within the timeout.
    pub async fn into_websocket(mut self, within: Duration) -> Result<Link, ConnectError> {
        let upgraded = timeout(within, websocket_connector::upgrade(&mut self.stream)).await;
        let already_read = upgraded.unwrap_or_else(|_| {
            let peer = self.name.clone();
            Err(ConnectError::Timeout { peer, within })
        });
        let already_read = match already_read {
            Ok(already_read) => already_read,
            // The program knows better why there was no answer.
            Err(ConnectError::Closed | ConnectError::Io(_)) => {
                let exit = timeout(MAX_EXIT_SKEW, self.exit()).await;
                return Err(exit.map_or(ConnectError::Closed, ConnectError::Exited));
            }
            Err(error) => return Err(error),
        };
        let stream = UpgradedStream::new(self.stream.into_inner(), already_read);
        let options = LinkOptions::of(LinkRole::Client);
        let link = stream.into_link(LinkRole::Client, self.name, options);
        Ok(program_link(link, self.handle, self.exit))
    }
}

/// Adds the exit of a program to the link over its pipes.
fn program_link(link: Link, handle: ProgramHandle, exit: ExitFuture) -> Link {
    Link {
        reader: Box::new(ProgramReader {
            messages: link.reader,
            output_ended: false,
            timeout: LazyTimeout::default(),
            exit: exit.clone(),
            _handle: handle.clone(),
        }),
        writer: Box::new(ProgramWriter {
            messages: link.writer,
            timeout: LazyTimeout::default(),
            exit,
            _handle: handle,
        }),
        ..link
    }
}

/// Reads messages from a program.
#[derive(Debug)]
struct ProgramReader {
    messages: Box<dyn MessageReader>,
    /// Whether its stdout has ended.
    output_ended: bool,
    timeout: LazyTimeout,
    exit: ExitFuture,
    _handle: ProgramHandle,
}

impl MessageReader for ProgramReader {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, LinkReadError>> {
        if !self.output_ended {
            match self.messages.poll_message(cx) {
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
            Poll::Ready(exit) => Err(LinkReadError::Exited(exit)),
            Poll::Pending => Ok(None),
        })
    }
}

/// Writes messages to a program.
#[derive(Debug)]
struct ProgramWriter {
    messages: Box<dyn MessageWriter>,
    timeout: LazyTimeout,
    exit: ExitFuture,
    _handle: ProgramHandle,
}

impl ProgramWriter {
    /// Replaces a broken pipe by the exit of the program.
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
                    LinkReadError::Exited(exit),
                )))
            }
            written => Poll::Ready(written),
        }
    }
}

impl MessageWriter for ProgramWriter {
    fn push(&mut self, message: OutgoingMessage, encoding: DataEncoding) {
        self.messages.push(message, encoding);
    }

    fn buffered(&self) -> usize {
        self.messages.buffered()
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = ready!(self.messages.poll_flush(cx));
        self.poll_exit_reason(cx, written)
    }

    fn poll_keepalive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.messages.poll_keepalive(cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = ready!(self.messages.poll_close(cx));
        self.poll_exit_reason(cx, written)
    }
}

/// Exit of the program, shared by reader and writer.
#[derive(Clone, Debug)]
enum ExitFuture {
    Pending(Shared<oneshot::Receiver<ProgramExit>>),
    Ready(ProgramExit),
}

impl ExitFuture {
    fn poll_exit(&mut self, cx: &mut Context<'_>) -> Poll<ProgramExit> {
        let exit = match self {
            Self::Ready(exit) => exit.clone(),
            Self::Pending(exit) => {
                // The child task is dropped without a report when the runtime shuts down.
                let exit = ready!(Pin::new(exit).poll(cx)).unwrap_or_default();
                *self = Self::Ready(exit.clone());
                exit
            }
        };
        Poll::Ready(exit)
    }
}

/// A timeout that starts at the first poll.
#[derive(Debug, Default)]
struct LazyTimeout(Option<Pin<Box<Sleep>>>);

impl LazyTimeout {
    /// Resolves when the timeout has elapsed.
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
        let exit = |raw, words: Option<&str>| ProgramExit {
            status: Some(ExitStatus::from_raw(raw)),
            stderr_lines: words.map(str::to_owned).into_iter().collect(),
        };
        assert_eq!(exit(0, None).to_string(), "exited with status 0");
        assert_eq!(
            exit(1 << 8, Some("no")).to_string(),
            "exited with status 1: no"
        );
        assert_eq!(exit(9, None).to_string(), "was killed by signal 9");
    }
}
