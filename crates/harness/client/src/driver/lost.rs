//! Lost: there is no session, and nothing is tried until somebody asks for something.

use exec_env::disconnect::Disconnect;

use super::task::{Driver, State};
use crate::{connection::ConnectionState, error::ExecServerError, handshake::open};

impl Driver {
    /// Waits for a call and begins another session for it. If that fails, the call does: whoever made
    /// it knows best whether to try again.
    pub(super) async fn wait_for_use(&mut self, gone: Disconnect) -> State {
        let Some(ask) = self.queue.next().await else {
            return State::Over;
        };
        let Some(connector) = self.connector.clone() else {
            ask.waiter.fail(gone.clone().into());
            return State::Lost(gone);
        };
        if !ask.waiter.is_awaited() {
            return State::Lost(gone);
        }
        self.queue.hold(ask);
        self.hub.set_connection(ConnectionState::Reconnecting);
        let options = self.options.clone();
        let opening = open(connector.connect(), &options, None);
        match self.queue.hold_while(opening).await {
            None => State::Over,
            Some(Ok(opened)) => {
                self.attempted = None;
                self.begin(opened)
            }
            Some(Err(error)) => {
                self.hub.set_connection(ConnectionState::Lost);
                self.queue.fail(&ExecServerError::Connect(error));
                State::Lost(gone)
            }
        }
    }
}
