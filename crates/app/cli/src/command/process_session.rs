//! Interactive session with a process: forwards output, input, signals and the window size, and
//! reports disconnects.
//!
//! Invariant: bytes are written in order and unchanged. A slow or stopped reader applies
//! backpressure to a process of ours, loses nothing, and never delays a signal.

mod input;
mod output;
mod signals;

use std::{cell::RefCell, io, mem, pin::pin, process::ExitCode, sync::Arc, time::Duration};

use exec_client::client::{ConnectionState, ExecServerClient};
use exec_core::output_log::{BackpressureMode, ExitInfo, FollowOptions, FollowStart as FollowFrom};
use exec_env::{
    environment::DisconnectReason,
    process::{EventStream, ExecProcess, ExecProcessEvent, ProcessError},
};
use exec_wire::{
    id::{OutputSeq, ProcessId},
    process::{ExitCause, OutputStream, ProcessSignal, TerminateMode, WaitUntil},
};
use futures_util::StreamExt;
use rustix::{
    io::Errno,
    process::{Signal, getpid, kill_process},
};
use tokio::time::{Instant, sleep_until, timeout};

use crate::command::{
    connect::ConnectedEnv,
    failure::{CommandFailure, FailureKind},
    process_session::{
        input::{ForwardOutcome, InputForwarder},
        signals::{ForwardedSignal, SignalEvent, StopRequests},
    },
    terminal::{self, RawTerminal, StandardStream, TerminalModeTracker},
    tunnel::{NoticeReceiver, no_notices},
};

pub use self::input::{DetachKeys, DetachKeysError};

pub(crate) use self::{
    input::StdinReader,
    output::{
        ConnectionNotice, NoticeWriter, print_notice, show_outages, write_output, write_result,
        write_result_bytes,
    },
    signals::SignalListener,
};

/// Grace period between a request to exit and SIGKILL.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// Limit for final requests to the server.
const FINAL_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Session with a process, not yet running.
#[derive(Debug)]
pub(crate) struct ProcessSession {
    /// Connection.
    pub(crate) client: ExecServerClient,
    /// Process.
    pub(crate) process: Arc<dyn ExecProcess>,
    /// Registered before the process starts, so that no early signal is lost.
    pub(crate) signals: SignalListener,
    /// Last event that is not shown.
    pub(crate) after: OutputSeq,
    /// Owner of the process.
    pub(crate) owner: SessionOwner,
    /// Input to forward.
    pub(crate) input: Option<StdinReader>,
    /// Whether it has a terminal, which follows the local size.
    pub(crate) terminal: TerminalUse,
    /// Keys that detach.
    pub(crate) keys: Option<DetachKeys>,
    /// Screen contents, shown first.
    pub(crate) snapshot: Vec<u8>,
    /// Time limit.
    pub(crate) limit: Option<Duration>,
    /// Messages about its ports, shown between its output.
    pub(crate) notices: NoticeReceiver,
}

/// Owner of a process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SessionOwner {
    /// This client: the process receives its signals and ends with it.
    Client,
    /// The server: the process outlives this client.
    Server,
}

/// Standard descriptors of a process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum TerminalUse {
    /// Pipes.
    None,
    /// A terminal. The local one is switched to raw mode, if there is one.
    Pty,
}

/// How a session ended.
#[derive(Debug)]
pub(crate) enum SessionEnd {
    /// The process exited and its output is complete.
    Exited(ExitInfo),
    /// The output is complete; the exit was reported before we attached.
    Closed,
    /// The time limit was reached, and the process was terminated.
    TimedOut,
    /// A signal with this number was meant for us. A process of ours was terminated.
    Signalled(i32),
    /// The user typed the detach keys.
    Detached,
    /// Local output failed, for example because the pipe is closed. A process of ours was
    /// terminated.
    OutputFailed(io::Error),
    /// The process can no longer be reached.
    Lost(ProcessError),
}

impl ProcessSession {
    /// Runs the session to its end and restores the terminal. Dropping the future restores it, too.
    pub(crate) async fn run(mut self) -> io::Result<SessionEnd> {
        let raw = match (self.terminal, &self.input) {
            (TerminalUse::Pty, Some(_)) => RawTerminal::take()?,
            (TerminalUse::None, _) | (_, None) => None,
        };
        let mut modes = TerminalModeTracker::default();
        modes.feed(&self.snapshot);
        let modes = RefCell::new(modes);
        output::write_all(StandardStream::Output.fd(), &self.snapshot)?;
        let end = self.run_loop(raw.as_ref(), &modes).await;
        if raw.is_some()
            && !matches!(end, SessionEnd::Exited(_) | SessionEnd::Closed)
            && StandardStream::Output.is_terminal()
        {
            let reset = modes.borrow().reset();
            drop(output::write_all(StandardStream::Output.fd(), &reset));
        }
        Ok(end)
    }

