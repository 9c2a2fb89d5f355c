//! Ways to a server: where it is, how it is reached, and what becomes of a session when the way
//! breaks.
//!
//! Arguments are plain values; each makes a [`Connector`](crate::connector::Connector) that opens
//! links for as long as the client lives, and what the client says of itself. Not here: opening the
//! links themselves (`exec-transport`), coming back (`driver`).

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
pub trait Connector: fmt::Debug + Send + Sync {
    /// Opens a link. Dropping the future leaves none.
    fn connect(&self) -> BoxFuture<'_, Result<Link, ConnectError>>;

    /// Opens a link on which a session is to be taken up again: to the very server that has it. As
    /// [`Connector::connect`], unless there may be another server by now.
    fn reconnect(&self) -> BoxFuture<'_, Result<Link, ConnectError>> {
        self.connect()
    }

    /// Opens a link for another session, because the one before is gone: to whatever server there is by
    /// now. As [`Connector::connect`], unless one that refuses may be of another mind in a moment.
    fn renew(&self) -> BoxFuture<'_, Result<Link, ConnectError>> {
        self.connect()
    }

    /// Returns whether a session outlives its link, and can be taken up again over the next one.
    fn continuity(&self) -> Continuity;

    /// Tells how long to wait for the next attempt to take a session up again, after so many that
    /// failed since the link was of use.
    fn pause(&self, failures: u32) -> Pause {
        Pause::AfterBegin(if failures < FAST_ATTEMPTS {
            RETRY_INTERVAL
        } else {
            SLOW_RETRY_INTERVAL
        })
    }
}

/// How far attempts are apart: as the stock client.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// How many attempts are made at that pace: half a minute's.
const FAST_ATTEMPTS: u32 = 300;
/// How far attempts are apart behind those.
const SLOW_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// When the next attempt begins.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pause {
    /// This long after the one before began: at once, if that took longer.
    AfterBegin(Duration),
    /// This long after the one before failed.
    AfterEnd(Duration),
}

/// What becomes of a session when its link ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Continuity {
    /// The server keeps it for a while.
    Resumed,
    /// It ends with the link, as the server does that was started for it.
    Ended,
}

/// Opens links to a server in the same process, or wherever else a function leads.
pub struct MemoryConnector<F> {
    open: F,
    continuity: Continuity,
}

impl<F> MemoryConnector<F>
where
    F: Fn() -> Link + Send + Sync + 'static,
{
    /// Opens links by `open`, such as one end of a pair whose other end a service was given.
    pub fn new(open: F, continuity: Continuity) -> Self {
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

impl<F> Connector for MemoryConnector<F>
where
    F: Fn() -> Link + Send + Sync + 'static,
{
    fn connect(&self) -> BoxFuture<'_, Result<Link, ConnectError>> {
        ready(()).map(|()| Ok((self.open)())).boxed()
    }

    fn continuity(&self) -> Continuity {
        self.continuity
    }
}

impl ExecServerClient {
    /// Connects to a server in the same process. `open` is called for each link; `continuity` tells
    /// whether the server keeps a session without one.
    pub async fn connect_memory(
        open: impl Fn() -> Link + Send + Sync + 'static,
        continuity: Continuity,
        options: ExecServerClientConnectOptions,
    ) -> Result<Self, ExecServerError> {
        Self::connect_with(Arc::new(MemoryConnector::new(open, continuity)), options).await
    }
}
