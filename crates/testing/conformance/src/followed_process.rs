//! Process of a case with its recorded events.

use std::{fmt::Debug, sync::Arc};

use exec_core::output_log::{BackpressureMode, ExitInfo, FollowOptions, FollowStart};
use exec_env::process::ExecProcessEvent as Event;
use exec_env::process::{EventStream, ExecProcess, ProcessError};
use exec_wire::{
    error::ErrorCode,
    id::OutputSeq,
    process::{OutputStream, WriteStatus},
};
use futures_util::StreamExt;

use crate::{bounded_wait::within, difference::Difference, subject::SubjectCapabilities};

/// Process followed from its first event, with backpressure, so that no event is lost.
pub(crate) struct FollowedProcess {
    pub(crate) process: Arc<dyn ExecProcess>,
    capabilities: SubjectCapabilities,
    events: EventStream,
    told: EventHistory,
}

/// Events in arrival order.
#[derive(Debug, Default)]
pub(crate) struct EventHistory(pub(crate) Vec<Event>);

impl FollowedProcess {
    pub(crate) fn new(process: Arc<dyn ExecProcess>, capabilities: SubjectCapabilities) -> Self {
        let events = follow(&process, BackpressureMode::Pause);
        Self {
            process,
            capabilities,
            events,
            told: EventHistory::default(),
        }
    }

    /// Waits for the next event, which must exist.
    pub(crate) async fn next(&mut self) -> Event {
        let event = within("event arrives", self.events.next()).await;
        let event = event.expect("event stream ended before the close");
        self.told.0.push(event.clone());
        event
    }

    /// Waits until the output of `stream` satisfies `done`.
    pub(crate) async fn until(&mut self, stream: OutputStream, done: impl Fn(&[u8]) -> bool) {
        while !done(&self.told.output(stream)) {
            let event = self.next().await;
            assert!(
                !matches!(event, Event::Closed(_)),
                "process closed too early: {:?}",
                self.told
            );
        }
    }

    /// Waits until stdout contains `text`.
    pub(crate) async fn until_stdout_contains(&mut self, text: &str) {
        self.until(OutputStream::Stdout, |output| contains(output, text))
            .await;
    }

    /// Waits until the terminal output contains `text`.
    pub(crate) async fn until_terminal_contains(&mut self, text: &str) {
        self.until(OutputStream::Pty, |output| contains(output, text))
            .await;
    }

    /// Waits for the exit event.
    pub(crate) async fn exit(&mut self) -> ExitInfo {
        loop {
            if let Some(exit) = self.told.exit() {
                return exit;
            }
            self.next().await;
        }
    }

    /// Waits for the close event and asserts that nothing follows it.
    pub(crate) async fn finish(mut self) -> EventHistory {
        while !matches!(self.told.0.last(), Some(Event::Closed(_))) {
            self.next().await;
        }
        let behind = within("event stream ends", self.events.next()).await;
        assert_eq!(behind, None, "nothing follows the close");
        self.told
    }

    /// Drops the process handle and returns the event stream.
    pub(crate) fn into_events(self) -> EventStream {
        self.events
    }

    /// Writes to stdin; the write must be accepted.
    pub(crate) async fn write(&self, data: &[u8]) {
        let write = self
            .process
            .write(None, bytes::Bytes::copy_from_slice(data));
        assert_eq!(
            within("write is accepted", write).await,
            Ok(WriteStatus::Accepted)
        );
    }

    /// Closes stdin; the call must be accepted.
    pub(crate) async fn close_stdin(&self) {
        let close = self.process.close_stdin(None);
        let closed = within("close-stdin response arrives", close).await;
        assert_closed(&self.capabilities, closed, WriteStatus::Accepted);
    }
}

impl EventHistory {
    pub(crate) fn stdout(&self) -> Vec<u8> {
        self.output(OutputStream::Stdout)
    }

    pub(crate) fn stderr(&self) -> Vec<u8> {
        self.output(OutputStream::Stderr)
    }

    pub(crate) fn terminal(&self) -> Vec<u8> {
        self.output(OutputStream::Pty)
    }

    /// Returns stdout as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.stdout()).expect("output is not UTF-8")
    }

    /// Returns the exit status if it has exited.
    pub(crate) fn exit(&self) -> Option<ExitInfo> {
        self.0.iter().find_map(|event| match event {
            Event::Exited(_, exit) => Some(exit.clone()),
            Event::Output(_) | Event::Closed(_) | Event::Failed(_) => None,
        })
    }

    /// Returns the exit code.
    pub(crate) fn code(&self) -> i32 {
        self.exit().expect("process has not exited").code
    }

    fn output(&self, stream: OutputStream) -> Vec<u8> {
        let chunks = self.0.iter().filter_map(|event| match event {
            Event::Output(chunk) if chunk.stream == stream => Some(&chunk.data[..]),
            Event::Output(_) | Event::Exited(..) | Event::Closed(_) | Event::Failed(_) => None,
        });
        chunks.collect::<Vec<_>>().concat()
    }
}

/// Asserts the outcome of closing stdin.
#[track_caller]
pub(crate) fn assert_closed(
    capabilities: &SubjectCapabilities,
    closed: Result<WriteStatus, ProcessError>,
    expected: WriteStatus,
) {
    if capabilities.differs(Difference::NoCloseStdin) {
        assert_unknown(closed);
    } else {
        assert_eq!(closed, Ok(expected));
    }
}

/// Asserts that the peer does not know the method.
#[track_caller]
pub(crate) fn assert_unknown<T: Debug>(outcome: Result<T, ProcessError>) {
    match outcome {
        Err(ProcessError::Remote(error)) => assert_eq!(error.code, ErrorCode::METHOD_NOT_FOUND),
        other => panic!("expected that the method is not known: {other:?}"),
    }
}

/// Follows a process from its first event.
pub(crate) fn follow(process: &Arc<dyn ExecProcess>, pace: BackpressureMode) -> EventStream {
    process.follow(FollowOptions {
        start: FollowStart::After(OutputSeq(0)),
        backpressure: pace,
    })
}

/// Returns whether `bytes` contains `text`.
pub(crate) fn contains(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|window| window == text.as_bytes())
}
