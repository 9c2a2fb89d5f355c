//! Command line of `exec-server`.
//!
//! Invariant: errors in one argument, or in the flags of one command, are found here and exit with
//! status 2; errors in combination with the environment or the file are found by `config`, `remote`
//! and `hub`, and exit with status 1.

#[cfg(feature = "cli")]
mod argv;
#[cfg(feature = "remote")]
mod executor_args;
#[cfg(feature = "hub")]
mod hub_args;
mod missing_features;
#[cfg(test)]
#[cfg(all(feature = "cli", feature = "hub"))]
mod tests;

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Parser, Subcommand};
#[cfg(feature = "remote")]
use clap::{CommandFactory, error::ErrorKind};

#[cfg(feature = "cli")]
use crate::command::{EnvArgs, UserCommand};
use crate::config::{ConfigOverride, ServerSettings, Strictness, Switch};

#[cfg(feature = "remote")]
pub use self::executor_args::{
    ChatGptAuthArgs, ForwardArgs, IgnoredOptions, RegistrationArgs, TransportArgs,
};
#[cfg(feature = "hub")]
pub use self::hub_args::{
    HubArgs, HubCommand, HubEnvironments, HubFlags, HubInvite, ListTokens, MakeToken, NatsArgs,
    RevokeToken, TokenCommand, TokenFileArgs, TokenLifetime, TokenLifetimeParseError,
};
#[cfg(feature = "remote")]
pub use crate::remote::RemoteTransport;

/// Command line of `exec-server`. Its help only has what is compiled in.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "exec-server", version, about = ABOUT, long_about = long_about(),
    after_help = after_help(),
)]
#[cfg_attr(
    feature = "remote",
    command(mut_arg("remote", |remote| remote.conflicts_with_all(LISTENER)))
)]
pub struct Cli {
    /// Command to run instead of serving.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Options that can also come from the environment and from the configuration file.
    #[command(flatten)]
    pub settings: ServerSettings,

    /// Options of an executor behind a registry.
    #[cfg(feature = "remote")]
    #[command(flatten)]
    pub registration: RegistrationArgs,

    /// What the end of stdin means.
    #[command(flatten)]
    pub stdin: StdinArgs,

    /// How harnesses connect to an executor behind a registry.
    #[cfg(feature = "remote")]
    #[command(flatten)]
    pub transport: TransportArgs,

    /// ChatGPT access token as its credential.
    #[cfg(feature = "remote")]
    #[command(flatten)]
    pub chatgpt: ChatGptAuthArgs,

    /// Configuration file in TOML, with the long options as keys, such as session_ttl = 80
    /// [default: config.toml in $EXEC_SERVER_HOME, in $XDG_CONFIG_HOME/exec-server or in
    /// ~/.config/exec-server, if it exists].
    #[arg(long, value_name = "FILE", help_heading = CONFIGURATION)]
    pub config: Option<PathBuf>,

    /// Sets one key of the configuration file, repeatable; the value is TOML, else a string.
    #[arg(short = 'c', value_name = "KEY=VALUE", help_heading = CONFIGURATION)]
    pub overrides: Vec<ConfigOverride>,

    /// Refuses to start on unknown keys and on an invalid configuration file, instead of warning.
    #[arg(long, help_heading = CONFIGURATION)]
    pub strict_config: bool,

    /// Serves the commands for people on this machine: in its own session, ignoring listener
    /// options from the environment and the file, and exiting when idle.
    #[arg(long, hide = true, requires = "listen")]
    pub background: bool,

    /// Takes over listener and state from the server at the other end of stdin, which started this
    /// one for an upgrade.
    #[arg(long, hide = true)]
    pub takeover: bool,

