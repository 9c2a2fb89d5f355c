//! The state of a server-owned process, and the handling of its events.
//!
//! Its events arrive in sequence order, possibly with gaps: the process is never paused, so events
//! that leave the server's retained range are skipped. There are no acknowledgements. Instead, flow
//! control detaches from a process with lagging followers until they have caught up.

use std::sync::MutexGuard;

use exec_core::output_log::LogEvent;
use exec_wire::{
    id::OutputSeq,
    path_uri::PathUri,
    process::{ProcessSummary, StartProcess},
};

use super::{
    EventsState, ProcessEvents,
    reorder::{EventsError, MAX_CHUNK_BYTES},
};
/// Lag at which the server is asked to pause sending.
const PAUSE_LAG_BYTES: u64 = 4 << 20;
/// Lag at which the server is asked to resume sending. Low enough that the server still retains the
/// next events.
const RESUME_LAG_BYTES: u64 = 1 << 20;

/// Maximum clock difference between two hosts. An ended process that was started earlier than this
/// before a start request is a previous process with the same id, which the server retains until it
/// is replaced.
const MAX_CLOCK_SKEW_MS: u64 = 60_000;

/// The owner of a process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ProcessOwner {
    /// The session: the process ends with the session or its last handle.
    Session,
    /// The server: the process outlives sessions and handles.
    Server,
}

/// How a server-owned process became known to this client.
#[derive(Debug)]
pub(crate) enum AttachmentOrigin {
    /// This client starts it.
    Started(LaunchRequest),
    /// It existed before.
    Attached(ReplayRange),
}

/// The part of the log that the server replays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplayRange {
    /// Output up to here is not wanted.
    pub(crate) after: OutputSeq,
    /// Where the server starts, which is earlier than `after` if the exit may be there.
    pub(crate) begin: OutputSeq,
}

/// The parameters of a start until it is confirmed.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct LaunchRequest {
    argv: Vec<String>,
    cwd: PathUri,
    tty: bool,
    /// Time of the request, by this host's clock.
    requested_at_ms: u64,
}

impl LaunchRequest {
    pub(crate) fn of(start: &StartProcess, requested_at_ms: u64) -> Self {
        Self {
            requested_at_ms,
            argv: start.argv.clone(),
            cwd: start.cwd.clone(),
            tty: start.tty,
        }
    }

    /// Returns whether a process of the server was started with these parameters.
    fn matches(&self, summary: &ProcessSummary) -> bool {
        let ProcessSummary { argv, cwd, tty, .. } = summary;
        let is_recent =
            summary.started_at_ms.saturating_add(MAX_CLOCK_SKEW_MS) >= self.requested_at_ms;
        let same_launch = (&self.argv, &self.cwd, self.tty) == (argv, cwd, *tty);
        same_launch && (summary.running || is_recent)
    }
}

/// State of a server-owned process, beside its events.
#[derive(Debug)]
pub(super) struct ProcessAttachment {
    replay: ReplayRange,
    /// Present until the start is answered.
    launch: Option<LaunchRequest>,
    /// Start time by the server's clock, which distinguishes processes with the same id.
    started_at_ms: Option<u64>,
    flow: FlowState,
}

/// Whether the server sends events.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum FlowState {
    Sending,
    Paused,
    /// To be resumed if the id still names this process.
    Resuming,
}

/// A flow-control request to the server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum FlowControl {
    Pause,
    Resume,
}

impl ProcessAttachment {
    pub(super) fn new(origin: AttachmentOrigin) -> Self {
        let (replay, launch) = match origin {
            AttachmentOrigin::Started(launch) => (ReplayRange::ALL, Some(launch)),
            AttachmentOrigin::Attached(replay) => (replay, None),
        };
        Self {
            replay,
            launch,
            started_at_ms: None,
            flow: FlowState::Sending,
        }
    }

    /// Accepts an event unless it is a duplicate or unwanted. `next` is the expected sequence
    /// number.
    pub(super) fn admit(
        &self,
        event: LogEvent,
        next: OutputSeq,
    ) -> Result<Option<LogEvent>, EventsError> {
        if event.seq() < next {
            return Ok(None);
        }
        match &event {
            LogEvent::Output(chunk) if chunk.seq <= self.replay.after => Ok(None),
            LogEvent::Output(chunk) if chunk.data.len() > MAX_CHUNK_BYTES => {
                Err(EventsError::Oversized(chunk.seq))
            }
            LogEvent::Output(_) | LogEvent::Exited(..) | LogEvent::Closed(_) => Ok(Some(event)),
        }
    }

