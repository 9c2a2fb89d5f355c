//! A hub and executors behind it, as children, for subjects that are reached through one.

use std::process::Stdio;

use exec_client::connect::RelayExecServerConnectArgs;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::{
    server::{self, executable},
    subject::HOST_ENVIRONMENT,
    within::within,
};

/// The environment that executors offer.
pub const ENVIRONMENT: &str = "conformance";

/// A hub on a free port, with a store of its own. It is killed when it is dropped.
#[derive(Debug)]
pub struct Hub {
    /// Its registry, as it printed it.
    pub url: String,
    /// A token for all that is done here.
    pub token: String,
    _child: Child,
    _data: TempDir,
}

impl Hub {
    /// Starts a hub.
    pub async fn start() -> Self {
        let data = server::home();
        let token = token(&data).await;
        let (child, url) = Self::node(&data, &["--listen", "127.0.0.1:0"]).await;
        Self {
            url,
            token,
            _child: child,
            _data: data,
        }
    }

    /// Starts one hub with these flags on a data directory; returns it and its URL.
    pub async fn node(data: &TempDir, flags: &[&str]) -> (Child, String) {
        let mut child = clean(Command::new(executable()))
            .arg("hub")
            .args(flags)
            .arg("--data-dir")
            .arg(data.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the hub starts");
        let url = first_line("the hub prints its URL", &mut child).await;
        (child, url)
    }

    /// Starts our executor and waits until it is there.
    pub async fn executor(&self) -> Executor {
        Executor::start(&self.url, &self.token, ENVIRONMENT).await
    }

    /// What connects to the environment.
    pub fn args(&self) -> RelayExecServerConnectArgs {
        RelayExecServerConnectArgs::new(&self.url, ENVIRONMENT, &self.token, "conformance")
    }
}

/// An executor of ours. It is killed when it is dropped.
#[derive(Debug)]
pub struct Executor {
    /// The process.
    pub child: Child,
    _home: TempDir,
}

impl Executor {
    /// Starts an executor and waits for the line that says that it is there.
    pub async fn start(registry: &str, token: &str, environment: &str) -> Self {
        let home = server::home();
        let mut child = clean(Command::new(executable()))
            .args(["--remote", registry, "--environment-id", environment])
            .envs(HOST_ENVIRONMENT)
            .env("HOME", home.path())
            .env("EXEC_SERVER_REMOTE_TOKEN", token)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the executor starts");
        first_line("the executor is online", &mut child).await;
        Self { child, _home: home }
    }
}

/// Makes a token that may do everything, in the token file of a data directory.
pub async fn token(data: &TempDir) -> String {
    let made = clean(Command::new(executable()))
        .args(["hub", "token", "create", "--name", "conformance"])
        .args(["--role", "executor", "--role", "harness", "--role", "admin"])
        .arg("--data-dir")
        .arg(data.path())
        .output()
        .await
        .expect("the program runs");
    assert!(made.status.success(), "{made:?}");
    let text = String::from_utf8(made.stdout).expect("a token is text");
    let token = text.lines().last().expect("a token is printed");
    token.trim().to_owned()
}

fn clean(mut command: Command) -> Command {
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Waits for the first line that a child prints.
pub async fn first_line(what: &str, child: &mut Child) -> String {
    let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
    let line = within(what, lines.next_line()).await;
    line.expect("stdout can be read").expect("one line comes")
}
