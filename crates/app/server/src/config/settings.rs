//! One layer of options, from one source, and the layer of environment variables, which are
//! injected for tests.

use std::{
    error::Error,
    ffi::OsString,
    num::{NonZeroU64, NonZeroUsize},
    path::PathBuf,
    str::FromStr,
};

use clap::Args;
use exec_settings::settings_source::{VariableLookup, config_directory, path};
use exec_transport::{auth::TokenDigest, http::HostNames, listen_url::ListenUrl};

use super::{
    ConcurrentRequests, ConfigError, DurableChoice, LogFormat, LogLevel, MetricsAddress,
    PidNamespace, SandboxMechanism, Seconds, SettingOrigin, Strictness, Switch, WsAuth,
};

/// Options that flags, environment and file share. A field's name is its key in the file; its
/// comment is its help text.
#[derive(Args, Clone, Debug, Default)]
pub struct ServerSettings {
    /// Address to listen on: ws://IP:PORT, wss://IP:PORT, unix:///path, stdio or off [default:
    /// ws://127.0.0.1:0].
    ///
    /// Port 0 picks a free one. Host names are rejected; IPv6 addresses are in brackets, as in
    /// `ws://[::1]:8080`. An address that other machines can reach requires --ws-auth.
    #[arg(long, value_name = "URL", help_heading = LISTENER)]
    pub listen: Option<ListenUrl>,

    /// Certificate chain for wss://, in PEM.
    #[arg(long, value_name = "FILE", help_heading = LISTENER)]
    pub tls_cert: Option<PathBuf>,

    /// Private key of the certificate, in PEM.
    #[arg(long, value_name = "FILE", help_heading = LISTENER)]
    pub tls_key: Option<PathBuf>,

    /// Additional host names of this machine, separated by commas, besides IP addresses, localhost,
    /// the host name and the names in the certificate.
    ///
    /// Requests for other hosts are rejected: a web page could point its own name here (DNS
    /// rebinding).
    #[arg(long, value_name = "NAMES", help_heading = LISTENER)]
    pub allowed_host: Option<HostNames>,

    /// Maximum concurrent requests per connection; 1 is strictly serial [default: 256].
    ///
    /// Concurrent requests have the same results as in serial order.
    #[arg(long, value_name = "N", help_heading = LISTENER)]
    pub concurrent_requests: Option<ConcurrentRequests>,

    /// Token that websocket clients present as `Authorization: Bearer` [default: none].
    #[arg(long, value_name = "MODE", help_heading = AUTHENTICATION)]
    pub ws_auth: Option<WsAuth>,

    /// File with the capability token; this or --ws-token-sha256.
    #[arg(long, value_name = "FILE", help_heading = AUTHENTICATION)]
    pub ws_token_file: Option<PathBuf>,

    /// SHA-256 of the capability token, 64 hex digits; this or --ws-token-file.
    #[arg(long, value_name = "HEX", help_heading = AUTHENTICATION)]
    pub ws_token_sha256: Option<TokenDigest>,

    /// File with the secret that signs JWTs, at least 32 bytes.
    #[arg(long, value_name = "FILE", help_heading = AUTHENTICATION)]
    pub ws_shared_secret_file: Option<PathBuf>,

    /// Required issuer (iss) of JWTs [default: any].
    #[arg(long, value_name = "NAME", help_heading = AUTHENTICATION)]
    pub ws_issuer: Option<String>,

    /// Required audience (aud) of JWTs [default: any].
    #[arg(long, value_name = "NAME", help_heading = AUTHENTICATION)]
    pub ws_audience: Option<String>,

    /// Tolerated clock skew of the JWT signer, in whole seconds [default: 30].
    #[arg(long, value_name = "SECONDS", help_heading = AUTHENTICATION)]
    pub ws_max_clock_skew_seconds: Option<u64>,

