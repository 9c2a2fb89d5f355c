//! `exec-server run` and `exec-server shell`, and how they, `watch` and `doctor` start commands.

mod exec_args;

use std::{ffi::OsString, path::Path, process::ExitCode, sync::Arc, time::Duration};

use clap::Args;
use exec_client::backend::{ProcessDurability, RemoteBackend};
use exec_env::environment::{Command, ExecBackend, ProcessIo, StartError, StdinMode};
use exec_wire::{
    error::ErrorCode,
    id::{OutputSeq, ProcessId},
    path_uri::PathUri,
    process::ProcessLimits,
};
use tokio::time::timeout;

use crate::command::{
    connect::{ConnectedEnv, EnvArgs},
    detached,
    failure::{CommandFailure, FailureKind},
    files::{display_path, metadata_if_exists},
    process_session::{
        DetachKeys, GRACE, ProcessSession, SessionEnd, SessionOwner, SignalListener, StdinReader,
        TerminalUse, print_notice, write_result,
    },
    quantity::DurationArg,
    terminal::{self, StandardStream},
    tunnel::{CommandTunnels, TunnelArg},
};

use self::exec_args::private_loopback;

pub use self::exec_args::{ExecArgs, NetworkChoice, SandboxChoice, VariableArg};

/// Runs a command and exits with its status.
///
/// Streams stdin, stdout and stderr, and exits with the command's status (128+n if signal n killed
/// it). Forwards SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2; Ctrl-Z suspends both. The
/// third Ctrl-C within two seconds, and the second SIGTERM or SIGHUP, terminate the command and
/// exit at once.
///
/// The command keeps running while the connection is lost; its output arrives after reconnecting.
#[derive(Args, Clone, Debug)]
#[command(after_help = STATUS)]
pub struct RunCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    #[command(flatten)]
    #[doc(hidden)]
    pub exec_args: ExecArgs,

    /// Allocates a terminal of the local size.
    #[arg(short, long)]
    pub tty: bool,

    /// Runs it in the background and prints its id for `logs`, `attach`, `wait` and `kill`.
    #[arg(short, long)]
    pub detach: bool,

    /// Lets the command outlive its server, with all its output on disk [default: as the server is
    /// configured; on this machine, with --detach].
    #[arg(long, overrides_with = "no_durable")]
    pub durable: bool,

    /// Lets the command end with its server.
    #[arg(long, overrides_with = "durable")]
    pub no_durable: bool,

    /// Id of a detached command [default: a random one].
    #[arg(long, value_name = "ID", requires = "detach")]
    pub name: Option<String>,

    /// Keeps stdin of a detached command open, so that `attach` can write to it.
    #[arg(short, long, requires = "detach")]
    pub interactive: bool,

    /// Terminates the command after this time, such as 90s or 10m: with SIGTERM, and SIGKILL five
    /// seconds later; a detached one with SIGKILL.
    #[arg(long, value_name = "SPAN")]
    pub timeout: Option<DurationArg>,

    /// Forwards a port that the command opens, repeatable: `auto` for all of them, or
    /// `[[BIND:]LOCAL:][HOST:]PORT`, as with `tunnel`. Prints the local URL to stderr. Also reaches a
    /// command in a sandbox without network.
    #[arg(long = "tunnel", value_name = "SPEC", conflicts_with = "detach")]
    pub tunnels: Vec<TunnelArg>,

    /// Keys that detach from a command with a terminal; `attach` returns to it.
    #[arg(long, value_name = "KEYS", default_value = DEFAULT_DETACH_KEYS)]
    pub detach_keys: DetachKeys,

    /// Command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<String>,
}

const STATUS: &str = "\
Exit status: the command's own; 124 if it reached its time limit, 126 if it cannot be executed, 127 if it does not exist, 141 if stdout is closed; 66 if the directory does not exist, 69 if the environment does not answer, 75 if the connection is lost for good, 77 if the token is missing or wrong, 78 for an unknown environment, 2 for a wrong command line.";

