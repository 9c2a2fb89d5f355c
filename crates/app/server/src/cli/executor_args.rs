//! Options of an executor that is reached through a registry, and of one that stands for another.

use std::path::PathBuf;

use clap::{Args, CommandFactory, ValueEnum, error::ErrorKind};
use exec_registry::{api::EnvironmentId, forward::Destination, http::BaseUrl};

use crate::cli::Cli;

/// Where an executor registers, as what, and by whose right.
#[derive(Args, Clone, Debug, Default)]
pub struct RegistrationArgs {
    /// Registry to offer this machine through, instead of listening: an http:// or https:// URL.
    ///
    /// Connections are outgoing only. Harnesses are let in that the registry vouches for, and speak
    /// with this machine end to end encrypted.
    #[arg(
        long, value_name = "URL", requires = "environment_id", help_heading = REMOTE,
        value_parser = BaseUrl::parse
    )]
    pub remote: Option<BaseUrl>,

    /// Name of this machine at the registry.
    #[arg(
        long, value_name = "ID", requires = "remote", help_heading = REMOTE,
        value_parser = EnvironmentId::new
    )]
    pub environment_id: Option<EnvironmentId>,

    /// Accepted for compatibility; it is not sent anywhere.
    #[arg(long, value_name = "NAME", requires = "remote", help_heading = REMOTE)]
    pub name: Option<String>,

    /// File with the token for the registry; it needs https://, or a registry on this machine
    /// [default: the environment, see below].
    ///
    /// Without a flag that says otherwise, what is set first is presented: EXEC_SERVER_REMOTE_TOKEN,
    /// CODEX_API_KEY, CODEX_ACCESS_TOKEN, the sign-in that the Codex home keeps.
    #[arg(
        long, value_name = "FILE", requires = "remote", help_heading = REMOTE,
        conflicts_with_all = [
            "use_agent_identity_auth", "executor_credential_stdin", "registration_bearer_stdin"
        ]
    )]
    pub remote_token_file: Option<PathBuf>,

    /// Registers an agent task with the JWT in CODEX_ACCESS_TOKEN, and presents its assertions.
    #[arg(
        long, requires = "remote", help_heading = REMOTE,
        conflicts_with_all = ["executor_credential_stdin", "registration_bearer_stdin"]
    )]
    pub use_agent_identity_auth: bool,

    /// Takes one token from standard input, a line; it needs https://, or a registry on this machine.
    #[arg(
        long, requires = "remote", help_heading = REMOTE,
        conflicts_with = "executor_credential_stdin"
    )]
    pub registration_bearer_stdin: bool,

    /// Takes tokens from standard input, one JSON object in a line, and the next before one expires.
    #[arg(long, requires = "remote", help_heading = REMOTE)]
    pub executor_credential_stdin: bool,

    /// Ends when standard input does, also without --remote.
    #[arg(long, help_heading = REMOTE)]
    pub exit_on_stdin_close: bool,
}

/// How an executor is reached.
#[derive(Args, Clone, Debug, Default)]
pub struct TransportArgs {
    /// How harnesses reach this machine [default: noise].
    #[arg(long, value_name = "KIND", requires = "remote", help_heading = REMOTE)]
    pub remote_transport: Option<RemoteTransport>,

    /// Signs requests of the direct transport with AWS Signature Version 4.
    #[arg(
        long, requires = "remote_transport", help_heading = REMOTE,
        conflicts_with_all = [
            "use_agent_identity_auth", "executor_credential_stdin", "remote_token_file",
            "registration_bearer_stdin"
        ]
    )]
    pub aws_sigv4: bool,

    /// Profile whose credentials sign [default: the variables, or else the default profile].
    #[arg(long, value_name = "NAME", requires = "aws_sigv4", help_heading = REMOTE)]
    pub aws_profile: Option<String>,

    /// Region to sign for [default: the variables, or else the profile's].
    #[arg(long, value_name = "NAME", requires = "aws_sigv4", help_heading = REMOTE)]
    pub aws_region: Option<String>,

    /// Service to sign for [default: execute-api].
    #[arg(long, value_name = "NAME", requires = "aws_sigv4", help_heading = REMOTE)]
    pub aws_service: Option<String>,
}