    /// Lets everyone who can reach the address run commands [default: false].
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", help_heading = AUTHENTICATION
    )]
    pub insecure_no_auth: Option<Switch>,

    /// How long a session and its processes outlive their connection, in seconds; 0 terminates at
    /// once [default: 80].
    #[arg(long, value_name = "SECONDS", help_heading = SESSIONS)]
    pub session_ttl: Option<Seconds>,

    /// Retention of exited processes, in seconds; at least --session-ttl [default: 80].
    #[arg(long, value_name = "SECONDS", help_heading = SESSIONS)]
    pub process_retention: Option<Seconds>,

    /// Retained output per process, for clients that reconnect [default: 1048576].
    #[arg(long, value_name = "BYTES", help_heading = SESSIONS)]
    pub retained_output_bytes: Option<NonZeroUsize>,

    /// Maximum processes per session [default: 1024].
    #[arg(long, value_name = "N", help_heading = SESSIONS)]
    pub max_processes: Option<NonZeroUsize>,

    /// Grace period of processes after SIGTERM before they are killed, in seconds [default: 0].
    #[arg(long, value_name = "SECONDS", help_heading = SESSIONS)]
    pub shutdown_grace: Option<Seconds>,

    /// Idle time in seconds after which a listener without connections and running processes exits;
    /// 0 is never [default: 0].
    #[arg(long, value_name = "SECONDS", help_heading = SESSIONS)]
    pub idle_exit: Option<Seconds>,

    /// Whether clients may start raw commands (mode "direct") [default: true].
    #[arg(long, value_name = "BOOL", help_heading = SESSIONS)]
    pub allow_direct_exec: Option<Switch>,

    /// Whether clients may start commands they have resolved (mode "prepared") [default: true].
    #[arg(long, value_name = "BOOL", help_heading = SESSIONS)]
    pub allow_prepared_exec: Option<Switch>,

    /// Directory for processes that outlive the server: their output on disk, and the socket of the
    /// keeper that holds their pipes [default: none; with --background, below the account's state
    /// directory].
    ///
    /// Only one server can use it at a time. The next one continues where this one stopped, even if
    /// it was killed.
    #[arg(long, value_name = "DIR", help_heading = DURABILITY)]
    pub state_dir: Option<PathBuf>,

    /// Processes that outlive the server if their client does not choose: off, detached or all
    /// [default: off; detached with --background].
    #[arg(long, value_name = "WHICH", help_heading = DURABILITY)]
    pub durable: Option<DurableChoice>,

    /// Maximum output of one durable process on disk; the oldest is removed first [default: 1 GiB].
    #[arg(long, value_name = "BYTES", help_heading = DURABILITY)]
    pub journal_bytes: Option<NonZeroU64>,

    /// Maximum output of all durable processes on disk; ended ones are removed first [default: 8
    /// GiB].
    #[arg(long, value_name = "BYTES", help_heading = DURABILITY)]
    pub state_bytes: Option<NonZeroU64>,

    /// Mechanism that enforces policies; a policy it cannot express is rejected [default:
    /// cheapest].
    #[cfg_attr(feature = "cli", doc = "")]
    #[cfg_attr(
        feature = "cli",
        doc = "`exec-server doctor` reports what each can enforce here."
    )]
    #[arg(long, value_name = "NAME", help_heading = SANDBOX)]
    pub sandbox_mechanism: Option<SandboxMechanism>,

    /// Whether sandboxed commands see only their own processes, or the host's [default: isolate].
    #[arg(long, value_name = "CHOICE", help_heading = SANDBOX)]
    pub linux_sandbox_pid_namespace: Option<PidNamespace>,

    /// Log level on stderr: off, error, warn, info, debug, trace, or filters such as
    /// `info,exec_service=debug` [default: $RUST_LOG, else error].
    #[arg(long, value_name = "LEVEL", help_heading = OBSERVATION)]
    pub log_level: Option<LogLevel>,

    /// Log format: text, or json with one object per line [default: text].
    #[arg(long, value_name = "FORMAT", help_heading = OBSERVATION)]
    pub log_format: Option<LogFormat>,

    /// Serves only /metrics, /healthz and /readyz on a loopback address such as 127.0.0.1:9464
    /// [default: only on the listener].
    ///
    /// It needs no token, so other machines must not reach it.
    #[arg(long, value_name = "IP:PORT", help_heading = OBSERVATION)]
    pub metrics_listen: Option<MetricsAddress>,
}

