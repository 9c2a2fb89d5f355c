//! Sources of environments.

use std::{error::Error, fmt, io};

use exec_wire::error::RpcError;
use futures_util::future::{BoxFuture, FutureExt, ready};

use exec_env::environment::{DisconnectReason, Environment};

/// Opens an environment: immediately if it is local, or by connecting to a server.
pub trait EnvironmentSource: fmt::Debug + Send + Sync {
    /// Opens the environment. Called again after a failure, and never concurrently by one manager.
    ///
    /// The manager sets no time limit, because only the source knows how long its steps take: a
    /// source applies its own connect and handshake timeouts. Dropping the future leaves nothing
    /// running.
    fn open(&self) -> BoxFuture<'static, Result<Environment, EnvironmentOpenError>>;

    /// Returns the environment if it is already open. It is then ready as soon as it is inserted.
    fn already_open(&self) -> Option<Environment> {
        None
    }
}

/// An existing environment is its own source: the local one, or an embedder's.
impl EnvironmentSource for Environment {
    fn open(&self) -> BoxFuture<'static, Result<Self, EnvironmentOpenError>> {
        ready(Ok(self.clone())).boxed()
    }

    fn already_open(&self) -> Option<Self> {
        Some(self.clone())
    }
}

/// When the manager first opens a source.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StartMode {
    /// When it is inserted.
    Eager,
    /// When it is requested.
    Lazy,
}

/// Why an environment could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentOpenError {
    /// Caller: the configuration is invalid.
    #[error("{0}")]
    Configuration(String),
    /// Host: a local step failed.
    #[error("{context}")]
    Host {
        /// The failed step and its object.
        context: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Transport: the connection could not be opened.
    #[error("failed to connect to the exec-server")]
    Connect(#[source] Box<dyn Error + Send + Sync>),
    /// Peer: the server returned an error.
    #[error(transparent)]
    Remote(RpcError),
    /// Transport: the session is lost.
    #[error(transparent)]
    Disconnected(#[from] DisconnectReason),
    /// A bug: the source panicked.
    #[error("opening the environment panicked")]
    Panicked,
    /// Host: the runtime shut down before the environment was open.
    #[error("the runtime shut down while the environment was starting")]
    Cancelled,
}