    /// Returns the event after which the server should replay, given the next expected one.
    pub(super) fn replay_after(&self, next: OutputSeq) -> OutputSeq {
        OutputSeq(next.0 - 1).max(self.replay.begin)
    }

    /// Returns the next sequence number that a reader can see.
    pub(super) fn next_visible(&self, next: OutputSeq) -> OutputSeq {
        next.max(self.replay.after.next())
    }

    /// Returns whether a process of the server with this id is this process.
    pub(super) fn is_same_process(&self, summary: &ProcessSummary) -> bool {
        let same_launch = self
            .launch
            .as_ref()
            .is_none_or(|launch| launch.matches(summary));
        let same_start = self
            .started_at_ms
            .is_none_or(|started_at_ms| started_at_ms == summary.started_at_ms);
        summary.detached && same_launch && same_start
    }

    /// Returns the flow-control request for this lag, if one is needed.
    pub(super) fn flow_control(&self, lag: u64) -> Option<FlowControl> {
        match self.flow {
            FlowState::Sending if lag >= PAUSE_LAG_BYTES => Some(FlowControl::Pause),
            FlowState::Paused if lag < RESUME_LAG_BYTES => Some(FlowControl::Resume),
            FlowState::Sending | FlowState::Paused | FlowState::Resuming => None,
        }
    }
}

impl ReplayRange {
    const ALL: Self = Self {
        after: OutputSeq(0),
        begin: OutputSeq(0),
    };
}

impl ProcessEvents {
    /// Records the start time.
    pub(crate) fn handle_start_time(&self, started_at_ms: u64, os_pid: Option<u32>) {
        let mut state = self.lock();
        state.os_pid = os_pid;
        state.started_at_ms = started_at_ms;
        if let Some(attachment) = &mut state.attachment {
            attachment.started_at_ms = Some(started_at_ms);
        }
    }

    /// Records that the start was answered.
    pub(crate) fn handle_start_response(&self) {
        if let Some(attachment) = &mut self.lock().attachment {
            attachment.launch = None;
        }
    }

    /// Returns whether the start is unconfirmed.
    pub(crate) fn is_starting(&self) -> bool {
        let state = self.lock();
        let attachment = state.attachment.as_ref();
        attachment.is_some_and(|attachment| attachment.launch.is_some())
    }

    /// Returns whether a process of the server with this id is this process.
    pub(crate) fn is_same_process(&self, summary: &ProcessSummary) -> bool {
        let state = self.lock();
        state
            .attachment
            .as_ref()
            .is_some_and(|attachment| attachment.is_same_process(summary))
    }

    /// Records that a lookup is pending before the next attach.
    pub(crate) fn handle_look_up(&self) {
        if let Some(attachment) = &mut self.lock().attachment {
            attachment.flow = FlowState::Resuming;
        }
    }

    /// Prepares an attach. Returns the event after which the server should replay.
    pub(crate) fn handle_attach(&self) -> OutputSeq {
        let mut state = self.lock();
        let next = state.followed.log().next_seq();
        let Some(attachment) = &mut state.attachment else {
            return OutputSeq(next.0 - 1);
        };
        attachment.flow = FlowState::Sending;
        attachment.replay_after(next)
    }

    /// Returns the flow-control request that is needed, if any, and records a pause.
    pub(crate) fn next_flow_control(&self) -> Option<FlowControl> {
        let mut state = self.lock();
        state.ack_cursor.scheduled = false;
        let lag = state.followed.lag();
        if state.failure.is_some() || state.followed.log().is_closed() {
            return None;
        }
        let attachment = state.attachment.as_mut()?;
        let flow_control = attachment.flow_control(lag);
        if flow_control == Some(FlowControl::Pause) {
            attachment.flow = FlowState::Paused;
        }
        flow_control
    }