impl ServerSettings {
    /// All keys, in the order of the fields.
    pub const KEYS: [&str; 30] = [
        "listen",
        "tls_cert",
        "tls_key",
        "allowed_host",
        "concurrent_requests",
        "ws_auth",
        "ws_token_file",
        "ws_token_sha256",
        "ws_shared_secret_file",
        "ws_issuer",
        "ws_audience",
        "ws_max_clock_skew_seconds",
        "insecure_no_auth",
        "session_ttl",
        "process_retention",
        "retained_output_bytes",
        "max_processes",
        "shutdown_grace",
        "idle_exit",
        "allow_direct_exec",
        "allow_prepared_exec",
        "state_dir",
        "durable",
        "journal_bytes",
        "state_bytes",
        "sandbox_mechanism",
        "linux_sandbox_pid_namespace",
        "log_level",
        "log_format",
        "metrics_listen",
    ];

    /// Sets the option `key`, replacing its value.
    ///
    /// # Errors
    /// When the key is unknown, or `text` is not a valid value. Nothing is changed then.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), SettingError> {
        match key {
            "listen" => put(&mut self.listen, text),
            "tls_cert" => put(&mut self.tls_cert, text),
            "tls_key" => put(&mut self.tls_key, text),
            "allowed_host" => put(&mut self.allowed_host, text),
            "concurrent_requests" => put(&mut self.concurrent_requests, text),
            "ws_auth" => put(&mut self.ws_auth, text),
            "ws_token_file" => put(&mut self.ws_token_file, text),
            "ws_token_sha256" => put(&mut self.ws_token_sha256, text),
            "ws_shared_secret_file" => put(&mut self.ws_shared_secret_file, text),
            "ws_issuer" => put(&mut self.ws_issuer, text),
            "ws_audience" => put(&mut self.ws_audience, text),
            "ws_max_clock_skew_seconds" => put(&mut self.ws_max_clock_skew_seconds, text),
            "insecure_no_auth" => put(&mut self.insecure_no_auth, text),
            "session_ttl" => put(&mut self.session_ttl, text),
            "process_retention" => put(&mut self.process_retention, text),
            "retained_output_bytes" => put(&mut self.retained_output_bytes, text),
            "max_processes" => put(&mut self.max_processes, text),
            "shutdown_grace" => put(&mut self.shutdown_grace, text),
            "idle_exit" => put(&mut self.idle_exit, text),
            "allow_direct_exec" => put(&mut self.allow_direct_exec, text),
            "allow_prepared_exec" => put(&mut self.allow_prepared_exec, text),
            "state_dir" => put(&mut self.state_dir, text),
            "durable" => put(&mut self.durable, text),
            "journal_bytes" => put(&mut self.journal_bytes, text),
            "state_bytes" => put(&mut self.state_bytes, text),
            "sandbox_mechanism" => put(&mut self.sandbox_mechanism, text),
            "linux_sandbox_pid_namespace" => put(&mut self.linux_sandbox_pid_namespace, text),
            "log_level" => put(&mut self.log_level, text),
            "log_format" => put(&mut self.log_format, text),
            "metrics_listen" => put(&mut self.metrics_listen, text),
            _ => Err(SettingError::UnknownKey),
        }
    }

    /// Merges these settings over `lower`: values set here win.
    ///
    /// Token file and token digest are alternatives, so either of them here hides both of `lower`.
    #[must_use]
    pub fn over(self, lower: Self) -> Self {
        let has_token = self.ws_token_file.is_some() || self.ws_token_sha256.is_some();
        let (ws_token_file, ws_token_sha256) = if has_token {
            (self.ws_token_file, self.ws_token_sha256)
        } else {
            (lower.ws_token_file, lower.ws_token_sha256)
        };
        Self {
            listen: self.listen.or(lower.listen),
            tls_cert: self.tls_cert.or(lower.tls_cert),
            tls_key: self.tls_key.or(lower.tls_key),
            allowed_host: self.allowed_host.or(lower.allowed_host),
            concurrent_requests: self.concurrent_requests.or(lower.concurrent_requests),
            ws_auth: self.ws_auth.or(lower.ws_auth),
            ws_token_file,
            ws_token_sha256,
            ws_shared_secret_file: self.ws_shared_secret_file.or(lower.ws_shared_secret_file),
            ws_issuer: self.ws_issuer.or(lower.ws_issuer),
            ws_audience: self.ws_audience.or(lower.ws_audience),
            ws_max_clock_skew_seconds: self
                .ws_max_clock_skew_seconds
                .or(lower.ws_max_clock_skew_seconds),
            insecure_no_auth: self.insecure_no_auth.or(lower.insecure_no_auth),
            session_ttl: self.session_ttl.or(lower.session_ttl),
            process_retention: self.process_retention.or(lower.process_retention),
            retained_output_bytes: self.retained_output_bytes.or(lower.retained_output_bytes),
            max_processes: self.max_processes.or(lower.max_processes),
            shutdown_grace: self.shutdown_grace.or(lower.shutdown_grace),
            idle_exit: self.idle_exit.or(lower.idle_exit),
            allow_direct_exec: self.allow_direct_exec.or(lower.allow_direct_exec),
            allow_prepared_exec: self.allow_prepared_exec.or(lower.allow_prepared_exec),
            state_dir: self.state_dir.or(lower.state_dir),
            durable: self.durable.or(lower.durable),
            journal_bytes: self.journal_bytes.or(lower.journal_bytes),
            state_bytes: self.state_bytes.or(lower.state_bytes),
            sandbox_mechanism: self.sandbox_mechanism.or(lower.sandbox_mechanism),
            linux_sandbox_pid_namespace: self
                .linux_sandbox_pid_namespace
                .or(lower.linux_sandbox_pid_namespace),
            log_level: self.log_level.or(lower.log_level),
            log_format: self.log_format.or(lower.log_format),
            metrics_listen: self.metrics_listen.or(lower.metrics_listen),
        }
    }

    /// Drops listener options, which are meant for another server.
    #[must_use]
    pub(super) fn without_listener(self) -> Self {
        Self {
            listen: None,
            tls_cert: None,
            tls_key: None,
            allowed_host: None,
            ws_auth: None,
            ws_token_file: None,
            ws_token_sha256: None,
            ws_shared_secret_file: None,
            ws_issuer: None,
            ws_audience: None,
            ws_max_clock_skew_seconds: None,
            insecure_no_auth: None,
            metrics_listen: None,
            state_dir: None,
            ..self
        }
    }
}