impl RunCommand {
    /// Starts the command, and streams it or detaches.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let id = match &self.name {
            Some(name) => parse_name(name)?,
            None => new_id(),
        };
        if self.detach && self.env_args.ephemeral {
            let what = "--detach and --ephemeral contradict: an ephemeral server ends everything \
                        it runs when its connection ends";
            return Err(CommandFailure::usage(what).next("omit one of them"));
        }
        let env = ConnectedEnv::open(&self.env_args).await?;
        let request = StartRequest {
            env: &env,
            exec_args: &self.exec_args,
            id: id.clone(),
            argv: self.command,
            terminal: match self.tty {
                true => TerminalUse::Pty,
                false => TerminalUse::None,
            },
            limit: self.timeout,
            keys: Some(self.detach_keys),
            durability: match (self.durable, self.no_durable) {
                (true, _) => ProcessDurability::Durable,
                (false, true) => ProcessDurability::NotDurable,
                (false, false) => ProcessDurability::ServerDefault,
            },
            tunnels: &self.tunnels,
        };
        if !self.detach {
            return start_and_run(request).await;
        }
        let stdin = match self.interactive {
            true => StdinMode::Piped,
            false => StdinMode::Null,
        };
        detach(request, stdin).await?;
        write_result(&format!("{id}\n"))
    }
}

/// Accepts an id that is easy to type and fits into a table.
fn parse_name(name: &str) -> Result<ProcessId, CommandFailure> {
    let plain = |sign: char| sign.is_ascii_alphanumeric() || "-_.".contains(sign);
    let wrong = || {
        let what = format!("invalid id `{}`", name.escape_default());
        CommandFailure::usage(what).next(
            "--name takes up to 64 letters, digits, `-`, `_` and `.`, and does not start with `-`",
        )
    };
    let fits = (1..=64).contains(&name.len()) && !name.starts_with('-');
    match fits && name.chars().all(plain) {
        true => ProcessId::new(name).map_err(|_| wrong()),
        false => Err(wrong()),
    }
}

/// Opens a shell.
///
/// On this machine it is $SHELL; elsewhere the login shell of the server's account. It has a
/// terminal of the local size. If stdin is not a terminal, the shell reads commands from it without
/// one.
///
/// While the connection is lost, pressing Ctrl-C three times gives up.
#[derive(Args, Clone, Debug)]
pub struct ShellCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    #[command(flatten)]
    #[doc(hidden)]
    pub exec_args: ExecArgs,

    /// Forwards a port that a program of the shell opens, repeatable: `auto` for all of them,
    /// or `[[BIND:]LOCAL:][HOST:]PORT`, as with `tunnel`. Prints the local URL to stderr.
    #[arg(long = "tunnel", value_name = "SPEC")]
    pub tunnels: Vec<TunnelArg>,

    /// Keys that detach from the shell; `attach` returns to it.
    #[arg(long, value_name = "KEYS", default_value = DEFAULT_DETACH_KEYS)]
    pub detach_keys: DetachKeys,
}

impl ShellCommand {
    /// Starts the shell and streams it.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let env = ConnectedEnv::open(&self.env_args).await?;
        let shell = match env.is_this_machine {
            true => user_shell(std::env::var_os("SHELL")),
            false => None,
        };
        let shell = shell.unwrap_or_else(|| env.info.shell.path.clone());
        start_and_run(StartRequest {
            env: &env,
            exec_args: &self.exec_args,
            id: new_id(),
            argv: vec![shell, "-l".to_owned()],
            terminal: match StandardStream::Input.is_terminal() {
                true => TerminalUse::Pty,
                false => TerminalUse::None,
            },
            limit: None,
            keys: Some(self.detach_keys),
            durability: ProcessDurability::ServerDefault,
            tunnels: &self.tunnels,
        })
        .await
    }
}

/// Returns the user's shell, if it is valid.
fn user_shell(shell: Option<OsString>) -> Option<String> {
    let shell = shell?.into_string().ok()?;
    let path = Path::new(&shell);
    (path.is_absolute() && path.is_file()).then_some(shell)
}

/// Command to start.
#[derive(Clone, Debug)]
pub(crate) struct StartRequest<'a> {
    /// Environment.
    pub(crate) env: &'a ConnectedEnv,
    /// Directory, variables, sandbox and limits.
    pub(crate) exec_args: &'a ExecArgs,
    /// Process id.
    pub(crate) id: ProcessId,
    /// Program and arguments.
    pub(crate) argv: Vec<String>,
    /// Whether it has a terminal.
    pub(crate) terminal: TerminalUse,
    /// Time limit.
    pub(crate) limit: Option<DurationArg>,
    /// Keys that detach on a terminal.
    pub(crate) keys: Option<DetachKeys>,
    /// Whether it outlives its server.
    pub(crate) durability: ProcessDurability,
    /// Ports to forward while it runs.
    pub(crate) tunnels: &'a [TunnelArg],
}

