//! Outgoing messages: encoded text, or text around bytes that are encoded when they are sent.

#[cfg(test)]
mod tests;

use ::bytes::Bytes;
use serde::Serialize;

use crate::{
    base64_bytes::encode_append,
    error::RpcError,
    id::{OutputSeq, ProcessId},
    message::{RequestId, TraceContext, encode_binary_head, encode_json},
    method::notification,
    process::OutputStream,
};

/// Message to send. Data is encoded only when the socket is ready, so that queued output shares its
/// bytes with the output log.
#[derive(Clone, Debug)]
pub enum OutgoingMessage {
    /// JSON text.
    Text(Vec<u8>),
    /// JSON text with a data member.
    Data(DataMessage),
}

/// Message with one data member.
#[derive(Clone, Debug)]
pub struct DataMessage {
    /// Text before the data member.
    head: Vec<u8>,
    /// Name of the data member.
    member: &'static str,
    /// Value of the data member.
    data: Bytes,
}

/// Text after the data member: closes the parameters or the result, and the message.
const TAIL: &[u8] = b"}}";

impl OutgoingMessage {
    /// Creates a response with a result.
    pub fn result<T: Serialize>(id: &RequestId, result: &T) -> Self {
        let mut text = Vec::with_capacity(128);
        text.extend_from_slice(br#"{"id":"#);
        id.encode_append(&mut text);
        text.extend_from_slice(br#","result":"#);
        encode_json(result, &mut text);
        text.push(b'}');
        Self::Text(text)
    }

    /// Creates a response with an error.
    pub fn error(id: &RequestId, error: &RpcError) -> Self {
        let mut encoded = Vec::new();
        id.encode_append(&mut encoded);
        encode_error(&encoded, error)
    }

    /// Creates a request.
    pub fn request<T: Serialize>(id: &RequestId, method: &str, params: &T) -> Self {
        let mut text = Vec::with_capacity(256);
        text.extend_from_slice(br#"{"id":"#);
        id.encode_append(&mut text);
        text.push(b',');
        encode_method_and_params(method, params, &mut text);
        Self::Text(text)
    }

    /// Creates a notification.
    pub fn notification<T: Serialize>(method: &str, params: &T) -> Self {
        let mut text = Vec::with_capacity(192);
        text.push(b'{');
        encode_method_and_params(method, params, &mut text);
        Self::Text(text)
    }

    /// Adds a trace context to a request. An empty one changes nothing.
    pub fn with_trace(mut self, trace: &TraceContext) -> Self {
        if trace.traceparent.is_none() && trace.tracestate.is_none() {
            return self;
        }
        let text = match &mut self {
            Self::Text(text) => text,
            Self::Data(message) => &mut message.head,
        };
        let mut member = br#""trace":"#.to_vec();
        encode_json(trace, &mut member);
        member.push(b',');
        // Insert before the other members, because data comes last.
        text.splice(1..1, member);
        self
    }

    /// Adds a data member to the parameters or the result, an object without it.
    pub fn with_data(self, member: &'static str, data: Bytes) -> Self {
        let Self::Text(mut head) = self else {
            return self;
        };
        // Reopen the last two objects.
        head.truncate(head.len() - 2);
        if head.last() != Some(&b'{') {
            head.push(b',');
        }
        Self::Data(DataMessage { head, member, data })
    }

    /// Creates a `process/output` notification.
    pub fn output(
        process_id: &ProcessId,
        seq: OutputSeq,
        stream: OutputStream,
        data: Bytes,
    ) -> Self {
        let mut head = output_head(notification::PROCESS_OUTPUT, process_id);
        head.extend_from_slice(br#","seq":"#);
        head.extend_from_slice(seq.0.to_string().as_bytes());
        encode_stream_member(stream.as_str(), &mut head);
        let member = "chunk";
        Self::Data(DataMessage { head, member, data })
    }

    /// Creates a `command/exec/outputDelta` notification, which has no sequence number and reports
    /// terminal output as stdout.
    pub fn command_output(process_id: &ProcessId, stream: OutputStream, data: Bytes) -> Self {
        let mut head = output_head(notification::COMMAND_OUTPUT, process_id);
        let stream = match stream {
            OutputStream::Stderr => "stderr",
            OutputStream::Stdout | OutputStream::Pty => "stdout",
        };
        encode_stream_member(stream, &mut head);
        let member = "chunk";
        Self::Data(DataMessage { head, member, data })
    }

    /// Returns the number of bytes that [`encode_text`](Self::encode_text) appends.
    pub fn text_len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Data(message) => {
                let data = message.data.len().div_ceil(3) * 4;
                message.head.len() + message.member.len() + data + TAIL.len() + 5
            }
        }
    }

    /// Returns the error to send instead of a response that cannot be sent, or `None` if this is
    /// not a response.
    pub fn error_response(&self, error: &RpcError) -> Option<Self> {
        let text = match self {
            Self::Text(text) => text,
            Self::Data(message) => &message.head,
        };
        // Quotes in a text id are escaped, so the first match is the response's own member.
        let after_prefix = text.strip_prefix(br#"{"id":"#)?;
        let mark = br#","result":"#;
        let length = after_prefix
            .windows(mark.len())
            .position(|part| part == mark)?;
        Some(encode_error(&after_prefix[..length], error))
    }

    /// Appends the message as JSON text.
    pub fn encode_text(&self, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => out.extend_from_slice(text),
            Self::Data(message) => {
                out.extend_from_slice(&message.head);
                message.open_member(out);
                encode_append(&message.data, out);
                out.push(b'"');
                out.extend_from_slice(TAIL);
            }
        }
    }
}

impl DataMessage {
    /// Returns the number of data bytes.
    pub fn data_len(&self) -> usize {
        self.data.len()
    }

    /// Splits the message as text into the part before the base64 form of the data, the data, and
    /// the part after it.
    pub fn into_text_parts(mut self) -> (Vec<u8>, Bytes, Vec<u8>) {
        let mut prefix = std::mem::take(&mut self.head);
        self.open_member(&mut prefix);
        (prefix, self.data, [b"\"", TAIL].concat())
    }

    /// Appends the name of the data member, and the quote before its value.
    fn open_member(&self, out: &mut Vec<u8>) {
        out.push(b'"');
        out.extend_from_slice(self.member.as_bytes());
        out.extend_from_slice(b"\":\"");
    }

    /// Splits the message as binary into the part before the raw data, the data, and an empty part.
    pub fn into_binary_parts(self) -> (Vec<u8>, Bytes, Vec<u8>) {
        let mut prefix = Vec::with_capacity(self.binary_head_len());
        let data = self.encode_binary(&mut prefix);
        (prefix, data, Vec::new())
    }

    /// Returns the approximate number of bytes before the raw data.
    pub fn binary_head_len(&self) -> usize {
        self.head.len() + TAIL.len() + 4
    }

    /// Appends everything except the raw data, which follows, and returns the raw data.
    pub fn encode_binary(&self, out: &mut Vec<u8>) -> Bytes {
        let mut header = Vec::with_capacity(self.head.len() + TAIL.len());
        header.extend_from_slice(&self.head);
        if header.last() == Some(&b',') {
            header.pop();
        }
        header.extend_from_slice(TAIL);
        encode_binary_head(&header, out);
        self.data.clone()
    }
}

/// Encodes an error for an encoded id.
fn encode_error(id: &[u8], error: &RpcError) -> OutgoingMessage {
    let mut text = Vec::with_capacity(128);
    text.extend_from_slice(br#"{"error":"#);
    encode_json(error, &mut text);
    text.extend_from_slice(br#","id":"#);
    text.extend_from_slice(id);
    text.push(b'}');
    OutgoingMessage::Text(text)
}

fn encode_method_and_params<T: Serialize>(method: &str, params: &T, text: &mut Vec<u8>) {
    text.extend_from_slice(br#""method":"#);
    encode_json(method, text);
    text.extend_from_slice(br#","params":"#);
    encode_json(params, text);
    text.push(b'}');
}

fn output_head(method: &str, process_id: &ProcessId) -> Vec<u8> {
    let mut head = Vec::with_capacity(112 + process_id.as_str().len());
    head.extend_from_slice(br#"{"method":""#);
    head.extend_from_slice(method.as_bytes());
    head.extend_from_slice(br#"","params":{"processId":"#);
    encode_json(process_id.as_str(), &mut head);
    head
}

fn encode_stream_member(stream: &str, head: &mut Vec<u8>) {
    head.extend_from_slice(br#","stream":""#);
    head.extend_from_slice(stream.as_bytes());
    head.extend_from_slice(br#"","#);
}
