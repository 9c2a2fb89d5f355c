//! Progress notifications for clients that wait for a call. They are sent every two seconds, so
//! that the client does not time out.

use std::time::Duration;

use rmcp::{
    RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
    service::{Peer, RequestContext},
};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::{
    session::McpContext,
    tool::{ToolAnswer, ToolError},
};
use crate::unified::{CallId, ProcessNumber};

/// Interval of notifications. Much shorter than the timeout of any known client.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// Runs a call and sends progress notifications. A cancelled call is dropped; its command keeps
/// running.
pub(super) async fn run_with_progress(
    call: impl Future<Output = Result<ToolAnswer, ToolError>>,
    ctx: &McpContext,
    context: &RequestContext<RoleServer>,
) -> Result<ToolAnswer, ToolError> {
    let started = Instant::now();
    let token = context.meta.get_progress_token();
    let mut ticks = interval_at(started + PROGRESS_INTERVAL, PROGRESS_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut call = std::pin::pin!(call);
    loop {
        tokio::select! {
            // First, so that a cancelled call takes no output.
            biased;
            () = context.ct.cancelled() => return Err(ToolError::new("the call was cancelled")),
            answer = &mut call => return answer,
            _ = ticks.tick(), if token.is_some() => {
                if let Some(token) = &token {
                    notify(&context.peer, token.clone(), started.elapsed(), ctx.progress_line()).await;
                }
            }
        }
    }
}

/// Sends a progress notification. If the peer is gone, the call notices by itself.
async fn notify(
    peer: &Peer<RoleServer>,
    token: ProgressToken,
    waited: Duration,
    line: Option<String>,
) {
    let seconds = waited.as_secs();
    let message = match line {
        Some(line) => format!("{seconds} s: {line}"),
        None => format!("{seconds} s"),
    };
    let progress =
        ProgressNotificationParam::new(token, waited.as_secs_f64()).with_message(message);
    if let Err(error) = peer.notify_progress(progress).await {
        tracing::debug!(%error, "failed to send a progress notification");
    }
}

/// Command to report the progress of.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum ProgressSource {
    /// The command that this call started.
    Call(CallId),
    /// The command with this number.
    Number(ProcessNumber),
}
