//! Reconnects a harness stream to its executor, with exponential backoff.

use std::{iter, sync::Arc, time::Duration};

use exec_relay::identity::NoisePublicKey;
use tokio::time::{Instant, sleep, timeout_at};

use super::{GrantSource, HarnessOptions, dial};
use crate::{
    connect::{ConnectError, ConnectFault},
    relay::StreamCloseReason,
    websocket::socket::BinarySocket,
};

/// Delay before the second attempt; doubled each time.
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
/// Maximum delay between attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// Opens further websockets for a stream.
#[derive(Clone)]
pub(super) struct Reconnector {
    pub(super) grants: Arc<dyn GrantSource>,
    pub(super) options: HarnessOptions,
    /// Key of the executor at the other end of the stream.
    pub(super) executor_key: NoisePublicKey,
}

/// Backoff state of a reconnect. It lasts until a frame arrives from the executor: a relay that
/// accepts websockets but delivers nothing gets no more attempts than one that refuses them.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReconnectBackoff {
    pub(super) deadline: Instant,
    /// Delay before the next attempt. `None` before the first.
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
    /// Starts the backoff for a lost websocket.
    pub(super) fn start_backoff(&self) -> ReconnectBackoff {
        ReconnectBackoff {
            deadline: Instant::now() + self.options.recovery,
            delay: None,
        }
    }

    /// Opens another websocket: at once, then with backoff until the deadline. Also returns the
    /// backoff, which continues if no frame arrives.
    pub(super) async fn reconnect(
        self,
        mut backoff: ReconnectBackoff,
    ) -> Result<(BinarySocket, ReconnectBackoff), StreamCloseReason> {
        let deadline = backoff.deadline;
        let attempts = async {
            loop {
                backoff.wait().await;
                match self.attempt().await {
                    Ok(socket) => return Ok((socket, backoff)),
                    Err(AttemptFailure::Fatal(end)) => return Err(end),
                    Err(AttemptFailure::Transient(error)) => {
                        tracing::debug!(%error, "reconnect attempt failed");
                    }
                }
            }
        };
        let in_time = timeout_at(deadline, attempts).await;
        in_time.unwrap_or(Err(StreamCloseReason::Lost))
    }

    async fn attempt(&self) -> Result<BinarySocket, AttemptFailure> {
        let grant = self
            .grants
            .fetch()
            .await
            .map_err(AttemptFailure::grant_failure)?;
        if grant.executor_key != self.executor_key {
            return Err(AttemptFailure::Fatal(StreamCloseReason::ExecutorChanged));
        }
        // A relay error may be fixed by a fresh grant.
        let opened = dial(&grant, &self.options).await;
        opened.map_err(|error| match error.fault() {
            ConnectFault::Caller => {
                AttemptFailure::Fatal(StreamCloseReason::Refused(error_chain(&error)))
            }
            ConnectFault::Peer | ConnectFault::Transport => AttemptFailure::Transient(error),
        })
    }
}

/// Why an attempt failed.
enum AttemptFailure {
    Transient(ConnectError),
    Fatal(StreamCloseReason),
}

impl AttemptFailure {
    fn grant_failure(error: ConnectError) -> Self {
        if matches!(error, ConnectError::ExecutorChanged) {
            Self::Fatal(StreamCloseReason::ExecutorChanged)
        } else if error.is_passing() {
            Self::Transient(error)
        } else {
            Self::Fatal(StreamCloseReason::Refused(error_chain(&error)))
        }
    }
}

/// Formats an error with its sources.
fn error_chain(error: &dyn std::error::Error) -> String {
    let sources = iter::successors(Some(error), |error| error.source());
    let texts: Vec<String> = sources.map(ToString::to_string).collect();
    texts.join(": ")
}
