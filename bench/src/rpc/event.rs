//! What a message from the server is, found by byte search, without parsing JSON.

use anyhow::{Context as _, Result, bail, ensure};
use memchr::{memchr, memmem};

/// How far a method name is searched for from either end of a message.
const EDGE: usize = 192;

/// A message from the server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Event {
    /// A request succeeded.
    Response,
    /// A process wrote this many bytes.
    Output(u64),
    /// A process ended and all its output was delivered.
    Closed,
    /// Anything else.
    Other,
}

impl Event {
    /// Classifies a message. A refused request is an error: nothing here expects one.
    pub(super) fn parse(message: &[u8]) -> Result<Self> {
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
        let head = &message[..message.len().min(EDGE)];
        let tail = &message[message.len().saturating_sub(EDGE)..];
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

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    memmem::find(haystack, needle).is_some()
}

/// Returns how many bytes the `chunk` member of a message stands for.
fn chunk_len(message: &[u8]) -> Result<u64> {
    let member = b"\"chunk\":\"";
    let at = memmem::find(message, member).context("output without chunk")?;
    let value = &message[at + member.len()..];
    let end = memchr(b'"', value).context("unterminated chunk")?;
    decoded_len(&value[..end])
}

/// Returns the decoded length of padded base64, from its length and padding alone.
fn decoded_len(base64: &[u8]) -> Result<u64> {
    ensure!(
        base64.len().is_multiple_of(4),
        "base64 of {} characters",
        base64.len()
    );
    let padding = base64
        .iter()
        .rev()
        .take(2)
        .take_while(|&&byte| byte == b'=')
        .count();
    Ok((base64.len() / 4 * 3 - padding) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_length_follows_from_padding() {
        for (text, len) in [
            ("", 0),
            ("YQ==", 1),
            ("YWI=", 2),
            ("YWJj", 3),
            ("YWJjZA==", 4),
        ] {
            assert_eq!(decoded_len(text.as_bytes()).unwrap(), len, "{text}");
        }
        assert!(decoded_len(b"YQ").is_err());
    }

    #[test]
    fn output_is_counted_in_any_field_order() {
        let first = br#"{"method":"process/output","params":{"chunk":"YQ==","seq":1}}"#;
        assert_eq!(Event::parse(first).unwrap(), Event::Output(1));
        let long = "A".repeat(4096);
        let last = format!(r#"{{"params":{{"chunk":"{long}"}},"method":"process/output"}}"#);
        assert_eq!(Event::parse(last.as_bytes()).unwrap(), Event::Output(3072));
    }

    #[test]
    fn binary_output_follows_its_header() {
        let header = br#"{"method":"process/output","params":{"seq":1}}"#;
        let mut message = vec![1, 0, 0, u8::try_from(header.len()).unwrap()];
        message.extend_from_slice(header);
        message.extend_from_slice(b"12345");
        assert_eq!(Event::parse(&message).unwrap(), Event::Output(5));
        assert!(Event::parse(&message[..20]).is_err());
    }

    #[test]
    fn other_messages_are_classified() {
        let closed = br#"{"method":"process/closed","params":{"processId":"b2","seq":4}}"#;
        assert_eq!(Event::parse(closed).unwrap(), Event::Closed);
        let response = br#"{"id":2,"result":{"processId":"b2"}}"#;
        assert_eq!(Event::parse(response).unwrap(), Event::Response);
        let exited = br#"{"method":"process/exited","params":{"exitCode":0}}"#;
        assert_eq!(Event::parse(exited).unwrap(), Event::Other);
        assert!(Event::parse(br#"{"error":{"code":-32600,"message":"no"},"id":2}"#).is_err());
    }
}
