//! The task that owns a child process: logs its stderr, stops it, and reports its exit.

use std::{
    collections::VecDeque, convert::Infallible, future::pending, io, process::ExitStatus,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    net::unix::pipe,
    process::{Child, ChildStderr},
    sync::oneshot,
    time::timeout,
};

use super::ProgramExit;

/// How many of the last stderr lines are kept to explain the exit.
const MAX_LINES: usize = 24;
/// How long a program may take to exit after SIGTERM.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// How long to drain stderr after the exit, in case an escaped descendant still holds it.
const STDERR_DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// A child process and what its task needs.
#[derive(Debug)]
pub(super) struct ChildTask {
    /// Name of the program in the log.
    pub(super) program: String,
    pub(super) group: ProcessGroup,
    pub(super) stderr: StderrLines<ChildStderr>,
    /// Resolves when the link is dropped.
    pub(super) released: oneshot::Receiver<Infallible>,
    /// Receives the exit.
    pub(super) exit: oneshot::Sender<ProgramExit>,
}

impl ChildTask {
    /// Runs until the program has exited, by itself or because the link was dropped.
    pub(super) async fn run(self) {
        let Self {
            program,
            group,
            mut stderr,
            released,
            exit,
        } = self;
        let mut last_lines = VecDeque::new();
        let stop = async {
            tokio::select! {
                () = group.exited() => return,
                _ = released => group.terminate(),
            }
            if timeout(TERM_GRACE, group.exited()).await.is_err() {
                tracing::warn!(
                    program,
                    "server program did not exit after SIGTERM; killing it"
                );
            }
        };
        // Keep reading stderr during shutdown: a full pipe may block the program instead of letting
        // it exit.
        let logging = async {
            log_stderr(&program, &mut stderr, &mut last_lines).await;
            pending::<Infallible>().await
        };
        tokio::select! {
            () = stop => {}
            never = logging => match never {},
        }
        let status = group.kill_and_reap().await;
        // Everything it wrote is in the pipe by now, unless an escaped descendant holds the other
        // end.
        drop(
            timeout(
                STDERR_DRAIN_TIMEOUT,
                log_stderr(&program, &mut stderr, &mut last_lines),
            )
            .await,
        );
        let outcome = ProgramExit {
            status,
            stderr_lines: last_lines.into(),
        };
        tracing::debug!(program, exit = %outcome, "server program exited");
        // The receiver is gone if the link was dropped.
        drop(exit.send(outcome));
    }
}

/// Logs stderr lines until the stream ends.
async fn log_stderr(
    program: &str,
    stderr: &mut StderrLines<ChildStderr>,
    last_lines: &mut VecDeque<String>,
) {
    while stderr.is_open() {
        for line in stderr.next().await {
            tracing::info!(program, line, "server program stderr");
            if last_lines.len() == MAX_LINES {
                last_lines.pop_front();
            }
            last_lines.push_back(line);
        }
    }
}

/// How long `drop` waits for a group to exit when no runtime is left to wait in.
const DROP_TERM_GRACE: Duration = Duration::from_millis(200);
/// How long `drop` waits for a killed group.
const DROP_REAP_TIMEOUT: Duration = Duration::from_secs(1);

/// A process group, identified by its leader. Dropping it kills the whole group.
#[derive(Debug)]
pub(super) struct ProcessGroup {
    child: Child,
    leader: Pid,
    /// Readable once the leader has exited. Polling does not reap it, so its pid stays reserved.
    pidfd: pipe::Receiver,
    reaped: bool,
}

impl ProcessGroup {
    /// Takes over a child that was started as the leader of a group.
    pub(super) fn new(mut child: Child) -> io::Result<Self> {
        let opened = leader(&child).and_then(|leader| {
            let descriptor = pidfd_open(leader, PidfdFlags::NONBLOCK)?;
            // Nothing is ever read from the pidfd; only readiness matters.
            let pidfd = pipe::Receiver::from_owned_fd_unchecked(descriptor)?;
            Ok((leader, pidfd))
        });
        match opened {
            Ok((leader, pidfd)) => Ok(Self {
                child,
                leader,
                pidfd,
                reaped: false,
            }),
            Err(error) => {
                // The child has just started and nothing depends on it.
                child.start_kill()?;
                Err(error)
            }
        }
    }

    /// Returns the leader. Its id is also that of the group.
    pub(super) fn leader(&self) -> Pid {
        self.leader
    }

