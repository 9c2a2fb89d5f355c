//! RPC peer of one connection: the server's handshake gate and the caller's pending calls.
//!
//! Decoding is in `exec-wire`, request ordering in [`crate::request_order`].

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use exec_wire::{
    error::RpcError,
    initialize::ProtocolExtension,
    message::{RequestId, RpcMessage, RpcNotification, RpcRequest, decode_params},
    method::{MethodName, notification},
    outgoing_message::OutgoingMessage,
    process::AcknowledgeProcess,
    tunnel::TunnelMessage,
};
use serde_json::value::RawValue;

/// Handshake state of a client. Only `initialize` is admitted before the handshake completes.
#[derive(Debug, Default)]
pub struct HandshakeGate {
    state: State,
    /// [`ProtocolExtension::Acknowledge`] was granted.
    acknowledges: bool,
    /// [`ProtocolExtension::Tunnels`] was granted.
    has_tunnels: bool,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum State {
    #[default]
    New,
    Initialized,
    Ready,
}

/// Action that the server takes for an incoming message.
#[derive(Debug)]
pub enum MessageAction<'a> {
    /// Run a method, if [`HandshakeGate::admit`] allows it.
    Request(RpcRequest<'a>),
    /// Send this message immediately.
    Reply(OutgoingMessage),
    /// Release acknowledged output.
    Acknowledge(AcknowledgeProcess),
    /// Handle a message about a tunnel.
    Tunnel(TunnelMessage),
    /// The handshake is complete: send what the session has for the client.
    Ready,
    /// Complete the pending call with this id, if there is one.
    Response(RpcMessage<'a>),
    /// Nothing to do.
    Ignore,
}

impl HandshakeGate {
    /// Classifies one message.
    pub fn handle_message<'a>(&mut self, message: RpcMessage<'a>) -> MessageAction<'a> {
        match message {
            RpcMessage::Request(request) => MessageAction::Request(request),
            RpcMessage::Notification(note) if note.method == notification::INITIALIZED => {
                if self.state == State::New {
                    return refuse("initialized must follow a successful initialize");
                }
                let is_first = self.state == State::Initialized;
                self.state = State::Ready;
                match is_first {
                    true => MessageAction::Ready,
                    false => MessageAction::Ignore,
                }
            }
            RpcMessage::Notification(note)
                if self.acknowledges && note.method == notification::PROCESS_ACKNOWLEDGE =>
            {
                self.handle_acknowledged(&note)
            }
            RpcMessage::Notification(note) => self.handle_tunnel(&note),
            answer @ (RpcMessage::Response(_) | RpcMessage::Error(_)) => {
                MessageAction::Response(answer)
            }
        }
    }

