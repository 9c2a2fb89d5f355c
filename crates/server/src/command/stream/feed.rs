//! Passing our input on to a process.
//! Invariant: what was read is written in its order, and no more is read than the process may still
//! take; at the end of our input, its input ends.

use exec_client::connection::ConnectionState;
use exec_env::process::{ExecProcess, ProcessError};
use exec_wire::process::{ProcessSignal, WriteStatus};
use futures_util::{StreamExt, stream::FuturesOrdered};
use tokio::{sync::watch, time::Instant};

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

/// Our input, on its way to a process.
#[derive(Debug)]
pub(super) struct Feed<'a> {
    pub(super) process: &'a dyn ExecProcess,
    pub(super) input: Input,
    pub(super) keys: Option<DetachKeys>,
    /// Keys come as they are pressed.
    pub(super) raw: bool,
    pub(super) connection: watch::Receiver<ConnectionState>,
}

/// Why nothing more is passed on.
#[derive(Debug)]
pub(super) enum Fed {
    /// Our input ended, or the process takes no more.
    Ended,
    /// Somebody typed the keys for it.
    Detached,
    /// Somebody pressed Ctrl-C often enough while the connection was out.
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
        let mut detached = false;
        loop {
            let out = self.is_out();
            if detached && (out || writes.is_empty()) {
                return Fed::Detached;
            }
            let full = writes.len() >= most;
            tokio::select! {
                biased;
                // Who may leave changes with it.
                Ok(()) = self.connection.changed() => {}
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
                read = self.input.read(), if !detached && (!full || out && self.raw) => {
                    // There is nothing to be read where nothing can be.
                    let mut data = read.unwrap_or_default();
                    if data.is_empty() {
                        break;
                    }
                    if self.is_given_up(&data, &mut patience) {
                        return Fed::GivenUp;
                    }
                    if let Some(keys) = &mut self.keys {
                        data = match keys.look(&data) {
                            Typed::Keys(data) => data,
                            Typed::Detach(data) => {
                                detached = true;
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

    /// Keys reach nobody while the connection is out: Ctrl-C is then for us.
    fn is_given_up(&self, keys: &[u8], patience: &mut Patience) -> bool {
        if !self.raw || !self.is_out() {
            return false;
        }
        let now = Instant::now();
        let mut presses = keys.iter().filter(|key| **key == INTERRUPT);
        presses.any(|_| patience.is_over(ProcessSignal::Interrupt, now))
    }
}