    async fn run_loop(
        &mut self,
        raw: Option<&RawTerminal>,
        modes: &RefCell<TerminalModeTracker>,
    ) -> SessionEnd {
        let process = Arc::clone(&self.process);
        let events = process.follow(FollowOptions {
            start: FollowFrom::After(self.after),
            backpressure: BackpressureMode::Pause,
        });
        let (exited, mut notice) = (RefCell::new(None), ConnectionNotice::new());
        let display = OutputDisplay {
            after: self.after,
            exited: &exited,
            modes,
            notices: mem::replace(&mut self.notices, no_notices()),
            writer: NoticeWriter::new(raw.is_some()),
        };
        let mut output = pin!(display.show(events));
        let feed = self.input.take().map(|input| InputForwarder {
            process: &*process,
            input,
            keys: self.keys.take(),
            raw: raw.is_some(),
            connection: self.client.connection(),
            client: self.client.clone(),
        });
        let feeding = feed.is_some();
        let mut input = pin!(async move {
            match feed {
                Some(feed) => feed.run().await,
                None => ForwardOutcome::Ended,
            }
        });
        let mut feeding = feeding.then_some(());
        let mut connection = self.client.connection();
        notice.show(*connection.borrow_and_update());
        let mut stop_requests = StopRequests::default();
        let mut deadline = self.limit.map(|limit| Instant::now() + limit);
        let mut is_timed_out = false;
        loop {
            tokio::select! {
                biased;
                end = &mut output => {
                    if let SessionEnd::OutputFailed(error) = &end {
                        // The local window was closed.
                        if self.owner == SessionOwner::Server && is_hung_up(error) {
                            return SessionEnd::Detached;
                        }
                        self.terminate_gracefully().await;
                    }
                    let over = matches!(end, SessionEnd::Exited(_) | SessionEnd::Closed);
                    if over {
                        // The exit arrived over this connection.
                        notice.show(ConnectionState::Connected);
                    }
                    return if over && is_timed_out { SessionEnd::TimedOut } else { end };
                }
                event = self.signals.next() => match event {
                    SignalEvent::Window => self.follow_window(),
                    SignalEvent::Stop => self.stop(raw).await,
                    SignalEvent::Forwarded(forwarded) => {
                        if let Some(end) = self.handle_signal(forwarded, &exited, &mut stop_requests).await {
                            return end;
                        }
                    }
                },
                Ok(()) = connection.changed() => {
                    notice.show(*connection.borrow_and_update());
                }
                fed = &mut input, if feeding.is_some() => match fed {
                    ForwardOutcome::Ended => feeding = None,
                    ForwardOutcome::Detached => return SessionEnd::Detached,
                    ForwardOutcome::HungUp if self.owner == SessionOwner::Server => return SessionEnd::Detached,
                    ForwardOutcome::HungUp => {
                        feeding = None;
                        self.forward_signal(ProcessSignal::Hangup);
                    }
                    ForwardOutcome::GivenUp => return self.end_session(Signal::INT.as_raw()).await,
                    ForwardOutcome::Failed(error) => return SessionEnd::Lost(error),
                },
                () = until(deadline) => {
                    // It exited in time; only its descendants did not.
                    let over = exited.borrow().clone().filter(|_| !is_timed_out);
                    if is_timed_out || over.is_some() {
                        self.kill().await;
                        return over.map_or(SessionEnd::TimedOut, SessionEnd::Exited);
                    }
                    is_timed_out = true;
                    deadline = Some(Instant::now() + GRACE + FINAL_REQUEST_TIMEOUT);
                    drop(self.process.terminate(self.graceful(GRACE)));
                }
            }
        }
    }

