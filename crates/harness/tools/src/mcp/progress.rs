//! Progress notifications for clients that wait for a call. They are sent every two seconds, so
//! that the client does not time out.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use exec_env::process::ProcessNumber;
use exec_wire::process::OutputStream;
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
use crate::unified::{CallId, EventSink, ExecEvent, PlainText};

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
            answer = &mut call => return answer,
            () = context.ct.cancelled() => return Err(ToolError::new("the call was cancelled")),
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

/// Maximum length of a line in bytes: it is shown beside a progress bar.
const MAX_LINE: usize = 200;
/// Maximum number of bytes examined per chunk.
const MAX_TAIL: usize = 4 << 10;

/// Last output line of each running command. Entries are removed when the command ends; the number
/// of commands is bounded elsewhere.
#[derive(Debug, Default)]
pub(super) struct ProgressLines(Mutex<BTreeMap<String, CommandProgress>>);

/// Command whose progress is requested.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum ProgressSource {
    /// The command that this call started.
    Call(CallId),
    /// The command with this number.
    Number(ProcessNumber),
}

#[derive(Debug)]
struct CommandProgress {
    number: ProcessNumber,
    plain: PlainText,
    /// The last complete line that is not blank.
    line: Vec<u8>,
}

impl ProgressLines {
    /// Returns the last line of a running command, if it has written one.
    pub(super) fn line_of(&self, source: &ProgressSource) -> Option<String> {
        let progress = self.lock();
        let progress = match source {
            ProgressSource::Call(call) => progress.get(&call.0)?,
            ProgressSource::Number(number) => progress
                .values()
                .find(|progress| progress.number == *number)?,
        };
        let line = progress.line();
        (!line.is_empty()).then_some(line)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, CommandProgress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventSink for ProgressLines {
    fn handle_event(&self, event: ExecEvent) {
        match event {
            ExecEvent::ExecCommandBegin {
                call_id, number, ..
            } => {
                let progress = CommandProgress {
                    number,
                    plain: PlainText::default(),
                    line: Vec::new(),
                };
                self.lock().insert(call_id.0, progress);
            }
            ExecEvent::ExecCommandOutputDelta {
                call_id,
                stream,
                chunk,
            } => {
                if let Some(progress) = self.lock().get_mut(&call_id.0) {
                    progress.add(stream, &chunk);
                }
            }
            ExecEvent::TerminalInteraction { .. } => {}
            ExecEvent::ExecCommandEnd { call_id, .. } => {
                self.lock().remove(&call_id.0);
            }
        }
    }
}

impl CommandProgress {
    fn add(&mut self, stream: OutputStream, chunk: &[u8]) {
        // Earlier lines of a large chunk do not matter. A pending escape code does not continue
        // after a line ending.
        let tail = &chunk[chunk.len().saturating_sub(MAX_TAIL)..];
        if tail.len() < chunk.len() {
            self.plain = PlainText::default();
        }
        let mut settled = Vec::new();
        self.plain.feed(stream, tail, &mut settled);
        let mut lines = settled.rsplit(|byte| *byte == b'\n');
        if let Some(last) = lines.find(|line| !line.trim_ascii().is_empty()) {
            self.line.clear();
            self.line.extend_from_slice(last);
        }
    }

    fn line(&self) -> String {
        let unfinished = self.plain.line().trim_ascii();
        let line = if unfinished.is_empty() {
            &self.line
        } else {
            unfinished
        };
        let line = String::from_utf8_lossy(line);
        let line = line.trim();
        line[..line.floor_char_boundary(MAX_LINE)].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use exec_wire::path_uri::PathUri;

    use super::*;

    fn call() -> CallId {
        CallId("c".to_owned())
    }

    fn last_line_of(chunks: &[&str]) -> Option<String> {
        let progress = ProgressLines::default();
        progress.handle_event(ExecEvent::ExecCommandBegin {
            call_id: call(),
            number: ProcessNumber(7),
            argv: Vec::new(),
            cwd: PathUri::parse("file:///").unwrap(),
        });
        for chunk in chunks {
            progress.handle_event(ExecEvent::ExecCommandOutputDelta {
                call_id: call(),
                stream: OutputStream::Stdout,
                chunk: chunk.as_bytes().to_vec().into(),
            });
        }
        let by_call = progress.line_of(&ProgressSource::Call(call()));
        assert_eq!(
            by_call,
            progress.line_of(&ProgressSource::Number(ProcessNumber(7)))
        );
        assert_eq!(
            progress.line_of(&ProgressSource::Number(ProcessNumber(8))),
            None
        );
        by_call
    }

    #[test]
    fn last_non_blank_line_is_kept() {
        assert_eq!(last_line_of(&[]), None);
        assert_eq!(last_line_of(&["\n\n"]), None);
        assert_eq!(last_line_of(&["one\ntwo\n\n"]).as_deref(), Some("two"));
        assert_eq!(last_line_of(&["one\ntw", "o"]).as_deref(), Some("two"));
        assert_eq!(last_line_of(&["10%\r", "20%\r"]).as_deref(), Some("20%"));
    }

    #[test]
    fn escape_codes_are_stripped() {
        let coloured = ["\x1b[32mstep\x1b", "[0m 1\x1b]0;title\x07\x1b[K\n"];
        assert_eq!(last_line_of(&coloured).as_deref(), Some("step 1"));
        assert_eq!(last_line_of(&["10%\x1b[2K\r20%"]).as_deref(), Some("20%"));
    }

    #[test]
    fn long_line_is_truncated() {
        let line = "x".repeat(100_000);
        assert_eq!(last_line_of(&[&line]).unwrap().len(), MAX_LINE);
        let parts = vec!["x"; 1000];
        assert_eq!(last_line_of(&parts).unwrap().len(), MAX_LINE);
    }
}
