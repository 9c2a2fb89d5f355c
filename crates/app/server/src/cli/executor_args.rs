//! Options of an executor behind a registry, and of a forwarder.

use std::path::PathBuf;

use clap::{Args, CommandFactory, error::ErrorKind};
use exec_registry::{api::RegistryEnvironmentId, forward::ForwardDestination, http::BaseUrl};

use crate::{
    cli::{Cli, StdinArgs},
    remote::RemoteTransport,
};

/// Registry, identity and credentials of an executor.
#[derive(Args, Clone, Debug, Default)]
pub struct RegistrationArgs {
    /// Registry to offer this machine through, instead of listening: an http:// or https:// URL.
    ///
    /// All connections are outgoing. Harnesses that the registry authorizes connect to this
    /// machine, end-to-end encrypted.
    #[arg(
        long, value_name = "URL", requires = "environment_id", help_heading = REMOTE,
        value_parser = BaseUrl::parse
    )]
    pub remote: Option<BaseUrl>,

    /// Name of this machine at the registry.
    #[arg(
        long, value_name = "ID", requires = "remote", help_heading = REMOTE,
        value_parser = RegistryEnvironmentId::new
    )]
    pub environment_id: Option<RegistryEnvironmentId>,

    /// Accepted for compatibility; not sent anywhere.
    #[arg(long, value_name = "NAME", requires = "remote", help_heading = REMOTE)]
    pub name: Option<String>,

    /// File with the token for the registry; requires https://, or a registry on this machine
    /// [default: the environment, see below].
    ///
    /// Without such a flag, the first of these is used: EXEC_SERVER_REMOTE_TOKEN, CODEX_API_KEY,
    /// CODEX_ACCESS_TOKEN, the sign-in in the Codex home.
    #[arg(
        long, value_name = "FILE", requires = "remote", help_heading = REMOTE,
        conflicts_with_all = [
            "use_agent_identity_auth", "executor_credential_stdin", "registration_bearer_stdin"
        ]
    )]
    pub remote_token_file: Option<PathBuf>,

    /// Registers an agent task with the JWT in CODEX_ACCESS_TOKEN and presents its assertions.
    #[arg(
        long, requires = "remote", help_heading = REMOTE,
        conflicts_with_all = ["executor_credential_stdin", "registration_bearer_stdin"]
    )]
    pub use_agent_identity_auth: bool,

    /// Reads one token from stdin, as a line; requires https://, or a registry on this machine.
    #[arg(
        long, requires = "remote", help_heading = REMOTE,
        conflicts_with = "executor_credential_stdin"
    )]
    pub registration_bearer_stdin: bool,

    /// Reads tokens from stdin, one JSON object per line, each before the previous one expires.
    #[arg(long, requires = "remote", help_heading = REMOTE)]
    pub executor_credential_stdin: bool,
}

/// How harnesses connect to an executor.
#[derive(Args, Clone, Debug, Default)]
pub struct TransportArgs {
    /// How harnesses connect to this machine [default: noise].
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

    /// Profile with the signing credentials [default: the variables, else the default profile].
    #[arg(long, value_name = "NAME", requires = "aws_sigv4", help_heading = REMOTE)]
    pub aws_profile: Option<String>,

    /// Region to sign for [default: the variables, else the profile's].
    #[arg(long, value_name = "NAME", requires = "aws_sigv4", help_heading = REMOTE)]
    pub aws_region: Option<String>,

    /// Service to sign for [default: execute-api].
    #[arg(long, value_name = "NAME", requires = "aws_sigv4", help_heading = REMOTE)]
    pub aws_service: Option<String>,
}

/// ChatGPT access token as the credential of an executor.
#[derive(Args, Clone, Debug, Default)]
pub struct ChatGptAuthArgs {
    /// Reads a ChatGPT access token from stdin, which must be a pipe or a socket: one line.
    /// Requires https://.
    #[arg(
        long, requires = "remote", help_heading = REMOTE,
        conflicts_with_all = [
            "use_agent_identity_auth", "executor_credential_stdin", "registration_bearer_stdin",
            "remote_token_file", "aws_sigv4"
        ]
    )]
    pub chatgpt_token_stdin: bool,

    /// ChatGPT account to register for [default: the one in the token].
    #[arg(
        long, value_name = "ID", requires = "chatgpt_token_stdin", help_heading = REMOTE
    )]
    pub chatgpt_account_id: Option<String>,
}

impl TransportArgs {
    /// Checks which flags are compatible.
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

/// Options of `exec-server forward`.
#[derive(Args, Clone, Debug)]
#[command(
    mut_arg("remote", |arg| arg.required(true)),
    mut_arg("exit_on_stdin_close", |arg| arg.help("Exits at the end of stdin")),
    mut_arg("remote_transport", |arg| arg.hide(true)),
    mut_arg("aws_sigv4", |arg| arg.hide(true)),
    mut_arg("aws_profile", |arg| arg.hide(true)),
    mut_arg("aws_region", |arg| arg.hide(true)),
    mut_arg("aws_service", |arg| arg.hide(true)),
)]
pub struct ForwardArgs {
    /// Server to offer: a ws:// or wss:// URL.
    #[arg(long, value_name = "URL")]
    pub connect: ForwardDestination,

    /// Where to offer it.
    #[command(flatten)]
    pub registration: RegistrationArgs,

    /// What the end of stdin means.
    #[command(flatten)]
    pub stdin: StdinArgs,

    /// Only the relay is supported; other transports are accepted as flags and rejected with an
    /// error.
    #[command(flatten)]
    pub transport: TransportArgs,

    /// Options of the stock command without effect on a forwarder.
    #[command(flatten)]
    pub ignored: IgnoredOptions,
}

/// Options of `codex exec-server forward` that do not apply to a forwarder, which starts no
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
