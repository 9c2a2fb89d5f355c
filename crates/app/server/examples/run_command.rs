//! Runs one command on a server and exits with its status.
//!
//! ```text
//! exec-server --listen ws://127.0.0.1:8765
//! cargo run --example run_command -- ws://127.0.0.1:8765 ls -l /
//! ```

use std::{
    io::{Write, stderr, stdout},
    process::ExitCode,
};

use anyhow::Context;
use exec_server::{
    Command, CommunicateOptions, ExecServerClient, PathUri, ProcessId, RemoteExecServerConnectArgs,
    protocol::process::{EnvInherit, EnvPolicy},
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments
        .next()
        .context("usage: run_command URL COMMAND…")?;

    let connect = RemoteExecServerConnectArgs::new(url, "run_command");
    let client = ExecServerClient::connect_websocket(connect).await?;
    // From here on, nothing depends on the environment being remote.
    let environment = client.environment();

    let cwd = environment.backend.info().await?.cwd;
    let command = Command {
        // The command inherits basic variables of the server's environment.
        env_policy: Some(EnvPolicy {
            inherit: EnvInherit::Core,
            ignore_default_excludes: false,
            exclude: Vec::new(),
            set: Default::default(),
            include_only: Vec::new(),
        }),
        ..Command::new(
            // The caller chooses a unique id per process.
            ProcessId::new("command")?,
            arguments.collect(),
            cwd.map_or_else(|| PathUri::parse("file:///"), Ok)?,
        )
    };
    let started = environment.backend.start(command).await?;

    // No input, and all output; of very long output, beginning and end.
    let input = Default::default();
    let output = started
        .process
        .communicate(input, CommunicateOptions::default());
    let output = output.await?;
    stdout().write_all(&output.stdout.data)?;
    stderr().write_all(&output.stderr.data)?;

    let exit = output.exit.context("without a time limit it has ended")?;
    Ok(ExitCode::from(u8::try_from(exit.code).unwrap_or(1)))
}