/// Extra time before the server itself enforces the limit, in case this client cannot.
const MARGIN: Duration = Duration::from_secs(5);

/// Starts a command, runs a session with it, and returns its status.
pub(crate) async fn start_and_run(request: StartRequest<'_>) -> Result<ExitCode, CommandFailure> {
    let input = StdinReader::open();
    let input = input.map_err(CommandFailure::failed)?;
    run_session(request, input)
        .await
        .map(|outcome| outcome.status)
}

/// Result of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunOutcome {
    /// Exit status.
    pub(crate) status: ExitCode,
    /// Whether stdout is closed.
    pub(crate) is_unread: bool,
}

/// Runs a command and forwards its output, and the input if there is one.
pub(crate) async fn run_session(
    request: StartRequest<'_>,
    input: Option<StdinReader>,
) -> Result<RunOutcome, CommandFailure> {
    let stdin = match input {
        Some(_) => StdinMode::Piped,
        None => StdinMode::Null,
    };
    let mut command = request.command(stdin).await?;
    let (env, id) = (request.env, request.id.clone());
    if env.client.has_extensions() {
        command.limits.wall_ms = request
            .limit
            .map(|limit| DurationArg(limit.0 + GRACE + MARGIN).millis());
    } else {
        request.check_directory(&command.cwd).await?;
        if input.as_ref().is_some_and(|input| !input.is_terminal()) {
            print_notice(
                "this server cannot close a command's stdin: a command that reads to its end \
                 waits forever; add `</dev/null`",
            );
        }
    }
    let mut signals = SignalListener::listen().map_err(CommandFailure::failed)?;
    let tunnels = CommandTunnels::bind(request.tunnels, env, &id).await?;
    let backend = request.backend();
    let started = tokio::select! {
        biased;
        started = backend.start(command) => started,
        // The command has not been shown yet, and does not continue.
        status = signals.exit_requested() => return Ok(RunOutcome { status, is_unread: false }),
    };
    let started = started.map_err(|error| start_failure(error, env))?;
    let on_terminal = request.terminal == TerminalUse::Pty && StandardStream::Input.is_terminal();
    let process = started.process;
    let (forwards, notices) = tunnels.start();
    let session = ProcessSession {
        client: env.client.clone(),
        process: Arc::clone(&process),
        signals,
        after: OutputSeq(0),
        owner: SessionOwner::Client,
        input,
        terminal: request.terminal,
        // Piped input contains no key presses.
        keys: request.keys.filter(|_| on_terminal),
        snapshot: Vec::new(),
        limit: request.limit.map(|DurationArg(limit)| limit),
        notices,
    };
    let end = session.run().await.map_err(CommandFailure::failed)?;
    forwards.drain().await;
    if matches!(end, SessionEnd::Detached) {
        if !request.tunnels.is_empty() {
            let tunnel = env.line("tunnel", &["--process", id.as_str(), "auto"]);
            print_notice(&format!(
                "its tunnels are closed; `{tunnel}` opens new ones"
            ));
        }
        hand_over(env, &id).await?;
        // Dropping the handle would terminate the process, which the server owns now.
        std::mem::forget(process);
    }
    let is_unread = matches!(end, SessionEnd::OutputFailed(_));
    let status = end.status(SessionOwner::Client, &id, env)?;
    Ok(RunOutcome { status, is_unread })
}

/// Detaches: the server takes the command over from our session.
async fn hand_over(env: &ConnectedEnv, id: &ProcessId) -> Result<(), CommandFailure> {
    let adopted = async {
        let other = env.open_again().await?;
        let found = detached::find_attachable(&other.client, id.as_str()).await?;
        detached::adopt_process(&other.client, &found).await
    };
    let adopted = timeout(ADOPT_TIMEOUT, adopted).await.unwrap_or_else(|_| {
        Err(CommandFailure::new(
            FailureKind::Unreachable,
            "the server does not answer",
        ))
    });
    adopted.map_err(|failure| {
        let what = format!(
            "cannot keep `{id}` running, so it is terminated: {}",
            failure.what
        );
        CommandFailure::new(failure.kind, what)
    })
}

/// Limit for the server to take over a command.
const ADOPT_TIMEOUT: Duration = Duration::from_secs(5);
/// Default detach keys: no program needs them twice in a row, and no shell uses the first.
pub(crate) const DEFAULT_DETACH_KEYS: &str = "ctrl-],ctrl-]";

