//! A person, or a pipe, in talk with a process: its output here, our input there, signals and the
//! size of the window passed on, outages of the connection told.
//! Invariant: bytes come out as the process wrote them, in their order; a reader that is slow, or
//! stopped, pauses a process of ours and loses nothing, and never holds up a signal.

mod input;
mod output;
mod signals;
mod terminal_mode;

use std::{cell::RefCell, io, pin::pin, process::ExitCode, sync::Arc, time::Duration};

use exec_client::{client::ExecServerClient, connection::ConnectionState};
use exec_core::log::{Exit, Follow, From as FollowFrom, Pace};
use exec_env::{
    disconnect::Disconnect,
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
        terminal_mode::TerminalModeTracker,
    },
    terminal::{self, RawTerminal, StandardStream},
};

pub use self::input::{DetachKeys, DetachKeysError};

pub(crate) use self::{
    input::StdinReader,
    output::{
        ConnectionNotice, OutputSink, print_notice, show_outages, write_result, write_result_bytes,
    },
    signals::SignalListener,
};

/// What a command may take to end after it was asked to, before it is killed.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// How long the server may take to do what nobody can wait for any longer.
const PARTING: Duration = Duration::from_secs(2);

/// A talk with a process, about to begin.
#[derive(Debug)]
pub(crate) struct ProcessSession {
    /// The connection.
    pub(crate) client: ExecServerClient,
    /// The process.
    pub(crate) process: Arc<dyn ExecProcess>,
    /// Taken since before there was a process: one that comes early is not lost on it.
    pub(crate) signals: SignalListener,
    /// The last event that is not to be shown.
    pub(crate) after: OutputSeq,
    /// Whose process it is.
    pub(crate) owner: ProcessOwner,
    /// What is passed on to it.
    pub(crate) input: Option<StdinReader>,
    /// Whether it has a terminal, whose size is ours.
    pub(crate) terminal: TerminalUse,
    /// What leaves it alone.
    pub(crate) keys: Option<DetachKeys>,
    /// What is shown first, when keys reach the process already: what its terminal shows.
    pub(crate) snapshot: Vec<u8>,
    /// How long it may take.
    pub(crate) limit: Option<Duration>,
}

/// Whose a process is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ProcessOwner {
    /// Ours: it gets our signals, and does not go on without us.
    Us,
    /// The server's: it goes on when we leave.
    Server,
}

/// What a process has as its standard descriptors.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum TerminalUse {
    /// Pipes.
    None,
    /// A terminal. Ours is made raw, if there is one.
    Theirs,
}

/// How a talk ended.
#[derive(Debug)]
pub(crate) enum SessionEnd {
    /// The process ended, and its output did.
    Exited(Exit),
    /// Its output ended; how it ended itself was told before we listened.
    Closed,
    /// The time was up. It was ended.
    TimedOut,
    /// A signal of this number was for us. A process of ours was ended.
    Signalled(i32),
    /// Somebody typed the keys for it.
    Detached,
    /// Our output cannot be written; nobody may read it any more. A process of ours was ended.
    Unwritten(io::Error),
    /// Nothing more can be learned of the process.
    Lost(ProcessError),
}