    /// Creates no file or directory of its own, for a place where nothing shall be left.
    #[arg(long, hide = true, requires = "listen")]
    pub ephemeral: bool,

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

/// Command to run instead of serving.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Works in an environment.
    #[cfg(feature = "cli")]
    #[command(flatten)]
    People(Box<UserCommand>),
    /// Reports what this machine can enforce, and what would help where it cannot.
    ///
    /// It probes every mechanism as the server would use it, which takes at most 20 seconds. Server
    /// options before the command apply: `exec-server --sandbox-mechanism landlock doctor` reports
    /// what Landlock alone would do. Run it where the server runs: under the same account, in the
    /// same container; --env lets the server of an environment run it.
    #[cfg(feature = "cli")]
    #[command(after_help = DOCTOR_STATUS)]
    Doctor(DoctorArgs),
    /// Offers a server that listens elsewhere through a registry.
    ///
    /// This process acts as the executor: registration, relay, encryption. It forwards messages
    /// over one websocket per harness.
    #[cfg(feature = "remote")]
    Forward(Box<ForwardArgs>),
    /// Passes bytes between stdin and stdout and this account's background server, which it starts
    /// if none is running. Clients run it on other machines.
    #[command(hide = true)]
    Bridge(BridgeArgs),
    /// Adds this machine to a hub by an invite, and runs its executor.
    ///
    /// The invite is the line that `exec-server hub invite` prints. It is exchanged once for a token,
    /// which is stored for this account; the same line can be given again. Server options before the
    /// command apply.
    #[cfg(feature = "cli")]
    Join(JoinArgs),
    /// Runs a hub: the registry and relay through which harnesses reach executors.
    ///
    /// It prints its URL to stdout once it is bound. Clients need a token: `exec-server hub token
    /// create` makes one.
    #[cfg(feature = "hub")]
    Hub(Box<HubArgs>),
}

/// Options of `exec-server bridge`.
#[derive(Args, Clone, Debug)]
pub struct BridgeArgs {
    /// Prints what this program is, for clients that look for it.
    #[arg(long)]
    pub check: bool,
}

/// What the end of stdin means.
#[derive(Args, Clone, Debug, Default)]
pub struct StdinArgs {
    #[cfg_attr(
        feature = "remote",
        doc = "Exits at the end of stdin, also without --remote."
    )]
    #[cfg_attr(not(feature = "remote"), doc = "Exits at the end of stdin.")]
    #[arg(long, help_heading = STDIN)]
    pub exit_on_stdin_close: bool,
}

/// Options of `exec-server join`.
#[cfg(feature = "cli")]
#[derive(Args, Clone, Debug)]
pub struct JoinArgs {
    /// Invite, as `exec-server hub invite` printed it.
    #[arg(value_name = "LINE")]
    pub line: String,

    /// Installs the executor as a systemd service of this account and starts it, instead of running
    /// here.
    #[arg(long)]
    pub service: bool,
}

/// Options of `exec-server doctor`.
#[cfg(feature = "cli")]
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// Environment to examine; this machine by default.
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

