//! The task that keeps a program: logs what it says, ends it, and tells how it ended.

use std::{convert::Infallible, future::pending, io, process::ExitStatus, time::Duration};

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

use super::Exit;

/// How long a program may take to end after SIGTERM.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// How long what it has said may take to be read, if someone who left the group still speaks.
const STDERR_DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// A program in its keeper's hands.
#[derive(Debug)]
pub(super) struct ChildTask {
    /// What it is called in the log.
    pub(super) program: String,
    pub(super) group: ProcessGroup,
    pub(super) stderr: StderrLines<ChildStderr>,
    /// Resolves when nobody holds the link any more.
    pub(super) released: oneshot::Receiver<Infallible>,
    /// Is told how it ended.
    pub(super) exit: oneshot::Sender<Exit>,
}

impl ChildTask {
    /// Keeps the program until it has ended, by itself or because the link was dropped.
    pub(super) async fn run(self) {
        let Self {
            program,
            group,
            mut stderr,
            released,
            exit,
        } = self;
        let mut last_line = None;
        let stop = async {
            tokio::select! {
                () = group.exited() => return,
                _ = released => group.terminate(),
            }
            if timeout(TERM_GRACE, group.exited()).await.is_err() {
                tracing::warn!(program, "server program does not end; it is killed");
            }
        };
        // Listened to in its last moments too: who is not listened to may block instead of ending.
        let logging = async {
            log_stderr(&program, &mut stderr, &mut last_line).await;
            pending::<Infallible>().await
        };
        tokio::select! {
            () = stop => {}
            never = logging => match never {},
        }
        let status = group.kill_and_reap().await;
        // All it has said is in the pipe by now, unless someone escaped with the other end.
        drop(
            timeout(
                STDERR_DRAIN_TIMEOUT,
                log_stderr(&program, &mut stderr, &mut last_line),
            )
            .await,
        );
        let outcome = Exit {
            status,
            last_words: last_line,
        };
        tracing::debug!(program, exit = %outcome, "server program has ended");
        // Whoever dropped the link does not ask.
        drop(exit.send(outcome));
    }
}

/// Logs what a program says, until it is silent for good.
async fn log_stderr(
    program: &str,
    stderr: &mut StderrLines<ChildStderr>,
    last_line: &mut Option<String>,
) {
    while stderr.is_open() {
        for line in stderr.next().await {
            tracing::info!(program, line, "server program says");
            *last_line = Some(line);
        }
    }
}

/// How long a group may take to end when there is no runtime to wait in, and its thread waits.
const DROP_TERM_GRACE: Duration = Duration::from_millis(200);
/// How long a group that was killed may take to be gone then.
const DROP_REAP_TIMEOUT: Duration = Duration::from_secs(1);

/// A process group, known by its leader. Dropping it ends all of it.
#[derive(Debug)]
pub(super) struct ProcessGroup {
    child: Child,
    leader: Pid,
    /// Readable when the leader has exited. That does not reap it: its number stays its own.
    pidfd: pipe::Receiver,
    reaped: bool,
}

impl ProcessGroup {
    /// Takes charge of a child that was started as the leader of a group.
    pub(super) fn new(mut child: Child) -> io::Result<Self> {
        let opened = leader(&child).and_then(|leader| {
            let descriptor = pidfd_open(leader, PidfdFlags::NONBLOCK)?;
            // Nothing is ever read: all that matters is when it becomes readable.
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
                // It has run for no time, and nobody will hear of it.
                child.start_kill()?;
                Err(error)
            }
        }
    }

    /// Waits until the leader has exited.
    pub(super) async fn exited(&self) {
        // A descriptor that cannot be waited for counts as one that is ready: `end` waits too.
        drop(self.pidfd.readable().await);
    }

    /// Asks all of it to end.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Kills what is left of it, and reaps the leader.
    pub(super) async fn kill_and_reap(mut self) -> Option<ExitStatus> {
        self.signal(Signal::KILL);
        let status = self.child.wait().await;
        self.reaped = true;
        status.ok()
    }

    fn signal(&self, signal: Signal) {
        if let Err(error) = kill_process_group(self.leader, signal) {
            tracing::debug!(%error, leader = ?self.leader, ?signal, "group was not signalled");
        }
    }

    /// Waits on this thread until the leader has exited.
    fn wait_blocking(&self, limit: Duration) {
        let within = Timespec::try_from(limit).ok();
        let mut descriptors = [PollFd::new(&self.pidfd, PollFlags::IN)];
        if let Err(error) = poll(&mut descriptors, within.as_ref()) {
            tracing::debug!(%error, "end of a program was not waited for");
        }
    }
}

impl Drop for ProcessGroup {
    /// Runs with a group that is not reaped only if the runtime is shut down around its keeper.
    fn drop(&mut self) {
        if self.reaped {
            return;
        }
        self.signal(Signal::TERM);
        self.wait_blocking(DROP_TERM_GRACE);
        self.signal(Signal::KILL);
        self.wait_blocking(DROP_REAP_TIMEOUT);
        if let Err(error) = self.child.try_wait() {
            tracing::debug!(%error, "program was not reaped");
        }
    }
}

fn leader(child: &Child) -> io::Result<Pid> {
    child
        .id()
        .and_then(|id| Pid::from_raw(id.cast_signed()))
        .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

/// Longest line that is kept; what a line has beyond it is dropped.
const MAX_LINE_BYTES: usize = 4 << 10;
/// Bytes asked for in one read.
const READ_BYTES: usize = 4 << 10;

/// Lines out of a stream of bytes.
#[derive(Debug)]
pub(super) struct StderrLines<R> {
    input: Option<R>,
    line: Vec<u8>,
}

impl<R: AsyncRead + Unpin> StderrLines<R> {
    /// Takes lines from `input`, or none.
    pub(super) fn new(input: Option<R>) -> Self {
        Self {
            input,
            line: Vec::new(),
        }
    }

    /// Tells whether more may come.
    pub(super) fn is_open(&self) -> bool {
        self.input.is_some()
    }

    /// Reads once, and returns the lines that ended with it. Cancelling loses nothing.
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
            let room = MAX_LINE_BYTES - self.line.len();
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            if parts.peek().is_some() {
                self.end_line(&mut lines);
            }
        }
        lines
    }

    /// Ends a line; blank ones do not count.
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