    /// Forwards a signal, or ends the session if the signal is meant for us.
    async fn handle_signal(
        &self,
        forwarded: ForwardedSignal,
        exited: &RefCell<Option<ExitInfo>>,
        stop_requests: &mut StopRequests,
    ) -> Option<SessionEnd> {
        let ends = forwarded.ends();
        if self.owner == SessionOwner::Server {
            return ends.then_some(SessionEnd::Signalled(forwarded.number));
        }
        // The process has exited, but a descendant still holds its output.
        let over = exited.borrow().clone();
        if let Some(exit) = over.filter(|_| ends) {
            self.kill().await;
            return Some(SessionEnd::Exited(exit));
        }
        if stop_requests.is_exhausted(forwarded.signal, Instant::now()) {
            return Some(self.end_session(forwarded.number).await);
        }
        self.forward_signal(forwarded.signal);
        None
    }

    /// Forwards a signal. The stock server knows only one, so a signal that asks to exit terminates
    /// the process there.
    fn forward_signal(&self, signal: ProcessSignal) {
        let ends = matches!(
            signal,
            ProcessSignal::Terminate | ProcessSignal::Hangup | ProcessSignal::Quit
        );
        // The request is sent when called; the response does not matter.
        if ends && !self.client.has_extensions() {
            drop(self.process.terminate(TerminateMode::Force));
        } else {
            drop(self.process.signal(signal));
        }
    }

    /// Returns how to terminate within a grace period. The stock server terminates at once.
    fn graceful(&self, grace: Duration) -> TerminateMode {
        if !self.client.has_extensions() {
            return TerminateMode::Force;
        }
        let timeout_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        TerminateMode::Graceful { timeout_ms }
    }

    /// Ends the session; terminates a process of ours.
    async fn end_session(&self, number: i32) -> SessionEnd {
        self.kill().await;
        SessionEnd::Signalled(number)
    }

    async fn kill(&self) {
        if self.owner == SessionOwner::Client {
            let ended = self.process.terminate(TerminateMode::Force);
            drop(timeout(FINAL_REQUEST_TIMEOUT, ended).await);
        }
    }

    /// Terminates the process as SIGPIPE would.
    async fn terminate_gracefully(&self) {
        if self.owner == SessionOwner::Client {
            let terminated = self.process.terminate(self.graceful(FINAL_REQUEST_TIMEOUT));
            let ended = self
                .process
                .wait(WaitUntil::Exited, Some(FINAL_REQUEST_TIMEOUT * 2));
            drop(
                timeout(FINAL_REQUEST_TIMEOUT * 2, async {
                    (terminated.await, ended.await)
                })
                .await,
            );
        }
    }

    fn follow_window(&self) {
        if let (TerminalUse::Pty, Some(size)) = (self.terminal, terminal::size()) {
            drop(self.process.resize(size));
        }
    }

    /// Suspends this program, and a process of ours with it, until SIGCONT.
    async fn stop(&self, raw: Option<&RawTerminal>) {
        if let Some(raw) = raw {
            raw.restore();
        }
        if self.owner == SessionOwner::Client {
            let stopped = self.process.signal(ProcessSignal::Stop);
            drop(timeout(FINAL_REQUEST_TIMEOUT, stopped).await);
        }
        // Execution continues after SIGCONT.
        let _sent = kill_process(getpid(), Signal::STOP);
        if let Some(raw) = raw {
            drop(raw.make_raw());
        }
        if self.owner == SessionOwner::Client {
            drop(self.process.signal(ProcessSignal::Continue));
        }
        self.follow_window();
    }
}

/// What shows the output of a process.
struct OutputDisplay<'a> {
    /// Last event that is not shown.
    after: OutputSeq,
    exited: &'a RefCell<Option<ExitInfo>>,
    modes: &'a RefCell<TerminalModeTracker>,
    notices: NoticeReceiver,
    writer: NoticeWriter,
}

impl OutputDisplay<'_> {
    /// Writes output until the process ends.
    async fn show(mut self, mut events: EventStream) -> SessionEnd {
        let mut last = self.after;
        loop {
            // A full-screen program draws over a notice; its end is output, too.
            let is_shown = !self.modes.borrow().is_alternate_screen();
            let event = tokio::select! {
                biased;
                Some(notice) = self.notices.recv(), if is_shown => {
                    self.writer.print(&notice.to_string());
                    continue;
                }
                event = events.next() => event,
            };
            let Some(event) = event else {
                break;
            };
            if let Some(seq) = event.seq() {
                if seq > last.next() {
                    self.writer.print(
                        "some output is missing here: it was written faster than it was read",
                    );
                }
                last = seq;
            }
            match event {
                ExecProcessEvent::Output(chunk) => {
                    if chunk.stream == OutputStream::Pty {
                        self.modes.borrow_mut().feed(&chunk.data);
                    }
                    self.writer.observe(chunk.stream, &chunk.data);
                    if let Err(error) = write_output(chunk.stream, chunk.data).await {
                        return SessionEnd::OutputFailed(error);
                    }
                }
                ExecProcessEvent::Exited(_, exit) => *self.exited.borrow_mut() = Some(exit),
                ExecProcessEvent::Closed(_) => break,
                ExecProcessEvent::Failed(error) => return SessionEnd::Lost(error),
            }
        }
        match self.exited.borrow_mut().take() {
            Some(exit) => SessionEnd::Exited(exit),
            None => SessionEnd::Closed,
        }
    }
}

