//! A server with a state directory, which is killed and started again on the same socket.

use std::{path::PathBuf, process::Stdio, time::Duration};

use exec_test_support::keeper_process::kill_keeper_of;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdout},
    time::sleep,
};

use crate::{
    bounded_wait::within,
    server::{home, program},
};

/// Server whose processes outlive it. Dropping it kills everything that it has started.
#[derive(Debug)]
pub struct RestartedServer {
    home: TempDir,
    flags: Vec<String>,
    running: Option<(Child, BufReader<ChildStdout>)>,
}

impl RestartedServer {
    /// Starts a server with extra flags. All processes are durable.
    pub async fn start(flags: &[&str]) -> Self {
        let mut server = Self {
            home: home(),
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            running: None,
        };
        server.restart().await;
        server
    }

    /// Returns the URL of the socket.
    pub fn url(&self) -> String {
        format!("unix://{}", self.path("s").display())
    }

    /// Returns the path of a file in the server's home directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Starts the server and waits until it listens.
    pub async fn restart(&mut self) {
        let mut command = program(&self.url());
        let mut child = command
            .args(["--durable", "all", "--state-dir"])
            .arg(self.path("state"))
            .args(&self.flags)
            .env("HOME", self.home.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("failed to start the server");
        let stdout = child.stdout.take().expect("stdout is not piped");
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        let read = within("server prints its URL", stdout.read_line(&mut line)).await;
        let read = read.expect("failed to read stdout");
        assert!(read > 0, "server did not start");
        self.running = Some((child, stdout));
    }

    /// Kills the server and waits until it is gone.
    pub async fn kill(&mut self) {
        let (mut child, _) = self.running.take().expect("server is not running");
        within("server dies", child.kill())
            .await
            .expect("failed to kill the server");
    }
}

impl Drop for RestartedServer {
    fn drop(&mut self) {
        if let Some((mut child, _)) = self.running.take() {
            // The keeper is replaced while a server runs.
            drop(child.start_kill());
            while matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        kill_keeper_of(&self.path("state"));
    }
}

/// Random instants for kills. The seed is printed.
#[derive(Debug)]
pub struct RandomInstants(u64);

impl Default for RandomInstants {
    fn default() -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let seed = now.map_or(0, |now| now.subsec_nanos().into());
        eprintln!("seed {seed}");
        Self(seed)
    }
}

impl RandomInstants {
    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// Waits until a random instant within `most`.
    pub async fn pause(&mut self, most: Duration) {
        let most = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
        sleep(Duration::from_micros(self.below(most))).await;
    }
}
