//! A NATS server with JetStream.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::scratch::Scratch;

/// Longest wait for its port.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// The server; killed when it is dropped.
#[derive(Debug)]
pub(crate) struct NatsServer {
    url: String,
    child: Child,
}

impl NatsServer {
    /// Starts a server on a free port. Without one on this machine there is nothing to measure.
    pub(crate) fn start(scratch: &Scratch) -> Result<Self> {
        let data = scratch.directory("nats")?;
        let there = Path::new("/usr/sbin/nats-server");
        let program = if there.exists() {
            there
        } else {
            Path::new("nats-server")
        };
        let child = Command::new(program)
            .args(["--addr", "127.0.0.1", "--port", "-1", "--jetstream"])
            .arg("--store_dir")
            .arg(data.join("store"))
            .arg("--ports_file_dir")
            .arg(&data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run nats-server")?;
        let mut server = Self {
            url: String::new(),
            child,
        };
        let deadline = Instant::now() + RESPONSE_TIMEOUT;
        while server.url.is_empty() {
            ensure!(Instant::now() < deadline, "nats-server tells no port");
            thread::sleep(Duration::from_millis(20));
            server.url = told(&data).unwrap_or_default();
        }
        Ok(server)
    }

    /// Returns where it listens.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Reads the URL from the file that the server writes when it is ready.
fn told(data: &Path) -> Option<String> {
    let mut files = fs::read_dir(data).ok()?.flatten().map(|file| file.path());
    let file = files.find(|path| path.extension().is_some_and(|kind| kind == "ports"))?;
    let ports: Value = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    Some(ports["nats"][0].as_str()?.to_owned())
}
