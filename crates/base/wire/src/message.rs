//! The envelope: JSON-RPC without the `jsonrpc` member, and its structural limits.
//!
//! Invariant: a [`Message`] comes only from text that is one JSON object, has no duplicate key at
//! any depth, and stays below the limits on values and nesting. Not here: what a method means.

mod structure;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, fmt};

use ::bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

pub use self::structure::{StructureError, check_structure};
use crate::error::RpcError;

/// One message of a peer, borrowed from the frame it came in.
#[derive(Debug)]
pub enum Message<'a> {
    /// Asks for an answer.
    Request(Request<'a>),
    /// Tells, and expects none.
    Notification(Notification<'a>),
    /// The result of a request of ours.
    Response(Response<'a>),
    /// The failure of a request of ours.
    Error(ErrorResponse),
}

/// A request: has `method` and `id`.
#[derive(Debug)]
pub struct Request<'a> {
    /// Echoed verbatim in the answer.
    pub id: RequestId,
    /// The method's name.
    pub method: Cow<'a, str>,
    /// The parameters, not yet decoded.
    pub params: Option<&'a RawValue>,
    /// Trace context, if the peer sent one.
    pub trace: Option<Trace>,
    /// The data member, if it travelled raw.
    pub data: Option<Bytes>,
}

/// A notification: has `method`, no `id`.
#[derive(Debug)]
pub struct Notification<'a> {
    /// The method's name.
    pub method: Cow<'a, str>,
    /// The parameters, not yet decoded.
    pub params: Option<&'a RawValue>,
    /// The data member, if it travelled raw.
    pub data: Option<Bytes>,
}

/// An answer with a result.
#[derive(Debug)]
pub struct Response<'a> {
    /// The request that is answered.
    pub id: RequestId,
    /// The result, not yet decoded.
    pub result: &'a RawValue,
    /// The data member, if it travelled raw.
    pub data: Option<Bytes>,
}

/// An answer with an error.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ErrorResponse {
    /// The request that failed.
    pub id: RequestId,
    /// Why.
    pub error: RpcError,
}

impl<'a> Message<'a> {
    /// Decodes one JSON text.
    pub fn decode(text: &'a [u8]) -> Result<Self, MessageError> {
        Self::decode_with(text, None)
    }

    /// Decodes one JSON text whose data member travelled raw beside it.
    pub fn decode_with(text: &'a [u8], data: Option<Bytes>) -> Result<Self, MessageError> {
        // Once for the whole text: what reads it later need not look at every byte of it again.
        let text = std::str::from_utf8(text).map_err(|error| MessageError::NotUtf8 {
            at: error.valid_up_to(),
        })?;
        check_structure(text)?;
        let members: MessageMembers<'a> = serde_json::from_str(text).map_err(MessageError::json)?;
        let id = members.id.map(RequestId::from_raw).transpose()?;
        let trace = members.trace.map(Trace::from_raw).transpose()?.flatten();
        match (members.method, id) {
            (Some(method), Some(id)) => Ok(Self::Request(Request {
                id,
                method: decode_text(method, "method")?,
                params: members.params,
                trace,
                data,
            })),
            (Some(method), None) => Ok(Self::Notification(Notification {
                method: decode_text(method, "method")?,
                params: members.params,
                data,
            })),
            (None, id) => {
                let id = id.ok_or(MessageError::Missing("id"))?;
                match (members.result, members.error) {
                    (Some(result), _) => Ok(Self::Response(Response { id, result, data })),
                    (None, Some(error)) => {
                        let error =
                            serde_json::from_str(error.get()).map_err(MessageError::json)?;
                        Ok(Self::Error(ErrorResponse { id, error }))
                    }
                    (None, None) => Err(MessageError::Missing("method, result or error")),
                }
            }
        }
    }
}

/// Names one request of one direction of a connection. Need not be unique.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(untagged)]
pub enum RequestId {
    /// A number in the range of an i64.
    Number(i64),
    /// Any text.
    Text(Box<str>),
}

impl RequestId {
    /// The id of errors that answer no request in particular.
    pub const NONE: Self = Self::Number(-1);

    fn from_raw(raw: &RawValue) -> Result<Self, MessageError> {
        let text = raw.get();
        if text.starts_with('"') {
            return serde_json::from_str(text)
                .map(Self::Text)
                .map_err(MessageError::json);
        }
        serde_json::from_str(text)
            .map(Self::Number)
            .map_err(|_| MessageError::BadId)
    }

    /// Appends the id as JSON.
    pub fn encode_append(&self, out: &mut Vec<u8>) {
        match self {
            Self::Number(number) => out.extend_from_slice(number.to_string().as_bytes()),
            Self::Text(text) => encode_string(text, out),
        }
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// W3C Trace Context of a request.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Trace {
    /// The `traceparent` header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The `tracestate` header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
}

impl Trace {
    fn from_raw(raw: &RawValue) -> Result<Option<Self>, MessageError> {
        let text = raw.get();
        if text != "null" && !text.starts_with('{') {
            return Err(MessageError::BadTrace);
        }
        serde_json::from_str(text).map_err(MessageError::json)
    }
}

/// Appends `text` as a JSON string.
pub fn encode_string(text: &str, out: &mut Vec<u8>) {
    encode_json(text, out);
}

/// Appends `value` as JSON.
pub fn encode_json<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) {
    let length = out.len();
    if serde_json::to_writer(&mut *out, value).is_err() {
        // Only a map with keys that are not strings can fail; the wire has none.
        out.truncate(length);
        out.extend_from_slice(b"null");
    }
}

