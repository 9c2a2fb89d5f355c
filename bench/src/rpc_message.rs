//! Messages from the server: responses and events.
//!
//! Hot paths find fields by byte search at both ends of a message, which may be very large;
//! serde_json is used only outside of them.

use std::fmt;

use anyhow::{Context as _, Result, bail, ensure};
use memchr::{memchr, memmem};

use crate::base64;

/// Bytes at either end of a message that are searched for members other than the data.
const SEARCH_WINDOW: usize = 192;

/// A successful response.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ResponseView<'a> {
    /// JSON of the response.
    pub(crate) json: &'a [u8],
    /// The data member of a binary message.
    binary_data: Option<&'a [u8]>,
}

/// Value of a data member.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DataMember<'a> {
    /// Base64 in JSON.
    Base64(&'a [u8]),
    /// Raw bytes of a binary message.
    Raw(&'a [u8]),
}

impl<'a> ResponseView<'a> {
    /// Parses a message; `None` if it is a notification. An error response is an error.
    pub(crate) fn parse(message: &'a [u8]) -> Result<Option<Self>> {
        let (json, binary_data) = match message {
            &[1, a, b, c, ref rest @ ..] => {
                let len = u32::from_be_bytes([0, a, b, c]) as usize;
                let (header, data) = rest
                    .split_at_checked(len)
                    .context("truncated binary header")?;
                (header, Some(data))
            }
            text => (text, None),
        };
        let head = &json[..json.len().min(SEARCH_WINDOW)];
        let tail = &json[json.len().saturating_sub(SEARCH_WINDOW)..];
        let has = |member: &[u8]| contains(head, member) || contains(tail, member);
        if contains(head, b"\"method\":\"") {
            return Ok(None);
        }
        if has(b"\"error\":{") {
            return Err(CallRefusal::parse(json).into());
        }
        ensure!(has(b"\"result\":"), "message is not a response");
        Ok(Some(Self { json, binary_data }))
    }

    /// Returns the data member `name`, which must decode to `len` bytes if it is base64.
    ///
    /// Checks the end of the value only where `len` puts it, since searching for it would take
    /// time.
    pub(crate) fn data(&self, name: &str, len: usize) -> Result<DataMember<'a>> {
        if let Some(raw) = self.binary_data {
            return Ok(DataMember::Raw(raw));
        }
        let member = format!("\"{name}\":\"");
        let head = &self.json[..self.json.len().min(SEARCH_WINDOW)];
        let start = memmem::find(head, member.as_bytes())
            .with_context(|| format!("response without {name}"))?;
        let (value, rest) = self.json[start + member.len()..]
            .split_at_checked(base64::encoded_len(len))
            .with_context(|| format!("{name} is too short"))?;
        ensure!(rest.first() == Some(&b'"'), "{name} is too long");
        Ok(DataMember::Base64(value))
    }
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    memmem::find(haystack, needle).is_some()
}

/// An error response.
#[derive(Debug)]
pub(crate) struct CallRefusal {
    code: Option<i64>,
    message: String,
}

impl CallRefusal {
    /// Returns whether the server lacks the method.
    pub(crate) fn is_unknown_method(&self) -> bool {
        self.code == Some(-32601)
    }

    fn parse(message: &[u8]) -> Self {
        let value: serde_json::Value = serde_json::from_slice(message).unwrap_or_default();
        Self {
            code: value["error"]["code"].as_i64(),
            message: String::from_utf8_lossy(message).into_owned(),
        }
    }
}

impl fmt::Display for CallRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server refused: {}", self.message)
    }
}

impl std::error::Error for CallRefusal {}

/// A message from the server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ServerEvent {
    /// A request succeeded.
    Response,
    /// A process wrote this many bytes.
    Output(u64),
    /// A process exited and all its output was delivered.
    Closed,
    /// Anything else.
    Other,
}

impl ServerEvent {
    /// Classifies a message. An error response is an error: no caller expects one.
    pub(crate) fn parse(message: &[u8]) -> Result<Self> {
        if message.first() == Some(&1) {
            let &[_, a, b, c, ref rest @ ..] = message else {
                bail!("truncated binary message")
            };
            let len = u32::from_be_bytes([0, a, b, c]) as usize;
            let (header, data) = rest
                .split_at_checked(len)
                .context("truncated binary header")?;
            ensure!(
                contains(header, b"process/output"),
                "binary message is not output"
            );
            return Ok(Self::Output(data.len() as u64));
        }
        let head = &message[..message.len().min(SEARCH_WINDOW)];
        let tail = &message[message.len().saturating_sub(SEARCH_WINDOW)..];
        if contains(head, b"\"process/output\"") || contains(tail, b"\"process/output\"") {
            return Ok(Self::Output(chunk_len(message)?));
        }
        if contains(message, b"\"process/closed\"") {
            Ok(Self::Closed)
        } else if contains(message, b"\"error\":{") {
            bail!("server refused: {}", String::from_utf8_lossy(message))
        } else if contains(message, b"\"result\":") {
            Ok(Self::Response)
        } else {
            Ok(Self::Other)
        }
    }
}

