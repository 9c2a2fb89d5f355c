//! Requests to the registry, as far as raw endpoints need them.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::Hub;
use crate::base64;

/// Longest wait for an answer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Asks a registry for something; returns the answer's body.
pub(super) fn post(hub: &Hub, environment: &str, operation: &str, body: &Value) -> Result<Value> {
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
pub(super) fn key(number: u32) -> Value {
    let mut x25519 = [0; 32];
    x25519[..4].copy_from_slice(&number.to_le_bytes());
    x25519[31] = 1;
    json!({
        "suite": "Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256",
        "x25519_public_key": base64::encode(&x25519),
        "mlkem768_public_key": base64::encode(&[0; 1184]),
    })
}
