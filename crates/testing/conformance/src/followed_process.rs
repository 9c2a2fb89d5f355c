//! A process of a case: what it has told so far, and waiting for what it tells next.

use std::{fmt::Debug, sync::Arc};

use exec_core::log::{Exit, Follow, From, Pace};
use exec_env::process::ExecProcessEvent as Event;
use exec_env::process::{EventStream, ExecProcess, ProcessError};
use exec_wire::{
    error::ErrorCode,
    id::OutputSeq,
    process::{OutputStream, WriteStatus},
};
use futures_util::StreamExt;

use crate::{bounded_wait::within, difference::Difference, subject::Capabilities};

/// A process that is followed from its first event on, losing nothing.
pub(crate) struct Running {
    pub(crate) process: Arc<dyn ExecProcess>,
    capabilities: Capabilities,
    events: EventStream,
    told: Told,
}

/// Events, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Told(pub(crate) Vec<Event>);

impl Running {
    pub(crate) fn new(process: Arc<dyn ExecProcess>, capabilities: Capabilities) -> Self {
        let events = follow(&process, Pace::Held);
        Self {
            process,
            capabilities,
            events,
            told: Told::default(),
        }
    }

    /// Waits for the next event; there must be one.
    pub(crate) async fn next(&mut self) -> Event {
        let event = within("an event comes", self.events.next()).await;
        let event = event.expect("events come until the close");
        self.told.0.push(event.clone());
        event
    }

    /// Waits until the output of `stream` so far satisfies `done`.
    pub(crate) async fn until(&mut self, stream: OutputStream, done: impl Fn(&[u8]) -> bool) {
        while !done(&self.told.output(stream)) {
            let event = self.next().await;
            assert!(
                !matches!(event, Event::Closed(_)),
                "closed too early: {:?}",
                self.told
            );
        }
    }

    /// Waits until `text` was written to standard output.
    pub(crate) async fn until_says(&mut self, text: &str) {
        self.until(OutputStream::Stdout, |output| contains(output, text))
            .await;
    }

    /// Waits until the terminal shows `text`.
    pub(crate) async fn until_shows(&mut self, text: &str) {
        self.until(OutputStream::Pty, |output| contains(output, text))
            .await;
    }

    /// Waits until it was reaped.
    pub(crate) async fn exit(&mut self) -> Exit {
        loop {
            if let Some(exit) = self.told.exit() {
                return exit;
            }
            self.next().await;
        }
    }

    /// Waits for the close; nothing follows it.
    pub(crate) async fn finish(mut self) -> Told {
        while !matches!(self.told.0.last(), Some(Event::Closed(_))) {
            self.next().await;
        }
        let behind = within("the stream ends", self.events.next()).await;
        assert_eq!(behind, None, "nothing follows the close");
        self.told
    }

    /// Lets go of the process, but not of its events.
    pub(crate) fn into_events(self) -> EventStream {
        self.events
    }

    /// Writes what must be accepted.
    pub(crate) async fn write(&self, data: &[u8]) {
        let write = self
            .process
            .write(None, bytes::Bytes::copy_from_slice(data));
        assert_eq!(
            within("a write is taken", write).await,
            Ok(WriteStatus::Accepted)
        );
    }

    /// Ends its input, which must be accepted.
    pub(crate) async fn close_stdin(&self) {
        let close = self.process.close_stdin(None);
        let closed = within("the end is answered", close).await;
        assert_closed(&self.capabilities, closed, WriteStatus::Accepted);
    }
}

impl Told {
    pub(crate) fn stdout(&self) -> Vec<u8> {
        self.output(OutputStream::Stdout)
    }

    pub(crate) fn stderr(&self) -> Vec<u8> {
        self.output(OutputStream::Stderr)
    }

    pub(crate) fn terminal(&self) -> Vec<u8> {
        self.output(OutputStream::Pty)
    }

    /// Standard output as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.stdout()).expect("the output is text")
    }

    /// How it ended, once it did.
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.0.iter().find_map(|event| match event {
            Event::Exited(_, exit) => Some(exit.clone()),
            Event::Output(_) | Event::Closed(_) | Event::Failed(_) => None,
        })
    }

    /// The code it ended with.
    pub(crate) fn code(&self) -> i32 {
        self.exit().expect("it exited").code
    }

    fn output(&self, stream: OutputStream) -> Vec<u8> {
        let chunks = self.0.iter().filter_map(|event| match event {
            Event::Output(chunk) if chunk.stream == stream => Some(&chunk.data[..]),
            Event::Output(_) | Event::Exited(..) | Event::Closed(_) | Event::Failed(_) => None,
        });
        chunks.collect::<Vec<_>>().concat()
    }
}

/// Sees that the end of a process's input was answered so.
#[track_caller]
pub(crate) fn assert_closed(
    capabilities: &Capabilities,
    closed: Result<WriteStatus, ProcessError>,
    expected: WriteStatus,
) {
    if capabilities.differs(Difference::NoCloseStdin) {
        assert_unknown(closed);
    } else {
        assert_eq!(closed, Ok(expected));
    }
}

/// Sees that the peer refused because it does not know the method.
#[track_caller]
pub(crate) fn assert_unknown<T: Debug>(outcome: Result<T, ProcessError>) {
    match outcome {
        Err(ProcessError::Remote(error)) => assert_eq!(error.code, ErrorCode::METHOD_NOT_FOUND),
        other => panic!("expected that the method is not known: {other:?}"),
    }
}

/// Follows a process from its first event on.
pub(crate) fn follow(process: &Arc<dyn ExecProcess>, pace: Pace) -> EventStream {
    process.follow(Follow {
        from: From::After(OutputSeq(0)),
        pace,
    })
}

/// Tells whether `text` is anywhere in `bytes`.
pub(crate) fn contains(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|window| window == text.as_bytes())
}