/// Why an option was not set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// Caller: unknown option.
    #[error("unknown key")]
    UnknownKey,
    /// Caller: invalid value.
    #[error("invalid value")]
    InvalidValue(#[source] Box<dyn Error + Send + Sync>),
}

fn put<T>(field: &mut Option<T>, text: &str) -> Result<(), SettingError>
where
    T: FromStr<Err: Into<Box<dyn Error + Send + Sync>>>,
{
    *field = Some(
        text.parse()
            .map_err(|error: T::Err| SettingError::InvalidValue(error.into()))?,
    );
    Ok(())
}

const LISTENER: &str = "Listener";
const AUTHENTICATION: &str = "Authentication";
const SESSIONS: &str = "Sessions and processes";
const DURABILITY: &str = "Processes that outlive the server";
const SANDBOX: &str = "Sandbox";
const OBSERVATION: &str = "Logs and metrics";

/// Settings from the environment. An empty variable counts as not set.
#[derive(Clone, Debug, Default)]
pub struct EnvironmentLayer {
    /// Layer of options: `EXEC_SERVER_` and the key in upper case.
    pub settings: ServerSettings,
    /// `EXEC_SERVER_CONFIG`: like `--config`.
    pub config: Option<PathBuf>,
    /// `EXEC_SERVER_STRICT_CONFIG`: like `--strict-config`.
    pub strictness: Strictness,
    /// Variable of the stock server: like `--proxy-private-ips-via-upstream`.
    pub proxy_private_ips_via_upstream: Option<Switch>,
    /// Variable of the stock server: like `--exit-on-stdin-close`.
    pub exit_on_stdin_close: Option<Switch>,
    /// Default path of the configuration file.
    pub default_config: Option<PathBuf>,
}

