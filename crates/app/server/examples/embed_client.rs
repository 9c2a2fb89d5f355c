//! Runs `uname -a` on a server, with nothing but the client: 115 crates, `cargo tree -p exec-client
//! --no-default-features -e normal,build`.
//!
//! ```text
//! exec-server --listen ws://127.0.0.1:8765
//! cargo run --example embed_client -- ws://127.0.0.1:8765
//! ```

use exec_client::{client::ExecServerClient, connect::RemoteExecServerConnectArgs};
use exec_env::{environment::Command, process::CommunicateOptions};
use exec_wire::{id::ProcessId, path_uri::PathUri};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("usage: embed_client URL")?;
    let args = RemoteExecServerConnectArgs::new(url, "embed_client");
    let environment = ExecServerClient::connect_websocket(args)
        .await?
        .environment();
    let argv = ["uname", "-a"].map(str::to_owned).to_vec();
    let command = Command::new(ProcessId::new("uname")?, argv, PathUri::parse("file:///")?);
    let process = environment.backend.start(command).await?.process;
    let output = process
        .communicate(Default::default(), CommunicateOptions::default())
        .await?;
    std::io::Write::write_all(&mut std::io::stdout(), &output.stdout.data)?;
    Ok(())
}
