//! The server's end: the handshake gate, and what is not a request.

use exec_wire::{
    error::RpcError,
    initialize::Extension,
    message::{Message, Notification, Request, RequestId, decode_params},
    method::{self, MethodName},
    outgoing::Outgoing,
    process::Acknowledged,
};

/// How far a client has come: nothing but `initialize` passes before the handshake is done.
#[derive(Debug, Default)]
pub struct Gate {
    state: State,
    /// The client was granted [`Extension::Acknowledge`].
    acknowledges: bool,
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
    /// To let go of events that the client has taken.
    Acknowledged(Acknowledged),
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
            Message::Notification(note)
                if self.acknowledges && note.method == method::PROCESS_ACKNOWLEDGE =>
            {
                self.handle_acknowledged(&note)
            }
            Message::Notification(note) => refuse(format!(
                "unexpected notification `{}`: expected initialized",
                note.method
            )),
            answer @ (Message::Response(_) | Message::Error(_)) => Input::Answer(answer),
        }
    }

    fn handle_acknowledged(&self, note: &Notification<'_>) -> Input<'static> {
        if self.state != State::Ready {
            return refuse(GateError::NotReady("exec").to_string());
        }
        match decode_params(note.params) {
            Ok(acknowledged) => Input::Acknowledged(acknowledged),
            Err(error) => reply(&RpcError::invalid_params(error.to_string())),
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

    /// Records that `initialize` succeeded, and what was granted.
    pub fn handle_session(&mut self, granted: &[Extension]) {
        self.state = State::Initialized;
        self.acknowledges = granted.contains(&Extension::Acknowledge);
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
    reply(&RpcError::invalid_request(message))
}

fn reply(error: &RpcError) -> Input<'static> {
    Input::Reply(Outgoing::error(&RequestId::NONE, error))
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
            Input::Request(_) | Input::Acknowledged(_) | Input::Nothing => None,
        }
    }

    #[test]
    fn nothing_passes_before_the_handshake_is_done() {
        let mut gate = Gate::default();
        let method = MethodName::ProcessStart;
        assert_eq!(gate.admit(method), Err(GateError::NotInitialized("exec")));
        assert_eq!(gate.admit(MethodName::Initialize), Ok(()));
        gate.handle_session(&[]);
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
        gate.handle_session(&[]);
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

    const ACKNOWLEDGE: &str =
        r#"{"method":"process/acknowledge","params":{"processId":"p","seq":7}}"#;

    #[test]
    fn an_acknowledgement_passes_when_it_was_granted_and_the_handshake_is_done() {
        let mut gate = Gate::default();
        let refused = |gate: &mut Gate, reason: &str| {
            let reply = handle(gate, ACKNOWLEDGE).unwrap();
            assert!(
                reply.contains(reason) && reply.contains(r#""code":-32600"#),
                "{reply}"
            );
        };
        refused(&mut gate, "unexpected notification `process/acknowledge`");
        gate.handle_session(&[Extension::Lifecycle, Extension::Acknowledge]);
        refused(&mut gate, "client must send initialized");
        assert_eq!(handle(&mut gate, r#"{"method":"initialized"}"#), None);
        let message = Message::decode(ACKNOWLEDGE.as_bytes()).unwrap();
        let Input::Acknowledged(acknowledged) = gate.handle_message(message) else {
            panic!("it does not pass");
        };
        assert_eq!(acknowledged.process_id.as_str(), "p");
        assert_eq!(acknowledged.seq.0, 7);
    }

    #[test]
    fn an_acknowledgement_without_the_grant_is_an_unknown_notification() {
        let mut gate = Gate::default();
        gate.handle_session(&[Extension::Lifecycle]);
        handle(&mut gate, r#"{"method":"initialized"}"#);
        let reply = handle(&mut gate, ACKNOWLEDGE).unwrap();
        assert!(
            reply.contains("unexpected notification") && reply.contains(r#""code":-32600"#),
            "{reply}"
        );
    }

    #[test]
    fn an_acknowledgement_that_does_not_decode_is_an_error_with_id_minus_one() {
        let mut gate = Gate::default();
        gate.handle_session(&[Extension::Acknowledge]);
        handle(&mut gate, r#"{"method":"initialized"}"#);
        for (params, culprit) in [
            (r#"{"processId":"p"}"#, "seq"),
            (r#"{"processId":"p","seq":-1}"#, "seq"),
            (r#"{"processId":1,"seq":1}"#, "processId"),
            ("null", "expected"),
            ("7", "expected"),
        ] {
            let note = format!(r#"{{"method":"process/acknowledge","params":{params}}}"#);
            let reply = handle(&mut gate, &note).unwrap();
            assert!(
                reply.contains(r#""code":-32602"#) && reply.ends_with(r#""id":-1}"#),
                "{reply}"
            );
            assert!(reply.contains(culprit), "{params}: {reply}");
        }
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
