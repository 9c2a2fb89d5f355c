//! What a server asks the client of one connection: whether a process may reach a host.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exec_core::peer::Calls;
use exec_wire::{
    message::{Message, RequestId},
    network::{Decision, PolicyAnswer},
};
use tokio::sync::oneshot;

/// Questions of one connection that may be unanswered: as the stock server.
const MAX_QUESTIONS: usize = 256;
/// Longest reason that is taken from a client: as the stock server.
const MAX_REASON_BYTES: usize = 1024;

/// The questions of one connection that wait for their answer.
#[derive(Debug)]
pub(crate) struct Asked(Mutex<State>);

#[derive(Debug)]
struct State {
    calls: Calls<oneshot::Sender<Decision>>,
    /// Nobody answers any more.
    over: bool,
}

impl Default for Asked {
    fn default() -> Self {
        Self(Mutex::new(State {
            calls: Calls::new(MAX_QUESTIONS),
            over: false,
        }))
    }
}

impl Asked {
    /// Takes the id of a new question, unless too many are unanswered or nobody answers.
    pub(crate) fn ask(self: &Arc<Self>) -> Option<Question> {
        let mut state = self.lock();
        if state.over {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        let id = state.calls.ask(reply).ok()?;
        Some(Question {
            id,
            answer,
            asked: Arc::clone(self),
        })
    }

    /// Passes an answer on. Returns `false` if nobody waits for it.
    pub(crate) fn handle_answer(&self, answer: Message<'_>) -> bool {
        let Some(answer) = self.lock().calls.handle_answer(answer) else {
            return false;
        };
        let decoded = answer.result.ok().and_then(|result| {
            let answer: PolicyAnswer = serde_json::from_str(result.get()).ok()?;
            is_fit(&answer.decision).then_some(answer.decision)
        });
        // An answer that cannot be taken is told by none.
        if let Some(decision) = decoded {
            drop(answer.waiter.send(decision));
        }
        true
    }

    /// The connection is gone: nothing is answered any more.
    pub(crate) fn hang_up(&self) {
        let mut state = self.lock();
        state.over = true;
        drop(state.calls.drain());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A question that waits for its answer. Dropping it gives up the answer.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) id: RequestId,
    answer: oneshot::Receiver<Decision>,
    asked: Arc<Asked>,
}

impl Question {
    /// Waits for the answer. `None`: there will be none that can be taken.
    pub(crate) async fn answer(&mut self) -> Option<Decision> {
        (&mut self.answer).await.ok()
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        self.asked.lock().calls.forget(&self.id);
    }
}

/// Tells whether a decision may be passed on to a proxy, which shows the reason to the process.
fn is_fit(decision: &Decision) -> bool {
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

    async fn answered(asked: &Arc<Asked>, answer: &str) -> Option<Decision> {
        let mut question = asked.ask().unwrap();
        let text = format!(r#"{{"id":{},{answer}}}"#, question.id);
        assert!(asked.handle_answer(Message::decode(text.as_bytes()).unwrap()));
        question.answer().await
    }

    fn result(kind: &str, reason: &str) -> String {
        format!(r#""result":{{"decision":{{"type":"{kind}","reason":"{reason}"}}}}"#)
    }

    #[tokio::test]
    async fn every_decision_is_taken() {
        let asked = Arc::default();
        let allow = answered(&asked, r#""result":{"decision":{"type":"allow"}}"#).await;
        assert_eq!(allow, Some(Decision::Allow));
        let longest = "r".repeat(1024);
        for kind in ["deny", "ask"] {
            for reason in ["", "not on the list", &longest] {
                let reason = reason.to_owned();
                let decision = answered(&asked, &result(kind, &reason)).await;
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
        let asked = Arc::default();
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
            assert_eq!(answered(&asked, answer).await, None, "{answer}");
        }
    }

    #[tokio::test]
    async fn questions_are_numbered_bounded_and_over_with_the_connection() {
        let asked: Arc<Asked> = Arc::default();
        let mut questions: Vec<_> = (0..MAX_QUESTIONS).map(|_| asked.ask().unwrap()).collect();
        assert_eq!(questions[0].id, RequestId::Number(1));
        assert!(asked.ask().is_none());
        let given_up = questions.pop().unwrap().id.to_string();
        let text = format!(r#"{{"id":{given_up},"result":{{}}}}"#);
        let late = Message::decode(text.as_bytes()).unwrap();
        assert!(!asked.handle_answer(late), "nobody waits for it any more");
        assert_eq!(asked.ask().unwrap().id, RequestId::Number(257));
        asked.hang_up();
        assert_eq!(questions[0].answer().await, None);
        drop(questions);
        assert!(asked.ask().is_none());
    }
}
