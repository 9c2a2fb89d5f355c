//! `exec-server upgrade`.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;
use exec_wire::server::{ReadServerStatus, ServerStatus, UpgradeServer};
use tokio::time::{Instant, sleep};

use crate::command::{
    connect::{ConnectedEnv, EnvArgs},
    detached::call_failure,
    failure::{CommandFailure, FailureKind},
    process_session::write_result,
};

/// How long the new server may take to serve.
const SERVE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often to poll for the new server.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Replaces a running server with another version, without losing anything.
///
/// The new program starts with the flags of the old one, checks that it understands the state, and
/// takes over listener, sessions and durable processes. Clients reconnect and go on. If the new
/// program fails before it serves, the old one goes on. The server needs a state directory, as the
/// background server of this machine has.
#[derive(Args, Clone, Debug)]
pub struct UpgradeCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Program to upgrade to, on the host of the server [default: the file that the server was
    /// started from, which may have been replaced].
    #[arg(long, value_name = "BINARY")]
    pub to: Option<PathBuf>,

    /// Upgrades although processes run that are not durable. They are ended.
    #[arg(long)]
    pub force: bool,
}

impl UpgradeCommand {
    /// Upgrades the server and prints both versions and the new pid.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let env = ConnectedEnv::open_any_version(&self.env_args).await?;
        let program = self.to.map(|to| match env.is_this_machine {
            true => std::path::absolute(&to).unwrap_or(to),
            false => to,
        });
        let old = status(&env).await?;
        let upgrade = UpgradeServer {
            program: program.map(|program| program.to_string_lossy().into_owned()),
            force: self.force,
        };
        let started = env.client.call(upgrade).await.map_err(call_failure)?;
        let deadline = Instant::now() + SERVE_TIMEOUT;
        loop {
            let now = match env.open_again().await {
                Ok(again) => status(&again).await,
                Err(error) => Err(error),
            };
            match now {
                Ok(now) if now.os_pid == started.os_pid => {
                    let (from, to, pid) = (old.version, now.version, now.os_pid);
                    return write_result(&format!("upgraded {from} to {to} (process {pid})\n"));
                }
                Ok(ServerStatus {
                    upgrade_error: Some(error),
                    ..
                }) => {
                    let what = format!("the old server goes on: {error}");
                    return Err(CommandFailure::failed(what));
                }
                Err(error) if Instant::now() >= deadline => return Err(error),
                Ok(_) if Instant::now() >= deadline => {
                    let what = "the new server did not take over in time";
                    return Err(CommandFailure::new(FailureKind::TimedOut, what));
                }
                Ok(_) | Err(_) => sleep(POLL_INTERVAL).await,
            }
        }
    }
}

async fn status(env: &ConnectedEnv) -> Result<ServerStatus, CommandFailure> {
    env.client
        .call(ReadServerStatus {})
        .await
        .map_err(call_failure)
}