/// A ChatGPT access token as the credential of an executor.
#[derive(Args, Clone, Debug, Default)]
pub struct ChatGptAuthArgs {
    /// Takes a ChatGPT access token from standard input, which is a pipe or a socket: one line. It
    /// needs https://.
    #[arg(
        long, requires = "remote", help_heading = REMOTE,
        conflicts_with_all = [
            "use_agent_identity_auth", "executor_credential_stdin", "registration_bearer_stdin",
            "remote_token_file", "aws_sigv4"
        ]
    )]
    pub chatgpt_token_stdin: bool,

    /// ChatGPT account to register for [default: the one that the token names].
    #[arg(
        long, value_name = "ID", requires = "chatgpt_token_stdin", help_heading = REMOTE
    )]
    pub chatgpt_account_id: Option<String>,
}

impl TransportArgs {
    /// Checks what goes with what, as far as the flags alone tell.
    pub(super) fn check(
        &self,
        registration: &RegistrationArgs,
        chatgpt: &ChatGptAuthArgs,
    ) -> Result<(), clap::Error> {
        let kind = self.remote_transport.unwrap_or_default();
        let wrong = match kind {
            RemoteTransport::Noise if self.aws_sigv4 => {
                "--aws-sigv4 needs --remote-transport direct"
            }
            RemoteTransport::Direct
                if registration.use_agent_identity_auth
                    || registration.executor_credential_stdin
                    || registration.registration_bearer_stdin
                    || chatgpt.chatgpt_token_stdin =>
            {
                "--remote-transport direct goes with --aws-sigv4 or --remote-token-file, not with \
                 an agent identity or credentials on standard input"
            }
            RemoteTransport::Noise | RemoteTransport::Direct => return Ok(()),
        };
        Err(Cli::command().error(ErrorKind::ArgumentConflict, wrong))
    }

    /// Checks the flags of a forwarder.
    pub(super) fn check_forward(&self, registration: &RegistrationArgs) -> Result<(), clap::Error> {
        if self.remote_transport == Some(RemoteTransport::Direct) {
            let text = "the direct transport does not support forwarding";
            return Err(Cli::command().error(ErrorKind::ArgumentConflict, text));
        }
        self.check(registration, &ChatGptAuthArgs::default())
    }
}

/// How an executor is reached.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum RemoteTransport {
    /// Through a relay that cannot read what it carries.
    #[default]
    Noise,
    /// Over a websocket that the registry names, whose other end reads everything.
    Direct,
}

/// Options of `exec-server forward`.
#[derive(Args, Clone, Debug)]
#[command(
    mut_arg("remote", |arg| arg.required(true)),
    mut_arg("exit_on_stdin_close", |arg| arg.help("Ends when standard input does")),
    mut_arg("remote_transport", |arg| arg.hide(true)),
    mut_arg("aws_sigv4", |arg| arg.hide(true)),
    mut_arg("aws_profile", |arg| arg.hide(true)),
    mut_arg("aws_region", |arg| arg.hide(true)),
    mut_arg("aws_service", |arg| arg.hide(true)),
)]
pub struct ForwardArgs {
    /// Server that is offered: a ws:// or wss:// URL.
    #[arg(long, value_name = "URL")]
    pub connect: Destination,

    /// Where it is offered.
    #[command(flatten)]
    pub registration: RegistrationArgs,

    /// How it is reached: through a relay. Other ways are accepted as flags and refused by name.
    #[command(flatten)]
    pub transport: TransportArgs,

    /// Options of the stock command that have no effect on a forwarder.
    #[command(flatten)]
    pub ignored: IgnoredOptions,
}

/// Options that `codex exec-server forward` takes and that concern no forwarder: it starts no
/// commands and reads no configuration file. Accepted for compatibility.
#[derive(Args, Clone, Debug, Default)]
pub struct IgnoredOptions {
    /// Accepted for compatibility and ignored.
    #[arg(short = 'c', long, value_name = "KEY=VALUE", hide = true)]
    pub config: Vec<String>,

    /// Accepted for compatibility and ignored.
    #[arg(long, value_name = "FEATURE", hide = true)]
    pub enable: Vec<String>,

    /// Accepted for compatibility and ignored.
    #[arg(long, value_name = "FEATURE", hide = true)]
    pub disable: Vec<String>,

    /// Accepted for compatibility and ignored.
    #[arg(long, hide = true)]
    pub strict_config: bool,

    /// Accepted for compatibility and ignored.
    #[arg(long, value_name = "MODE", hide = true)]
    pub linux_sandbox_pid_namespace: Option<String>,

    /// Accepted for compatibility and ignored.
    #[arg(long, hide = true)]
    pub proxy_private_ips_via_upstream: bool,
}

const REMOTE: &str = "Remote";
