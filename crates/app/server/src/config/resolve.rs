//! Reads the configuration from command line, environment and file.
//!
//! Each source yields a layer of [`ServerSettings`]; [`resolve`] merges the layers and validates
//! the result, so that every [`ServerConfig`] can be served. Invariant: a setting that protects the
//! server is never dropped silently.

use std::{
    ffi::OsString,
    fmt, io,
    path::{Path, PathBuf},
    time::Duration,
};

use exec_journal::JournalLimits;
use exec_service::DurabilityDefault;
use exec_settings::{local_socket::LocalSocket, settings_source};
use exec_transport::{
    auth::{AuthPolicy, JwtRules, SecretTooShort, TokenDigest},
    listen_url::ListenUrl,
};

use super::{
    ConfigFile, DurableConfig, EnvironmentLayer, LogConfig, OpenToNetworkError, ServerConfig,
    ServerSettings, SettingError, Strictness, TlsPaths, VariableLookup, WsAuth, config_file,
};
use crate::{cli::Cli, shutdown_signal::StdinClose};

/// Merges flags over `-c`, environment and file, fills in defaults, and validates the result.
///
/// Reads only the files that hold the token or the secret.
///
/// # Errors
/// When options contradict each other, such a file is invalid, or the listener would be open to
/// other machines without explicit consent.
pub fn resolve(
    cli: Cli,
    environment: ServerSettings,
    file: ConfigFile,
) -> Result<ServerConfig, ConfigError> {
    let (strictness, is_remote) = (cli.strictness(), cli.is_remote());
    let mut warnings = file.warnings;
    let overrides = config_file::read(&cli.overrides, strictness, &mut warnings)?;
    for (flag, features) in [("--enable", &cli.enable), ("--disable", &cli.disable)] {
        let ignored = features
            .iter()
            .map(|feature| format!("ignoring {flag} {feature}"));
        warnings.extend(ignored);
    }
    if cli.proxy_private_ips_via_upstream.is_some_and(|on| on.0) {
        warnings.push("--proxy-private-ips-via-upstream has no effect".to_owned());
    }
    let mut lower = environment.over(file.settings);
    if cli.background {
        lower = lower.without_listener();
    }
    let settings = cli.settings.over(overrides).over(lower);

    let (listen, auth, tls) = match is_remote {
        // A remote executor does not listen; listener settings of variables or the file are meant
        // for other starts.
        true => (ListenUrl::Off, AuthPolicy::Open, None),
        false => {
            let listen = settings.listen.clone().unwrap_or_default();
            let auth = resolve_auth(&settings, &listen)?;
            let tls = tls(&settings, &listen)?;
            (listen, auth, tls)
        }
    };
    let insecure_no_auth = settings.insecure_no_auth.is_some_and(|switch| switch.0);
    if auth.is_required() && insecure_no_auth {
        warnings.push("--insecure-no-auth has no effect with --ws-auth".to_owned());
    }
    if !listen.is_loopback() && !auth.is_required() && insecure_no_auth {
        warnings.push(format!(
            "everyone who can reach `{listen}` can run commands here"
        ));
    }
    let durable = resolve_durable(&settings, cli.background)?;
    let default = ServerConfig::default();
    let session_ttl = settings
        .session_ttl
        .map_or(default.session_ttl, |ttl| ttl.0);
    let process_retention = settings
        .process_retention
        .map_or(default.process_retention, |retention| retention.0);
    let config = ServerConfig {
        listen,
        auth,
        tls,
        allowed_hosts: settings.allowed_host.unwrap_or_default(),
        session_ttl,
        process_retention: process_retention.max(session_ttl),
        retained_output_bytes: settings
            .retained_output_bytes
            .map_or(default.retained_output_bytes, usize::from),
        max_processes: settings
            .max_processes
            .map_or(default.max_processes, usize::from),
        shutdown_grace: settings
            .shutdown_grace
            .map_or(default.shutdown_grace, |grace| grace.0),
        idle_exit: settings
            .idle_exit
            .map(|idle| idle.0)
            .or(cli.background.then_some(BACKGROUND_IDLE_EXIT))
            .filter(|idle| !idle.is_zero()),
        allow_direct_exec: settings.allow_direct_exec.is_none_or(|switch| switch.0),
        allow_prepared_exec: settings.allow_prepared_exec.is_none_or(|switch| switch.0),
        durable,
        takeover: cli.takeover,
        ephemeral: cli.ephemeral,
        concurrent_requests: settings.concurrent_requests.unwrap_or_default(),
        insecure_no_auth,
        stdin_close: match cli.stdin.exit_on_stdin_close {
            true => StdinClose::Ends,
            false => StdinClose::Ignored,
        },
        sandbox: exec_sandbox::SandboxSettings {
            mechanism: settings
                .sandbox_mechanism
                .map(Into::into)
                .unwrap_or_default(),
            processes: settings
                .linux_sandbox_pid_namespace
                .map(Into::into)
                .unwrap_or_default(),
        },
        logs: LogConfig {
            level: settings.log_level,
            format: settings.log_format.unwrap_or_default(),
        },
        metrics_listen: settings.metrics_listen,
        warnings,
    };
    config.check_exposure()?;
    Ok(config)
}

