//! Passing our input on to a process.
//! Invariant: what was read is written in its order, and no more is read than the process may still
//! take; at the end of our input, its input ends.

use std::time::Duration;

use exec_client::{client::ExecServerClient, connection::ConnectionState};
use exec_env::process::{ExecProcess, ProcessError};
use exec_wire::process::{ProcessSignal, WriteStatus};
use futures_util::{StreamExt, stream::FuturesOrdered};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{
    input::Input,
    keys::{DetachKeys, Typed},
    output::write_all,
    signals::Patience,
};
use crate::command::terminal::Standard;

/// Writes that may be on their way: enough to fill a long line, and few enough that a process which
/// does not read soon pauses whoever writes to us.
const ON_THE_WAY: usize = 8;
/// The same for keys, which are small.
const KEYS_ON_THE_WAY: usize = 64;
/// What Ctrl-C is on a raw terminal.
const INTERRUPT: u8 = 3;
const BELL: &[u8] = b"\x07";
/// How long what was typed before the keys that leave may take to reach the process.
const LEAVING: Duration = Duration::from_millis(500);

/// Our input, on its way to a process.
#[derive(Debug)]
pub(super) struct Feed<'a> {
    pub(super) process: &'a dyn ExecProcess,
    pub(super) input: Input,
    pub(super) keys: Option<DetachKeys>,
    /// Keys come as they are pressed.
    pub(super) raw: bool,
    pub(super) connection: watch::Receiver<ConnectionState>,
    /// Connects again at once when a key is pressed.
    pub(super) client: ExecServerClient,
}

/// Why nothing more is passed on.
#[derive(Debug)]
pub(super) enum Fed {
    /// Our input ended, or the process takes no more.
    Ended,
    /// Somebody typed the keys for it.
    Detached,
    /// The window was closed.
    HungUp,
    /// Somebody pressed Ctrl-C often enough while the keys reached nobody.
    GivenUp,
    /// Something that was read could not be passed on.
    Failed(ProcessError),
}

/// Tells that a key was lost, as a terminal does when it has no room for one.
fn ring() {
    drop(write_all(Standard::Error.fd(), BELL));
}

impl Feed<'_> {
    pub(super) async fn run(mut self) -> Fed {
        let mut writes = FuturesOrdered::new();
        let mut patience = Patience::default();
        let most = if self.raw {
            KEYS_ON_THE_WAY
        } else {
            ON_THE_WAY
        };
        // When somebody who typed the keys for it leaves at the latest: a process that is stopped takes
        // nothing of what was typed before.
        let mut leave_at: Option<Instant> = None;
        loop {
            let (out, full) = (self.is_out(), writes.len() >= most);
            let detached = leave_at.is_some();
            if detached && (out || full || writes.is_empty()) {
                return Fed::Detached;
            }
            tokio::select! {
                biased;
                // Who may leave changes with it.
                Ok(()) = self.connection.changed() => {}
                () = sleep_until(leave_at.unwrap_or_else(Instant::now)), if detached => {
                    return Fed::Detached;
                }
                Some(written) = writes.next(), if !writes.is_empty() => match written {
                    Ok(WriteStatus::Accepted) => {}
                    Ok(WriteStatus::StdinClosed | WriteStatus::UnknownProcess | WriteStatus::Starting)
                    | Err(ProcessError::Terminated | ProcessError::Disconnected(_)) if detached => {
                        return Fed::Detached;
                    }
                    // A key that was on its way when the connection broke. Others may follow, if only those
                    // that leave.
                    Err(ProcessError::Disconnected(_)) if self.raw => ring(),
                    Ok(WriteStatus::StdinClosed | WriteStatus::UnknownProcess | WriteStatus::Starting)
                    // What became of the process is told by its events.
                    | Err(ProcessError::Terminated | ProcessError::Disconnected(_)) => {
                        return Fed::Ended;
                    }
                    Err(error) => return Fed::Failed(error),
                },
                // Keys are looked at also when the process takes none: some of them are for us.
                read = self.input.read(), if !detached && (!full || self.raw) => {
                    // There is nothing to be read where nothing can be.
                    let mut data = read.unwrap_or_default();
                    if data.is_empty() {
                        if self.input.is_hung_up() {
                            return Fed::HungUp;
                        }
                        break;
                    }
                    if out {
                        self.client.retry_now();
                    }
                    if self.raw && (out || full) && is_given_up(&data, &mut patience) {
                        return Fed::GivenUp;
                    }
                    if let Some(keys) = &mut self.keys {
                        data = match keys.look(&data) {
                            Typed::Keys(data) => data,
                            Typed::Detach(data) => {
                                leave_at = Some(Instant::now() + LEAVING);
                                data
                            }
                        };
                    }
                    if full {
                        ring();
                    } else if !data.is_empty() {
                        writes.push_back(self.process.write(None, data));
                    }
                }
            }
        }
        // Its place is behind the writes.
        let closed = self.process.close_stdin(None);
        while let Some(written) = writes.next().await {
            match written {
                Ok(_) | Err(ProcessError::Terminated | ProcessError::Disconnected(_)) => {}
                Err(error) => return Fed::Failed(error),
            }
        }
        drop(closed.await);
        Fed::Ended
    }

    fn is_out(&self) -> bool {
        *self.connection.borrow() == ConnectionState::Reconnecting
    }
}

/// Keys reach nobody while the connection is out, or the process takes none: Ctrl-C is then for us.
fn is_given_up(keys: &[u8], patience: &mut Patience) -> bool {
    let now = Instant::now();
    let mut presses = keys.iter().filter(|key| **key == INTERRUPT);
    presses.any(|_| patience.is_over(ProcessSignal::Interrupt, now))
}
