//! Configuration errors.

use std::fmt;
use std::io;
use std::path::PathBuf;

use exec_transport::auth::SecretTooShort;
use exec_transport::listen_url::ListenUrl;

use super::SettingError;

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
    #[error(
        "refusing to listen on `{0}` without authentication: other machines can reach it. Give \
         --ws-auth capability-token with --ws-token-file (or --ws-token-sha256), or --ws-auth \
         signed-bearer-token with --ws-shared-secret-file; --insecure-no-auth lets everyone in"
    )]
    OpenToNetwork(ListenUrl),
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
