//! Connectors: how to reach a server, and whether its sessions survive a disconnect.
//!
//! Connect arguments are plain values. Each yields a [`ServerConnector`] that opens links for the
//! lifetime of the client, and the client's options. Not here: the links themselves
//! (`exec-transport`), and recovery (`driver`).

mod relay;
mod remote;
mod stdio;
#[cfg(test)]
mod tests;

pub use self::{
    relay::{RelayConnector, RelayExecServerConnectArgs},
    remote::{RemoteConnector, RemoteExecServerConnectArgs},
    stdio::{StdioConnector, StdioExecServerConnectArgs},
};

use std::{fmt, future::ready, sync::Arc, time::Duration};

use exec_transport::{connect::ConnectError, link::Link};
use futures_util::future::{BoxFuture, FutureExt};

use crate::{
    client::{ExecServerClient, ExecServerClientConnectOptions},
    error::ExecServerError,
};

/// Opens links to one server.
pub trait ServerConnector: fmt::Debug + Send + Sync {
    /// Opens a link. Dropping the future leaves none open.
    fn connect(&self) -> BoxFuture<'_, Result<Link, ConnectError>>;

    /// Opens a link for resuming a session, to the same server that holds it. The default is
    /// [`ServerConnector::connect`], for servers that cannot be replaced.
    fn reconnect(&self) -> BoxFuture<'_, Result<Link, ConnectError>> {
        self.connect()
    }

    /// Opens a link for a new session after the previous one was lost, to any server that answers
    /// now. The default is [`ServerConnector::connect`], for servers with permanent refusals.
    fn renew(&self) -> BoxFuture<'_, Result<Link, ConnectError>> {
        self.connect()
    }

    /// Returns whether a session survives its link and can be resumed over another one.
    fn continuity(&self) -> SessionContinuity;

    /// Returns the delay before the next reconnect attempt (backoff), given the number of failed
    /// attempts since the link was last useful.
    fn retry_delay(&self, failures: u32) -> RetryDelay {
        RetryDelay::FromStart(if failures < FAST_ATTEMPTS {
            RETRY_INTERVAL
        } else {
            SLOW_RETRY_INTERVAL
        })
    }
}

/// Delay between reconnect attempts, as in the stock client.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Number of attempts with that delay: half a minute's worth.
const FAST_ATTEMPTS: u32 = 300;
/// Delay between later attempts.
const SLOW_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Start time of the next attempt.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RetryDelay {
    /// This long after the start of the previous attempt, or immediately if that took longer.
    FromStart(Duration),
    /// This long after the end of the previous attempt.
    FromEnd(Duration),
}

/// Whether a session survives the end of its link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SessionContinuity {
    /// The server keeps the session for a while.
    Resumed,
    /// The session ends with the link, as does the server that was started for it.
    Ended,
}

/// Opens links with a closure, for example to a server in the same process.
pub struct MemoryConnector<F> {
    open: F,
    continuity: SessionContinuity,
}

impl<F> MemoryConnector<F>
where
    F: Fn() -> Link + Send + Sync + 'static,
{
    /// Opens links with `open`, which may return one end of an in-memory pair.
    pub fn new(open: F, continuity: SessionContinuity) -> Self {
        Self { open, continuity }
    }
}

impl<F> fmt::Debug for MemoryConnector<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryConnector")
            .field("continuity", &self.continuity)
            .finish_non_exhaustive()
    }
}

impl<F> ServerConnector for MemoryConnector<F>
where
    F: Fn() -> Link + Send + Sync + 'static,
{
    fn connect(&self) -> BoxFuture<'_, Result<Link, ConnectError>> {
        ready(()).map(|()| Ok((self.open)())).boxed()
    }

    fn continuity(&self) -> SessionContinuity {
        self.continuity
    }
}

impl ExecServerClient {
    /// Connects to a server in the same process. Calls `open` for each link; `continuity` says
    /// whether the server keeps a session without a link.
    pub async fn connect_memory(
        open: impl Fn() -> Link + Send + Sync + 'static,
        continuity: SessionContinuity,
        options: ExecServerClientConnectOptions,
    ) -> Result<Self, ExecServerError> {
        Self::connect_with(Arc::new(MemoryConnector::new(open, continuity)), options).await
    }
}
