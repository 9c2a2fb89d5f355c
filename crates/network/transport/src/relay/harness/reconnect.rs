//! Finding back to an executor.

use std::{iter, sync::Arc, time::Duration};

use exec_relay::identity::PublicKey;
use tokio::time::{Instant, sleep, timeout_at};

use super::{HarnessOptions, Tickets, dial};
use crate::{
    connect::{ConnectError, Fault},
    relay::End,
    websocket::socket::Socket,
};

/// First wait between two attempts; doubled each time.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// Longest wait between two attempts.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// What is needed to open another websocket for a stream.
#[derive(Clone)]
pub(super) struct Reopen {
    pub(super) tickets: Arc<dyn Tickets>,
    pub(super) options: HarnessOptions,
    /// The key of the executor that holds the other end of the stream.
    pub(super) executor_key: PublicKey,
}

/// The search for an executor that is not heard any more. It goes on until the executor is heard: a
/// relay that opens websockets to nobody is not asked any longer, or more often, than one that does not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    pub(super) until: Instant,
    /// What is waited for before the next attempt: nothing before the first.
    wait: Option<Duration>,
}

impl Search {
    async fn pause(&mut self) {
        if let Some(wait) = self.wait {
            sleep(wait).await;
        }
        let next = self.wait.map_or(FIRST_WAIT, |wait| wait * 2);
        self.wait = Some(next.min(MAX_WAIT));
    }
}

impl Reopen {
    /// Begins to search for the executor.
    pub(super) fn search(&self) -> Search {
        Search {
            until: Instant::now() + self.options.recovery,
            wait: None,
        }
    }

    /// Opens another websocket: at once, and then again and again until the time is over. Returns the
    /// search as well, for it to be gone on with if nobody is heard.
    pub(super) async fn run(self, mut search: Search) -> Result<(Socket, Search), End> {
        let until = search.until;
        let attempts = async {
            loop {
                search.pause().await;
                match self.attempt().await {
                    Ok(socket) => return Ok((socket, search)),
                    Err(Attempt::Over(end)) => return Err(end),
                    Err(Attempt::Failed(error)) => {
                        tracing::debug!(%error, "relay was not reached again");
                    }
                }
            }
        };
        let in_time = timeout_at(until, attempts).await;
        in_time.unwrap_or(Err(End::Lost))
    }

    async fn attempt(&self) -> Result<Socket, Attempt> {
        let ticket = self
            .tickets
            .fetch()
            .await
            .map_err(Attempt::without_ticket)?;
        if ticket.executor_key != self.executor_key {
            return Err(Attempt::Over(End::ExecutorChanged));
        }
        // Whatever the relay says, a fresh ticket may be better.
        let opened = dial(&ticket, &self.options).await;
        opened.map_err(|error| match error.fault() {
            Fault::Caller => Attempt::Over(End::Refused(chain(&error))),
            Fault::Peer | Fault::Transport => Attempt::Failed(error),
        })
    }
}

/// Why an attempt came to nothing.
enum Attempt {
    Failed(ConnectError),
    Over(End),
}

impl Attempt {
    fn without_ticket(error: ConnectError) -> Self {
        if matches!(error, ConnectError::ExecutorChanged) {
            Self::Over(End::ExecutorChanged)
        } else if error.is_passing() {
            Self::Failed(error)
        } else {
            Self::Over(End::Refused(chain(&error)))
        }
    }
}

/// An error with its sources, for people.
fn chain(error: &dyn std::error::Error) -> String {
    let sources = iter::successors(Some(error), |error| error.source());
    let texts: Vec<String> = sources.map(ToString::to_string).collect();
    texts.join(": ")
}
