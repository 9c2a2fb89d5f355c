//! Keeps every event, as a line.

use exec_core::log::Exit;
use tokio::sync::watch;

use crate::unified::{EventSink, ExecEvent};

/// What was told.
#[derive(Debug, Default)]
pub(super) struct Told(watch::Sender<Vec<String>>);

impl Told {
    /// Returns what was told.
    pub(super) fn lines(&self) -> Vec<String> {
        self.0.borrow().clone()
    }

    /// Waits until so many events were told.
    pub(super) async fn until(&self, count: usize) -> Vec<String> {
        let mut told = self.0.subscribe();
        told.wait_for(|told| told.len() >= count)
            .await
            .unwrap()
            .clone()
    }
}

impl EventSink for Told {
    fn handle_event(&self, event: ExecEvent) {
        let line = match event {
            ExecEvent::ExecCommandBegin {
                call_id,
                number,
                argv,
                cwd,
            } => format!("{call_id} begin {number} {} in {cwd}", argv.join(" ")),
            ExecEvent::ExecCommandOutputDelta {
                call_id,
                stream,
                chunk,
            } => format!("{call_id} {stream:?} {}", String::from_utf8_lossy(&chunk)),
            ExecEvent::TerminalInteraction {
                call_id,
                number,
                stdin,
            } => format!("{call_id} stdin {number} {stdin}"),
            ExecEvent::ExecCommandEnd {
                call_id,
                number,
                outcome,
                aggregated_output,
                duration,
            } => {
                let outcome = outcome.map(|Exit { code, .. }| code);
                let outcome = outcome.map_err(|error| error.to_string());
                let millis = duration.as_millis();
                format!("{call_id} end {number} {outcome:?} {aggregated_output:?} {millis}ms")
            }
        };
        self.0.send_modify(|told| told.push(line));
    }
}
