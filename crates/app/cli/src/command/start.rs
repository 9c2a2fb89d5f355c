//! What to start for a person, and where: the map of it.

mod exec_args;

use std::{process::ExitCode, sync::Arc, time::Duration};

use exec_env::{
    backend::StartError,
    command::{Command, Io, Stdin},
};
use exec_wire::{
    error::ErrorCode,
    id::{OutputSeq, ProcessId},
    path_uri::PathUri,
    process::Limits,
};
use tokio::time::timeout;

use crate::command::{
    connect::ConnectedEnv,
    detached,
    failure::{CommandFailure, FailureKind},
    files::{display_path, file_failure, metadata_if_exists},
    process_session::{
        DetachKeys, GRACE, ProcessOwner, ProcessSession, SessionEnd, SignalListener, StdinReader,
        TerminalUse, exit_byte, print_notice,
    },
    quantity::DurationArg,
    terminal::{self, StandardStream},
};

pub use self::exec_args::{ExecArgs, NetworkChoice, SandboxChoice, VariableArg};

/// A command, and where it runs.
#[derive(Clone, Debug)]
pub(crate) struct StartRequest<'a> {
    /// The environment.
    pub(crate) env: &'a ConnectedEnv,
    /// Where in it.
    pub(crate) surroundings: &'a ExecArgs,
    /// Its name.
    pub(crate) id: ProcessId,
    /// Program and arguments.
    pub(crate) argv: Vec<String>,
    /// Whether it has a terminal.
    pub(crate) terminal: TerminalUse,
    /// How long it may take.
    pub(crate) limit: Option<DurationArg>,
    /// What leaves it running, on a terminal.
    pub(crate) keys: Option<DetachKeys>,
}

/// How much longer than its time the server lets a command live that we should have ended: it does so
/// when we cannot.
const MARGIN: Duration = Duration::from_secs(5);

/// Starts a command, talks with it, and returns as it ends.
pub(crate) async fn run(launch: StartRequest<'_>) -> Result<ExitCode, CommandFailure> {
    let input = StdinReader::open();
    let input = input.map_err(|error| CommandFailure::new(FailureKind::Failed, error))?;
    run_session(launch, input)
        .await
        .map(|outcome| outcome.status)
}

/// The same, for a command that gets nothing of our input, and is not the last.
pub(crate) async fn run_without_input(
    launch: StartRequest<'_>,
) -> Result<RunOutcome, CommandFailure> {
    run_session(launch, None).await
}

/// What a command came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunOutcome {
    /// The status to end with.
    pub(crate) status: ExitCode,
    /// Nobody reads our output any more.
    pub(crate) is_unread: bool,
}

async fn run_session(
    launch: StartRequest<'_>,
    input: Option<StdinReader>,
) -> Result<RunOutcome, CommandFailure> {
    let failed = |error| CommandFailure::new(FailureKind::Failed, error);
    let stdin = match input {
        Some(_) => Stdin::Piped,
        None => Stdin::Null,
    };
    let mut command = launch.command(stdin).await?;
    let (env, id) = (launch.env, launch.id.clone());
    if env.client.has_extensions() {
        command.limits.wall_ms = launch
            .limit
            .map(|limit| DurationArg(limit.0 + GRACE + MARGIN).millis());
    } else {
        launch.check_directory(&command.cwd).await?;
        if input.as_ref().is_some_and(|input| !input.is_terminal()) {
            print_notice(
                "this server cannot end a command's input: one that reads it to the end waits for \
                 ever; `</dev/null` gives it none",
            );
        }
    }
    let mut signals = SignalListener::listen().map_err(failed)?;
    let backend = env.environment().backend;
    let started = tokio::select! {
        biased;
        started = backend.start(command) => started,
        // Nobody has seen it begin, and it does not go on.
        number = signals.asked() => return Ok(RunOutcome {
            status: ExitCode::from(exit_byte(128 + number)),
            is_unread: false,
        }),
    };
    let started = started.map_err(|error| start_failure(error, env))?;
    let on_terminal = launch.terminal == TerminalUse::Theirs && StandardStream::Input.is_terminal();
    let process = started.process;
    let run_session = ProcessSession {
        client: env.client.clone(),
        process: Arc::clone(&process),
        signals,
        after: OutputSeq(0),
        owner: ProcessOwner::Us,
        input,
        terminal: launch.terminal,
        // What is piped in holds no keys.
        keys: launch.keys.filter(|_| on_terminal),
        snapshot: Vec::new(),
        limit: launch.limit.map(|DurationArg(limit)| limit),
    };
    let end = run_session.run().await.map_err(failed)?;
    if matches!(end, SessionEnd::Detached) {
        leave(env, &id).await?;
        // Dropping the handle would end the process, which is not ours any more.
        std::mem::forget(process);
    }
    let is_unread = matches!(end, SessionEnd::Unwritten(_));
    let status = end.status(ProcessOwner::Us, &id, env)?;
    Ok(RunOutcome { status, is_unread })
}

/// Leaves a command running: the server takes it over from our session, which ends with us.
async fn leave(env: &ConnectedEnv, id: &ProcessId) -> Result<(), CommandFailure> {
    let taken = async {
        let other = env.open_again().await?;
        let found = detached::find_attachable(&other.client, id.as_str()).await?;
        detached::adopt_process(&other.client, &found).await
    };
    let taken = timeout(LEAVING, taken).await.unwrap_or_else(|_| {
        Err(CommandFailure::new(
            FailureKind::Unreachable,
            "the server does not answer",
        ))
    });
    taken.map_err(|failure| {
        let what = format!(
            "cannot leave `{id}` running, so it is ended: {}",
            failure.what
        );
        CommandFailure::new(failure.kind, what)
    })
}

