//! Starting a command for a person: to the end, or to be left alone.

use std::{process::ExitCode, time::Duration};

use exec_env::command::{Command, Io, Stdin};
use exec_wire::{id::OutputSeq, id::ProcessId, process::Limits};

use super::{refused::refused, surroundings::Surroundings};
use crate::command::{
    amount::Span,
    failure::{Failure, FailureKind},
    place::Place,
    stream::{End, GRACE, Input, Owner, Signals, Talk, Terminal, byte},
    terminal,
};

/// A command, and where it runs.
#[derive(Clone, Debug)]
pub(crate) struct Launch<'a> {
    /// The environment.
    pub(crate) place: &'a Place,
    /// Where in it.
    pub(crate) surroundings: &'a Surroundings,
    /// Its name.
    pub(crate) id: ProcessId,
    /// Program and arguments.
    pub(crate) argv: Vec<String>,
    /// Whether it has a terminal.
    pub(crate) terminal: Terminal,
    /// How long it may take.
    pub(crate) limit: Option<Span>,
}

/// How much longer than its time the server lets a command live that we should have ended: it does so
/// when we cannot.
const MARGIN: Duration = Duration::from_secs(5);

/// Starts a command, talks with it, and returns as it ends.
pub(crate) async fn run(launch: Launch<'_>) -> Result<ExitCode, Failure> {
    let input = Input::open();
    let input = input.map_err(|error| Failure::new(FailureKind::Failed, error))?;
    talk(launch, input).await.map(|outcome| outcome.status)
}

/// The same, for a command that gets nothing of our input, and is not the last.
pub(crate) async fn run_without_input(launch: Launch<'_>) -> Result<Outcome, Failure> {
    talk(launch, None).await
}

/// What a command came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// The status to end with.
    pub(crate) status: ExitCode,
    /// Nobody reads our output any more.
    pub(crate) is_unread: bool,
}

async fn talk(launch: Launch<'_>, input: Option<Input>) -> Result<Outcome, Failure> {
    let failed = |error| Failure::new(FailureKind::Failed, error);
    let stdin = match input {
        Some(_) => Stdin::Piped,
        None => Stdin::Null,
    };
    let mut command = launch.command(stdin).await?;
    command.limits.wall_ms = launch
        .limit
        .map(|limit| Span(limit.0 + GRACE + MARGIN).millis());
    let (place, id) = (launch.place, launch.id.clone());
    let mut signals = Signals::listen().map_err(failed)?;
    let backend = place.environment().backend;
    let started = tokio::select! {
        biased;
        started = backend.start(command) => started,
        // Nobody has seen it begin, and it does not go on.
        number = signals.asked() => return Ok(Outcome {
            status: ExitCode::from(byte(128 + number)),
            is_unread: false,
        }),
    };
    let started = started.map_err(|error| refused(error, place))?;
    let talk = Talk {
        client: place.client.clone(),
        process: started.process,
        signals,
        after: OutputSeq(0),
        owner: Owner::Us,
        input,
        terminal: launch.terminal,
        keys: None,
        limit: launch.limit.map(|Span(limit)| limit),
    };
    let end = talk.run().await.map_err(failed)?;
    let is_unread = matches!(end, End::Unwritten(_));
    let status = end.status(Owner::Us, &id, place)?;
    Ok(Outcome { status, is_unread })
}

/// Starts a command that outlives us. With `Stdin::Piped`, whoever attaches to it can write to it.
pub(crate) async fn detach(launch: Launch<'_>, stdin: Stdin) -> Result<(), Failure> {
    let mut command = launch.command(stdin).await?;
    command.limits.wall_ms = launch.limit.map(Span::millis);
    let started = launch.place.client.start_detached(command).await;
    started
        .map(drop)
        .map_err(|error| refused(error, launch.place))
}

impl Launch<'_> {
    async fn command(&self, stdin: Stdin) -> Result<Command, Failure> {
        let directory = self.surroundings.directory(self.place).await?;
        let io = match self.terminal {
            Terminal::None => Io::Pipes { stdin },
            Terminal::Theirs => Io::Terminal(terminal::size().unwrap_or_default()),
        };
        let mut command = Command {
            io,
            limits: Limits::default(),
            ..Command::new(self.id.clone(), self.argv.clone(), directory)
        };
        self.surroundings.surround(&mut command, self.place).await?;
        Ok(command)
    }
}

/// Makes a name that nothing else has.
pub(crate) fn new_id() -> ProcessId {
    let name = uuid::Uuid::new_v4().simple().to_string();
    #[expect(clippy::expect_used, reason = "twelve letters are a short name")]
    ProcessId::new(&name[..ID_LETTERS]).expect("a short text is a process id")
}

/// Enough to tell a thousand processes apart, and to be typed.
const ID_LETTERS: usize = 12;
