//! A real NATS server with JetStream, as a child.

use std::{path::Path, process::Stdio, time::Duration};

use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::sleep,
};

use crate::within::within;

/// The server. It is killed when it is dropped.
#[derive(Debug)]
pub struct Nats {
    /// Where it listens.
    pub url: String,
    _child: Child,
    _data: TempDir,
}

impl Nats {
    /// Starts a server on a free port and waits until it is ready.
    pub async fn start() -> Self {
        let data = tempfile::tempdir().expect("a temporary directory can be made");
        let child = Command::new(program())
            .args(["--addr", "127.0.0.1", "--port", "-1", "--jetstream"])
            .arg("--store_dir")
            .arg(data.path().join("store"))
            .arg("--ports_file_dir")
            .arg(data.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("nats-server is installed and starts");
        let url = within("nats-server tells its port", port(data.path())).await;
        Self {
            url,
            _child: child,
            _data: data,
        }
    }
}

/// Debian puts it where only administrators look.
fn program() -> &'static str {
    let there = "/usr/sbin/nats-server";
    if Path::new(there).exists() {
        there
    } else {
        "nats-server"
    }
}

/// Waits for the file in which the server writes its URLs when it is ready.
async fn port(directory: &Path) -> String {
    loop {
        let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let ports = files
            .map(|file| file.path())
            .filter(|path| path.extension().is_some_and(|kind| kind == "ports"))
            .find_map(|path| serde_json::from_slice::<Value>(&std::fs::read(path).ok()?).ok());
        if let Some(url) = ports.and_then(|ports| Some(ports["nats"][0].as_str()?.to_owned())) {
            return url;
        }
        // The server signals nothing else; a watch on the directory would see half of the file.
        sleep(Duration::from_millis(20)).await;
    }
}
