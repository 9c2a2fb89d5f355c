//! A hub with its tokens, and executors that register with it.

use std::process::Stdio;

use exec_server::{ExecServerClient, RelayExecServerConnectArgs};
use tokio::process::{Child, Command};

use crate::program::{Server, clean, product, text, within_timeout};

/// Hub with a token for everything. Dropping it kills it and removes its data.
pub(crate) struct Hub {
    pub(crate) server: Server,
    pub(crate) token: String,
    /// Token of another principal.
    pub(crate) stranger: String,
    home: tempfile::TempDir,
}

impl Hub {
    /// Starts a hub on a free port.
    pub(crate) async fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let token = make_token(&home, &["--name=me", "--role=executor,harness,admin"]).await;
        let stranger = make_token(&home, &["--name=stranger"]).await;
        let server = serve(&home, "127.0.0.1:0").await;
        Self {
            server,
            token,
            stranger,
            home,
        }
    }

    /// Kills the hub and starts another one with the same data.
    pub(crate) async fn restart(&mut self) {
        let authority = self.server.authority().to_owned();
        self.server.kill().await;
        self.server = serve(&self.home, &authority).await;
    }

    /// Starts an executor.
    pub(crate) fn executor(&self, environment: &str) -> Executor {
        Executor::of(self.executor_command(environment))
    }

    /// Returns the command of an executor.
    pub(crate) fn executor_command(&self, environment: &str) -> Command {
        let mut command = Command::new(product());
        let flags = [
            "--remote",
            &self.server.url,
            "--environment-id",
            environment,
        ];
        command
            .args(flags)
            .env("EXEC_SERVER_REMOTE_TOKEN", &self.token);
        command
    }

    /// Returns the arguments of a harness that connects to an environment.
    pub(crate) fn connect_args(&self, environment: &str) -> RelayExecServerConnectArgs {
        let (url, token) = (self.server.url.as_str(), self.token.as_str());
        RelayExecServerConnectArgs::new(url, environment, token, "test")
    }

    /// Connects to an environment once its executor is registered.
    pub(crate) async fn connect(&self, environment: &str) -> ExecServerClient {
        // A name without an executor is offline, so retry.
        let connected = ExecServerClient::connect_relay(self.connect_args(environment));
        within_timeout(connected).await.unwrap()
    }
}

async fn serve(home: &tempfile::TempDir, listen: &str) -> Server {
    let mut command = Command::new(product());
    command
        .args(["hub", "--listen", listen, "--data-dir"])
        .arg(home.path());
    Server::of(command).await
}

/// Creates a token.
async fn make_token(home: &tempfile::TempDir, flags: &[&str]) -> String {
    let mut command = Command::new(product());
    let command = command.args(["hub", "token", "create"]).args(flags);
    let command = command.arg("--data-dir").arg(home.path());
    let output = within_timeout(clean(command).output()).await.unwrap();
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout).trim().to_owned()
}

/// Executor. Dropping it kills it.
pub(crate) struct Executor(pub(crate) Child);

impl Executor {
    /// Starts a program that waits for harnesses.
    pub(crate) fn of(mut command: Command) -> Self {
        let child = clean(&mut command).stdin(Stdio::null()).spawn();
        Self(child.unwrap())
    }

    /// Stops it and returns its exit status.
    pub(crate) async fn stop(mut self) -> Option<i32> {
        crate::program::stop(&mut self.0).await
    }

    /// Kills it.
    pub(crate) async fn kill(mut self) {
        within_timeout(self.0.kill()).await.unwrap();
    }
}
