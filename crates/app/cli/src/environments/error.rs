//! What is wrong with a file that selects environments.

use std::path::PathBuf;

use exec_environments::manager::{EnvironmentId, EnvironmentIdError};
use exec_registry::{api::EnvironmentIdError as NameError, credentials, http::BaseUrlError};
use exec_transport::connect::TokenError;

/// Caller: a file says what cannot be. The text never quotes a value that may be secret.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{}:{line}:{column}: `{key}`: {fault}", path.display())]
pub struct EnvironmentsError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The character in the line, from 1.
    pub column: usize,
    /// The key, behind the names of the tables around it.
    pub key: String,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with one key.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The file is no TOML here; the text is the parser's.
    #[error("{0}")]
    Syntax(String),
    /// The key does not exist.
    #[error("unknown key, expected one of {}", .0.join(", "))]
    UnknownKey(&'static [&'static str]),
    /// The value is of another kind.
    #[error("expected {0}")]
    Expected(&'static str),
    /// A text has a NUL byte, which nothing that it is used for can have.
    #[error("must not contain a NUL byte")]
    Nul,
    /// The key must be there.
    #[error("missing key")]
    Missing,
    /// The id is none that a person can choose.
    #[error(transparent)]
    Id(#[from] EnvironmentIdError),
    /// The id is taken.
    #[error("`{id}` is already the id of the environment in line {first}")]
    DuplicateId {
        /// The id.
        id: EnvironmentId,
        /// Where it was first.
        first: usize,
    },
    /// There are two ways to reach it.
    #[error("an environment has one of `url`, `program` and `registry_url`")]
    ManyReaches,
    /// There is no way to reach it.
    #[error("an environment needs `url`, `program` or `registry_url`")]
    NoReach,
    /// The key belongs to another way to reach an environment.
    #[error("only an environment with `{}` has this key", .0.join("` or `"))]
    OnlyWith(&'static [&'static str]),
    /// The number is no span of time.
    #[error("{0}")]
    Seconds(#[from] crate::settings_source::SecondsParseError),
    /// The URL is not one of a websocket.
    #[error("expected ws://HOST:PORT or wss://HOST:PORT, without user, password or fragment")]
    Url,
    /// The URL is not one of a registry.
    #[error(transparent)]
    Registry(#[from] BaseUrlError),
    /// The name is none that a registry could know an environment by.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The token for the registry cannot be put into a header.
    #[error(transparent)]
    AuthToken(#[from] credentials::TokenError),
    /// The token would travel readable by others.
    #[error("a token needs a {0} URL or one of this machine, or others can read it")]
    TokenInClear(&'static str),
    /// The token is given not at all, or twice.
    #[error("expected one of `auth_token`, `auth_token_env` and `auth_token_file`")]
    TokenSource,
    /// The token of a server that listens is given twice.
    #[error("expected one of `auth_bearer_token`, `auth_token_env` and `auth_token_file`")]
    ManyTokens,
    /// The variable that is to hold the token does not.
    #[error("environment variable `{0}` is not set, or is no text")]
    TokenVariable(String),
    /// The file that is to hold the token cannot be read.
    #[error("cannot read `{}`: {reason}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// The token cannot be put into a header.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The name of a variable is no name.
    #[error("expected the name of a variable: not empty, without `=` and NUL")]
    Variable,
    /// There is no such environment.
    #[error("no environment has the id `{0}`")]
    UnknownDefault(EnvironmentId),
    /// The local environment is not there to be the default.
    #[error("`local` cannot be the default while include_local is false")]
    LocalNotIncluded,
    /// There are too many.
    #[error("more than {0} environments")]
    TooMany(usize),
}
