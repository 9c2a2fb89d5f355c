//! A `nats-server` of its own for each test.

use std::{path::Path, process::Stdio};

use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use super::within;
use crate::nats::NatsConfig;

pub(super) struct Broker {
    child: Child,
    directory: TempDir,
    arguments: Vec<String>,
    port: u16,
}

impl Broker {
    pub(super) async fn start() -> Self {
        Self::with(&[]).await
    }

    /// Starts one with further arguments.
    pub(super) async fn with(arguments: &[&str]) -> Self {
        Self::of(&[&["-js"], arguments].concat()).await
    }

    pub(super) async fn without_jetstream() -> Self {
        Self::of(&[]).await
    }

    async fn of(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let arguments: Vec<_> = arguments.iter().map(|&text| text.to_owned()).collect();
        let (child, port) = spawn(directory.path(), &arguments, "-1").await;
        Self {
            child,
            directory,
            arguments,
            port,
        }
    }

    /// A client that is no hub.
    pub(super) async fn client(&self) -> async_nats::Client {
        within(async_nats::connect(
            ("127.0.0.1:PORT").replace("PORT", &self.port.to_string()),
        ))
        .await
        .unwrap()
    }

    pub(super) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(super) fn config(&self) -> NatsConfig {
        self.config_at(&format!("nats://127.0.0.1:{}", self.port))
    }

    pub(super) fn config_at(&self, url: &str) -> NatsConfig {
        let url = url.replace("PORT", &self.port.to_string());
        NatsConfig::new(url.parse().unwrap(), "node".parse().unwrap())
    }

    /// Kills it, as a power cut would.
    pub(super) async fn kill(&mut self) {
        within(self.child.kill()).await.unwrap();
    }

    /// Starts it again, where it was, with what it had.
    pub(super) async fn restart(&mut self) {
        let port = self.port.to_string();
        let (child, port) = spawn(self.directory.path(), &self.arguments, &port).await;
        (self.child, self.port) = (child, port);
    }

    /// Starts it again with nothing it had.
    pub(super) async fn restart_empty(&mut self) {
        let old = std::mem::replace(&mut self.directory, tempfile::tempdir().unwrap());
        drop(old);
        self.restart().await;
    }
}

async fn spawn(directory: &Path, arguments: &[String], port: &str) -> (Child, u16) {
    // Debian puts it where only root looks.
    let debian = Path::new("/usr/sbin/nats-server");
    let program = if debian.exists() {
        debian
    } else {
        Path::new("nats-server")
    };
    let mut child = Command::new(program)
        .args(["-a", "127.0.0.1", "-p", port, "-sd"])
        .arg(directory)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("nats-server is installed (Debian package nats-server)");
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut listening = None;
    let ready = async {
        while let Some(line) = log.next_line().await.unwrap() {
            if let Some((_, address)) = line.split_once("client connections on ") {
                listening = address
                    .rsplit(':')
                    .next()
                    .and_then(|port| port.parse().ok());
            }
            if line.contains("Server is ready") {
                return;
            }
        }
        panic!("nats-server did not start");
    };
    within(ready).await;
    // It must never wait for a reader.
    tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
    (child, listening.unwrap())
}
