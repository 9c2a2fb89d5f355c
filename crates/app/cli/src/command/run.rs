//! `exec-server run` and `exec-server shell`.

use std::{ffi::OsString, path::Path, process::ExitCode};

use clap::Args;
use exec_env::command::StdinMode;
use exec_wire::id::ProcessId;

use crate::command::{
    connect::{ConnectedEnv, EnvArgs},
    failure::{CommandFailure, FailureKind},
    process_session::{DetachKeys, TerminalUse, write_result},
    quantity::DurationArg,
    start::{self, ExecArgs, LEAVE_KEYS, StartRequest},
    terminal::StandardStream,
};

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

    /// Keys that detach from a command with a terminal; `attach` returns to it.
    #[arg(long, value_name = "KEYS", default_value = LEAVE_KEYS)]
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
            Some(name) => named(name)?,
            None => start::new_id(),
        };
        let env = ConnectedEnv::open(&self.env_args).await?;
        let request = StartRequest {
            env: &env,
            exec_args: &self.exec_args,
            id: id.clone(),
            argv: self.command,
            terminal: match self.tty {
                true => TerminalUse::Theirs,
                false => TerminalUse::None,
            },
            limit: self.timeout,
            keys: Some(self.detach_keys),
        };
        if !self.detach {
            return start::run(request).await;
        }
        let stdin = match self.interactive {
            true => StdinMode::Piped,
            false => StdinMode::Null,
        };
        start::detach(request, stdin).await?;
        write_result(&format!("{id}\n"))
    }
}

/// Accepts an id that is easy to type and fits into a table.
fn named(name: &str) -> Result<ProcessId, CommandFailure> {
    let plain = |sign: char| sign.is_ascii_alphanumeric() || "-_.".contains(sign);
    let wrong = || {
        let what = format!("invalid id `{}`", name.escape_default());
        CommandFailure::new(FailureKind::Usage, what).next(
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

    /// Keys that detach from the shell; `attach` returns to it.
    #[arg(long, value_name = "KEYS", default_value = LEAVE_KEYS)]
    pub detach_keys: DetachKeys,
}

impl ShellCommand {
    /// Starts the shell and streams it.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let env = ConnectedEnv::open(&self.env_args).await?;
        let shell = match env.here {
            true => chosen_shell(std::env::var_os("SHELL")),
            false => None,
        };
        let shell = shell.unwrap_or_else(|| env.info.shell.path.clone());
        start::run(StartRequest {
            env: &env,
            exec_args: &self.exec_args,
            id: start::new_id(),
            argv: vec![shell, "-l".to_owned()],
            terminal: match StandardStream::Input.is_terminal() {
                true => TerminalUse::Theirs,
                false => TerminalUse::None,
            },
            limit: None,
            keys: Some(self.detach_keys),
        })
        .await
    }
}

/// Returns the user's shell, if it is valid.
fn chosen_shell(shell: Option<OsString>) -> Option<String> {
    let shell = shell?.into_string().ok()?;
    let path = Path::new(&shell);
    (path.is_absolute() && path.is_file()).then_some(shell)
}
