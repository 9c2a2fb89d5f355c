//! Message envelope: JSON-RPC without the `jsonrpc` member, with structural limits.
//!
//! Invariant: a [`RpcMessage`] comes only from text that is one JSON object, has no duplicate key
//! at any depth, and respects the limits on values and nesting; [`check_structure`] checks that,
//! independent of the text's meaning. Methods are in [`crate::method`].

#[cfg(test)]
mod tests;

use std::{borrow::Cow, collections::HashSet, fmt};

use ::bytes::Bytes;
use serde::{
    Deserialize, Serialize,
    de::{self, DeserializeOwned, DeserializeSeed, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::{error::RpcError, limits};

/// Message of a peer, borrowed from its frame.
#[derive(Debug)]
pub enum RpcMessage<'a> {
    /// Request, which expects a response.
    Request(RpcRequest<'a>),
    /// Notification, which expects no response.
    Notification(RpcNotification<'a>),
    /// Result of a request of this side.
    Response(RpcResponse<'a>),
    /// Failure of a request of this side.
    Error(RpcErrorResponse),
}

/// Request: has `method` and `id`.
#[derive(Debug)]
pub struct RpcRequest<'a> {
    /// Repeated verbatim in the response.
    pub id: RequestId,
    /// Method name.
    pub method: Cow<'a, str>,
    /// Parameters, not yet decoded.
    pub params: Option<&'a RawValue>,
    /// Trace context, if the peer sent one.
    pub trace: Option<TraceContext>,
    /// The data member, if it was sent as raw bytes.
    pub data: Option<Bytes>,
}

/// Notification: has `method` and no `id`.
#[derive(Debug)]
pub struct RpcNotification<'a> {
    /// Method name.
    pub method: Cow<'a, str>,
    /// Parameters, not yet decoded.
    pub params: Option<&'a RawValue>,
    /// The data member, if it was sent as raw bytes.
    pub data: Option<Bytes>,
}

/// Response with a result.
#[derive(Debug)]
pub struct RpcResponse<'a> {
    /// Id of the request.
    pub id: RequestId,
    /// Result, not yet decoded.
    pub result: &'a RawValue,
    /// The data member, if it was sent as raw bytes.
    pub data: Option<Bytes>,
}

/// Response with an error.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RpcErrorResponse {
    /// Id of the request.
    pub id: RequestId,
    /// Error object.
    pub error: RpcError,
}

impl<'a> RpcMessage<'a> {
    /// Decodes one JSON text.
    pub fn decode(text: &'a [u8]) -> Result<Self, MessageError> {
        Self::decode_with(text, None)
    }

    /// Decodes one JSON text with a data member that was sent separately as raw bytes.
    pub fn decode_with(text: &'a [u8], data: Option<Bytes>) -> Result<Self, MessageError> {
        // Validate the whole text once, so that later readers need not.
        let text = std::str::from_utf8(text).map_err(|error| MessageError::NotUtf8 {
            at: error.valid_up_to(),
        })?;
        check_structure(text)?;
        let members: MessageMembers<'a> = serde_json::from_str(text).map_err(MessageError::json)?;
        let id = members.id.map(RequestId::from_raw).transpose()?;
        let trace = members
            .trace
            .map(TraceContext::from_raw)
            .transpose()?
            .flatten();
        match (members.method, id) {
            (Some(method), Some(id)) => Ok(Self::Request(RpcRequest {
                id,
                method: decode_text(method, "method")?,
                params: members.params,
                trace,
                data,
            })),
            (Some(method), None) => Ok(Self::Notification(RpcNotification {
                method: decode_text(method, "method")?,
                params: members.params,
                data,
            })),
            (None, id) => {
                let id = id.ok_or(MessageError::Missing("id"))?;
                match (members.result, members.error) {
                    (Some(result), _) => Ok(Self::Response(RpcResponse { id, result, data })),
                    (None, Some(error)) => {
                        let error =
                            serde_json::from_str(error.get()).map_err(MessageError::json)?;
                        Ok(Self::Error(RpcErrorResponse { id, error }))
                    }
                    (None, None) => Err(MessageError::Missing("method, result or error")),
                }
            }
        }
    }
}

/// Request id, chosen by the sender. Need not be unique.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(untagged)]
pub enum RequestId {
    /// Number in the range of an i64.
    Number(i64),
    /// Arbitrary text.
    Text(Box<str>),
}

impl RequestId {
    /// Id of errors that do not belong to a request.
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
            Self::Text(text) => encode_json(text, out),
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TraceContext {
    /// The `traceparent` header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The `tracestate` header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
}

impl TraceContext {
    fn from_raw(raw: &RawValue) -> Result<Option<Self>, MessageError> {
        let text = raw.get();
        if text != "null" && !text.starts_with('{') {
            return Err(MessageError::BadTrace);
        }
        serde_json::from_str(text).map_err(MessageError::json)
    }
}

/// Appends `value` as JSON.
pub fn encode_json<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) {
    let length = out.len();
    if serde_json::to_writer(&mut *out, value).is_err() {
        // Only maps with non-string keys can fail, and the wire has none.
        out.truncate(length);
        out.extend_from_slice(b"null");
    }
}