impl Cli {
    /// Parses a command line that starts with the program name.
    ///
    /// # Errors
    /// When the line is invalid, or asks for help. The error knows the exit status.
    pub fn read<I>(line: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item: Into<OsString> + Clone>,
    {
        let line: Vec<OsString> = line.into_iter().map(Into::into).collect();
        #[cfg(feature = "cli")]
        let line = argv::rewrite_argv(line)?;
        let cli = Self::try_parse_from(line).map_err(missing_features::explain)?;
        #[cfg(feature = "remote")]
        cli.check_remote()?;
        Ok(cli)
    }

    /// Checks which flags of an executor behind a registry are compatible.
    #[cfg(feature = "remote")]
    fn check_remote(&self) -> Result<(), clap::Error> {
        if self.command.is_some() && self.is_remote() {
            let text = "--remote before a command has no effect; `forward` has its own";
            return Err(Self::command().error(ErrorKind::ArgumentConflict, text));
        }
        self.transport.check(&self.registration, &self.chatgpt)?;
        if let Some(Command::Forward(forward)) = &self.command {
            forward.transport.check_forward(&forward.registration)?;
        }
        Ok(())
    }

    /// Returns whether this machine is offered through a registry, and nothing listens.
    pub fn is_remote(&self) -> bool {
        #[cfg(feature = "remote")]
        let is_remote = self.registration.remote.is_some();
        #[cfg(not(feature = "remote"))]
        let is_remote = false;
        is_remote
    }

    /// Returns the strictness of `--strict-config`.
    pub fn strictness(&self) -> Strictness {
        if self.strict_config {
            Strictness::Strict
        } else {
            Strictness::Lenient
        }
    }
}

#[cfg(feature = "cli")]
const DOCTOR_STATUS: &str = "\
Exit status: 0 if every kind of policy can be enforced, 1 if not, 2 for a wrong command line.";

const CONFIGURATION: &str = "Configuration";

/// Heading of the options for stdin.
#[cfg(feature = "remote")]
const STDIN: &str = "Remote";
#[cfg(not(feature = "remote"))]
const STDIN: &str = "Listener";

/// Options of a listener, which an executor behind a relay does not have.
#[cfg(feature = "remote")]
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

#[cfg(feature = "cli")]
const ABOUT: &str =
    "Runs commands and file operations where the code lives: here, on a server, or behind a hub";
#[cfg(not(feature = "cli"))]
const ABOUT: &str = "Runs commands and file operations of its clients on this machine";

fn long_about() -> String {
    let commands = match cfg!(feature = "cli") {
        true => COMMANDS_ABOUT,
        false => "",
    };
    format!("{ABOUT}.\n\n{commands}{SERVER_ABOUT}")
}

const COMMANDS_ABOUT: &str = "\
With a command it works in an environment that --env selects; this machine needs no set-up. Without \
a command it is the server; without any argument, on a terminal, it shows what runs and what to try. ";

const SERVER_ABOUT: &str = "\
Clients speak JSON-RPC over a websocket, a unix socket or stdio. A listener prints its URL with the \
actual port to stdout once it is bound; logs go to stderr.";

fn after_help() -> String {
    let parts = [
        (true, OPTION_SOURCES),
        (cfg!(feature = "remote"), REMOTE_SOURCES),
        (cfg!(feature = "cli"), COMMAND_EXAMPLES),
        (true, SERVER_EXAMPLES),
        (cfg!(feature = "remote"), REMOTE_EXAMPLE),
        (cfg!(feature = "hub"), HUB_EXAMPLE),
        (cfg!(feature = "cli"), DOCTOR_EXAMPLE),
        (true, SERVER_STATUS),
        (cfg!(feature = "cli"), COMMAND_STATUS),
    ];
    let compiled = parts.into_iter().filter(|(is_compiled, _)| *is_compiled);
    compiled.map(|(_, text)| text).collect()
}

const OPTION_SOURCES: &str = "\
Server options are read from four sources, the first of which wins: the flag, `-c`, the environment \
(EXEC_SERVER_ and the flag in upper case, such as EXEC_SERVER_SESSION_TTL), and the configuration \
file. Relative paths start at the working directory in all of them.";

const REMOTE_SOURCES: &str = " Options under Remote are flags only.";

const COMMAND_EXAMPLES: &str = "

Examples, for people:
  exec-server run -- make test
      A command on this machine; starts the local server if needed, which exits when idle
  exec-server run --env wss://devbox.example:8443 --token-file token -- make test
      The same on a server
  exec-server env add box --hub https://hub.example --token-file token --default
      An environment behind a hub, as the default
  exec-server shell
  exec-server cp -r src/ box:work/
  exec-server env status";

const SERVER_EXAMPLES: &str = "

Examples, for servers:
  exec-server --listen ws://127.0.0.1:0
      Listens on a free loopback port and prints its URL
  exec-server --listen stdio
      One client, on stdin and stdout: for a parent process, or over ssh
  exec-server --listen unix:///run/user/1000/exec.sock --session-ttl 600
      A unix socket; processes survive a disconnect of ten minutes
  exec-server --listen wss://0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem \\
              --ws-auth capability-token --ws-token-file token
      Every interface, encrypted, for clients with the token
  exec-server --listen ws://10.0.0.5:8080 \\
              --ws-auth signed-bearer-token --ws-shared-secret-file secret --ws-audience box-7
      For clients with a JWT that is signed with the secret, with the audience box-7";

const REMOTE_EXAMPLE: &str = "
  exec-server --remote https://hub.example --environment-id box-7 --remote-token-file token
      For harnesses of the same hub; nothing listens here";

const HUB_EXAMPLE: &str = "
  exec-server hub
      A hub for executors and harnesses, on port 8765 of this machine
  exec-server hub invite --name box-7
      Prints a line for `exec-server join`, which adds a machine to that hub";

const DOCTOR_EXAMPLE: &str = "
  exec-server doctor
      Reports which sandbox policies this machine can enforce";

const SERVER_STATUS: &str = "

Exit status of a server: 0 after SIGTERM or SIGINT, 1 if it cannot start or continue, 2 for a \
wrong command line.";

const COMMAND_STATUS: &str = "

Exit status of a command for people: that of the command it ran (128+n if signal n killed it), or
    1  any other failure                  2  wrong command line
   66  no such file or process           69  environment not reachable
   75  connection lost for good          77  token missing or wrong
   78  no such environment              124  time limit reached
  126  command cannot be executed       127  command not found
  130  Ctrl-C";
