//! Servers in the same process.

use std::{fmt, future::ready, sync::Arc};

use exec_transport::{connect::ConnectError, link::Link};
use futures_util::future::{BoxFuture, FutureExt};

use crate::{
    client::ExecServerClient,
    connector::{Connector, Continuity},
    error::ExecServerError,
    options::ExecServerClientConnectOptions,
};

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
