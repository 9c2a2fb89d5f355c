//! Raw endpoints, which register and connect but send arbitrary frames.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{Hub, registry};

/// Registers an executor; returns the URL of its websocket.
pub(crate) fn executor(hub: &Hub, environment: &str, number: u32) -> Result<String> {
    let body = json!({
        "security_profile": "noise_hybrid_ik_v1",
        "executor_public_key": registry::key(number),
    });
    url(&registry::post(hub, environment, "register", &body)?)
}

/// Connects a harness and returns the URL of its websocket. A hub may take a moment to list an
/// executor whose websocket is open.
pub(crate) fn harness(hub: &Hub, environment: &str, number: u32) -> Result<String> {
    let body = json!({ "harness_public_key": registry::key(number) });
    let mut answer = registry::post(hub, environment, "connect", &body);
    for _ in 0..ATTEMPTS {
        if answer.is_ok() {
            break;
        }
        thread::sleep(PAUSE);
        answer = registry::post(hub, environment, "connect", &body);
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