/// Returns whether a write failed because the terminal window was closed.
fn is_hung_up(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::IO.raw_os_error())
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Exit status of a shell after SIGPIPE killed its command.
const BROKEN_PIPE: u8 = 128 + 13;

impl SessionEnd {
    /// Returns the exit status.
    pub(crate) fn status(
        self,
        owner: SessionOwner,
        id: &ProcessId,
        env: &ConnectedEnv,
    ) -> Result<ExitCode, CommandFailure> {
        let attach = || env.line("attach", &[id.as_str()]);
        match self {
            Self::Exited(exit) => exit_status(&exit),
            Self::TimedOut => Err(timed_out()),
            Self::Signalled(number) => Ok(ExitCode::from(exit_byte(128 + number))),
            Self::Detached => {
                print_notice(&format!(
                    "detached from `{id}`; `{}` returns to it",
                    attach()
                ));
                Ok(ExitCode::SUCCESS)
            }
            Self::Closed => Ok(ExitCode::SUCCESS),
            Self::OutputFailed(error) => output_failure(&error),
            Self::Lost(error) => Err(lost(&error, owner, &attach())),
        }
    }
}

/// Returns the status of an exited process, or explains what terminated it.
pub(crate) fn exit_status(exit: &ExitInfo) -> Result<ExitCode, CommandFailure> {
    if exit.sandbox_denied && StandardStream::Error.is_terminal() {
        print_notice(
            "the sandbox may have denied access: it protects .git (see --allow-git), other \
             directories (--writable DIR) and the network (--network)",
        );
    }
    match exit.cause {
        ExitCause::WallLimit => return Err(timed_out()),
        ExitCause::MemoryLimit => {
            print_notice("the command was terminated: it exceeded its memory limit")
        }
        ExitCause::ProcessLimit => {
            print_notice("the command was terminated: it had too many processes")
        }
        ExitCause::IdleLimit => {
            print_notice("the command was terminated: it was idle for too long")
        }
        ExitCause::Lost => print_notice("the server lost the command and its status"),
        ExitCause::Exit | ExitCause::Signal | ExitCause::Terminated | ExitCause::Unknown | _ => {}
    }
    Ok(ExitCode::from(exit_byte(exit.code)))
}

/// Returns the status for failed output. A closed pipe is not reported as an error.
pub(crate) fn output_failure(error: &io::Error) -> Result<ExitCode, CommandFailure> {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Ok(ExitCode::from(BROKEN_PIPE));
    }
    let what = format!("cannot write the output: {error}");
    Err(CommandFailure::failed(what))
}

/// Returns the failure of a command that reached its time limit.
pub(crate) fn timed_out() -> CommandFailure {
    CommandFailure::new(
        FailureKind::TimedOut,
        "the command did not exit in time and was terminated",
    )
    .next("--timeout raises the limit")
}

fn lost(error: &ProcessError, owner: SessionOwner, attach: &str) -> CommandFailure {
    let lost = CommandFailure::new(FailureKind::Lost, error);
    match (owner, error) {
        (SessionOwner::Client, ProcessError::Disconnected(DisconnectReason::Session(_))) => {
            lost.next("the command ended with its session; use --detach for one that outlives it")
        }
        (SessionOwner::Client, ProcessError::Disconnected(_)) => lost.next(format_args!(
            "the server will end the command with its session; until then `{attach}` takes it over"
        )),
        (SessionOwner::Server, ProcessError::Disconnected(_)) => lost.next(format_args!(
            "the process keeps running as long as the server does; `{attach}` returns to it"
        )),
        (SessionOwner::Client | SessionOwner::Server, _) => CommandFailure::failed(error),
    }
}

/// Truncates a status to the byte that the system passes on.
pub(crate) fn exit_byte(code: i32) -> u8 {
    let [low, ..] = code.to_le_bytes();
    low
}
