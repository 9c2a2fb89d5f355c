//! How links to one server are opened, the first and those after a disconnect.

use std::fmt;

use exec_transport::{connect::ConnectError, link::Link};
use futures_util::future::BoxFuture;

/// Opens links to one server.
pub trait Connector: fmt::Debug + Send + Sync {
    /// Opens a link. Dropping the future leaves none.
    fn connect(&self) -> BoxFuture<'_, Result<Link, ConnectError>>;

    /// Tells whether a session outlives its link, and can be taken up again over the next one.
    fn continuity(&self) -> Continuity;
}

/// What becomes of a session when its link ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Continuity {
    /// The server keeps it for a while.
    Resumed,
    /// It ends with the link, as the server does that was started for it.
    Ended,
}
