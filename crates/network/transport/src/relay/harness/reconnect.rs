//! Finding back to an executor.

use std::{iter, sync::Arc, time::Duration};

use exec_relay::identity::PublicKey;
use tokio::time::{Instant, sleep, timeout_at};

use super::{HarnessOptions, Tickets, dial};
use crate::{
    connect::{ConnectError, Fault},
    relay::StreamCloseReason,
    websocket::socket::Socket,
};

/// First wait between two attempts; doubled each time.
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
/// Longest wait between two attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// What is needed to open another websocket for a stream.
#[derive(Clone)]
pub(super) struct Reconnector {
    pub(super) tickets: Arc<dyn Tickets>,
    pub(super) options: HarnessOptions,
    /// The key of the executor that holds the other end of the stream.
    pub(super) executor_key: PublicKey,
}

/// The search for an executor that is not heard any more. It goes on until the executor is heard: a
/// relay that opens websockets to nobody is not asked any longer, or more often, than one that does not.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReconnectBackoff {
    pub(super) deadline: Instant,
    /// What is waited for before the next attempt: nothing before the first.
    delay: Option<Duration>,
}

impl ReconnectBackoff {
    async fn wait(&mut self) {
        if let Some(delay) = self.delay {
            sleep(delay).await;
        }
        let next = self.delay.map_or(INITIAL_BACKOFF, |delay| delay * 2);
        self.delay = Some(next.min(MAX_BACKOFF));
    }
}

impl Reconnector {
    /// Begins to search for the executor.
    pub(super) fn start_backoff(&self) -> ReconnectBackoff {
        ReconnectBackoff {
            deadline: Instant::now() + self.options.recovery,
            delay: None,
        }
    }

    /// Opens another websocket: at once, and then again and again until the time is over. Returns the
    /// search as well, for it to be gone on with if nobody is heard.
    pub(super) async fn reconnect(
        self,
        mut backoff: ReconnectBackoff,
    ) -> Result<(Socket, ReconnectBackoff), StreamCloseReason> {
        let deadline = backoff.deadline;
        let attempts = async {
            loop {
                backoff.wait().await;
                match self.attempt().await {
                    Ok(socket) => return Ok((socket, backoff)),
                    Err(AttemptFailure::Fatal(end)) => return Err(end),
                    Err(AttemptFailure::Transient(error)) => {
                        tracing::debug!(%error, "relay was not reached again");
                    }
                }
            }
        };
        let in_time = timeout_at(deadline, attempts).await;
        in_time.unwrap_or(Err(StreamCloseReason::Lost))
    }

    async fn attempt(&self) -> Result<Socket, AttemptFailure> {
        let ticket = self
            .tickets
            .fetch()
            .await
            .map_err(AttemptFailure::ticket_failure)?;
        if ticket.executor_key != self.executor_key {
            return Err(AttemptFailure::Fatal(StreamCloseReason::ExecutorChanged));
        }
        // Whatever the relay says, a fresh ticket may be better.
        let opened = dial(&ticket, &self.options).await;
        opened.map_err(|error| match error.fault() {
            Fault::Caller => AttemptFailure::Fatal(StreamCloseReason::Refused(error_chain(&error))),
            Fault::Peer | Fault::Transport => AttemptFailure::Transient(error),
        })
    }
}

/// Why an attempt came to nothing.
enum AttemptFailure {
    Transient(ConnectError),
    Fatal(StreamCloseReason),
}

impl AttemptFailure {
    fn ticket_failure(error: ConnectError) -> Self {
        if matches!(error, ConnectError::ExecutorChanged) {
            Self::Fatal(StreamCloseReason::ExecutorChanged)
        } else if error.is_passing() {
            Self::Transient(error)
        } else {
            Self::Fatal(StreamCloseReason::Refused(error_chain(&error)))
        }
    }
}

/// An error with its sources, for people.
fn error_chain(error: &dyn std::error::Error) -> String {
    let sources = iter::successors(Some(error), |error| error.source());
    let texts: Vec<String> = sources.map(ToString::to_string).collect();
    texts.join(": ")
}