/// Idle time after which a server started on demand exits.
const BACKGROUND_IDLE_EXIT: Duration = Duration::from_secs(900);

/// Decides where durable processes are kept, if anywhere.
fn resolve_durable(
    settings: &ServerSettings,
    background: bool,
) -> Result<Option<DurableConfig>, ConfigError> {
    let choice = settings.durable.map(DurabilityDefault::from);
    let default_directory = || {
        let lookup = |name: &str| std::env::var_os(name);
        background
            .then(|| LocalSocket::durable_directory(&lookup))
            .flatten()
    };
    let explicit = settings.state_dir.clone();
    let Some(directory) = explicit.clone().or_else(default_directory) else {
        return match choice {
            None | Some(DurabilityDefault::Off) => Ok(None),
            Some(_) => Err(ConfigError::DurableWithoutStateDir),
        };
    };
    let defaults = JournalLimits::default();
    let default = match background {
        true => DurabilityDefault::Detached,
        false => DurabilityDefault::Off,
    };
    Ok(Some(DurableConfig {
        directory,
        limits: JournalLimits {
            process_bytes: settings
                .journal_bytes
                .map_or(defaults.process_bytes, u64::from),
            total_bytes: settings.state_bytes.map_or(defaults.total_bytes, u64::from),
            ..defaults
        },
        default: choice.unwrap_or(default),
        optional: explicit.is_none(),
    }))
}

fn tls(settings: &ServerSettings, listen: &ListenUrl) -> Result<Option<TlsPaths>, ConfigError> {
    let files = (settings.tls_cert.clone(), settings.tls_key.clone());
    if matches!(listen, ListenUrl::Wss(_)) {
        return match files {
            (Some(cert), Some(key)) => Ok(Some(TlsPaths { cert, key })),
            (None, _) => Err(ConfigError::TlsIncomplete("--tls-cert")),
            (_, None) => Err(ConfigError::TlsIncomplete("--tls-key")),
        };
    }
    let option = match files {
        (None, None) => return Ok(None),
        (Some(_), _) => "--tls-cert",
        (None, Some(_)) => "--tls-key",
    };
    Err(ConfigError::TlsWithoutWss {
        option,
        listen: listen.clone(),
    })
}

/// Reads environment and configuration file, and resolves them with the command line.
///
/// # Errors
/// See [`EnvironmentLayer::read`], [`ConfigFile::read`] and [`resolve`].
pub fn load(mut cli: Cli, lookup: VariableLookup<'_>) -> Result<ServerConfig, ConfigError> {
    let environment = EnvironmentLayer::read(lookup)?;
    cli.strict_config |= environment.strictness == Strictness::Strict;
    cli.proxy_private_ips_via_upstream = cli
        .proxy_private_ips_via_upstream
        .or(environment.proxy_private_ips_via_upstream);
    // A background server has no stdin; the variable is meant for another process.
    let exit_on_stdin_close = environment.exit_on_stdin_close.filter(|_| !cli.background);
    cli.stdin.exit_on_stdin_close |= exit_on_stdin_close.is_some_and(|on| on.0);
    let explicit = cli.config.clone().or(environment.config);
    let file = ConfigFile::find(explicit, environment.default_config, cli.strictness())?;
    resolve(cli, environment.settings, file)
}