/// Returns the decoded length of the `chunk` member of a message.
fn chunk_len(message: &[u8]) -> Result<u64> {
    let member = b"\"chunk\":\"";
    let start = memmem::find(message, member).context("output without chunk")?;
    let value = &message[start + member.len()..];
    let end = memchr(b'"', value).context("unterminated chunk")?;
    base64::decoded_len(&value[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_found_in_both_forms() {
        let text = br#"{"id":2,"result":{"chunk":"YWJj","eof":false}}"#;
        let response = ResponseView::parse(text).unwrap().unwrap();
        assert_eq!(
            response.data("chunk", 3).unwrap(),
            DataMember::Base64(b"YWJj")
        );
        for wrong in [0, 4, 400] {
            assert!(response.data("chunk", wrong).is_err(), "{wrong}");
        }
        let header = br#"{"id":2,"result":{"eof":false}}"#;
        let mut message = vec![1, 0, 0, u8::try_from(header.len()).unwrap()];
        message.extend_from_slice(header);
        message.extend_from_slice(b"abc");
        let response = ResponseView::parse(&message).unwrap().unwrap();
        assert_eq!(response.data("chunk", 3).unwrap(), DataMember::Raw(b"abc"));
        assert!(ResponseView::parse(&message[..20]).is_err());
    }

    #[test]
    fn result_may_precede_the_id() {
        let long = "A".repeat(4096);
        let text = format!(r#"{{"result":{{"dataBase64":"{long}"}},"id":2}}"#);
        let response = ResponseView::parse(text.as_bytes()).unwrap().unwrap();
        let data = response.data("dataBase64", 3072).unwrap();
        assert_eq!(data, DataMember::Base64(long.as_bytes()));
    }

    #[test]
    fn notifications_and_errors_are_not_responses() {
        let changed = br#"{"method":"fs/changed","params":{"watchId":"w"}}"#;
        assert_eq!(ResponseView::parse(changed).unwrap(), None);
        let refused = br#"{"error":{"code":-32601,"message":"no"},"id":2}"#;
        let error = ResponseView::parse(refused).unwrap_err();
        let refusal = error.downcast_ref::<CallRefusal>().unwrap();
        assert!(refusal.is_unknown_method());
    }

    #[test]
    fn output_is_counted_in_any_field_order() {
        let first = br#"{"method":"process/output","params":{"chunk":"YQ==","seq":1}}"#;
        assert_eq!(ServerEvent::parse(first).unwrap(), ServerEvent::Output(1));
        let long = "A".repeat(4096);
        let last = format!(r#"{{"params":{{"chunk":"{long}"}},"method":"process/output"}}"#);
        assert_eq!(
            ServerEvent::parse(last.as_bytes()).unwrap(),
            ServerEvent::Output(3072)
        );
    }

    #[test]
    fn binary_output_follows_its_header() {
        let header = br#"{"method":"process/output","params":{"seq":1}}"#;
        let mut message = vec![1, 0, 0, u8::try_from(header.len()).unwrap()];
        message.extend_from_slice(header);
        message.extend_from_slice(b"12345");
        assert_eq!(
            ServerEvent::parse(&message).unwrap(),
            ServerEvent::Output(5)
        );
        assert!(ServerEvent::parse(&message[..20]).is_err());
    }

    #[test]
    fn other_messages_are_classified() {
        let closed = br#"{"method":"process/closed","params":{"processId":"b2","seq":4}}"#;
        assert_eq!(ServerEvent::parse(closed).unwrap(), ServerEvent::Closed);
        let response = br#"{"id":2,"result":{"processId":"b2"}}"#;
        assert_eq!(ServerEvent::parse(response).unwrap(), ServerEvent::Response);
        let exited = br#"{"method":"process/exited","params":{"exitCode":0}}"#;
        assert_eq!(ServerEvent::parse(exited).unwrap(), ServerEvent::Other);
        assert!(ServerEvent::parse(br#"{"error":{"code":-32600,"message":"no"},"id":2}"#).is_err());
    }
}
