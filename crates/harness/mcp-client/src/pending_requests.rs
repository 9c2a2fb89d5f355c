//! Pending requests, and the end of the transport that fails all of them.
//!
//! rmcp reports the reason to a caller only if *sending* its request fails. So sending a request
//! completes with its response: if the server exits before, sending fails with the reason.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rmcp::model::RequestId;
use tokio::sync::{oneshot, watch};

use crate::error::McpTransportError;

/// Result of sending a message.
pub(crate) type SendResult = Result<(), McpTransportError>;

/// Event that completes the sending of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ReleaseOn {
    /// Its response.
    Response,
    /// Any message of the server. Before the handshake, rmcp receives only after sending completes.
    FirstMessage,
}

/// Pending requests of one transport.
#[derive(Debug)]
pub(crate) struct PendingRequests {
    requests: Mutex<HashMap<RequestId, (ReleaseOn, oneshot::Sender<SendResult>)>>,
    end: watch::Sender<Option<McpTransportError>>,
}

impl PendingRequests {
    pub(crate) fn new() -> Self {
        Self {
            requests: Mutex::default(),
            end: watch::Sender::new(None),
        }
    }

    /// Registers a request. Fails after the end of the transport.
    pub(crate) fn register(
        &self,
        id: RequestId,
        release_on: ReleaseOn,
    ) -> Result<oneshot::Receiver<SendResult>, McpTransportError> {
        let mut requests = self.lock();
        if let Some(end) = self.ended() {
            return Err(end);
        }
        let (sender, receiver) = oneshot::channel();
        requests.insert(id, (release_on, sender));
        Ok(receiver)
    }

    /// Completes a request.
    pub(crate) fn finish(&self, id: &RequestId, sent: SendResult) {
        let requests = self.lock().remove(id);
        if let Some((_, sender)) = requests {
            // The caller may have been dropped.
            sender.send(sent).ok();
        }
    }

    /// Completes the requests that wait for any message.
    pub(crate) fn handle_first_message(&self) {
        self.lock()
            .retain(|_, (release_on, _)| *release_on != ReleaseOn::FirstMessage);
    }

    /// Fails all pending and future requests. The first reason counts.
    pub(crate) fn end(&self, error: McpTransportError) {
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            end.get_or_insert(error);
            first
        });
        let (requests, end) = (std::mem::take(&mut *self.lock()), self.ended());
        for (_, sender) in requests.into_values() {
            if let Some(end) = end.clone() {
                sender.send(Err(end)).ok();
            }
        }
    }

    /// Returns the reason of the end, if the transport has ended.
    pub(crate) fn ended(&self) -> Option<McpTransportError> {
        self.end.borrow().clone()
    }

    /// Waits for the end of the transport.
    pub(crate) async fn wait_for_end(&self) -> McpTransportError {
        let mut end = self.end.subscribe();
        loop {
            if let Some(end) = end.borrow_and_update().clone() {
                return end;
            }
            // Cannot fail: `self` owns the sender.
            end.changed().await.ok();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, (ReleaseOn, oneshot::Sender<SendResult>)>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed() -> McpTransportError {
        McpTransportError::Closed("s".to_owned())
    }

    #[test]
    fn request_completes_with_its_response() {
        let pending = PendingRequests::new();
        let [one, two] = [1, 2].map(RequestId::Number);
        let mut first = pending.register(one.clone(), ReleaseOn::Response).unwrap();
        let mut second = pending.register(two, ReleaseOn::Response).unwrap();
        pending.handle_first_message();
        assert!(first.try_recv().is_err());
        pending.finish(&one, Ok(()));
        pending.finish(&one, Ok(()));
        assert_eq!(first.try_recv(), Ok(Ok(())));
        pending.end(closed());
        assert_eq!(second.try_recv(), Ok(Err(closed())));
    }

    #[test]
    fn first_end_reason_counts_and_later_requests_fail() {
        let pending = PendingRequests::new();
        pending.end(closed());
        pending.end(McpTransportError::Encode("late".to_owned()));
        let refused = pending.register(RequestId::Number(1), ReleaseOn::Response);
        assert_eq!(refused.unwrap_err(), closed());
    }

    #[test]
    fn handshake_completes_with_the_first_message() {
        let pending = PendingRequests::new();
        let id = RequestId::Number(0);
        let mut sent = pending.register(id, ReleaseOn::FirstMessage).unwrap();
        assert_eq!(sent.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        pending.handle_first_message();
        assert_eq!(sent.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }
}
