//! Runs a command on a machine that is not reachable from outside, through a hub that cannot read
//! the traffic.
//!
//! ```text
//! TOKEN=$(exec-server hub token create --name me)
//! exec-server hub &
//! EXEC_SERVER_REMOTE_TOKEN=$TOKEN exec-server --remote http://127.0.0.1:8765 --environment-id box
//! & cargo run --example through_a_hub -- http://127.0.0.1:8765 box "$TOKEN" 'uname -a'
//! ```

use std::{
    io::{Write, stderr, stdout},
    process::ExitCode,
};

use anyhow::Context;
use exec_server::{
    Command, CommunicateOptions, ExecServerClient, PathUri, ProcessId, RelayExecServerConnectArgs,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || {
        arguments
            .next()
            .context("usage: through_a_hub HUB ENVIRONMENT TOKEN SCRIPT")
    };
    let (hub, environment, token, script) = (next()?, next()?, next()?, next()?);

    let connect = RelayExecServerConnectArgs::new(hub, environment, token, "through_a_hub");
    let client = ExecServerClient::connect_relay(connect).await?;
    // From here on, nothing depends on where the machine is.
    let machine = client.environment();
    let argv = ["/bin/sh", "-c", &script].map(str::to_owned).to_vec();
    let command = Command::new(
        ProcessId::new("command")?,
        argv,
        PathUri::parse("file:///")?,
    );
    let process = machine.backend.start(command).await?.process;
    let output = process
        .communicate(Default::default(), CommunicateOptions::default())
        .await?;
    stdout().write_all(&output.stdout.data)?;
    stderr().write_all(&output.stderr.data)?;
    let exit = output.exit.context("without a time limit it has ended")?;
    Ok(ExitCode::from(u8::try_from(exit.code).unwrap_or(1)))
}
