//! Calls that wait for the driver.

use std::{collections::VecDeque, pin::pin};

use tokio::sync::mpsc;

use super::waiter::Ask;
use crate::error::ExecServerError;

/// Calls that may wait in the channel, and as many that were taken off it while there is no
/// connection; one more is refused.
pub(crate) const QUEUE: usize = 1024;

#[derive(Debug)]
pub(super) struct Queue {
    asks: mpsc::Receiver<Ask>,
    /// Calls that were taken off the channel and wait for a connection.
    held: VecDeque<Ask>,
}

impl Queue {
    pub(super) fn new(asks: mpsc::Receiver<Ask>) -> Self {
        Self {
            asks,
            held: VecDeque::new(),
        }
    }

    /// Waits for the next call. `None`: nobody is left who could make one. Cancelling loses none.
    pub(super) async fn next(&mut self) -> Option<Ask> {
        match self.held.pop_front() {
            Some(ask) => Some(ask),
            None => self.asks.recv().await,
        }
    }

    /// Returns the next call, if there is one.
    pub(super) fn try_next(&mut self) -> Option<Ask> {
        let held = self.held.pop_front();
        held.or_else(|| self.asks.try_recv().ok())
    }

    /// Keeps a call until there is a connection.
    pub(super) fn hold(&mut self, ask: Ask) {
        self.held.push_back(ask);
    }

    /// Waits for something else while calls wait for that. `None`: nobody needs it any more.
    pub(super) async fn hold_while<T>(&mut self, awaited: impl Future<Output = T>) -> Option<T> {
        let mut awaited = pin!(awaited);
        loop {
            tokio::select! {
                done = &mut awaited => return Some(done),
                ask = self.asks.recv(), if self.held.len() < QUEUE => self.hold(ask?),
            }
        }
    }

    /// Fails every call that waits.
    pub(super) fn fail(&mut self, error: &ExecServerError) {
        while let Some(ask) = self.try_next() {
            ask.waiter.fail(error.clone());
        }
    }

    /// Fails every call that waits, but those about processes of the server.
    pub(super) fn fail_session(&mut self, error: &ExecServerError) {
        let mut kept = VecDeque::new();
        while let Some(ask) = self.try_next() {
            if ask.about.is_some() {
                kept.push_back(ask);
            } else {
                ask.waiter.fail(error.clone());
            }
        }
        self.held = kept;
    }

    /// Takes no further calls.
    pub(super) fn close(&mut self) {
        self.asks.close();
    }
}
