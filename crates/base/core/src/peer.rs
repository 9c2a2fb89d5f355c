//! One end of a connection: which messages are allowed when, and which answer belongs to whom.
//!
//! Not here: decoding (`exec-wire`), what a method does, in which order requests run (`order`).

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use exec_wire::{
    error::RpcError,
    initialize::Extension,
    message::{Message, Notification, Request, RequestId, decode_params},
    method::{self, MethodName},
    outgoing::Outgoing,
    process::Acknowledged,
};
use serde_json::value::RawValue;

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

/// Requests that wait for their answer. `T` is whatever the caller needs to pass the answer on.
#[derive(Debug)]
pub struct Calls<T> {
    max_pending: usize,
    next: i64,
    waiting: BTreeMap<i64, T>,
}

/// An answer that somebody waits for.
#[derive(Debug)]
pub struct Answer<'a, T> {
    /// Who waits.
    pub waiter: T,
    /// What the peer answered.
    pub result: Result<&'a RawValue, RpcError>,
    /// The data member, if it travelled raw.
    pub data: Option<bytes::Bytes>,
}

impl<T> Calls<T> {
    /// Begins with nothing asked; `max_pending` requests may be unanswered.
    pub fn new(max_pending: usize) -> Self {
        Self {
            max_pending,
            next: 1,
            waiting: BTreeMap::new(),
        }
    }

    /// Takes the id for a new request.
    pub fn ask(&mut self, waiter: T) -> Result<RequestId, CallsError> {
        self.ask_with(|_| waiter)
    }

    /// Takes the id for a new request whose waiter needs to know it.
    pub fn ask_with(
        &mut self,
        waiter: impl FnOnce(&RequestId) -> T,
    ) -> Result<RequestId, CallsError> {
        if self.waiting.len() >= self.max_pending {
            return Err(CallsError::TooMany(self.max_pending));
        }
        let number = self.next;
        let id = RequestId::Number(number);
        self.next += 1;
        self.waiting.insert(number, waiter(&id));
        Ok(id)
    }

    /// Finds who waits for an answer. Others' answers, and late ones, are nobody's.
    pub fn handle_answer<'a>(&mut self, message: Message<'a>) -> Option<Answer<'a, T>> {
        let (id, result, data) = match message {
            Message::Response(response) => (response.id, Ok(response.result), response.data),
            Message::Error(response) => (response.id, Err(response.error), None),
            Message::Request(_) | Message::Notification(_) => return None,
        };
        let RequestId::Number(id) = id else {
            return None;
        };
        Some(Answer {
            waiter: self.waiting.remove(&id)?,
            result,
            data,
        })
    }

    /// Gives up one request; its answer will be nobody's.
    pub fn forget(&mut self, id: &RequestId) -> Option<T> {
        match id {
            RequestId::Number(id) => self.waiting.remove(id),
            RequestId::Text(_) => None,
        }
    }

    /// Gives up every request: the connection is gone.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.waiting).into_values()
    }
}

/// Caller: nothing more can be asked now.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallsError {
    /// Too many answers are outstanding.
    #[error("more than {0} requests are unanswered")]
    TooMany(usize),
}
