//! The `exec-server` program as a child process.

use std::process::Stdio;

use exec_test_support::workspace_program::workspace_program;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::{bounded_wait::within, subject::HOST_ENVIRONMENT};

/// Server that listens. Dropping it kills the process.
#[derive(Debug)]
pub struct Server {
    /// URL that the server printed.
    pub url: String,
    _child: Child,
    /// Home directory of the server.
    _home: TempDir,
}

impl Server {
    /// Starts a server and waits until it prints its URL.
    pub async fn listen(url: &str) -> Self {
        Self::listen_with(url, &[]).await
    }

    /// Starts a server with extra flags and waits until it prints its URL.
    pub async fn listen_with(url: &str, flags: &[&str]) -> Self {
        let mut command = program(url);
        let home = home();
        let mut child = command
            .args(flags)
            .env("HOME", home.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("failed to start the server");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is not piped")).lines();
        let line = within("server prints its URL", lines.next_line()).await;
        let url = line
            .expect("failed to read stdout")
            .expect("stdout closed without a line");
        Self {
            url,
            _child: child,
            _home: home,
        }
    }
}

/// Creates an empty home for a subject. Cases look it up in the configuration.
pub fn home() -> TempDir {
    tempfile::tempdir().expect("failed to create a temporary directory")
}

/// Returns the command for a server on `url` with the environment that subjects need.
pub fn program(url: &str) -> Command {
    let mut command = Command::new(workspace_program("exec-server"));
    command
        .args(["--listen", url])
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .envs(HOST_ENVIRONMENT);
    command
}