/// Peer: the text is not a message. The connection stays usable.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The text breaks a structural rule.
    #[error(transparent)]
    Structure(#[from] StructureError),
    /// The text is not UTF-8 from this byte on.
    #[error("message is not UTF-8 from byte {at} on")]
    NotUtf8 {
        /// The first byte that is not.
        at: usize,
    },
    /// A member has the wrong type.
    #[error("{0}")]
    Json(String),
    /// A member that makes the message what it is does not exist.
    #[error("missing {0}")]
    Missing(&'static str),
    /// The id is neither text nor an integer.
    #[error("id must be a string or a 64-bit integer")]
    BadId,
    /// A member must be a string.
    #[error("{0} must be a string")]
    NotText(&'static str),
    /// The trace is not an object.
    #[error("trace must be an object or null")]
    BadTrace,
}

impl MessageError {
    #[expect(clippy::needless_pass_by_value, reason = "used as a map_err function")]
    fn json(error: serde_json::Error) -> Self {
        Self::Json(error.to_string())
    }
}

/// Top-level members. Each is kept raw, so that `null` differs from absent.
#[derive(Deserialize)]
struct MessageMembers<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    trace: Option<&'a RawValue>,
}

fn present<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

fn decode_text<'a>(raw: &'a RawValue, member: &'static str) -> Result<Cow<'a, str>, MessageError> {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct BorrowedText<'a>(#[serde(borrow)] Cow<'a, str>);

    if !raw.get().starts_with('"') {
        return Err(MessageError::NotText(member));
    }
    serde_json::from_str::<BorrowedText<'a>>(raw.get())
        .map(|text| text.0)
        .map_err(MessageError::json)
}

/// Decodes the parameters of a method. Absent is `null`; `{}` that does not decode is tried as
/// `null`, so that methods without parameters accept all three.
pub fn decode_params<T: DeserializeOwned>(params: Option<&RawValue>) -> Result<T, ParamsError> {
    let text = params.map_or("null", RawValue::get);
    if let Ok(value) = serde_json::from_str(text) {
        return Ok(value);
    }
    if is_empty_object(text)
        && let Ok(value) = serde_json::from_str("null")
    {
        return Ok(value);
    }
    Err(describe_params_error::<T>(text))
}

/// Caller: the parameters do not decode. Says which member, and what was expected.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct ParamsError(pub String);

/// MessageMembers whose errors read as those of the stock server, which does not name them: its clients
/// compare the text.
const UNNAMED_BY_STOCK: [&str; 1] = ["timeoutMs"];

fn is_empty_object(text: &str) -> bool {
    text.strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'))
        .is_some_and(|inside| inside.bytes().all(|byte| byte.is_ascii_whitespace()))
}

/// Decodes once more, keeping track of the path: only failures pay for it.
fn describe_params_error<T: DeserializeOwned>(text: &str) -> ParamsError {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        Ok(_) => ParamsError("params do not decode".to_owned()),
        Err(error) => {
            let path = error.path().to_string();
            let reason = error.inner().to_string();
            // Positions inside the params mean nothing to a caller who wrote a whole message.
            let reason = reason
                .rsplit_once(" at line ")
                .map_or(&*reason, |(text, _)| text);
            let named = path == "."
                || UNNAMED_BY_STOCK.contains(&path.as_str())
                || reason.contains(&format!("`{path}`"));
            ParamsError(if named {
                reason.to_owned()
            } else {
                format!("{path}: {reason}")
            })
        }
    }
}

/// First byte of such a message. No JSON text begins with it.
pub const BINARY_TAG: u8 = 0x01;
/// Tag and header length.
const PREFIX_BYTES: usize = 4;

/// Splits a binary message into its JSON header and its raw data; `None` if it is no such message.
pub fn split_binary(frame: &Bytes) -> Option<Result<(Bytes, Bytes), BinaryError>> {
    if frame.first() != Some(&BINARY_TAG) {
        return None;
    }
    let &[_, high, middle, low, ..] = frame.as_ref() else {
        return Some(Err(BinaryError));
    };
    let header = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
    if frame.len() < PREFIX_BYTES + header {
        return Some(Err(BinaryError));
    }
    let data = frame.slice(PREFIX_BYTES + header..);
    Some(Ok((frame.slice(PREFIX_BYTES..PREFIX_BYTES + header), data)))
}

/// Appends everything of a binary message but its raw data. `header` is shorter than 16 MiB.
pub fn encode_binary_head(header: &[u8], out: &mut Vec<u8>) {
    let length = u32::try_from(header.len())
        .unwrap_or(u32::MAX)
        .to_be_bytes();
    out.push(BINARY_TAG);
    out.extend_from_slice(&length[1..]);
    out.extend_from_slice(header);
}

/// Peer: the header's length exceeds the message.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("binary message is shorter than its header says")]
pub struct BinaryError;