    fn handle_acknowledged(&self, note: &RpcNotification<'_>) -> MessageAction<'static> {
        if self.state != State::Ready {
            return refuse(GateError::NotReady("exec").to_string());
        }
        match decode_params(note.params) {
            Ok(acknowledged) => MessageAction::Acknowledge(acknowledged),
            Err(error) => reply(&RpcError::invalid_params(error.to_string())),
        }
    }

    /// Handles a message about a tunnel. No other notification is left.
    fn handle_tunnel(&self, note: &RpcNotification<'_>) -> MessageAction<'static> {
        let message = self.has_tunnels.then(|| TunnelMessage::decode(note));
        match message.flatten() {
            None | Some(Ok(TunnelMessage::Incoming(_))) => refuse(format!(
                "unexpected notification `{}`: expected initialized",
                note.method
            )),
            Some(_) if self.state != State::Ready => {
                refuse(GateError::NotReady("tunnel").to_string())
            }
            Some(Ok(message)) => MessageAction::Tunnel(message),
            Some(Err(error)) => reply(&RpcError::invalid_params(error.to_string())),
        }
    }

    /// Checks whether the handshake state allows a method.
    pub fn admit(&self, method: MethodName) -> Result<(), GateError> {
        match (method, self.state) {
            (MethodName::Initialize, State::New) => Ok(()),
            (MethodName::Initialize, _) => Err(GateError::InitializedTwice),
            (_, State::New) => Err(GateError::NotInitialized(method.family())),
            (_, State::Initialized) => Err(GateError::NotReady(method.family())),
            (_, State::Ready) => Ok(()),
        }
    }

    /// Records a successful `initialize` and the granted extensions.
    pub fn handle_initialize(&mut self, granted: &[ProtocolExtension]) {
        self.state = State::Initialized;
        self.acknowledges = granted.contains(&ProtocolExtension::Acknowledge);
        self.has_tunnels = granted.contains(&ProtocolExtension::Tunnels);
    }

    /// Returns whether the handshake is complete.
    pub fn is_ready(&self) -> bool {
        self.state == State::Ready
    }
}

/// Peer: a request violates the handshake.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GateError {
    /// A connection has at most one session.
    #[error("initialize may only be sent once per connection")]
    InitializedTwice,
    /// The method needs a session.
    #[error("client must call initialize before using {0} methods")]
    NotInitialized(&'static str),
    /// The client has not sent `initialized`.
    #[error("client must send initialized before using {0} methods")]
    NotReady(&'static str),
}

impl From<GateError> for RpcError {
    fn from(error: GateError) -> Self {
        Self::invalid_request(error.to_string())
    }
}

fn refuse(message: impl Into<String>) -> MessageAction<'static> {
    reply(&RpcError::invalid_request(message))
}

fn reply(error: &RpcError) -> MessageAction<'static> {
    MessageAction::Reply(OutgoingMessage::error(&RequestId::NONE, error))
}

/// Calls that wait for their response. `T` is what the caller needs to complete a call.
#[derive(Debug)]
pub struct PendingCalls<T> {
    max_pending: usize,
    next: i64,
    waiting: BTreeMap<i64, T>,
}

/// Response to a pending call.
#[derive(Debug)]
pub struct CallResponse<'a, T> {
    /// Value registered with the call.
    pub waiter: T,
    /// Result or error sent by the peer.
    pub result: Result<&'a RawValue, RpcError>,
    /// The `data` member, if it was sent as raw bytes.
    pub data: Option<bytes::Bytes>,
}

impl<T> PendingCalls<T> {
    /// Creates an empty table for at most `max_pending` calls.
    pub fn new(max_pending: usize) -> Self {
        Self {
            max_pending,
            next: 1,
            waiting: BTreeMap::new(),
        }
    }

    /// Registers a call and returns its request id.
    pub fn register(&mut self, waiter: T) -> Result<RequestId, PendingCallsError> {
        self.register_with(|_| waiter)
    }

    /// Registers a call with a value made from its request id.
    pub fn register_with(
        &mut self,
        waiter: impl FnOnce(&RequestId) -> T,
    ) -> Result<RequestId, PendingCallsError> {
        if self.waiting.len() >= self.max_pending {
            return Err(PendingCallsError::TooMany(self.max_pending));
        }
        let number = self.next;
        let id = RequestId::Number(number);
        self.next += 1;
        self.waiting.insert(number, waiter(&id));
        Ok(id)
    }

    /// Removes the call that a response belongs to. Returns `None` for foreign and late responses.
    pub fn handle_response<'a>(&mut self, message: RpcMessage<'a>) -> Option<CallResponse<'a, T>> {
        let (id, result, data) = match message {
            RpcMessage::Response(response) => (response.id, Ok(response.result), response.data),
            RpcMessage::Error(response) => (response.id, Err(response.error), None),
            RpcMessage::Request(_) | RpcMessage::Notification(_) => return None,
        };
        let RequestId::Number(id) = id else {
            return None;
        };
        Some(CallResponse {
            waiter: self.waiting.remove(&id)?,
            result,
            data,
        })
    }

    /// Cancels one call. Its response will be ignored.
    pub fn cancel(&mut self, id: &RequestId) -> Option<T> {
        match id {
            RequestId::Number(id) => self.waiting.remove(id),
            RequestId::Text(_) => None,
        }
    }

    /// Cancels all calls, for example when the connection closes.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.waiting).into_values()
    }
}

/// Caller: no call can be registered now.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PendingCallsError {
    /// The limit of pending calls is reached.
    #[error("more than {0} calls are pending")]
    TooMany(usize),
}
