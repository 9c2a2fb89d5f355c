//! Raw endpoints: they register and connect through the registry, and send hand-written relay
//! frames.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::Hub;
use crate::base64;

/// Registers an executor; returns the URL of its websocket.
pub(crate) fn executor(hub: &Hub, environment: &str, number: u32) -> Result<String> {
    let body = json!({
        "security_profile": "noise_hybrid_ik_v1",
        "executor_public_key": fake_key(number),
    });
    url(&post(hub, environment, "register", &body)?)
}

/// Connects a harness and returns the URL of its websocket. A hub may take a moment to list an
/// executor whose websocket is open.
pub(crate) fn harness(hub: &Hub, environment: &str, number: u32) -> Result<String> {
    let body = json!({ "harness_public_key": fake_key(number) });
    let mut answer = post(hub, environment, "connect", &body);
    for _ in 0..ATTEMPTS {
        if answer.is_ok() {
            break;
        }
        thread::sleep(PAUSE);
        answer = post(hub, environment, "connect", &body);
    }
    url(&answer?)
}

/// Retries of a harness, and the delay between them.
const ATTEMPTS: usize = 50;
const PAUSE: Duration = Duration::from_millis(20);

fn url(answer: &Value) -> Result<String> {
    let url = answer["url"].as_str().context("no url")?;
    Ok(url.to_owned())
}

/// Longest wait for an answer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Asks a registry for something; returns the answer's body.
fn post(hub: &Hub, environment: &str, operation: &str, body: &Value) -> Result<Value> {
    let authority = hub.url().strip_prefix("http://").context("not http")?;
    let mut stream = TcpStream::connect(authority)?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    let body = body.to_string();
    let request = format!(
        "POST /cloud/environment/{environment}/{operation} HTTP/1.1\r\nHost: {authority}\r\n\
         Authorization: Bearer {}\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        hub.token(),
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "{operation}: {answer}");
    Ok(serde_json::from_str(body)?)
}

/// Returns a fake key that is unique for each number.
fn fake_key(number: u32) -> Value {
    let mut x25519 = [0; 32];
    x25519[..4].copy_from_slice(&number.to_le_bytes());
    x25519[31] = 1;
    json!({
        "suite": "Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256",
        "x25519_public_key": base64::encode(&x25519),
        "mlkem768_public_key": base64::encode(&[0; 1184]),
    })
}

/// The frame that a stream begins with.
pub(crate) fn resume(stream: &str) -> Vec<u8> {
    let mut frame = head(stream);
    frame.extend_from_slice(&[0x3a, 0x00]);
    frame
}

/// A record of a stream.
pub(crate) fn data(stream: &str, seq: u32, payload: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(payload.len() + 16);
    if seq > 0 {
        record.push(0x08);
        varint(&mut record, seq as usize);
    }
    record.extend_from_slice(&[0x18, 0x01, 0x22]);
    varint(&mut record, payload.len());
    record.extend_from_slice(payload);
    let mut frame = head(stream);
    frame.push(0x2a);
    varint(&mut frame, record.len());
    frame.extend_from_slice(&record);
    frame
}

/// Version and stream.
fn head(stream: &str) -> Vec<u8> {
    let mut frame = vec![0x08, 0x01, 0x12];
    varint(&mut frame, stream.len());
    frame.extend_from_slice(stream.as_bytes());
    frame
}

fn varint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_frames_match_the_wire_format() {
        assert_eq!(resume("ab"), b"\x08\x01\x12\x02ab\x3a\x00");
        assert_eq!(
            data("ab", 0, b"xyz"),
            b"\x08\x01\x12\x02ab\x2a\x07\x18\x01\x22\x03xyz"
        );
        assert_eq!(
            data("ab", 300, b"z"),
            b"\x08\x01\x12\x02ab\x2a\x08\x08\xac\x02\x18\x01\x22\x01z"
        );
    }
}
