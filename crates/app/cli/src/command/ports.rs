//! `exec-server ports`.

use std::process::ExitCode;

use clap::Args;

use crate::command::{
    connect::{ConnectedEnv, EnvArgs},
    failure::CommandFailure,
    print::{TextTable, json},
    process_session::{show_outages, write_result},
    tunnel::shared_process,
};

/// Lists the TCP ports that listen, and the programs that opened them.
///
/// PROCESS is the id of the process whose tree has the port open, if `run` started it. Programs of
/// other accounts may be unknown. `exec-server tunnel PORT` forwards a port to this machine.
#[derive(Args, Clone, Debug)]
pub struct PortsCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Lists the ports in the network of this process, such as one in a sandbox without network:
    /// its id, or a unique prefix of it.
    #[arg(long, value_name = "ID")]
    pub process: Option<String>,

    /// Prints one JSON array.
    #[arg(long)]
    pub json: bool,
}

impl PortsCommand {
    /// Lists the ports and prints them.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let env = ConnectedEnv::open(&self.env_args).await?;
        let ports = show_outages(&env.client, async {
            let process = shared_process(&env, self.process.as_deref()).await?;
            let ports = env.environment().network.ports(process).await;
            ports.map_err(CommandFailure::from)
        });
        let ports = ports.await?;
        if self.json {
            return write_result(&json(&ports)?);
        }
        let mut table = TextTable::new(&["PORT", "ADDRESS", "PROCESS", "PID", "PROGRAM"]);
        for port in ports {
            table.push([
                port.port.to_string(),
                port.address,
                port.process_id
                    .map_or_else(String::new, |id| id.to_string()),
                port.os_pid.map_or_else(String::new, |pid| pid.to_string()),
                port.program.unwrap_or_default(),
            ]);
        }
        write_result(&table.to_string())
    }
}
