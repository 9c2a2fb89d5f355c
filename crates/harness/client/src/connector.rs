//! How links to one server are opened, the first and those after a disconnect.

use std::{fmt, time::Duration};

use exec_transport::{connect::ConnectError, link::Link};
use futures_util::future::BoxFuture;

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

    /// Tells whether a session outlives its link, and can be taken up again over the next one.
    fn continuity(&self) -> Continuity;

    /// Tells how long to wait for the next attempt to take a session up again, after so many that
    /// failed since the link was of use.
    fn pause(&self, failures: u32) -> Pause {
        Pause::AfterBegin(if failures < SOON { PERIOD } else { LATER })
    }
}

/// How far attempts are apart: as the stock client.
const PERIOD: Duration = Duration::from_millis(100);
/// How many attempts are made at that pace: half a minute's.
const SOON: u32 = 300;
/// How far attempts are apart behind those.
const LATER: Duration = Duration::from_secs(1);

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