/// How long the server may take to take a command over.
const LEAVING: Duration = Duration::from_secs(5);
/// The keys that leave a command running unless others are chosen: no program on a terminal needs
/// them twice in a row, and no shell has a use for the first.
pub(crate) const LEAVE_KEYS: &str = "ctrl-],ctrl-]";

/// Starts a command that outlives us. With `Stdin::Piped`, whoever attaches to it can write to it.
pub(crate) async fn detach(launch: StartRequest<'_>, stdin: Stdin) -> Result<(), CommandFailure> {
    let mut command = launch.command(stdin).await?;
    command.limits.wall_ms = launch.limit.map(DurationArg::millis);
    let started = launch.env.client.start_detached(command).await;
    started
        .map(drop)
        .map_err(|error| start_failure(error, launch.env))
}

impl StartRequest<'_> {
    /// Fails if the directory that was asked for is not there. The stock server says the same of a
    /// missing directory as of a missing program, and on a terminal it takes another one.
    async fn check_directory(&self, directory: &PathUri) -> Result<(), CommandFailure> {
        let files = self.env.environment().files;
        let found = metadata_if_exists(&*files, directory).await;
        let what = match found {
            Ok(Some(found)) if found.is_directory => return Ok(()),
            Ok(Some(_)) => format!("`{}` is not a directory", display_path(directory)),
            Ok(None) => format!("directory `{}` does not exist", display_path(directory)),
            Err(error) => return Err(file_failure(&error)),
        };
        Err(CommandFailure::new(FailureKind::NotFound, what).next("-C chooses another directory"))
    }

    async fn command(&self, stdin: Stdin) -> Result<Command, CommandFailure> {
        let directory = self.surroundings.directory(self.env).await?;
        let io = match self.terminal {
            TerminalUse::None => Io::Pipes { stdin },
            TerminalUse::Theirs => Io::Terminal(terminal::size().unwrap_or_default()),
        };
        let mut command = Command {
            io,
            limits: Limits::default(),
            ..Command::new(self.id.clone(), self.argv.clone(), directory)
        };
        self.surroundings.surround(&mut command, self.env).await?;
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

/// Tells a person.
fn start_failure(error: StartError, env: &ConnectedEnv) -> CommandFailure {
    match error {
        StartError::Remote(error) => {
            explain_refusal(&error.message, error.code == ErrorCode::INTERNAL, &env.name)
        }
        StartError::Spawn { context, source } => {
            explain_refusal(&format!("{context}: {source}"), true, &env.name)
        }
        StartError::EmptyArgv | StartError::EmptyProgram => {
            CommandFailure::new(FailureKind::Usage, "the command has no name")
        }
        StartError::Cwd(error) => CommandFailure::new(FailureKind::Usage, error),
        StartError::Disconnected(gone) => CommandFailure::new(FailureKind::Lost, gone)
            .next("whether the command was started is not known; the server ends it soon if so"),
        StartError::Refused { .. } | StartError::Cancelled | _ => {
            explain_refusal(&error.to_string(), false, &env.name)
        }
    }
}

/// Numbers of the system's reasons, on Linux and macOS.
const NO_ENTRY: &str = "(os error 2)";
const NOT_EXECUTABLE: [&str; 3] = ["(os error 13)", "(os error 8)", "(os error 21)"];

fn explain_refusal(text: &str, by_host: bool, env: &str) -> CommandFailure {
    let failure = |kind| CommandFailure::new(kind, text);
    if text.starts_with("sandbox") {
        return failure(FailureKind::Failed)
            .next("`exec-server doctor`, run there, tells what can be enforced");
    }
    if text.starts_with("process ") && text.ends_with(" already exists") {
        return failure(FailureKind::Usage).next("--name chooses another id");
    }
    if !by_host {
        return failure(FailureKind::Failed);
    }
    if text.starts_with("cannot enter directory") {
        return failure(FailureKind::NotFound).next("-C chooses another directory");
    }
    if text.ends_with(NO_ENTRY) {
        return failure(FailureKind::CommandNotFound)
            .next(format_args!("check the name, and PATH in `{env}`"));
    }
    if NOT_EXECUTABLE.iter().any(|end| text.ends_with(end)) {
        return failure(FailureKind::NotExecutable)
            .next("name its interpreter first, or make it executable");
    }
    failure(FailureKind::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_told_from_a_missing_directory_and_from_one_that_cannot_be_executed() {
        let kind = |text: &str| explain_refusal(text, true, "local").kind;
        let missing = "No such file or directory (os error 2)";
        assert_eq!(
            kind(&format!("cannot run `nope`: {missing}")),
            FailureKind::CommandNotFound
        );
        assert_eq!(
            kind(&format!("cannot enter directory `/nope`: {missing}")),
            FailureKind::NotFound
        );
        for reason in [
            "Permission denied (os error 13)",
            "Exec format error (os error 8)",
        ] {
            assert_eq!(
                kind(&format!("cannot run `/etc/passwd`: {reason}")),
                FailureKind::NotExecutable,
            );
        }
        assert_eq!(
            kind("cannot create a process: out of memory"),
            FailureKind::Failed
        );
    }

    #[test]
    fn what_the_server_refuses_is_not_taken_for_the_system() {
        let kind = |text| explain_refusal(text, false, "local").kind;
        assert_eq!(kind("env: A=(os error 2)"), FailureKind::Failed);
        assert_eq!(kind("process a already exists"), FailureKind::Usage);
    }
}
