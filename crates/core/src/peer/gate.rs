//! The server's end: the handshake gate, and what is not a request.

use exec_wire::{
    error::RpcError,
    message::{Message, Request, RequestId},
    method::{self, MethodName},
    outgoing::Outgoing,
};

/// How far a client has come: nothing but `initialize` passes before the handshake is done.
#[derive(Debug, Default)]
pub struct Gate {
    state: State,
    unsolicited: u64,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum State {
    #[default]
    New,
    Initialized,
    Ready,
}

/// What a message asks of the server.
#[derive(Debug)]
pub enum Input<'a> {
    /// To run a method, if the gate admits it.
    Request(Request<'a>),
    /// To send this at once.
    Reply(Outgoing),
    /// To pass an answer on to who asked, if anybody did.
    Answer(Message<'a>),
    /// Nothing.
    Nothing,
}

impl Gate {
    /// Sorts one message.
    pub fn handle_message<'a>(&mut self, message: Message<'a>) -> Input<'a> {
        match message {
            Message::Request(request) => Input::Request(request),
            Message::Notification(note) if note.method == method::INITIALIZED => {
                if self.state == State::New {
                    return refuse("initialized must follow a successful initialize");
                }
                self.state = State::Ready;
                Input::Nothing
            }
            Message::Notification(note) => refuse(format!(
                "unexpected notification `{}`: expected initialized",
                note.method
            )),
            answer @ (Message::Response(_) | Message::Error(_)) => Input::Answer(answer),
        }
    }

    /// Records that nobody waited for an answer: it is ignored.
    pub fn handle_unsolicited(&mut self) {
        self.unsolicited += 1;
    }

    /// Checks a decoded request against the state of the handshake.
    pub fn admit(&self, method: MethodName) -> Result<(), GateError> {
        match (method, self.state) {
            (MethodName::Initialize, State::New) => Ok(()),
            (MethodName::Initialize, _) => Err(GateError::InitializedTwice),
            (_, State::New) => Err(GateError::NotInitialized(method.family())),
            (_, State::Initialized) => Err(GateError::NotReady(method.family())),
            (_, State::Ready) => Ok(()),
        }
    }

    /// Records that `initialize` succeeded.
    pub fn handle_session(&mut self) {
        self.state = State::Initialized;
    }

    /// Tells whether the client has finished the handshake.
    pub fn is_ready(&self) -> bool {
        self.state == State::Ready
    }

    /// Returns how many answers came to questions nobody asked.
    pub fn unsolicited(&self) -> u64 {
        self.unsolicited
    }
}

/// Peer: a request that came too early, or twice.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GateError {
    /// There is one session for one connection.
    #[error("initialize may only be sent once per connection")]
    InitializedTwice,
    /// The family needs a session.
    #[error("client must call initialize before using {0} methods")]
    NotInitialized(&'static str),
    /// The client has not confirmed.
    #[error("client must send initialized before using {0} methods")]
    NotReady(&'static str),
}

impl From<GateError> for RpcError {
    fn from(error: GateError) -> Self {
        Self::invalid_request(error.to_string())
    }
}

fn refuse(message: impl Into<String>) -> Input<'static> {
    Input::Reply(Outgoing::error(
        &RequestId::NONE,
        &RpcError::invalid_request(message),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(gate: &mut Gate, text: &str) -> Option<String> {
        match gate.handle_message(Message::decode(text.as_bytes()).unwrap()) {
            Input::Reply(reply) => {
                let mut out = Vec::new();
                reply.encode_text(&mut out);
                Some(String::from_utf8(out).unwrap())
            }
            Input::Answer(_) => {
                gate.handle_unsolicited();
                None
            }
            Input::Request(_) | Input::Nothing => None,
        }
    }

    #[test]
    fn nothing_passes_before_the_handshake_is_done() {
        let mut gate = Gate::default();
        let method = MethodName::ProcessStart;
        assert_eq!(gate.admit(method), Err(GateError::NotInitialized("exec")));
        assert_eq!(gate.admit(MethodName::Initialize), Ok(()));
        gate.handle_session();
        assert_eq!(gate.admit(method), Err(GateError::NotReady("exec")));
        assert_eq!(
            gate.admit(MethodName::Initialize),
            Err(GateError::InitializedTwice)
        );
        assert_eq!(
            handle(&mut gate, r#"{"method":"initialized","params":[1]}"#),
            None
        );
        assert_eq!(gate.admit(method), Ok(()));
        assert_eq!(handle(&mut gate, r#"{"method":"initialized"}"#), None);
        assert_eq!(gate.admit(method), Ok(()));
    }

    #[test]
    fn initialized_before_initialize_never_opens_the_gate() {
        let mut gate = Gate::default();
        let reply = handle(&mut gate, r#"{"method":"initialized"}"#).unwrap();
        assert!(
            reply.contains(r#""code":-32600"#) && reply.ends_with(r#""id":-1}"#),
            "{reply}"
        );
        assert!(!gate.is_ready());
        gate.handle_session();
        assert!(!gate.is_ready());
    }

    #[test]
    fn an_unknown_notification_is_an_error_with_id_minus_one() {
        let mut gate = Gate::default();
        let reply = handle(&mut gate, r#"{"method":"nope"}"#).unwrap();
        assert!(
            reply.contains("`nope`") && reply.ends_with(r#""id":-1}"#),
            "{reply}"
        );
    }

    #[test]
    fn answers_are_passed_on_and_those_that_nobody_waited_for_counted() {
        let mut gate = Gate::default();
        assert_eq!(handle(&mut gate, r#"{"id":9,"result":{}}"#), None);
        assert_eq!(
            handle(&mut gate, r#"{"id":9,"error":{"code":1,"message":""}}"#),
            None
        );
        assert_eq!(gate.unsolicited(), 2);
    }
}