impl EnvironmentLayer {
    /// Reads the environment.
    ///
    /// # Errors
    /// When one of our variables has an invalid value.
    pub fn read(lookup: VariableLookup<'_>) -> Result<Self, ConfigError> {
        let mut settings = ServerSettings::default();
        for key in ServerSettings::KEYS {
            let variable = format!("EXEC_SERVER_{}", key.to_ascii_uppercase());
            if let Some(text) = text(lookup, &variable)? {
                settings
                    .set(key, &text)
                    .map_err(|source| invalid(&variable, source))?;
            }
        }
        settings.log_level = settings.log_level.or_else(|| LogLevel::of_others(lookup));
        Ok(Self {
            settings,
            config: path(lookup, "EXEC_SERVER_CONFIG"),
            strictness: strictness(lookup)?,
            proxy_private_ips_via_upstream: text(lookup, PRIVATE_IPS)?
                // It has no effect, so an invalid value is not an error.
                .map(|text| text.parse().unwrap_or(Switch(true))),
            exit_on_stdin_close: switch(lookup, STDIN_CLOSE)?,
            default_config: config_directory(lookup).map(|home| home.join("config.toml")),
        })
    }
}

pub(crate) const STDIN_CLOSE: &str = "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE";
const PRIVATE_IPS: &str = "CODEX_EXEC_SERVER_PROXY_PRIVATE_IPS_VIA_UPSTREAM";

fn strictness(lookup: VariableLookup<'_>) -> Result<Strictness, ConfigError> {
    Ok(match switch(lookup, "EXEC_SERVER_STRICT_CONFIG")? {
        Some(Switch(true)) => Strictness::Strict,
        Some(Switch(false)) | None => Strictness::Lenient,
    })
}

fn switch(lookup: VariableLookup<'_>, variable: &str) -> Result<Option<Switch>, ConfigError> {
    let text = text(lookup, variable)?;
    text.map(|text| text.parse::<Switch>())
        .transpose()
        .map_err(|error| invalid(variable, SettingError::InvalidValue(error.into())))
}

fn text(lookup: VariableLookup<'_>, variable: &str) -> Result<Option<String>, ConfigError> {
    let value = lookup(variable).filter(|value| !value.is_empty());
    value.map(OsString::into_string).transpose().map_err(|_| {
        invalid(
            variable,
            SettingError::InvalidValue("expected text in UTF-8".into()),
        )
    })
}

fn invalid(variable: &str, source: SettingError) -> ConfigError {
    ConfigError::Setting {
        origin: SettingOrigin::Variable(variable.to_owned()),
        source,
    }
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    #[test]
    fn keys_are_the_flags_with_underscores() {
        let command = ServerSettings::augment_args(Command::new("exec-server"));
        let flags = command
            .get_arguments()
            .filter_map(|argument| argument.get_long());
        assert!(
            flags
                .map(|flag| flag.replace('-', "_"))
                .eq(ServerSettings::KEYS)
        );
    }

    #[test]
    fn every_key_can_be_set() {
        for key in ServerSettings::KEYS {
            let set = ServerSettings::default().set(key, "\0");
            assert!(!matches!(set, Err(SettingError::UnknownKey)), "{key}");
        }
        let unknown = ServerSettings::default().set("session-ttl", "1");
        assert!(matches!(unknown, Err(SettingError::UnknownKey)));
    }
}
