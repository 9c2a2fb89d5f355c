//! What a server asks the client of one connection: whether a process may reach a host.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exec_core::peer::Calls;
use exec_wire::{
    message::{Message, RequestId},
    network::{Decision, PolicyAnswer},
};
use tokio::sync::oneshot;

/// Questions of one connection that may be unanswered: as the stock server.
const MAX_PENDING: usize = 256;
/// Longest reason that is taken from a client: as the stock server.
const MAX_REASON_BYTES: usize = 1024;

/// The questions of one connection that wait for their answer.
#[derive(Debug)]
pub(crate) struct ServerRequests(Mutex<State>);

#[derive(Debug)]
struct State {
    calls: Calls<oneshot::Sender<Decision>>,
    /// Nobody answers any more.
    closed: bool,
}

impl Default for ServerRequests {
    fn default() -> Self {
        Self(Mutex::new(State {
            calls: Calls::new(MAX_PENDING),
            closed: false,
        }))
    }
}

impl ServerRequests {
    /// Takes the id of a new question, unless too many are unanswered or nobody answers.
    pub(crate) fn register(self: &Arc<Self>) -> Option<PendingServerRequest> {
        let mut state = self.lock();
        if state.closed {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        let id = state.calls.ask(reply).ok()?;
        Some(PendingServerRequest {
            id,
            answer,
            requests: Arc::clone(self),
        })
    }

    /// Passes an answer on. Returns `false` if nobody waits for it.
    pub(crate) fn handle_response(&self, answer: Message<'_>) -> bool {
        let Some(answer) = self.lock().calls.handle_answer(answer) else {
            return false;
        };
        let decoded = answer.result.ok().and_then(|result| {
            let answer: PolicyAnswer = serde_json::from_str(result.get()).ok()?;
            is_acceptable(&answer.decision).then_some(answer.decision)
        });
        // An answer that cannot be taken is told by none.
        if let Some(decision) = decoded {
            drop(answer.waiter.send(decision));
        }
        true
    }

    /// The connection is gone: nothing is answered any more.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        drop(state.calls.drain());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A question that waits for its answer. Dropping it gives up the answer.
#[derive(Debug)]
pub(crate) struct PendingServerRequest {
    pub(crate) id: RequestId,
    answer: oneshot::Receiver<Decision>,
    requests: Arc<ServerRequests>,
}

impl PendingServerRequest {
    /// Waits for the answer. `None`: there will be none that can be taken.
    pub(crate) async fn decision(&mut self) -> Option<Decision> {
        (&mut self.answer).await.ok()
    }
}

impl Drop for PendingServerRequest {
    fn drop(&mut self) {
        self.requests.lock().calls.forget(&self.id);
    }
}

/// Tells whether a decision may be passed on to a proxy, which shows the reason to the process.
fn is_acceptable(decision: &Decision) -> bool {
    match decision {
        Decision::Allow => true,
        Decision::Deny { reason } | Decision::Ask { reason } => {
            reason.len() <= MAX_REASON_BYTES && !reason.contains(char::is_control)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn decision_for(requests: &Arc<ServerRequests>, answer: &str) -> Option<Decision> {
        let mut pending = requests.register().unwrap();
        let text = format!(r#"{{"id":{},{answer}}}"#, pending.id);
        assert!(requests.handle_response(Message::decode(text.as_bytes()).unwrap()));
        pending.decision().await
    }

    fn result(kind: &str, reason: &str) -> String {
        format!(r#""result":{{"decision":{{"type":"{kind}","reason":"{reason}"}}}}"#)
    }

    #[tokio::test]
    async fn every_decision_is_taken() {
        let requests = Arc::default();
        let allow = decision_for(&requests, r#""result":{"decision":{"type":"allow"}}"#).await;
        assert_eq!(allow, Some(Decision::Allow));
        let longest = "r".repeat(1024);
        for kind in ["deny", "ask"] {
            for reason in ["", "not on the list", &longest] {
                let reason = reason.to_owned();
                let decision = decision_for(&requests, &result(kind, &reason)).await;
                let expected = match kind {
                    "deny" => Decision::Deny { reason },
                    _ => Decision::Ask { reason },
                };
                assert_eq!(decision, Some(expected));
            }
        }
    }

    #[tokio::test]
    async fn what_is_no_decision_is_no_answer() {
        let requests = Arc::default();
        for answer in [
            r#""error":{"code":-32601,"message":"no"}"#,
            r#""result":null"#,
            r#""result":{"decision":"allow"}"#,
            r#""result":{"decision":{"type":"perhaps"}}"#,
            r#""result":{"decision":{"type":"deny"}}"#,
            &result("deny", &"r".repeat(1025)),
            &result("deny", r"two\nlines"),
            &result("ask", r"\u007f"),
        ] {
            assert_eq!(decision_for(&requests, answer).await, None, "{answer}");
        }
    }

    #[tokio::test]
    async fn questions_are_numbered_bounded_and_over_with_the_connection() {
        let requests: Arc<ServerRequests> = Arc::default();
        let mut pending: Vec<_> = (0..MAX_PENDING)
            .map(|_| requests.register().unwrap())
            .collect();
        assert_eq!(pending[0].id, RequestId::Number(1));
        assert!(requests.register().is_none());
        let given_up = pending.pop().unwrap().id.to_string();
        let text = format!(r#"{{"id":{given_up},"result":{{}}}}"#);
        let late = Message::decode(text.as_bytes()).unwrap();
        assert!(
            !requests.handle_response(late),
            "nobody waits for it any more"
        );
        assert_eq!(requests.register().unwrap().id, RequestId::Number(257));
        requests.close();
        assert_eq!(pending[0].decision().await, None);
        drop(pending);
        assert!(requests.register().is_none());
    }
}