/// Starts a command that outlives this client. With `Stdin::Piped`, `attach` can write to it.
pub(crate) async fn detach(
    request: StartRequest<'_>,
    stdin: StdinMode,
) -> Result<(), CommandFailure> {
    let mut command = request.command(stdin).await?;
    command.limits.wall_ms = request.limit.map(DurationArg::millis);
    let started = request.backend().start_detached(command).await;
    started
        .map(drop)
        .map_err(|error| start_failure(error, request.env))
}

impl StartRequest<'_> {
    fn backend(&self) -> RemoteBackend {
        RemoteBackend::new(self.env.client.clone()).with_durability(self.durability)
    }

    /// Checks that the requested directory exists. The stock server reports a missing directory
    /// like a missing program, and on a terminal uses another one.
    async fn check_directory(&self, directory: &PathUri) -> Result<(), CommandFailure> {
        let files = self.env.environment().files;
        let found = metadata_if_exists(&*files, directory).await;
        let what = match found {
            Ok(Some(found)) if found.is_directory => return Ok(()),
            Ok(Some(_)) => format!("`{}` is not a directory", display_path(directory)),
            Ok(None) => format!("directory `{}` does not exist", display_path(directory)),
            Err(error) => return Err(CommandFailure::from(error)),
        };
        Err(CommandFailure::new(FailureKind::NotFound, what).next("-C chooses another directory"))
    }

    async fn command(&self, stdin: StdinMode) -> Result<Command, CommandFailure> {
        let directory = self.exec_args.directory(self.env).await?;
        let io = match self.terminal {
            TerminalUse::None => ProcessIo::Pipes { stdin },
            TerminalUse::Pty => ProcessIo::Terminal(terminal::size().unwrap_or_default()),
        };
        let mut command = Command {
            io,
            limits: ProcessLimits::default(),
            ..Command::new(self.id.clone(), self.argv.clone(), directory)
        };
        self.exec_args.apply(&mut command, self.env).await?;
        // A tunnel leads to what the command listens on.
        if !self.tunnels.is_empty() && command.sandbox.is_some() && self.exec_args.network.is_none()
        {
            command.network.managed = Some(private_loopback());
        }
        Ok(command)
    }
}

/// Returns a random process id.
pub(crate) fn new_id() -> ProcessId {
    let name = uuid::Uuid::new_v4().simple().to_string();
    #[expect(clippy::expect_used, reason = "twelve letters are a short name")]
    ProcessId::new(&name[..ID_LETTERS]).expect("a short text is a process id")
}

/// Enough to distinguish a thousand processes, and short enough to type.
const ID_LETTERS: usize = 12;

/// Converts a start error into a message.
fn start_failure(error: StartError, env: &ConnectedEnv) -> CommandFailure {
    match error {
        StartError::Remote(error) => {
            explain_refusal(&error.message, error.code == ErrorCode::INTERNAL, &env.name)
        }
        StartError::Spawn { context, source } => {
            explain_refusal(&format!("{context}: {source}"), true, &env.name)
        }
        StartError::EmptyArgv | StartError::EmptyProgram => {
            CommandFailure::usage("the command name is empty")
        }
        StartError::Cwd(error) => CommandFailure::usage(error),
        StartError::Disconnected(reason) => CommandFailure::new(FailureKind::Lost, reason).next(
            "the command may or may not have been started; the server terminates it soon if so",
        ),
        StartError::Refused { .. } | StartError::Cancelled | _ => {
            explain_refusal(&error.to_string(), false, &env.name)
        }
    }
}

/// OS error numbers on Linux and macOS.
const NO_ENTRY: &str = "(os error 2)";
const NOT_EXECUTABLE: [&str; 3] = ["(os error 13)", "(os error 8)", "(os error 21)"];

fn explain_refusal(text: &str, by_host: bool, env: &str) -> CommandFailure {
    let failure = |kind| CommandFailure::new(kind, text);
    if text.starts_with("sandbox") {
        return failure(FailureKind::Failed)
            .next("run `exec-server doctor` there to see what can be enforced");
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
            .next("run it with its interpreter, or make it executable");
    }
    failure(FailureKind::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_missing_directory_and_not_executable_are_distinguished() {
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
    fn server_refusals_are_not_mistaken_for_os_errors() {
        let kind = |text| explain_refusal(text, false, "local").kind;
        assert_eq!(kind("env: A=(os error 2)"), FailureKind::Failed);
        assert_eq!(kind("process a already exists"), FailureKind::Usage);
    }
}
