//! `exec-server run`.

use std::{ffi::OsString, path::Path, process::ExitCode};

use clap::Args;
use exec_env::command::Stdin;
use exec_wire::id::ProcessId;

use crate::command::{
    connect::{ConnectedEnv, EnvArgs},
    failure::{CommandFailure, FailureKind},
    process_session::{DetachKeys, TerminalUse, write_result},
    quantity::DurationArg,
    start::{self, ExecArgs, LEAVE_KEYS, StartRequest},
    terminal::StandardStream,
};

/// Runs a command, and ends as it ends.
///
/// Its output is ours, its input is ours, and so is its status: 128 and n after signal n. SIGINT,
/// SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on; Ctrl-Z stops both. The third Ctrl-C
/// within two seconds, and the second SIGTERM or SIGHUP, end the command at once, and us.
///
/// If the connection is lost, the command goes on; what it writes meanwhile comes when the connection
/// is back.
#[derive(Args, Clone, Debug)]
#[command(after_help = STATUS)]
pub struct RunCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    #[command(flatten)]
    #[doc(hidden)]
    pub surroundings: ExecArgs,

    /// Runs it on a terminal of its own, of the size of ours.
    #[arg(short, long)]
    pub tty: bool,

    /// Leaves it running, and prints its id; `logs`, `attach`, `wait` and `kill` take it.
    #[arg(short, long)]
    pub detach: bool,

    /// Id of a detached command [default: a random one].
    #[arg(long, value_name = "ID", requires = "detach")]
    pub name: Option<String>,

    /// Keeps the input of a detached command open, for `attach` to write to.
    #[arg(short, long, requires = "detach")]
    pub interactive: bool,

    /// Ends the command after this time, such as 90s or 10m: with SIGTERM, and five seconds later with
    /// SIGKILL; a detached one with SIGKILL.
    #[arg(long, value_name = "SPAN")]
    pub timeout: Option<DurationArg>,

    /// Keys that leave a command with a terminal running; `attach` returns to it.
    #[arg(long, value_name = "KEYS", default_value = LEAVE_KEYS)]
    pub detach_keys: DetachKeys,

    /// The command and its arguments; what follows its name is its own.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<String>,
}

const STATUS: &str = "\
Exit status: the command's own; 124 if its time was up, 126 if it cannot be executed, 127 if it is not \
there, 141 if nobody reads our output; 66 if the directory is not there, 69 if nobody answers, 75 if the \
connection was lost for good, 77 without the right token, 78 for an unknown environment, 2 for a wrong \
line.";

impl RunCommand {
    /// Runs a command, and ends as it ends.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let id = match &self.name {
            Some(name) => named(name)?,
            None => start::new_id(),
        };
        let env = ConnectedEnv::open(&self.env_args).await?;
        let launch = StartRequest {
            env: &env,
            surroundings: &self.surroundings,
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
            return start::run(launch).await;
        }
        let stdin = match self.interactive {
            true => Stdin::Piped,
            false => Stdin::Null,
        };
        start::detach(launch, stdin).await?;
        write_result(&format!("{id}\n"))
    }
}

/// Takes an id that can be typed again, and stand in a table.
fn named(name: &str) -> Result<ProcessId, CommandFailure> {
    let plain = |sign: char| sign.is_ascii_alphanumeric() || "-_.".contains(sign);
    let wrong = || {
        let what = format!("`{}` is no id", name.escape_default());
        CommandFailure::new(FailureKind::Usage, what)
            .next("--name takes up to 64 letters, digits, `-`, `_` and `.`, the first no `-`")
    };
    let fits = (1..=64).contains(&name.len()) && !name.starts_with('-');
    match fits && name.chars().all(plain) {
        true => ProcessId::new(name).map_err(|_| wrong()),
        false => Err(wrong()),
    }
}

/// Opens a shell.
///
/// On this machine it is $SHELL; elsewhere it is the login shell of the account that the server runs
/// under. It has a terminal of the size of ours. If our input is not a terminal, the shell reads its commands from it, without one.
///
/// While the connection is out, three times Ctrl-C give up.
#[derive(Args, Clone, Debug)]
pub struct ShellCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    #[command(flatten)]
    #[doc(hidden)]
    pub surroundings: ExecArgs,

    /// Keys that leave the shell running; `attach` returns to it.
    #[arg(long, value_name = "KEYS", default_value = LEAVE_KEYS)]
    pub detach_keys: DetachKeys,
}

impl ShellCommand {
    /// Opens a shell.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let env = ConnectedEnv::open(&self.env_args).await?;
        let shell = match env.here {
            true => chosen_shell(std::env::var_os("SHELL")),
            false => None,
        };
        let shell = shell.unwrap_or_else(|| env.info.shell.path.clone());
        start::run(StartRequest {
            env: &env,
            surroundings: &self.surroundings,
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

/// Returns the shell that the person chose, if it can be one.
fn chosen_shell(shell: Option<OsString>) -> Option<String> {
    let shell = shell?.into_string().ok()?;
    let path = Path::new(&shell);
    (path.is_absolute() && path.is_file()).then_some(shell)
}
