//! Runs the same code in any environment: this machine, a listening server, or a program such as
//! `ssh` that connects to one.
//!
//! The environments are read from our `environments.toml`, from that of the Codex home, or from
//! `CODEX_EXEC_SERVER_URL`; without any of them, there is only this machine.
//!
//! ```text
//! cargo run --example local_or_remote
//! CODEX_EXEC_SERVER_URL=ws://127.0.0.1:8765 cargo run --example local_or_remote
//! ```

use std::io::{Write, stdout};

use anyhow::Context;
use exec_server::{
    Command, CommunicateOptions, Environment, ExecServerRuntimePaths, PathUri, ProcessId,
    environments::EnvironmentSelection, protocol::fs::WriteFile,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let manager = EnvironmentSelection::load()?.into_manager(&ExecServerRuntimePaths::default())?;
    let default = manager.default();
    for id in manager.ids() {
        let mark = if default.as_ref() == Some(&id) {
            '*'
        } else {
            ' '
        };
        // Connects, or starts the program, or waits for a connection attempt in progress.
        let result = match manager.environment(&id).await {
            Ok(environment) => shout(&environment).await?,
            Err(error) => format!("not there: {:#}", anyhow::Error::from(error)),
        };
        writeln!(stdout(), "{mark}{id}: {result}")?;
    }
    Ok(())
}

/// Writes a file and runs a command on it, in any environment.
async fn shout(environment: &Environment) -> anyhow::Result<String> {
    let temporary = environment.backend.info().await?.temp_dir;
    let directory = temporary.map_or_else(|| PathUri::parse("file:///tmp"), Ok)?;
    let name = format!("quiet-{}.txt", std::process::id());
    let write = WriteFile {
        path: directory.join(&name)?,
        data_base64: None,
        follow_symlinks: Some(false),
        create_parents: false,
        atomic: false,
        mode: None,
        sandbox: None,
    };
    environment.files.write_file(write, "hello".into()).await?;

    let script = format!("tr a-z A-Z <{name} && rm {name}");
    let argv = ["/bin/sh", "-c", &script].map(str::to_owned).to_vec();
    let command = Command::new(ProcessId::new("shout")?, argv, directory);
    let started = environment.backend.start(command).await?;
    let output = started
        .process
        .communicate(Default::default(), CommunicateOptions::default())
        .await?;
    let exit = output.exit.context("without a time limit it has ended")?;
    anyhow::ensure!(exit.code == 0, "the script ended with {}", exit.code);
    Ok(String::from_utf8(output.stdout.data)?)
}
