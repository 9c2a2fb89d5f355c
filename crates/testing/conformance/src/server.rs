//! The `exec-server` program as a child, for subjects that need a real one.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::{bounded_wait::within, subject::HOST_ENVIRONMENT};

/// A server that listens. It is killed when it is dropped.
#[derive(Debug)]
pub struct Server {
    /// Where it listens, as it printed it.
    pub url: String,
    _child: Child,
    /// What it takes for the account's home.
    _home: TempDir,
}

impl Server {
    /// Starts a server and waits for the line with its URL.
    pub async fn listen(url: &str) -> Self {
        Self::listen_with(url, &[]).await
    }

    /// Starts a server with more flags, and waits for the line with its URL.
    pub async fn listen_with(url: &str, flags: &[&str]) -> Self {
        let mut command = program(url);
        let home = home();
        let mut child = command
            .args(flags)
            .env("HOME", home.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let line = within("the server prints its URL", lines.next_line()).await;
        let url = line.expect("stdout can be read").expect("one line comes");
        Self {
            url,
            _child: child,
            _home: home,
        }
    }
}

/// An empty home for a subject. Cases find it by asking for the configuration.
pub fn home() -> TempDir {
    tempfile::tempdir().expect("a temporary directory can be made")
}

/// The command that runs a server on `url`, with the environment that subjects need.
pub fn program(url: &str) -> Command {
    let mut command = Command::new(executable());
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

/// Finds the program beside the running test, and builds it if it is not there.
pub(crate) fn executable() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its program");
    let profile = test
        .parent()
        .and_then(Path::parent)
        .expect("tests are in `deps` of a profile");
    let server = profile.join("exec-server");
    if !server.exists() {
        build(profile);
    }
    server
}

fn build(profile: &Path) {
    let name = profile
        .file_name()
        .and_then(|name| name.to_str())
        .expect("a profile has a name");
    let name = if name == "debug" { "dev" } else { name };
    let target = profile
        .parent()
        .expect("profiles are in the target directory");
    let status = std::process::Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args([
            "build",
            "--quiet",
            "--package",
            "exec-server",
            "--profile",
            name,
            "--target-dir",
        ])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "exec-server can be built"
    );
}