impl ProcessSession {
    /// Talks until there is no more to say. The terminal is as it was then. Dropping the future gives
    /// it back, too.
    pub(crate) async fn run(mut self) -> io::Result<SessionEnd> {
        let raw = match (self.terminal, &self.input) {
            (TerminalUse::Theirs, Some(_)) => RawTerminal::take()?,
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
        let events = process.follow(Follow {
            from: FollowFrom::After(self.after),
            pace: Pace::Held,
        });
        let (exited, mut notice) = (RefCell::new(None), ConnectionNotice::new());
        let mut output = pin!(show(events, self.after, &exited, modes));
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
        let mut patience = StopRequests::default();
        let mut deadline = self.limit.map(|limit| Instant::now() + limit);
        let mut timed_out = false;
        loop {
            tokio::select! {
                biased;
                end = &mut output => {
                    if let SessionEnd::Unwritten(error) = &end {
                        // Its window was closed.
                        if self.owner == ProcessOwner::Server && is_hung_up(error) {
                            return SessionEnd::Detached;
                        }
                        self.end_gently().await;
                    }
                    let over = matches!(end, SessionEnd::Exited(_) | SessionEnd::Closed);
                    if over {
                        // Its end has come over the connection.
                        notice.show(ConnectionState::Connected);
                    }
                    return if over && timed_out { SessionEnd::TimedOut } else { end };
                }
                heard = self.signals.next() => match heard {
                    SignalEvent::Window => self.follow_window(),
                    SignalEvent::Stop => self.stop(raw).await,
                    SignalEvent::Passed(passed) => {
                        if let Some(end) = self.handle_signal(passed, &exited, &mut patience).await {
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
                    ForwardOutcome::HungUp if self.owner == ProcessOwner::Server => return SessionEnd::Detached,
                    ForwardOutcome::HungUp => {
                        feeding = None;
                        self.forward_signal(ProcessSignal::Hangup);
                    }
                    ForwardOutcome::GivenUp => return self.give_up(Signal::INT.as_raw()).await,
                    ForwardOutcome::Failed(error) => return SessionEnd::Lost(error),
                },
                () = until(deadline) => {
                    // It ended in time, and only what it left behind did not.
                    let over = exited.borrow().clone().filter(|_| !timed_out);
                    if timed_out || over.is_some() {
                        self.end_now().await;
                        return over.map_or(SessionEnd::TimedOut, SessionEnd::Exited);
                    }
                    timed_out = true;
                    deadline = Some(Instant::now() + GRACE + PARTING);
                    drop(self.process.terminate(self.graceful(GRACE)));
                }
            }
        }
    }

    /// Passes a signal on, or ends the talk if it is meant for us.
    async fn handle_signal(
        &self,
        passed: ForwardedSignal,
        exited: &RefCell<Option<Exit>>,
        patience: &mut StopRequests,
    ) -> Option<SessionEnd> {
        let ends = passed.ends();
        if self.owner == ProcessOwner::Server {
            return ends.then_some(SessionEnd::Signalled(passed.number));
        }
        // It is over, and something that it started still holds its output.
        let over = exited.borrow().clone();
        if let Some(exit) = over.filter(|_| ends) {
            self.end_now().await;
            return Some(SessionEnd::Exited(exit));
        }
        if patience.is_over(passed.signal, Instant::now()) {
            return Some(self.give_up(passed.number).await);
        }
        self.forward_signal(passed.signal);
        None
    }

    /// Passes a signal on. The stock server knows but one, so it ends the process where another one
    /// would ask it to end.
    fn forward_signal(&self, signal: ProcessSignal) {
        let ends = matches!(
            signal,
            ProcessSignal::Terminate | ProcessSignal::Hangup | ProcessSignal::Quit
        );
        // The request is sent by asking; there is nothing to be learned from the answer.
        if ends && !self.client.has_extensions() {
            drop(self.process.terminate(TerminateMode::Force));
        } else {
            drop(self.process.signal(signal));
        }
    }

    /// Returns how to end the process within a span. The stock server does so at once.
    fn graceful(&self, grace: Duration) -> TerminateMode {
        if !self.client.has_extensions() {
            return TerminateMode::Force;
        }
        let timeout_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        TerminateMode::Graceful { timeout_ms }
    }

    /// Leaves; a process of ours is ended.
    async fn give_up(&self, number: i32) -> SessionEnd {
        self.end_now().await;
        SessionEnd::Signalled(number)
    }

    async fn end_now(&self) {
        if self.owner == ProcessOwner::Us {
            let ended = self.process.terminate(TerminateMode::Force);
            drop(timeout(PARTING, ended).await);
        }
    }

    /// Ends it as a signal would that it gets for writing to nobody.
    async fn end_gently(&self) {
        if self.owner == ProcessOwner::Us {
            let asked = self.process.terminate(self.graceful(PARTING));
            let ended = self.process.wait(WaitUntil::Exited, Some(PARTING * 2));
            drop(timeout(PARTING * 2, async { (asked.await, ended.await) }).await);
        }
    }

    fn follow_window(&self) {
        if let (TerminalUse::Theirs, Some(size)) = (self.terminal, terminal::size()) {
            drop(self.process.resize(size));
        }
    }

    /// Stops, and the process with us if it is ours; goes on when somebody lets us.
    async fn stop(&self, raw: Option<&RawTerminal>) {
        if let Some(raw) = raw {
            raw.give_back();
        }
        if self.owner == ProcessOwner::Us {
            let stopped = self.process.signal(ProcessSignal::Stop);
            drop(timeout(PARTING, stopped).await);
        }
        // Nothing runs here until SIGCONT.
        let _sent = kill_process(getpid(), Signal::STOP);
        if let Some(raw) = raw {
            drop(raw.make_raw());
        }
        if self.owner == ProcessOwner::Us {
            drop(self.process.signal(ProcessSignal::Continue));
        }
        self.follow_window();
    }
}

/// Shows what the process writes, until it is over.
async fn show(
    mut events: EventStream,
    after: OutputSeq,
    exited: &RefCell<Option<Exit>>,
    modes: &RefCell<TerminalModeTracker>,
) -> SessionEnd {
    let mut last = after;
    while let Some(event) = events.next().await {
        if let Some(seq) = event.seq() {
            if seq > last.next() {
                print_notice("some output was written too fast to be kept, and is missing here");
            }
            last = seq;
        }
        match event {
            ExecProcessEvent::Output(chunk) => {
                if chunk.stream == OutputStream::Pty {
                    modes.borrow_mut().feed(&chunk.data);
                }
                if let Err(error) = OutputSink.write(chunk.stream, chunk.data).await {
                    return SessionEnd::Unwritten(error);
                }
            }
            ExecProcessEvent::Exited(_, exit) => *exited.borrow_mut() = Some(exit),
            ExecProcessEvent::Closed(_) => break,
            ExecProcessEvent::Failed(error) => return SessionEnd::Lost(error),
        }
    }
    match exited.borrow_mut().take() {
        Some(exit) => SessionEnd::Exited(exit),
        None => SessionEnd::Closed,
    }
}

/// Tells whether a terminal could not be written to because its window was closed.
fn is_hung_up(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::IO.raw_os_error())
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// What a shell ends with when SIGPIPE killed its command.
const BROKEN_PIPE: u8 = 128 + 13;

impl SessionEnd {
    /// Returns the status to end with.
    pub(crate) fn status(
        self,
        owner: ProcessOwner,
        id: &ProcessId,
        env: &ConnectedEnv,
    ) -> Result<ExitCode, CommandFailure> {
        let attach = || env.line("attach", &[id.as_str()]);
        match self {
            Self::Exited(exit) => exit_status(&exit),
            Self::TimedOut => Err(timed_out()),
            Self::Signalled(number) => Ok(ExitCode::from(exit_byte(128 + number))),
            Self::Detached => {
                print_notice(&format!("left `{id}`; `{}` returns", attach()));
                Ok(ExitCode::SUCCESS)
            }
            Self::Closed => Ok(ExitCode::SUCCESS),
            Self::Unwritten(error) => output_failure(&error),
            Self::Lost(error) => Err(lost(&error, owner, &attach())),
        }
    }
}

/// Returns the status of a process that ended: its own, if nothing else ended it.
pub(crate) fn exit_status(exit: &Exit) -> Result<ExitCode, CommandFailure> {
    if exit.sandbox_denied && StandardStream::Error.is_terminal() {
        print_notice(
            "the sandbox seems to have refused something: it protects .git (see --allow-git), other \
             directories (--writable DIR) and the network (--network)",
        );
    }
    match exit.cause {
        ExitCause::WallLimit => return Err(timed_out()),
        ExitCause::MemoryLimit => print_notice("the command was ended: it held too much memory"),
        ExitCause::ProcessLimit => print_notice("the command was ended: it had too many processes"),
        ExitCause::IdleLimit => print_notice("the command was ended: it was idle for too long"),
        ExitCause::Lost => print_notice("the server lost the command, and its status"),
        ExitCause::Exit | ExitCause::Signal | ExitCause::Terminated | ExitCause::Unknown | _ => {}
    }
    Ok(ExitCode::from(exit_byte(exit.code)))
}

/// Returns the status for output that could not be written: none that is a failure if nobody reads it.
pub(crate) fn output_failure(error: &io::Error) -> Result<ExitCode, CommandFailure> {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Ok(ExitCode::from(BROKEN_PIPE));
    }
    let what = format!("cannot write the output: {error}");
    Err(CommandFailure::new(FailureKind::Failed, what))
}

/// What became of a command whose time was up.
pub(crate) fn timed_out() -> CommandFailure {
    CommandFailure::new(
        FailureKind::TimedOut,
        "the command did not end in time, and was ended",
    )
    .next("--timeout gives it longer")
}

fn lost(error: &ProcessError, owner: ProcessOwner, attach: &str) -> CommandFailure {
    let lost = CommandFailure::new(FailureKind::Lost, error);
    match (owner, error) {
        (ProcessOwner::Us, ProcessError::Disconnected(Disconnect::Session(_))) => {
            lost.next("the command ended with its session; --detach makes one that outlives it")
        }
        (ProcessOwner::Us, ProcessError::Disconnected(_)) => lost.next(format_args!(
            "the server ends the command with its session; until then `{attach}` takes it over"
        )),
        (ProcessOwner::Server, ProcessError::Disconnected(_)) => lost.next(format_args!(
            "the process goes on as long as the server does; `{attach}` returns to it"
        )),
        (ProcessOwner::Us | ProcessOwner::Server, _) => {
            CommandFailure::new(FailureKind::Failed, error)
        }
    }
}

/// The part of a status that the system passes on.
pub(crate) fn exit_byte(code: i32) -> u8 {
    let [low, ..] = code.to_le_bytes();
    low
}
