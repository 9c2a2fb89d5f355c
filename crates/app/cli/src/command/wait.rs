//! `exec-server wait`.

use std::process::ExitCode;

use clap::Args;
use exec_wire::process::{ExitCause, WaitProcess, WaitUntil};
use tokio::time::Instant;

use crate::command::{
    connect::{ConnectedEnv, EnvArgs},
    detached::{self, call_failure},
    failure::{CommandFailure, FailureKind},
    process_session::{exit_byte, show_outages, timed_out},
    quantity::DurationArg,
};

/// Waits for a detached process and exits with its status.
///
/// With several, waits for all of them; the status is that of the last one named.
#[derive(Args, Clone, Debug)]
pub struct WaitCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Maximum total wait; the status is 124 then, and the processes keep running.
    #[arg(long, value_name = "SPAN")]
    pub timeout: Option<DurationArg>,

    /// Ids that `run --detach` printed, or unique prefixes of them.
    #[arg(required = true, value_name = "ID")]
    pub ids: Vec<String>,
}

impl WaitCommand {
    /// Waits for the processes and returns the status of the last one.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let env = ConnectedEnv::open(&self.env_args).await?;
        let deadline = self
            .timeout
            .map(|DurationArg(limit)| Instant::now() + limit);
        let client = &env.client;
        show_outages(client, async {
            let mut status = ExitCode::SUCCESS;
            for process in detached::find(client, &self.ids).await? {
                let left =
                    deadline.map(|end| DurationArg(end.saturating_duration_since(Instant::now())));
                let ended = client.call(WaitProcess {
                    process_id: process.process_id.clone(),
                    until: WaitUntil::Exited,
                    timeout_ms: left.map(DurationArg::millis),
                });
                let ended = ended.await.map_err(call_failure)?;
                if !ended.exited {
                    let id = &process.process_id;
                    let what = format!("`{id}` did not exit in time and keeps running");
                    let kill = env.line("kill", &[id.as_str()]);
                    return Err(CommandFailure::new(FailureKind::TimedOut, what)
                        .next(format_args!("`{kill}` ends it")));
                }
                let now = detached::output_position(client, &process.process_id).await?;
                if now.cause == Some(ExitCause::WallLimit) {
                    return Err(timed_out());
                }
                status = ExitCode::from(ended.exit_code.map_or(1, exit_byte));
            }
            Ok(status)
        })
        .await
    }
}
