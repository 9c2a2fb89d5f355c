//! Signs of life while a call waits: a client that asked for them hears from us every two seconds, so
//! that its patience does not end before the call does.

use std::time::Duration;

use rmcp::{
    RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
    service::{Peer, RequestContext},
};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::{
    answer::{Answer, Complaint},
    work::Work,
};

/// How often. Shorter than the shortest timeout of a known client, by far.
const EVERY: Duration = Duration::from_secs(2);

/// Waits for a call, and tells the client that it does. A cancelled call is dropped: the command that
/// it waits for runs on.
pub(super) async fn wait(
    call: impl Future<Output = Result<Answer, Complaint>>,
    work: &Work,
    context: &RequestContext<RoleServer>,
) -> Result<Answer, Complaint> {
    let started = Instant::now();
    let token = context.meta.get_progress_token();
    let mut ticks = interval_at(started + EVERY, EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut call = std::pin::pin!(call);
    loop {
        tokio::select! {
            answer = &mut call => return answer,
            () = context.ct.cancelled() => return Err(Complaint::new("the call was cancelled")),
            _ = ticks.tick(), if token.is_some() => {
                if let Some(token) = &token {
                    tell(&context.peer, token.clone(), started.elapsed(), work.last_words()).await;
                }
            }
        }
    }
}

/// Tells it. The peer may be gone; the call learns that in its own way.
async fn tell(
    peer: &Peer<RoleServer>,
    token: ProgressToken,
    waited: Duration,
    said: Option<String>,
) {
    let seconds = waited.as_secs();
    let message = match said {
        Some(said) => format!("{seconds} s: {said}"),
        None => format!("{seconds} s"),
    };
    let progress =
        ProgressNotificationParam::new(token, waited.as_secs_f64()).with_message(message);
    if let Err(error) = peer.notify_progress(progress).await {
        tracing::debug!(%error, "progress not told");
    }
}
