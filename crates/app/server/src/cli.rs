//! The command line of `exec-server`.
//! Invariant: what is wrong with one argument alone, or with the flags of one command together, is
//! found here and ends with status 2; what is wrong with them together with the environment and the
//! file is found by `config`, `remote` and `hub`, and ends with status 1.

mod conventions;
mod executor_args;
mod hub_args;
#[cfg(test)]
mod tests;

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, CommandFactory, Parser, Subcommand, error::ErrorKind};

use crate::{
    command::{EnvArgs, UserCommand},
    config::{ConfigOverride, ServerSettings, Strictness, Switch},
};

pub use self::{
    executor_args::{
        ChatGptAuthArgs, ForwardArgs, IgnoredOptions, RegistrationArgs, RemoteTransport,
        TransportArgs,
    },
    hub_args::{
        HubArgs, HubCommand, HubEnvironments, HubFlags, ListTokens, MakeToken, RevokeToken,
        TokenCommand, TokenFileArgs, TokenLifetime, TokenLifetimeParseError,
    },
};

/// Runs commands and file operations where the code lives: here, on a server, or behind a hub.
///
/// With a command it works in an environment, which --env chooses; this machine is one, without
/// anything to set up. Without a command it is the server: clients speak JSON-RPC over a websocket, a
/// unix socket or stdio. A listener prints one line to stdout once it is bound, its URL with the
/// real port; logs go to stderr.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "exec-server", version, after_help = AFTER_HELP,
    mut_arg("remote", |remote| remote.conflicts_with_all(LISTENER)),
)]
pub struct Cli {
    /// What to do instead of serving.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Options that can also come from the environment and from the configuration file.
    #[command(flatten)]
    pub settings: ServerSettings,

    /// Options of an executor that is reached through a registry.
    #[command(flatten)]
    pub registration: RegistrationArgs,

    /// How such an executor is reached.
    #[command(flatten)]
    pub transport: TransportArgs,

    /// A ChatGPT access token as its credential.
    #[command(flatten)]
    pub chatgpt: ChatGptAuthArgs,

    /// Configuration file, in TOML, with the long options as keys, such as session_ttl = 80
    /// [default: config.toml in $EXEC_SERVER_HOME, in $XDG_CONFIG_HOME/exec-server or in
    /// ~/.config/exec-server, if it exists].
    #[arg(long, value_name = "FILE", help_heading = CONFIGURATION)]
    pub config: Option<PathBuf>,

    /// Sets one key of the configuration file, repeatable; the value is TOML, or else a string.
    #[arg(short = 'c', value_name = "KEY=VALUE", help_heading = CONFIGURATION)]
    pub overrides: Vec<ConfigOverride>,

    /// Refuses to start on unknown keys and on a broken configuration file, instead of warning.
    #[arg(long, help_heading = CONFIGURATION)]
    pub strict_config: bool,

    /// Serves the commands for people on this machine: in a session of its own, with nothing that
    /// environment or file say of a listener, which is another's, and not for ever.
    #[arg(long, hide = true, requires = "listen")]
    pub background: bool,

    /// Accepted for compatibility and ignored with a warning.
    #[arg(long, value_name = "FEATURE", help_heading = CONFIGURATION, hide_short_help = true)]
    pub enable: Vec<String>,

    /// Accepted for compatibility and ignored with a warning.
    #[arg(long, value_name = "FEATURE", help_heading = CONFIGURATION, hide_short_help = true)]
    pub disable: Vec<String>,

    /// Accepted for compatibility and ignored with a warning.
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", help_heading = CONFIGURATION, hide_short_help = true
    )]
    pub proxy_private_ips_via_upstream: Option<Switch>,
}

/// What to do instead of serving.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Works in an environment.
    #[command(flatten)]
    People(Box<UserCommand>),
    /// Tells what this machine can enforce, and what would help where it cannot.
    ///
    /// Everything is tried, as the server would do it, which takes at most 20 seconds. Options of
    /// the server's count, before the command: `exec-server --sandbox-mechanism landlock doctor`
    /// tells what Landlock alone would do. Run it where the server runs: under the same account, in
    /// the same container; --env has the server of an environment do it.
    #[command(after_help = DOCTOR_STATUS)]
    Doctor(DoctorArgs),
    /// Offers a server that listens elsewhere through a registry.
    ///
    /// The executor's part is played here: registration, relay, encryption. What a harness sends is
    /// handed on, message by message, over one websocket for each harness.
    Forward(Box<ForwardArgs>),
    /// Runs a hub: the registry and the relay through which harnesses reach executors.
    ///
    /// It prints one line to stdout once it is bound, its URL. Nobody gets in without a token:
    /// `exec-server hub token create` makes one.
    Hub(Box<HubArgs>),
}