    /// Waits until the leader has exited.
    pub(super) async fn exited(&self) {
        // An error counts as ready: `kill_and_reap` waits as well.
        drop(self.pidfd.readable().await);
    }

    /// Sends SIGTERM to the group.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Kills the remaining members and reaps the leader.
    pub(super) async fn kill_and_reap(mut self) -> Option<ExitStatus> {
        self.signal(Signal::KILL);
        let status = self.child.wait().await;
        self.reaped = true;
        status.ok()
    }

    fn signal(&self, signal: Signal) {
        if let Err(error) = kill_process_group(self.leader, signal) {
            tracing::debug!(%error, leader = ?self.leader, ?signal, "failed to signal the process group");
        }
    }

    /// Blocks this thread until the leader has exited.
    fn wait_blocking(&self, limit: Duration) {
        let within = Timespec::try_from(limit).ok();
        let mut descriptors = [PollFd::new(&self.pidfd, PollFlags::IN)];
        if let Err(error) = poll(&mut descriptors, within.as_ref()) {
            tracing::debug!(%error, "failed to wait for a server program");
        }
    }
}

impl Drop for ProcessGroup {
    /// Finds an unreaped group only if the runtime was shut down while its task ran.
    fn drop(&mut self) {
        if self.reaped {
            return;
        }
        self.signal(Signal::TERM);
        self.wait_blocking(DROP_TERM_GRACE);
        self.signal(Signal::KILL);
        self.wait_blocking(DROP_REAP_TIMEOUT);
        if let Err(error) = self.child.try_wait() {
            tracing::debug!(%error, "failed to reap a server program");
        }
    }
}

fn leader(child: &Child) -> io::Result<Pid> {
    child
        .id()
        .and_then(|id| Pid::from_raw(id.cast_signed()))
        .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

/// Maximum length of a line; the rest of a longer line is dropped.
const MAX_LINE_BYTES: usize = 4 << 10;
/// Bytes requested by one read.
const READ_BYTES: usize = 4 << 10;

/// Splits a byte stream into lines.
#[derive(Debug)]
pub(super) struct StderrLines<R> {
    input: Option<R>,
    line: Vec<u8>,
}

impl<R: AsyncRead + Unpin> StderrLines<R> {
    /// Reads lines from `input`; an absent input yields no lines.
    pub(super) fn new(input: Option<R>) -> Self {
        Self {
            input,
            line: Vec::new(),
        }
    }

    /// Returns whether the stream is still open.
    pub(super) fn is_open(&self) -> bool {
        self.input.is_some()
    }

    /// Reads once and returns the lines completed by it. Cancel safe.
    pub(super) async fn next(&mut self) -> Vec<String> {
        let mut bytes = [0; READ_BYTES];
        let count = match &mut self.input {
            Some(input) => input.read(&mut bytes).await.unwrap_or(0),
            None => 0,
        };
        let mut lines = Vec::new();
        if count == 0 {
            self.input = None;
            self.end_line(&mut lines);
            return lines;
        }
        let mut parts = bytes[..count].split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            let available = MAX_LINE_BYTES - self.line.len();
            self.line
                .extend_from_slice(&part[..part.len().min(available)]);
            if parts.peek().is_some() {
                self.end_line(&mut lines);
            }
        }
        lines
    }

    /// Completes a line. Blank lines are skipped.
    fn end_line(&mut self, lines: &mut Vec<String>) {
        let line = std::mem::take(&mut self.line);
        let line: String = String::from_utf8_lossy(&line)
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        if !line.trim().is_empty() {
            lines.push(line.trim_end().to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(input: &[u8]) -> Vec<String> {
        let mut stderr = StderrLines::new(Some(input));
        let mut lines = Vec::new();
        while stderr.is_open() {
            lines.extend(stderr.next().await);
        }
        lines
    }

    #[tokio::test]
    async fn lines_are_split_and_blank_ones_skipped() {
        let stderr = lines(b"one\r\n\n  \ntwo \x1b[31mred\xff\nlast").await;
        assert_eq!(stderr, ["one", "two  [31mred\u{fffd}", "last"]);
    }

    #[tokio::test]
    async fn overlong_line_is_truncated_and_the_next_one_is_complete() {
        let mut text = vec![b'x'; 3 * MAX_LINE_BYTES];
        text.extend_from_slice(b"\nnext\n");
        let stderr = lines(&text).await;
        assert_eq!(stderr, ["x".repeat(MAX_LINE_BYTES), "next".to_owned()]);
    }
}
