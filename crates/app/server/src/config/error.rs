//! Why there is no configuration to serve with.

use std::fmt;
use std::io;
use std::path::PathBuf;

use exec_transport::auth::SecretTooShort;
use exec_transport::listen::ListenUrl;

use super::SettingError;

/// Why the server does not start. In every case whoever starts it must act.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// An option outside the command line has no such name or cannot have such a value.
    #[error("{place}")]
    Setting {
        /// Where the option stands.
        place: SettingOrigin,
        /// What is wrong with it.
        source: SettingError,
    },
    /// The configuration file cannot be read.
    #[error("cannot read configuration file `{}`", path.display())]
    ReadFile {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The configuration file is no TOML.
    #[error("{}:{line}: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What the parser says.
        message: String,
    },
    /// Authentication is asked for where there is no websocket on the network.
    #[error("--ws-auth needs a ws:// or wss:// listener, which `{0}` is not")]
    AuthWithoutNetwork(ListenUrl),
    /// An option of authentication is given, but no authentication.
    #[error("{0} needs --ws-auth")]
    OptionWithoutAuth(&'static str),
    /// An option of one way of authentication is given with the other.
    #[error("{option} needs --ws-auth {needed}")]
    OptionOfOtherAuth {
        /// The option.
        option: &'static str,
        /// What it belongs to.
        needed: &'static str,
    },
    /// The capability token is given not at all, or twice.
    #[error(
        "--ws-auth capability-token needs exactly one of --ws-token-file and --ws-token-sha256"
    )]
    TokenSource,
    /// The secret for signed tokens is not given.
    #[error("--ws-auth signed-bearer-token needs --ws-shared-secret-file")]
    NoSharedSecret,
    /// A file with a token or secret cannot be read.
    #[error("cannot read `{}` given with {option}", path.display())]
    ReadSecret {
        /// The option.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The token file has nothing but blanks.
    #[error("`{}` given with --ws-token-file is empty", .0.display())]
    EmptyToken(PathBuf),
    /// The secret is too short.
    #[error("`{}` given with --ws-shared-secret-file is no use", path.display())]
    ShortSecret {
        /// The file.
        path: PathBuf,
        /// How long it must be.
        source: SecretTooShort,
    },
    /// TLS is asked for without all that it takes.
    #[error("a wss:// listener needs --tls-cert and --tls-key; {0} is missing")]
    TlsIncomplete(&'static str),
    /// Certificate or key are given where there is no TLS.
    #[error("{option} needs a wss:// listener, which `{listen}` is not")]
    TlsWithoutWss {
        /// The option.
        option: &'static str,
        /// The listener.
        listen: ListenUrl,
    },
    /// Other machines could run commands here without being asked who they are.
    #[error(
        "refusing to listen on `{0}` without authentication: other machines can reach it. Give \
         --ws-auth capability-token with --ws-token-file (or --ws-token-sha256), or --ws-auth \
         signed-bearer-token with --ws-shared-secret-file; --insecure-no-auth lets everyone in"
    )]
    OpenToNetwork(ListenUrl),
}

/// Where an option stands that is not on the command line under its own name.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum SettingOrigin {
    /// In this environment variable.
    Variable(String),
    /// In a `-c` for this key.
    Override(String),
    /// In a configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
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
