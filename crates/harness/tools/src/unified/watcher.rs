//! Follows one command to its end, whether or not a call waits for it.
//!
//! Invariant: `ExecCommandEnd` is told once, behind all output that is told, and before a call can show
//! the end. It holds no handle of the process, so it does not keep it alive.

use std::sync::Arc;

use exec_core::log::{Exit, OutputChunk};
use exec_env::process::{EventStream, ExecProcessEvent, ProcessError};
use futures_util::StreamExt;
use tokio::{
    task::coop::consume_budget,
    time::{Instant, timeout_at},
};

use super::{
    event::{EventSink, ExecEvent},
    output::Transcript,
    process::{About, ProcessState, Shared},
    settings::Settings,
};

/// How many times the grace for a close is granted anew because something came. What the command itself
/// wrote last may be on its way over a slow network; what it left behind may never stop writing.
const GRACES: u32 = 8;

/// What follows a command.
#[derive(Debug)]
pub(super) struct Watcher {
    about: About,
    shared: Arc<Shared>,
    sink: Arc<dyn EventSink>,
    settings: Arc<Settings>,
    started: Instant,
    deltas: usize,
}

/// How long the close of a command that has ended is waited for.
#[derive(Clone, Copy, Debug)]
struct Closing {
    /// Unless something comes.
    by: Instant,
    /// Whatever comes.
    at_last: Instant,
}

impl Watcher {
    /// Tells the start. The clock of the command begins here.
    pub(super) fn begin(
        about: About,
        shared: Arc<Shared>,
        sink: Arc<dyn EventSink>,
        settings: Arc<Settings>,
    ) -> Self {
        sink.handle_event(ExecEvent::ExecCommandBegin {
            call_id: about.call_id.clone(),
            number: about.number,
            argv: about.argv.clone(),
            cwd: about.cwd.clone(),
        });
        Self {
            about,
            shared,
            sink,
            settings,
            started: Instant::now(),
            deltas: 0,
        }
    }

    /// Follows the command to its end, and tells it.
    pub(super) async fn watch(mut self, mut events: EventStream) {
        let grace = self.settings.close_grace;
        let mut exited: Option<(Exit, Closing)> = None;
        let outcome = loop {
            let event = match &exited {
                None => events.next().await,
                Some((exit, closing)) => {
                    // A stream that always has something would never be timed out.
                    let by = closing.by.min(closing.at_last);
                    let is_up = Instant::now() >= closing.at_last;
                    match timeout_at(by, events.next()).await {
                        Ok(event) if !is_up => event,
                        Ok(_) | Err(_) => break Ok(exit.clone()),
                    }
                }
            };
            let failure = match event {
                Some(ExecProcessEvent::Output(chunk)) => {
                    self.take(&chunk);
                    if let Some((_, closing)) = &mut exited {
                        closing.by = Instant::now() + grace;
                    }
                    // A process that never pauses would leave nobody else a turn.
                    consume_budget().await;
                    continue;
                }
                Some(ExecProcessEvent::Exited(seq, exit)) => {
                    self.shared.lock().last_seq = seq;
                    self.shared.state.send_replace(ProcessState {
                        has_exited: true,
                        exit_code: Some(exit.code),
                        failure: None,
                    });
                    self.shared.changed.notify_one();
                    let closing = Closing {
                        by: Instant::now() + grace,
                        at_last: Instant::now() + grace * GRACES,
                    };
                    exited = Some((exit, closing));
                    continue;
                }
                Some(ExecProcessEvent::Closed(_)) => ProcessError::ended_before_the_close(),
                Some(ExecProcessEvent::Failed(error)) => error,
                None => ProcessError::ended_before_the_close(),
            };
            break match exited {
                Some((exit, _)) => Ok(exit),
                None => Err(failure),
            };
        };
        self.finish(outcome);
    }

    fn take(&mut self, chunk: &OutputChunk) {
        self.shared.lock().push(chunk);
        self.shared.changed.notify_one();
        let mut rest = chunk.data.clone();
        while !rest.is_empty() && self.deltas < self.settings.max_deltas {
            let length = rest.len().min(self.settings.delta_bytes.max(1));
            self.deltas += 1;
            self.sink.handle_event(ExecEvent::ExecCommandOutputDelta {
                call_id: self.about.call_id.clone(),
                stream: chunk.stream,
                chunk: rest.split_to(length),
            });
        }
    }

    fn finish(self, outcome: Result<Exit, ProcessError>) {
        let whole = self.shared.lock().finish();
        self.sink.handle_event(ExecEvent::ExecCommandEnd {
            call_id: self.about.call_id.clone(),
            number: self.about.number,
            outcome: outcome.clone(),
            aggregated_output: Transcript::fitting(whole, usize::MAX).text,
            duration: self.started.elapsed(),
        });
        let (exit, failure) = match outcome {
            Ok(exit) => (Some(exit), None),
            Err(error) => (None, Some(error)),
        };
        self.shared.state.send_replace(ProcessState {
            has_exited: exit.is_some(),
            exit_code: exit.as_ref().map(|exit| exit.code),
            failure: failure.as_ref().map(ToString::to_string),
        });
        let mut gathered = self.shared.lock();
        (gathered.exit, gathered.failure) = (exit, failure);
        gathered.over = true;
        drop(gathered);
        self.shared.over.send_replace(true);
        self.shared.changed.notify_one();
    }
}
