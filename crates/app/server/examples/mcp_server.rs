//! Launches an MCP server in the default environment, wherever that is, and lists its tools.
//!
//! ```text
//! scripts/mcp-servers
//! cargo run --example mcp_server -- "$PWD/target/mcp-servers/time/bin/mcp-server-time"
//! ```

use std::{
    env,
    io::{Write, stdout},
};

use anyhow::Context;
use exec_mcp_client::config::{InheritedVariables, McpServerConfig};
use exec_server::{ExecServerRuntimePaths, PathUri, ProcessId, environments::EnvironmentSelection};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut arguments = env::args().skip(1);
    let command = arguments.next().context("which server?")?;
    let mut config = McpServerConfig::new("example", command, PathUri::parse("file:///")?);
    config.args = arguments.collect();
    // Inherits basic variables of its host, and this one.
    config.env_vars = InheritedVariables::Named(vec!["TZ".to_owned()]);

    let manager = EnvironmentSelection::load()?.into_manager(&ExecServerRuntimePaths::default())?;
    let default = manager.default().context("there is no environment")?;
    let environment = manager.environment(&default).await?;

    let id = ProcessId::new("example-mcp-server")?;
    // The handler answers requests of the server; `()` declines them.
    let connected = config.connect(&*environment.backend, id, ()).await?;
    for tool in connected.service.list_all_tools().await? {
        let description = tool.description.unwrap_or_default();
        let summary = description.lines().next().unwrap_or_default();
        writeln!(stdout(), "{}: {summary}", tool.name)?;
    }
    // Closes stdin, terminates the server, and waits for its exit.
    connected.service.cancel().await?;
    Ok(())
}