/// Returns where environment and configuration file say to listen, if they do.
///
/// # Errors
/// See [`EnvironmentLayer::read`] and [`ConfigFile::read`].
pub fn configured_listener(lookup: VariableLookup<'_>) -> Result<Option<ListenUrl>, ConfigError> {
    let environment = EnvironmentLayer::read(lookup)?;
    let file = ConfigFile::find(
        environment.config,
        environment.default_config,
        environment.strictness,
    )?;
    Ok(environment.settings.over(file.settings).listen)
}

impl ServerConfig {
    /// Parses flags as on the command line, without the program name. Reads no variables, and no
    /// file unless `--config` names one.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use exec_server::config::ServerConfig;
    ///
    /// let flags = ["--listen", "ws://127.0.0.1:0", "--session-ttl", "60"];
    /// let config = ServerConfig::from_flags(flags)?;
    /// assert_eq!(config.session_ttl, Duration::from_secs(60));
    /// assert!(ServerConfig::from_flags(["--listen", "ws://0.0.0.0:80"]).is_err());
    /// # Ok::<(), anyhow::Error>(())
    /// ```
    ///
    /// # Errors
    /// When a flag is unknown or has an invalid value, and as for [`load`].
    pub fn from_flags<I>(flags: I) -> anyhow::Result<Self>
    where
        I: IntoIterator<Item: Into<OsString>>,
    {
        let name = OsString::from(env!("CARGO_PKG_NAME"));
        let line = [name].into_iter().chain(flags.into_iter().map(Into::into));
        let cli = Cli::read(line)?;
        anyhow::ensure!(
            !cli.is_remote(),
            "--remote does not apply to a server that listens: see `RemoteEnvironmentConfig`"
        );
        Ok(load(cli, &|_| None)?)
    }
}

/// Builds the authentication, reading the file with the token or secret.
fn resolve_auth(settings: &ServerSettings, listen: &ListenUrl) -> Result<AuthPolicy, ConfigError> {
    let Some(mode) = settings.ws_auth else {
        return match auth_options(settings).next() {
            Some((option, _)) => Err(ConfigError::OptionWithoutAuth(option)),
            None => Ok(AuthPolicy::Open),
        };
    };
    if !listen.is_network() {
        return Err(ConfigError::AuthWithoutNetwork(listen.clone()));
    }
    if let Some((option, needed)) = auth_options(settings).find(|(_, needed)| *needed != mode) {
        return Err(ConfigError::OptionOfOtherAuth {
            option,
            needed: needed.as_str(),
        });
    }
    match mode {
        WsAuth::CapabilityToken => capability_token(settings).map(AuthPolicy::CapabilityToken),
        WsAuth::SignedBearerToken => signed_bearer(settings).map(AuthPolicy::SignedBearer),
    }
}

/// Lists the given options that require a kind of authentication.
fn auth_options(settings: &ServerSettings) -> impl Iterator<Item = (&'static str, WsAuth)> {
    let (token, signed) = (WsAuth::CapabilityToken, WsAuth::SignedBearerToken);
    [
        (TOKEN_FILE, token, settings.ws_token_file.is_some()),
        (
            "--ws-token-sha256",
            token,
            settings.ws_token_sha256.is_some(),
        ),
        (
            SECRET_FILE,
            signed,
            settings.ws_shared_secret_file.is_some(),
        ),
        ("--ws-issuer", signed, settings.ws_issuer.is_some()),
        ("--ws-audience", signed, settings.ws_audience.is_some()),
        (
            "--ws-max-clock-skew-seconds",
            signed,
            settings.ws_max_clock_skew_seconds.is_some(),
        ),
    ]
    .into_iter()
    .filter_map(|(option, mode, is_set)| is_set.then_some((option, mode)))
}

fn capability_token(settings: &ServerSettings) -> Result<TokenDigest, ConfigError> {
    let path = match (&settings.ws_token_file, &settings.ws_token_sha256) {
        (None, Some(digest)) => return Ok(digest.clone()),
        (Some(path), None) => path,
        (None, None) | (Some(_), Some(_)) => return Err(ConfigError::TokenSource),
    };
    let token = settings_source::read_text(path).map_err(unreadable(TOKEN_FILE, path))?;
    if token.trim().is_empty() {
        return Err(ConfigError::EmptyToken(path.clone()));
    }
    Ok(TokenDigest::of_token(&token))
}