/// Peer: the text is not a valid message. The connection stays usable.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The text violates a structural rule.
    #[error(transparent)]
    Structure(#[from] MessageStructureError),
    /// The text is not UTF-8.
    #[error("invalid UTF-8 at byte {at}")]
    NotUtf8 {
        /// Offset of the first invalid byte.
        at: usize,
    },
    /// A member has the wrong type.
    #[error("{0}")]
    Json(String),
    /// A required member is missing.
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

/// Top-level members. Each is kept as raw JSON, so that `null` differs from absent.
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

/// Decodes the parameters of a method. Absent means `null`. If `{}` does not decode, `null` is
/// tried, so that methods without parameters accept all three.
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

/// Caller: the parameters do not decode. Names the member and the expected type.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct ParamsError(pub String);

/// Members whose error text must equal that of the stock server, which does not name them. Its
/// clients compare the text.
const UNNAMED_BY_STOCK: [&str; 1] = ["timeoutMs"];

fn is_empty_object(text: &str) -> bool {
    text.strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'))
        .is_some_and(|inside| inside.bytes().all(|byte| byte.is_ascii_whitespace()))
}

/// Decodes again while tracking the path, so that only failures pay for it.
fn describe_params_error<T: DeserializeOwned>(text: &str) -> ParamsError {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        Ok(_) => ParamsError("params do not decode".to_owned()),
        Err(error) => {
            let path = error.path().to_string();
            let reason = error.inner().to_string();
            // Positions within the params are useless to a caller who wrote a whole message.
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

/// First byte of a binary message: tag, header length, JSON header, raw data. No JSON text starts
/// with it.
pub const BINARY_TAG: u8 = 0x01;
/// Length of tag and header length.
const PREFIX_BYTES: usize = 4;

/// Splits a binary message into its JSON header and its raw data. Returns `None` for other
/// messages.
pub fn split_binary(frame: &Bytes) -> Option<Result<(Bytes, Bytes), BinaryMessageError>> {
    if frame.first() != Some(&BINARY_TAG) {
        return None;
    }
    let &[_, high, middle, low, ..] = frame.as_ref() else {
        return Some(Err(BinaryMessageError));
    };
    let header = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
    if frame.len() < PREFIX_BYTES + header {
        return Some(Err(BinaryMessageError));
    }
    let data = frame.slice(PREFIX_BYTES + header..);
    Some(Ok((frame.slice(PREFIX_BYTES..PREFIX_BYTES + header), data)))
}

/// Appends a binary message without its raw data. `header` must be shorter than 16 MiB.
pub fn encode_binary_head(header: &[u8], out: &mut Vec<u8>) {
    let length = u32::try_from(header.len())
        .unwrap_or(u32::MAX)
        .to_be_bytes();
    out.push(BINARY_TAG);
    out.extend_from_slice(&length[1..]);
    out.extend_from_slice(header);
}

/// Peer: the message is shorter than its header length.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("binary message is shorter than its header length")]
pub struct BinaryMessageError;

/// Checks that `text` is one JSON object without duplicate keys and within the limits.
pub fn check_structure(text: &str) -> Result<(), MessageStructureError> {
    if !text.trim_ascii_start().starts_with('{') {
        // Distinguish text that is not JSON from JSON that is not an object.
        return match serde_json::from_str::<de::IgnoredAny>(text) {
            Ok(_) => Err(MessageStructureError::NotAnObject),
            Err(error) => Err(MessageStructureError::Json(error.to_string())),
        };
    }
    let mut remaining = limits::MAX_JSON_VALUES;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    StructureVisitor {
        remaining: &mut remaining,
    }
    .deserialize(&mut deserializer)
    .and_then(|()| deserializer.end())
    .map_err(|error| MessageStructureError::Json(error.to_string()))
}

/// Peer: the text violates a structural rule.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageStructureError {
    /// Invalid JSON, or a limit was exceeded.
    #[error("{0}")]
    Json(String),
    /// Valid JSON, but not an object.
    #[error("expected a JSON-RPC object")]
    NotAnObject,
}

/// Objects with up to this many keys, nearly all, are searched linearly and need no hash table.
const LINEAR_KEYS: usize = 16;

/// Visits and counts every value. `serde_json` limits the nesting to 128.
struct StructureVisitor<'a> {
    remaining: &'a mut usize,
}

impl<'de> DeserializeSeed<'de> for StructureVisitor<'_> {
    type Value = ();

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let Some(remaining) = self.remaining.checked_sub(1) else {
            return Err(de::Error::custom(format_args!(
                "more than {} JSON values in one message",
                limits::MAX_JSON_VALUES
            )));
        };
        *self.remaining = remaining;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StructureVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items
            .next_element_seed(StructureVisitor {
                remaining: self.remaining,
            })?
            .is_some()
        {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut keys = KeySet::default();
        while let Some(key) = members.next_key_seed(KeySeed)? {
            if let Some(duplicate) = keys.insert(key) {
                return Err(de::Error::custom(format_args!(
                    "duplicate JSON object key `{duplicate}`"
                )));
            }
            members.next_value_seed(StructureVisitor {
                remaining: self.remaining,
            })?;
        }
        Ok(())
    }
}

/// Object key, borrowed from the text unless it contains escapes.
struct KeySeed;

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn deserialize<D: de::Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object key")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

/// Keys of one object seen so far.
#[derive(Default)]
struct KeySet<'de> {
    few: Vec<Cow<'de, str>>,
    many: HashSet<Cow<'de, str>>,
}

impl<'de> KeySet<'de> {
    /// Inserts a key. Returns it if it is a duplicate.
    fn insert(&mut self, key: Cow<'de, str>) -> Option<Cow<'de, str>> {
        if self.many.is_empty() {
            if self.few.contains(&key) {
                return Some(key);
            }
            self.few.push(key);
            if self.few.len() > LINEAR_KEYS {
                self.many.extend(self.few.drain(..));
            }
            return None;
        }
        if self.many.contains(&key) {
            return Some(key);
        }
        self.many.insert(key);
        None
    }
}
