//! Requests decoded into the parameter type of their method, with raw data in its place.

use bytes::Bytes;
use exec_wire::{
    base64_bytes::{Base64Bytes, UncheckedBase64},
    error::RpcError,
    message::{RequestId, RpcMessage, RpcRequest, TraceContext, split_binary},
    method::{MethodCall, MethodName},
};

/// Messages above this size are decoded on the blocking pool: decoding takes milliseconds and would
/// delay other connections.
pub(super) const LARGE_MESSAGE_BYTES: usize = 256 << 10;

/// A request after decoding, before admission.
pub(super) struct DecodedRequest {
    pub(super) id: RequestId,
    pub(super) trace: Option<TraceContext>,
    pub(super) has_data: bool,
    pub(super) decoded: DecodedMethod,
    /// Size of the message.
    pub(super) bytes: usize,
}

pub(super) enum DecodedMethod {
    Known(MethodName, Result<Box<MethodCall>, RpcError>),
    Unknown(String),
}

impl DecodedRequest {
    /// Decodes the parameters and raw data of a request.
    pub(super) fn new(mut request: RpcRequest<'_>, bytes: usize) -> Self {
        let data = request.data.take();
        let has_data = data.is_some();
        let decoded = match MethodName::parse(&request.method) {
            Some(method) => DecodedMethod::Known(method, decode_call(method, &request, data)),
            None => DecodedMethod::Unknown(request.method.into_owned()),
        };
        Self {
            id: request.id,
            trace: request.trace,
            has_data,
            decoded,
            bytes,
        }
    }
}

fn decode_call(
    method: MethodName,
    request: &RpcRequest<'_>,
    data: Option<Bytes>,
) -> Result<Box<MethodCall>, RpcError> {
    if data.is_some() && !method.takes_data() {
        let message = format!("`{}` does not accept raw data", request.method);
        return Err(RpcError::invalid_params(message));
    }
    let call = MethodCall::decode(method, request.params);
    let mut call = call.map_err(|error| RpcError::invalid_params(error.to_string()))?;
    place_data(&mut call, data)?;
    Ok(Box::new(call))
}

/// Puts raw data into the member of the parameters that it replaces.
fn place_data(call: &mut MethodCall, raw: Option<Bytes>) -> Result<(), RpcError> {
    if let MethodCall::ProcessWrite(write) = call {
        place_member("chunk", &mut write.chunk, raw.map(Base64Bytes))
    } else if let MethodCall::FsWriteBlock(write) = call {
        place_member("chunk", &mut write.chunk, raw.map(Base64Bytes))
    } else if let MethodCall::FsWriteFile(write) = call {
        let raw = raw.map(|data| UncheckedBase64(Ok(data)));
        place_member("dataBase64", &mut write.data_base64, raw)
    } else if let (MethodCall::HttpRequest(request), Some(raw)) = (call, raw) {
        place_member(
            "bodyBase64",
            &mut request.body_base64,
            Some(Base64Bytes(raw)),
        )
    } else {
        Ok(())
    }
}

/// Takes a member from the JSON message or from the raw data beside it.
fn place_member<T>(name: &str, member: &mut Option<T>, raw: Option<T>) -> Result<(), RpcError> {
    match (&member, raw) {
        (Some(_), None) => Ok(()),
        (None, Some(raw)) => {
            *member = Some(raw);
            Ok(())
        }
        (None, None) => Err(RpcError::invalid_params(format!("missing field `{name}`"))),
        (Some(_), Some(_)) => Err(RpcError::invalid_params(format!(
            "{name}: expected either base64 or raw data, not both"
        ))),
    }
}

/// Splits raw data from a message.
pub(super) fn split_frame(frame: Bytes) -> Result<(Bytes, Option<Bytes>), String> {
    match split_binary(&frame) {
        None => Ok((frame, None)),
        Some(Ok((header, data))) => Ok((header, Some(data))),
        Some(Err(error)) => Err(error.to_string()),
    }
}

/// Result of decoding a large message on the blocking pool.
pub(super) enum LargeMessage {
    Request(DecodedRequest),
    /// Only the method name: no known notification has parameters this large.
    Notification(String),
    /// Only the id: no known response is this large.
    Response(RequestId),
    Malformed(String),
}

impl LargeMessage {
    pub(super) fn decode(frame: Bytes) -> Self {
        let bytes = frame.len();
        let (text, data) = match split_frame(frame) {
            Ok(parts) => parts,
            Err(error) => return Self::Malformed(error),
        };
        match RpcMessage::decode_with(&text, data) {
            Ok(RpcMessage::Request(request)) => Self::Request(DecodedRequest::new(request, bytes)),
            Ok(RpcMessage::Notification(note)) => Self::Notification(note.method.into_owned()),
            Ok(RpcMessage::Response(response)) => Self::Response(response.id),
            Ok(RpcMessage::Error(response)) => Self::Response(response.id),
            Err(error) => Self::Malformed(error.to_string()),
        }
    }
}
