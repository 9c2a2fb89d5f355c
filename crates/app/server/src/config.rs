//! Configuration of the server.
//!
//! [`ServerConfig`] is a plain value: an embedder fills it in. With the feature `executor` it is also
//! read from command line, environment and file (`resolve`). Not here: printing, logging, binding.

#[cfg(feature = "executor")]
mod config_file;
#[cfg(feature = "executor")]
mod flag_values;
mod option_values;
#[cfg(feature = "executor")]
mod resolve;
#[cfg(feature = "executor")]
mod settings;
#[cfg(test)]
#[cfg(feature = "executor")]
mod tests;

use std::{path::PathBuf, time::Duration};

use exec_journal::JournalLimits;
use exec_service::DurabilityDefault;
use exec_transport::{auth::AuthPolicy, http::HostNames, listen_url::ListenUrl};
use exec_wire::limits;

use crate::shutdown_signal::StdinClose;

pub use exec_settings::settings_source::{Seconds, SecondsParseError, VariableLookup};

pub use self::option_values::{
    ConcurrentRequests, LogConfig, LogFormat, LogLevel, MetricsAddress, MetricsAddressParseError,
};
#[cfg(feature = "executor")]
pub use self::{
    config_file::{ConfigFile, ConfigOverride, ConfigOverrideParseError, Strictness},
    flag_values::{
        DurableChoice, DurableChoiceParseError, PidNamespace, PidNamespaceParseError,
        SandboxMechanism, SandboxMechanismParseError, Switch, SwitchParseError, WsAuth,
        WsAuthParseError,
    },
    option_values::{LogFormatParseError, LogLevelParseError},
    resolve::{ConfigError, SettingOrigin, configured_listener, load, resolve},
    settings::{EnvironmentLayer, ServerSettings, SettingError},
};

#[cfg(all(feature = "executor", feature = "remote"))]
pub(crate) use self::settings::STDIN_CLOSE;

/// Complete configuration of a server.
///
/// ```
/// use std::time::Duration;
///
/// use exec_server::config::ServerConfig;
///
/// let config = ServerConfig {
///     listen: "ws://127.0.0.1:0".parse()?,
///     session_ttl: Duration::from_secs(60),
///     ..ServerConfig::default()
/// };
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Listener address.
    pub listen: ListenUrl,
    /// Authentication of websocket clients. Always [`AuthPolicy::Open`] without a network listener.
    pub auth: AuthPolicy,
    /// Certificate and key: set if and only if the listener is [`ListenUrl::Wss`].
    pub tls: Option<TlsPaths>,
    /// Additional host names of this machine.
    pub allowed_hosts: HostNames,
    /// How long a session outlives its connection; zero terminates at once.
    pub session_ttl: Duration,
    /// Retention of exited processes. At least `session_ttl`.
    pub process_retention: Duration,
    /// Retained output per process, in bytes. At least 1.
    pub retained_output_bytes: usize,
    /// Maximum processes per session. At least 1.
    pub max_processes: usize,
    /// Grace period of processes on shutdown.
    pub shutdown_grace: Duration,
    /// Idle time after which a listener without connections and processes exits. `None`: never.
    pub idle_exit: Option<Duration>,
    /// Whether clients may start raw commands.
    pub allow_direct_exec: bool,
    /// Whether clients may start commands that they have resolved themselves.
    pub allow_prepared_exec: bool,
    /// Directory and limits of processes that outlive the server. `None`: no such processes.
    pub durable: Option<DurableConfig>,
    /// Whether the server takes over from the one at the other end of stdin.
    pub takeover: bool,
    /// Whether the server avoids creating files and directories for itself.
    pub ephemeral: bool,
    /// Concurrent requests per connection.
    pub concurrent_requests: ConcurrentRequests,
    /// Whether a listener that other machines reach may lack authentication.
    pub insecure_no_auth: bool,
    /// Role of stdin.
    pub stdin_close: StdinClose,
    /// Sandbox settings.
    pub sandbox: exec_sandbox::SandboxSettings,
    /// Log settings. The caller sets up logging; serving does not.
    pub logs: LogConfig,
    /// Address for metrics and health without a token.
    pub metrics_listen: Option<MetricsAddress>,
    /// Warnings to log before serving: ignored keys and flags, and dangerous choices.
    pub warnings: Vec<String>,
}

/// Processes that outlive the server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DurableConfig {
    /// State directory, created with mode 0700.
    pub directory: PathBuf,
    /// Limits of the output on disk.
    pub limits: JournalLimits,
    /// Processes that are durable if their start does not say.
    pub default: DurabilityDefault,
    /// Whether the server runs without durable processes if the directory cannot be used.
    pub optional: bool,
}

/// Certificate files of a `wss://` listener, in PEM.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TlsPaths {
    /// Certificate chain.
    pub cert: PathBuf,
    /// Private key of its first certificate.
    pub key: PathBuf,
}

impl Default for ServerConfig {
    /// Serves programs of this account on a free loopback port, like `exec-server` without flags.
    fn default() -> Self {
        Self {
            listen: ListenUrl::default(),
            auth: AuthPolicy::Open,
            tls: None,
            allowed_hosts: HostNames::default(),
            session_ttl: limits::SESSION_TTL,
            process_retention: limits::CLOSED_RETENTION,
            retained_output_bytes: limits::RETAINED_OUTPUT_BYTES,
            max_processes: limits::MAX_PROCESSES,
            shutdown_grace: Duration::ZERO,
            idle_exit: None,
            allow_direct_exec: true,
            allow_prepared_exec: true,
            durable: None,
            takeover: false,
            ephemeral: false,
            concurrent_requests: ConcurrentRequests::default(),
            insecure_no_auth: false,
            stdin_close: StdinClose::Ignored,
            sandbox: exec_sandbox::SandboxSettings::default(),
            logs: LogConfig::default(),
            metrics_listen: None,
            warnings: Vec::new(),
        }
    }
}

impl ServerConfig {
    /// Refuses a listener that other machines can reach without authentication, unless
    /// `insecure_no_auth` consents.
    pub(crate) fn check_exposure(&self) -> Result<(), OpenToNetworkError> {
        let is_exposed = !self.listen.is_loopback() && !self.auth.is_required();
        match is_exposed && !self.insecure_no_auth {
            true => Err(OpenToNetworkError(self.listen.clone())),
            false => Ok(()),
        }
    }
}

/// Caller: other machines could run commands here without authentication.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "refusing to listen on `{0}` without authentication: other machines can reach it. Give \
     --ws-auth capability-token with --ws-token-file (or --ws-token-sha256), or --ws-auth \
     signed-bearer-token with --ws-shared-secret-file; --insecure-no-auth lets everyone in"
)]
pub struct OpenToNetworkError(pub ListenUrl);
