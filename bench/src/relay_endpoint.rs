//! Raw endpoints that load a hub.
//!
//! They register and connect through the registry like real ones, and send hand-written relay
//! frames. The payloads are arbitrary bytes; a hub cannot distinguish them from encrypted records.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::base64;
use crate::hub_process::HubProcess;

/// Registers an executor and returns the URL of its websocket.
pub(crate) fn register_executor(
    hub: &HubProcess,
    environment: &str,
    number: u32,
) -> Result<String> {
    let body = json!({
        "security_profile": "noise_hybrid_ik_v1",
        "executor_public_key": fake_key(number),
    });
    websocket_url(&post(hub, environment, "register", &body)?)
}

/// Connects a harness and returns the URL of its websocket. Retries, since a hub may take a moment
/// to list an executor after its websocket opens.
pub(crate) fn connect_harness(hub: &HubProcess, environment: &str, number: u32) -> Result<String> {
    let body = json!({ "harness_public_key": fake_key(number) });
    let mut response = post(hub, environment, "connect", &body);
    for _ in 0..CONNECT_ATTEMPTS {
        if response.is_ok() {
            break;
        }
        thread::sleep(RETRY_DELAY);
        response = post(hub, environment, "connect", &body);
    }
    websocket_url(&response?)
}

/// Retries of a harness and the delay between them.
const CONNECT_ATTEMPTS: usize = 50;
const RETRY_DELAY: Duration = Duration::from_millis(20);

fn websocket_url(response: &Value) -> Result<String> {
    let url = response["url"].as_str().context("no url")?;
    Ok(url.to_owned())
}

/// Longest wait for a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Sends a request to the registry and returns the body of the response.
fn post(hub: &HubProcess, environment: &str, operation: &str, body: &Value) -> Result<Value> {
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
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    let (head, body) = response.split_once("\r\n\r\n").context("no response")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "{operation}: {response}");
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

/// Encodes the frame that starts a stream.
pub(crate) fn resume_frame(stream: &str) -> Vec<u8> {
    let mut frame = frame_head(stream);
    frame.extend_from_slice(&[0x3a, 0x00]);
    frame
}

/// Encodes a frame with one record of a stream.
pub(crate) fn data_frame(stream: &str, seq: u32, payload: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(payload.len() + 16);
    if seq > 0 {
        record.push(0x08);
        push_varint(&mut record, seq as usize);
    }
    record.extend_from_slice(&[0x18, 0x01, 0x22]);
    push_varint(&mut record, payload.len());
    record.extend_from_slice(payload);
    let mut frame = frame_head(stream);
    frame.push(0x2a);
    push_varint(&mut frame, record.len());
    frame.extend_from_slice(&record);
    frame
}

/// Encodes version and stream id, the first fields of every frame.
fn frame_head(stream: &str) -> Vec<u8> {
    let mut frame = vec![0x08, 0x01, 0x12];
    push_varint(&mut frame, stream.len());
    frame.extend_from_slice(stream.as_bytes());
    frame
}

fn push_varint(out: &mut Vec<u8>, mut value: usize) {
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
        assert_eq!(resume_frame("ab"), b"\x08\x01\x12\x02ab\x3a\x00");
        assert_eq!(
            data_frame("ab", 0, b"xyz"),
            b"\x08\x01\x12\x02ab\x2a\x07\x18\x01\x22\x03xyz"
        );
        assert_eq!(
            data_frame("ab", 300, b"z"),
            b"\x08\x01\x12\x02ab\x2a\x08\x08\xac\x02\x18\x01\x22\x01z"
        );
    }
}
