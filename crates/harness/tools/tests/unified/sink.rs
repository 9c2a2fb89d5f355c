//! Keeps what is told.

use exec_tools::unified::{EventSink, ExecEvent};
use tokio::sync::watch;

/// What was told.
#[derive(Debug, Default)]
pub(crate) struct Told(watch::Sender<Vec<ExecEvent>>);

impl Told {
    /// Waits for an event, and returns what is made of it.
    pub(crate) async fn first<T>(&self, mut pick: impl FnMut(&ExecEvent) -> Option<T>) -> T {
        let mut told = self.0.subscribe();
        let mut picked = None;
        let wait = told.wait_for(|told| {
            picked = told.iter().find_map(&mut pick);
            picked.is_some()
        });
        drop(
            wait.await
                .expect("events are told as long as there is a sink"),
        );
        picked.expect("it was waited for")
    }

    /// Waits for the end of a command: its code, and all it wrote.
    pub(crate) async fn end(&self) -> (i32, String) {
        self.first(|event| match event {
            ExecEvent::ExecCommandEnd {
                outcome,
                aggregated_output,
                ..
            } => Some((outcome.as_ref().unwrap().code, aggregated_output.clone())),
            _ => None,
        })
        .await
    }

    /// Returns all output that was told.
    pub(crate) fn output(&self) -> Vec<u8> {
        let told = self.0.borrow();
        let chunks = told.iter().filter_map(|event| match event {
            ExecEvent::ExecCommandOutputDelta { chunk, .. } => Some(&chunk[..]),
            _ => None,
        });
        chunks.collect::<Vec<_>>().concat()
    }
}

impl EventSink for Told {
    fn handle_event(&self, event: ExecEvent) {
        self.0.send_modify(|told| told.push(event));
    }
}
