//! Renewing: the session is gone, and another one is opened for the processes that outlive it.

use exec_env::disconnect::Disconnect;
use tokio::time::Instant;

use super::{
    recovering::Reopened,
    resume::Remains,
    task::{Driver, State},
};

impl Driver {
    /// Tries until there is a session, until there can be none, or until the time is up.
    pub(super) async fn renew(&mut self, remains: Remains, gone: Disconnect) -> State {
        let Some(connector) = self.connector.clone() else {
            return self.end(remains, gone);
        };
        let window = self.window();
        let deadline = Instant::now() + window;
        match self.reopen(&connector, None, deadline).await {
            Reopened::Opened(opened) => {
                // The session is new, and so is the time in which it can be resumed.
                let since = Instant::now();
                self.resume(*opened, Remains { since, ..remains })
            }
            Reopened::Over => State::Over,
            Reopened::OutOfTime(last) => {
                tracing::debug!(?last, "no other session within {window:?}");
                self.end(remains, gone)
            }
            Reopened::Refused(error) => {
                tracing::debug!(%error, "no other session");
                self.end(remains, gone)
            }
        }
    }
}