/// Options of `exec-server doctor`.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// Whose machine; this one if it is not said.
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

impl Cli {
    /// Reads a line whose first word is the name of the program.
    ///
    /// # Errors
    /// When it is wrong, or asks for help. The error knows the status to end with.
    pub fn read<I>(line: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item: Into<OsString> + Clone>,
    {
        let line = line.into_iter().map(Into::into).collect();
        let cli = Self::try_parse_from(conventions::rewrite(line)?)?;
        if cli.command.is_some() && cli.registration.remote.is_some() {
            let text = "--remote before a command has no meaning; `forward` has its own";
            return Err(Self::command().error(ErrorKind::ArgumentConflict, text));
        }
        cli.transport.check(&cli.registration, &cli.chatgpt)?;
        if let Some(Command::Forward(forward)) = &cli.command {
            forward.transport.check_forward(&forward.registration)?;
        }
        Ok(cli)
    }

    /// What `--strict-config` asks for.
    pub fn strictness(&self) -> Strictness {
        if self.strict_config {
            Strictness::Strict
        } else {
            Strictness::Lenient
        }
    }
}

const DOCTOR_STATUS: &str = "\
Exit status: 0 if every kind of policy can be enforced, 1 if not, 2 for a wrong command line.";

const CONFIGURATION: &str = "Configuration";

/// Options of a listener, which an executor behind a relay has none of.
const LISTENER: [&str; 12] = [
    "listen",
    "idle_exit",
    "tls_cert",
    "tls_key",
    "ws_auth",
    "ws_token_file",
    "ws_token_sha256",
    "ws_shared_secret_file",
    "ws_issuer",
    "ws_audience",
    "ws_max_clock_skew_seconds",
    "insecure_no_auth",
];

const AFTER_HELP: &str = "\
Each option of the server is looked for in four places, and the first one wins: its flag, `-c`, the \
environment (EXEC_SERVER_ and the flag in upper case, such as EXEC_SERVER_SESSION_TTL), the \
configuration file. Relative paths start at the working directory, wherever they are written. \
Options under Remote are flags only.

Examples, for people:
  exec-server run -- make test
      A command on this machine; its server is started if there is none, and ends when idle
  exec-server run --env wss://devbox.example:8443 --token-file token -- make test
      The same on a server
  exec-server env add box --hub https://hub.example --token-file token --default
      An environment behind a hub, used from now on when none is named
  exec-server shell
  exec-server cp -r src/ box:work/
  exec-server env status

Examples, for servers:
  exec-server
      A free port of this machine, whose URL is printed
  exec-server --listen stdio
      One client, on stdin and stdout: for a parent process, or over ssh
  exec-server --listen unix:///run/user/1000/exec.sock --session-ttl 600
      A unix socket; processes survive ten minutes without their client
  exec-server --listen wss://0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem \\
              --ws-auth capability-token --ws-token-file token
      Every interface, encrypted, for clients that hold the token
  exec-server --listen ws://10.0.0.5:8080 \\
              --ws-auth signed-bearer-token --ws-shared-secret-file secret --ws-audience box-7
      For clients with a JWT, signed with the secret and meant for box-7
  exec-server --remote https://hub.example --environment-id box-7 --remote-token-file token
      For harnesses that reach the same hub; nothing listens here
  exec-server hub
      A hub for executors and harnesses, on port 8765 of this machine
  exec-server doctor
      What this machine can enforce of sandbox policies; serves nobody

Exit status of a server: 0 after SIGTERM or SIGINT, 1 if it cannot start or go on, 2 for a wrong \
command line.

Exit status of a command for people: that of the command it ran (128 and the signal's number if one \
ended it), or
    1  something else failed              2  wrong command line
   66  no such file or process           69  environment not reachable
   75  connection lost for good          77  token missing or wrong
   78  no such environment              124  time was up
  126  command cannot be executed       127  command not found
  130  Ctrl-C";
