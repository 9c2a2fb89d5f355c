//! Sources that the test controls.

use std::{fmt, sync::Arc};

use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::{mpsc, watch};

use super::{environment::environment, within::within};
use crate::manager::{EnvironmentSource, OpenError};
use exec_env::environment::Environment;

/// Opens when the test says so.
#[derive(Debug)]
pub(crate) struct Controlled {
    calls: watch::Sender<usize>,
    send: mpsc::UnboundedSender<Result<Environment, OpenError>>,
    outcomes: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<Result<Environment, OpenError>>>>,
}

impl Controlled {
    pub(crate) fn new() -> Arc<Self> {
        let (send, outcomes) = mpsc::unbounded_channel();
        Arc::new(Self {
            calls: watch::Sender::new(0),
            send,
            outcomes: Arc::new(tokio::sync::Mutex::new(outcomes)),
        })
    }

    /// Returns one that is ready at once.
    pub(crate) fn ready(label: &str) -> Arc<Self> {
        let source = Self::new();
        source.finish(Ok(environment(label)));
        source
    }

    /// Lets one call of `open` come to this, in the order of the calls.
    pub(crate) fn finish(&self, outcome: Result<Environment, OpenError>) {
        self.send.send(outcome).unwrap();
    }

    /// Lets one call of `open` fail.
    pub(crate) fn fail(&self, reason: &str) {
        self.finish(Err(OpenError::Configuration(reason.to_owned())));
    }

    /// Returns how often it was opened.
    pub(crate) fn calls(&self) -> usize {
        *self.calls.borrow()
    }

    /// Waits until it was opened so often.
    pub(crate) async fn called(&self, times: usize) {
        let mut calls = self.calls.subscribe();
        within(calls.wait_for(|calls| *calls >= times))
            .await
            .unwrap();
    }
}

impl EnvironmentSource for Controlled {
    fn open(&self) -> BoxFuture<'static, Result<Environment, OpenError>> {
        self.calls.send_modify(|calls| *calls += 1);
        let outcomes = Arc::clone(&self.outcomes);
        async move { outcomes.lock().await.recv().await.unwrap() }.boxed()
    }
}

/// Opens by what a closure does.
pub(crate) struct Scripted<F>(pub(crate) F);

impl<F> fmt::Debug for Scripted<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

impl<F> EnvironmentSource for Scripted<F>
where
    F: Fn() -> BoxFuture<'static, Result<Environment, OpenError>> + Send + Sync,
{
    fn open(&self) -> BoxFuture<'static, Result<Environment, OpenError>> {
        (self.0)()
    }
}