fn signed_bearer(settings: &ServerSettings) -> Result<JwtRules, ConfigError> {
    let path = settings
        .ws_shared_secret_file
        .as_deref()
        .ok_or(ConfigError::NoSharedSecret)?;
    let secret = settings_source::read(path).map_err(unreadable(SECRET_FILE, path))?;
    let skew = settings
        .ws_max_clock_skew_seconds
        .map_or(DEFAULT_SKEW, Duration::from_secs);
    JwtRules::new(
        &secret,
        settings.ws_issuer.clone(),
        settings.ws_audience.clone(),
        skew,
    )
    .map_err(|source| ConfigError::ShortSecret {
        path: path.to_owned(),
        source,
    })
}

fn unreadable(option: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ConfigError {
    move |source| ConfigError::ReadSecret {
        option,
        path: path.to_owned(),
        source,
    }
}

const TOKEN_FILE: &str = "--ws-token-file";
const SECRET_FILE: &str = "--ws-shared-secret-file";
const DEFAULT_SKEW: Duration = Duration::from_secs(30);

/// Why the server does not start. The caller must act in every case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// An option outside the command line is unknown or has an invalid value.
    #[error("{origin}")]
    Setting {
        /// Where the option is set.
        origin: SettingOrigin,
        /// Cause.
        source: SettingError,
    },
    /// The configuration file cannot be read.
    #[error("cannot read configuration file `{}`", path.display())]
    ReadFile {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The configuration file is not TOML.
    #[error("{}:{line}: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Message of the parser.
        message: String,
    },
    /// Authentication without a websocket listener on the network.
    #[error("--ws-auth needs a ws:// or wss:// listener, which `{0}` is not")]
    AuthWithoutNetwork(ListenUrl),
    /// An authentication option without authentication.
    #[error("{0} needs --ws-auth")]
    OptionWithoutAuth(&'static str),
    /// An option that belongs to another kind of authentication.
    #[error("{option} needs --ws-auth {needed}")]
    OptionOfOtherAuth {
        /// The option.
        option: &'static str,
        /// The kind it belongs to.
        needed: &'static str,
    },
    /// Not exactly one source of the capability token.
    #[error(
        "--ws-auth capability-token needs exactly one of --ws-token-file and --ws-token-sha256"
    )]
    TokenSource,
    /// Missing secret for signed tokens.
    #[error("--ws-auth signed-bearer-token needs --ws-shared-secret-file")]
    NoSharedSecret,
    /// A file with a token or secret cannot be read.
    #[error("cannot read `{}` given with {option}", path.display())]
    ReadSecret {
        /// The option.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The token file is blank.
    #[error("`{}` given with --ws-token-file is empty", .0.display())]
    EmptyToken(PathBuf),
    /// The secret is too short.
    #[error("`{}` given with --ws-shared-secret-file is not usable", path.display())]
    ShortSecret {
        /// The file.
        path: PathBuf,
        /// Required length.
        source: SecretTooShort,
    },
    /// Durable processes without a place for them.
    #[error("--durable needs --state-dir: a directory for output and state")]
    DurableWithoutStateDir,
    /// Incomplete TLS settings.
    #[error("a wss:// listener needs --tls-cert and --tls-key; {0} is missing")]
    TlsIncomplete(&'static str),
    /// Certificate or key without TLS.
    #[error("{option} needs a wss:// listener, which `{listen}` is not")]
    TlsWithoutWss {
        /// The option.
        option: &'static str,
        /// The listener.
        listen: ListenUrl,
    },
    /// Other machines could run commands here without authentication.
    #[error(transparent)]
    OpenToNetwork(#[from] OpenToNetworkError),
}

/// Where an option is set, other than by its own flag.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum SettingOrigin {
    /// This environment variable.
    Variable(String),
    /// A `-c` for this key.
    Override(String),
    /// A configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: String,
    },
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(variable) => write!(f, "environment variable {variable}"),
            Self::Override(key) => write!(f, "-c `{key}`"),
            Self::File { path, line, key } => write!(f, "{}:{line}: `{key}`", path.display()),
        }
    }
}
