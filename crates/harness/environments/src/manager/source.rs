//! Where an environment comes from.

use std::{error::Error, fmt, io};

use exec_wire::error::RpcError;
use futures_util::future::{BoxFuture, FutureExt, ready};

use exec_env::{disconnect::Disconnect, environment::Environment};

/// Opens an environment: at once, if it is on this machine, or by connecting to another one.
pub trait EnvironmentSource: fmt::Debug + Send + Sync {
    /// Opens it. Called again after a failure, and never twice at the same time by one manager.
    ///
    /// The manager sets no time limit, because only the source knows what takes how long: a source
    /// bounds its own connecting and its own handshake. Dropping the future leaves nothing running.
    fn open(&self) -> BoxFuture<'static, Result<Environment, OpenError>>;

    /// Returns the environment, if it is there without opening anything. It is then ready as soon as
    /// the manager has it.
    fn already_open(&self) -> Option<Environment> {
        None
    }
}

/// An environment that exists is its own source: the one on this machine, or an embedder's.
impl EnvironmentSource for Environment {
    fn open(&self) -> BoxFuture<'static, Result<Self, OpenError>> {
        ready(Ok(self.clone())).boxed()
    }

    fn already_open(&self) -> Option<Self> {
        Some(self.clone())
    }
}

/// When a source is first opened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Start {
    /// As soon as the manager has it.
    Eager,
    /// When somebody asks for it.
    Lazy,
}

/// Why an environment could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Caller: it is described in a way that cannot be.
    #[error("{0}")]
    Configuration(String),
    /// Host: this machine could not do what leads to it.
    #[error("{context}")]
    Host {
        /// Which step failed, and on what.
        context: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Transport: no connection came about.
    #[error("no connection to the exec-server")]
    Connect(#[source] Box<dyn Error + Send + Sync>),
    /// Peer: the remote end refused.
    #[error(transparent)]
    Remote(RpcError),
    /// Transport: the remote end is gone.
    #[error(transparent)]
    Disconnected(#[from] Disconnect),
    /// A bug: the source panicked.
    #[error("opening the environment panicked")]
    Panicked,
    /// Host: the runtime ended before it was open.
    #[error("the runtime ended while the environment was starting")]
    Cancelled,
}