    /// Records an event of a server-owned process, skipping any gap before it.
    pub(super) fn handle_attached_event(
        &self,
        mut state: MutexGuard<'_, EventsState>,
        event: LogEvent,
    ) -> Result<(), EventsError> {
        let next = state.followed.log().next_seq();
        let admitted = match &state.attachment {
            None => Some(event),
            Some(attachment) => attachment.admit(event, next)?,
        };
        if let Some(event) = admitted {
            state.followed.record(|log| log.skip_to(event.seq()));
            state.record(event)?;
            self.handle_recorded(state);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use exec_core::output_log::OutputChunk;
    use exec_wire::process::OutputStream;

    use super::*;

    fn output(seq: u64, bytes: usize) -> LogEvent {
        LogEvent::Output(OutputChunk {
            seq: OutputSeq(seq),
            stream: OutputStream::Stdout,
            data: Bytes::from(vec![b'x'; bytes]),
        })
    }

    fn attached(after: u64, begin: u64) -> ProcessAttachment {
        let (after, begin) = (OutputSeq(after), OutputSeq(begin));
        ProcessAttachment::new(AttachmentOrigin::Attached(ReplayRange { after, begin }))
    }

    #[test]
    fn duplicate_and_unwanted_events_are_dropped() {
        let attachment = attached(4, 0);
        let admitted = |event: LogEvent, next| {
            let admitted = attachment.admit(event, OutputSeq(next));
            admitted.map(|event| event.map(|event| event.seq().0))
        };
        assert_eq!(admitted(output(4, 1), 1), Ok(None));
        assert_eq!(admitted(LogEvent::Closed(OutputSeq(4)), 1), Ok(Some(4)));
        assert_eq!(admitted(output(9, 1), 5), Ok(Some(9)));
        assert_eq!(admitted(output(9, 1), 10), Ok(None));
        assert_eq!(
            admitted(output(10, MAX_CHUNK_BYTES + 1), 10),
            Err(EventsError::Oversized(OutputSeq(10)))
        );
    }

    #[test]
    fn earlier_process_with_the_same_id_is_not_mistaken_for_a_start() {
        let requested_at_ms = 1_000_000;
        let cwd = PathUri::parse("file:///work").unwrap();
        let argv = vec!["make".to_owned()];
        let attachment = ProcessAttachment::new(AttachmentOrigin::Started(LaunchRequest {
            argv: argv.clone(),
            cwd: cwd.clone(),
            tty: false,
            requested_at_ms,
        }));
        let is = |running, started_at_ms| {
            attachment.is_same_process(&ProcessSummary {
                process_id: exec_wire::id::ProcessId::new("build").unwrap(),
                argv: argv.clone(),
                cwd: cwd.clone(),
                tty: false,
                running,
                exit_code: (!running).then_some(0),
                started_at_ms,
                os_pid: None,
                detached: true,
                usage: None,
                owner: None,
                state: None,
                output_bytes: None,
                durable: None,
                ended_at_ms: None,
                size: None,
            })
        };
        assert!(is(true, requested_at_ms + 10) && is(false, requested_at_ms + 10));
        assert!(
            is(false, requested_at_ms - MAX_CLOCK_SKEW_MS),
            "clocks differ"
        );
        assert!(!is(false, requested_at_ms - MAX_CLOCK_SKEW_MS - 1));
    }

    #[test]
    fn replay_continues_after_the_last_received_event() {
        assert_eq!(attached(4, 0).replay_after(OutputSeq(1)), OutputSeq(0));
        assert_eq!(attached(4, 4).replay_after(OutputSeq(1)), OutputSeq(4));
        assert_eq!(attached(4, 4).replay_after(OutputSeq(8)), OutputSeq(7));
        assert_eq!(attached(4, 0).next_visible(OutputSeq(1)), OutputSeq(5));
        assert_eq!(attached(4, 0).next_visible(OutputSeq(8)), OutputSeq(8));
    }

    #[test]
    fn flow_control_pauses_once_and_resumes_once() {
        let mut attachment = attached(0, 0);
        assert_eq!(attachment.flow_control(PAUSE_LAG_BYTES - 1), None);
        assert_eq!(
            attachment.flow_control(PAUSE_LAG_BYTES),
            Some(FlowControl::Pause)
        );
        attachment.flow = FlowState::Paused;
        assert_eq!(attachment.flow_control(PAUSE_LAG_BYTES), None);
        assert_eq!(attachment.flow_control(RESUME_LAG_BYTES), None);
        assert_eq!(
            attachment.flow_control(RESUME_LAG_BYTES - 1),
            Some(FlowControl::Resume)
        );
        attachment.flow = FlowState::Resuming;
        assert_eq!(attachment.flow_control(RESUME_LAG_BYTES - 1), None);
        attachment.flow = FlowState::Sending;
        assert_eq!(attachment.flow_control(RESUME_LAG_BYTES - 1), None);
    }
}
