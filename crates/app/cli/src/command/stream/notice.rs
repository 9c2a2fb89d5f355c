//! Tells a person that the connection is out, and that it is back.

use std::pin::pin;

use exec_client::{client::ExecServerClient, connection::ConnectionState};

use super::output::write_all;
use crate::command::terminal::Standard;

/// What stands on standard error about the connection.
#[derive(Debug)]
pub(crate) struct Notice {
    terminal: bool,
    shown: bool,
}

impl Notice {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        Self {
            terminal: Standard::Error.is_terminal(),
            shown: false,
        }
    }

    /// Says what changed, once.
    pub(crate) fn show(&mut self, state: ConnectionState) {
        let out = match state {
            ConnectionState::Connected => false,
            ConnectionState::Reconnecting => true,
            // Whoever waits for the process says the rest.
            ConnectionState::Lost => return self.erase(),
        };
        if out == self.shown {
            return;
        }
        self.shown = out;
        match (self.terminal, out) {
            (true, true) => say(SHOW),
            (true, false) => say(ERASE),
            (false, true) => say("exec-server: reconnecting…\n"),
            (false, false) => say("exec-server: reconnected\n"),
        }
    }

    fn erase(&mut self) {
        if std::mem::take(&mut self.shown) && self.terminal {
            say(ERASE);
        }
    }
}

impl Drop for Notice {
    /// What is said next does not stand behind it.
    fn drop(&mut self) {
        self.erase();
    }
}

/// The place of the cursor is kept: what stands before it, such as a prompt, stays.
const SHOW: &str = "\x1b7reconnecting…";
const ERASE: &str = "\x1b8\x1b[K";

fn say(text: &str) {
    // Nobody can be told that standard error is gone.
    drop(write_all(Standard::Error.fd(), text.as_bytes()));
}

/// Does something, and tells meanwhile when the connection is out.
pub(crate) async fn telling<T>(client: &ExecServerClient, work: impl Future<Output = T>) -> T {
    let (mut connection, mut notice) = (client.connection(), Notice::new());
    // It may be out already.
    notice.show(*connection.borrow_and_update());
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            Ok(()) = connection.changed() => notice.show(*connection.borrow_and_update()),
            done = &mut work => return done,
        }
    }
}
