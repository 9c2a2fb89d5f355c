//! Requests that wait for an answer, and the end that all of them share.
//!
//! rmcp tells whoever waits for an answer when *sending* its request has failed, and why. So the
//! sending of a request lasts until its answer is there: if the server ends in between, it fails with
//! the reason.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rmcp::model::RequestId;
use tokio::sync::{oneshot, watch};

use crate::error::McpTransportError;

/// What becomes of sending a request.
pub(crate) type Sent = Result<(), McpTransportError>;

/// What lets go of a request before its end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Until {
    /// Its answer.
    Answer,
    /// Anything that the server says. Before the handshake, rmcp receives only what was sent.
    FirstMessage,
}

/// The requests of one transport.
#[derive(Debug)]
pub(crate) struct Calls {
    waiting: Mutex<HashMap<RequestId, (Until, oneshot::Sender<Sent>)>>,
    end: watch::Sender<Option<McpTransportError>>,
}

impl Calls {
    pub(crate) fn new() -> Self {
        Self {
            waiting: Mutex::default(),
            end: watch::Sender::new(None),
        }
    }

    /// Begins to wait. After the end there is nothing to wait for.
    pub(crate) fn register(
        &self,
        id: RequestId,
        until: Until,
    ) -> Result<oneshot::Receiver<Sent>, McpTransportError> {
        let mut waiting = self.lock();
        if let Some(end) = self.ended() {
            return Err(end);
        }
        let (tell, told) = oneshot::channel();
        waiting.insert(id, (until, tell));
        Ok(told)
    }

    /// Ends one wait.
    pub(crate) fn finish(&self, id: &RequestId, sent: Sent) {
        let waiting = self.lock().remove(id);
        if let Some((_, tell)) = waiting {
            // Whoever sent it may have lost interest.
            tell.send(sent).ok();
        }
    }

    /// Lets go of requests that wait for anything.
    pub(crate) fn first_message(&self) {
        self.lock()
            .retain(|_, (until, _)| *until != Until::FirstMessage);
    }

    /// Ends all waits, those of the future, too. The first reason counts.
    pub(crate) fn end(&self, error: McpTransportError) {
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            end.get_or_insert(error);
            first
        });
        let (waiting, end) = (std::mem::take(&mut *self.lock()), self.ended());
        for (_, tell) in waiting.into_values() {
            if let Some(end) = end.clone() {
                tell.send(Err(end)).ok();
            }
        }
    }

    /// Returns the end, if it has come.
    pub(crate) fn ended(&self) -> Option<McpTransportError> {
        self.end.borrow().clone()
    }

    /// Waits for the end.
    pub(crate) async fn until_ended(&self) -> McpTransportError {
        let mut end = self.end.subscribe();
        loop {
            if let Some(end) = end.borrow_and_update().clone() {
                return end;
            }
            // The sender is here.
            end.changed().await.ok();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, (Until, oneshot::Sender<Sent>)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed() -> McpTransportError {
        McpTransportError::Closed("s".to_owned())
    }

    #[test]
    fn a_request_lasts_until_its_answer() {
        let calls = Calls::new();
        let [one, two] = [1, 2].map(RequestId::Number);
        let mut first = calls.register(one.clone(), Until::Answer).unwrap();
        let mut second = calls.register(two, Until::Answer).unwrap();
        calls.first_message();
        assert!(first.try_recv().is_err());
        calls.finish(&one, Ok(()));
        calls.finish(&one, Ok(()));
        assert_eq!(first.try_recv(), Ok(Ok(())));
        calls.end(closed());
        assert_eq!(second.try_recv(), Ok(Err(closed())));
    }

    #[test]
    fn the_first_end_counts_and_nothing_waits_behind_it() {
        let calls = Calls::new();
        calls.end(closed());
        calls.end(McpTransportError::Encode("late".to_owned()));
        let refused = calls.register(RequestId::Number(1), Until::Answer);
        assert_eq!(refused.unwrap_err(), closed());
    }

    #[test]
    fn a_handshake_lasts_until_anything_is_said() {
        let calls = Calls::new();
        let id = RequestId::Number(0);
        let mut sent = calls.register(id, Until::FirstMessage).unwrap();
        assert_eq!(sent.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        calls.first_message();
        assert_eq!(sent.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }
}
