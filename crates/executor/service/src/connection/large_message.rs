//! Messages whose decoding would hold up other connections, and what is left of them.

use bytes::Bytes;
use exec_wire::{
    error::RpcError,
    message::{Message, RequestId, Trace, split_binary},
    method::MethodName,
};

use crate::call::Call;

/// Messages above this are decoded on the blocking pool: it takes milliseconds, for which other
/// connections would wait.
pub(super) const LARGE_MESSAGE_BYTES: usize = 256 << 10;

/// A request whose parameters are decoded.
pub(super) struct DecodedRequest {
    pub(super) id: RequestId,
    pub(super) trace: Option<Trace>,
    pub(super) has_data: bool,
    pub(super) decoded: DecodedMethod,
    /// What its message takes.
    pub(super) bytes: usize,
}

pub(super) enum DecodedMethod {
    Known(MethodName, Result<Call, RpcError>),
    Unknown(String),
}

/// What is left of a large message once it is decoded.
pub(super) enum LargeMessage {
    Request(DecodedRequest),
    /// By its method: no notification has parameters as large as this.
    Notification(String),
    /// Nor has any answer.
    Answer(RequestId),
    Malformed(String),
}

impl LargeMessage {
    pub(super) fn decode(frame: Bytes) -> Self {
        let bytes = frame.len();
        let (text, data) = match split_binary(&frame) {
            None => (frame, None),
            Some(Ok((header, data))) => (header, Some(data)),
            Some(Err(error)) => return Self::Malformed(error.to_string()),
        };
        let has_data = data.is_some();
        match Message::decode_with(&text, data) {
            Ok(Message::Request(mut request)) => {
                let decoded = match MethodName::parse(&request.method) {
                    Some(method) => {
                        DecodedMethod::Known(method, Call::decode(method, &mut request))
                    }
                    None => DecodedMethod::Unknown(request.method.into_owned()),
                };
                Self::Request(DecodedRequest {
                    id: request.id,
                    trace: request.trace,
                    has_data,
                    decoded,
                    bytes,
                })
            }
            Ok(Message::Notification(note)) => Self::Notification(note.method.into_owned()),
            Ok(Message::Response(answer)) => Self::Answer(answer.id),
            Ok(Message::Error(answer)) => Self::Answer(answer.id),
            Err(error) => Self::Malformed(error.to_string()),
        }
    }
}
