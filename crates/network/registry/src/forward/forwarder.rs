//! Joining the streams of an executor to their destination.

use exec_transport::{link::Link, tls::Trust};
use tokio::{sync::mpsc, task::JoinSet};

use super::{Destination, pump};
use crate::executor::{ExecutorError, RemoteExecutor};

/// Streams that were let in and whose task has not begun: it begins at once.
const STARTING: usize = 16;

/// An executor that forwards.
#[derive(Debug)]
pub struct Forwarder {
    executor: RemoteExecutor,
    destination: Destination,
    trust: Trust,
}

impl Forwarder {
    /// Describes a forwarder. `trust` is for the destination. Nothing is sent.
    pub fn new(executor: RemoteExecutor, destination: Destination, trust: Trust) -> Self {
        Self {
            executor,
            destination,
            trust,
        }
    }

    /// Forwards until told to stop. Then everything is cut without a word.
    ///
    /// # Errors
    /// As [`RemoteExecutor::run`].
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), ExecutorError> {
        let (links, streams) = mpsc::channel(STARTING);
        tokio::select! {
            ended = self.executor.run(links, stop) => ended,
            () = forward(streams, self.destination, self.trust) => Err(ExecutorError::Abandoned),
        }
    }
}

/// Gives every stream a task. The executor bounds how many there are.
async fn forward(mut streams: mpsc::Receiver<Link>, destination: Destination, trust: Trust) {
    // Dropping the set ends them all.
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            Some(ended) = running.join_next() => {
                if let Err(error) = ended {
                    tracing::warn!(%error, "forwarding ended badly");
                }
            }
            stream = streams.recv() => {
                let Some(stream) = stream else { return };
                running.spawn(one(stream, destination.clone(), trust.clone()));
            }
        }
    }
}

/// Forwards one stream until either side ends. Whatever happens to it stays its own.
async fn one(stream: Link, destination: Destination, trust: Trust) {
    let ended = pump::run(stream, destination.open(&trust)).await;
    match ended {
        Ok(()) => tracing::debug!(%destination, "stream ended"),
        Err(error) => tracing::warn!(%destination, %error, "stream failed"),
    }
}
