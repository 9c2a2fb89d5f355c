//! Ending a server: first its input, then a signal, then force.

use std::{sync::Arc, time::Duration};

use exec_env::process::ExecProcess;
use exec_wire::process::{TerminateMode, WaitUntil};
use tokio::time;

/// How long a call may take that only passes something on: a connection may be gone.
const CALL: Duration = Duration::from_secs(2);

/// How long a server has to end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Ending {
    /// When its input has ended.
    pub(crate) exit: Duration,
    /// When it was signalled.
    pub(crate) terminate: Duration,
}

impl Ending {
    /// Ends a server in bounded time. What is left is killed when the handle is dropped.
    pub(crate) async fn run(self, process: &Arc<dyn ExecProcess>) {
        if process.status().exit.is_some() {
            return;
        }
        // Whether it was told does not matter: it is waited for no longer than that.
        time::timeout(CALL, process.close_stdin(None)).await.ok();
        if exits(process, self.exit).await {
            return;
        }
        let timeout_ms = u64::try_from(self.terminate.as_millis()).unwrap_or(u64::MAX);
        let graceful = process.terminate(TerminateMode::Graceful { timeout_ms });
        time::timeout(CALL, graceful).await.ok();
        if exits(process, self.terminate.saturating_add(CALL)).await {
            return;
        }
        let force = process.terminate(TerminateMode::Force);
        time::timeout(CALL, force).await.ok();
    }
}

/// Tells whether the process ends within `limit`, or nothing more can be learned of it.
async fn exits(process: &Arc<dyn ExecProcess>, limit: Duration) -> bool {
    let wait = process.wait(WaitUntil::Exited, Some(limit));
    match time::timeout(limit.saturating_add(CALL), wait).await {
        Ok(Ok(status)) => status.exit.is_some(),
        Ok(Err(_)) => true,
        Err(_) => false,
    }
}
