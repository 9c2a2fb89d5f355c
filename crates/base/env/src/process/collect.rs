//! Collects a window of output: until a deadline, the close, or a byte limit.
//!
//! Invariant: consecutive windows return every chunk once and the exit once, in sequence order.
//! Output that was still in a pipe when the process was reaped follows the exit, so a process is
//! finished at its close. Between two windows the process is not paused: chunks that leave the
//! retained range are counted as missed. Keep a [`OutputHold`](super::OutputHold) between windows
//! to miss nothing.

use std::time::Duration;

use exec_core::output_log::{BackpressureMode, ExitInfo, FollowOptions, FollowStart, OutputChunk};
use exec_wire::{id::OutputSeq, limits};
use futures_util::{FutureExt, StreamExt};
use tokio::{task::coop::consume_budget, time};

use super::{EventStream, ExecProcess, ExecProcessEvent, ProcessError};

/// Limits of a window of output.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CollectOptions {
    /// Last sequence number that the caller has.
    pub after: OutputSeq,
    /// How long to collect.
    pub window: Duration,
    /// Byte limit. The window ends before a chunk that would exceed it, but holds at least one
    /// chunk.
    pub max_bytes: usize,
}

impl CollectOptions {
    /// Window after a start. Most commands finish within it.
    pub const AFTER_START: Duration = Duration::from_secs(10);
    /// Window after a write. The response to a keystroke arrives within it.
    pub const AFTER_WRITE: Duration = Duration::from_millis(250);

    /// Collects from the first event on, for [`Self::AFTER_START`].
    pub fn after_start() -> Self {
        Self {
            after: OutputSeq(0),
            window: Self::AFTER_START,
            max_bytes: limits::RETAINED_OUTPUT_BYTES,
        }
    }

    /// Collects the events after `after`, for [`Self::AFTER_WRITE`].
    pub fn after_write(after: OutputSeq) -> Self {
        Self {
            after,
            window: Self::AFTER_WRITE,
            ..Self::after_start()
        }
    }
}

/// Output of one window.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CollectedOutput {
    /// Output in sequence order.
    pub chunks: Vec<OutputChunk>,
    /// Last sequence number that the caller now has: the start of the next window.
    pub last: OutputSeq,
    /// Exit status, if the exit is in this window. Output may follow it until the close.
    pub exit: Option<ExitInfo>,
    /// The output ended. The next window is empty.
    pub closed: bool,
    /// The process had not exited by the end of this window, according to its events.
    pub running: bool,
    /// Chunks that were dropped before this window could return them.
    pub missed_chunks: u64,
}

impl CollectedOutput {
    /// Returns the output of all streams in the order of writing.
    pub fn bytes(&self) -> Vec<u8> {
        let chunks: Vec<&[u8]> = self.chunks.iter().map(|chunk| &chunk.data[..]).collect();
        chunks.concat()
    }
}

impl dyn ExecProcess {
    /// Collects output until the window's time is over, the close, or the byte limit. The window
    /// includes everything that was available at the deadline. If the process fails, this window
    /// returns the output before the failure and the next window returns the error. Dropping the
    /// future loses nothing: the next window may start at the same cursor.
    pub async fn collect(&self, collect: CollectOptions) -> Result<CollectedOutput, ProcessError> {
        let mut window = WindowCollector::new(self, collect);
        match time::timeout(collect.window, window.collect_until_full()).await {
            Ok(collected) => collected?,
            Err(_) => window.collect_available(self.status().next_seq)?,
        }
        Ok(window.finish())
    }
}

/// Builds a window from events.
struct WindowCollector<'a> {
    process: &'a dyn ExecProcess,
    events: EventStream,
    max_bytes: usize,
    collected_bytes: usize,
    collected: CollectedOutput,
}

/// Whether a window accepts more events.
enum WindowState {
    Open,
    Full,
}

impl<'a> WindowCollector<'a> {
    fn new(process: &'a dyn ExecProcess, collect: CollectOptions) -> Self {
        let events = process.follow(FollowOptions {
            start: FollowStart::After(collect.after),
            backpressure: BackpressureMode::Pause,
        });
        Self {
            process,
            events,
            max_bytes: collect.max_bytes,
            collected_bytes: 0,
            collected: CollectedOutput {
                chunks: Vec::new(),
                last: collect.after,
                exit: None,
                closed: false,
                running: true,
                missed_chunks: 0,
            },
        }
    }

    /// Adds events until the window is full or the process is closed.
    async fn collect_until_full(&mut self) -> Result<(), ProcessError> {
        loop {
            let event = self.events.next().await;
            if let WindowState::Full = self.add_event(event)? {
                return Ok(());
            }
            // Yield to the timer: a process that writes without pause would keep this loop ready
            // forever.
            consume_budget().await;
        }
    }

    /// Adds the available events below `end`. The bound is needed because the process may write
    /// forever.
    fn collect_available(&mut self, end: OutputSeq) -> Result<(), ProcessError> {
        while self.collected.last.next() < end {
            let Some(event) = self.events.next().now_or_never() else {
                break;
            };
            if let WindowState::Full = self.add_event(event)? {
                break;
            }
        }
        Ok(())
    }

    fn finish(mut self) -> CollectedOutput {
        let status = self.process.status();
        // The exit has its own sequence number, so it was reported if all numbers were taken.
        let all_taken = self.collected.last.next() >= status.next_seq;
        self.collected.running =
            self.collected.exit.is_none() && !(all_taken && status.exit.is_some());
        self.collected
    }

    fn add_event(&mut self, event: Option<ExecProcessEvent>) -> Result<WindowState, ProcessError> {
        let collected = &mut self.collected;
        let failure = match event {
            Some(ExecProcessEvent::Output(chunk)) => {
                let total = self.collected_bytes + chunk.data.len();
                if !collected.chunks.is_empty() && total > self.max_bytes {
                    return Ok(WindowState::Full);
                }
                self.collected_bytes = total;
                collected.advance_to(chunk.seq);
                collected.chunks.push(chunk);
                let full = total >= self.max_bytes;
                return Ok(if full {
                    WindowState::Full
                } else {
                    WindowState::Open
                });
            }
            Some(ExecProcessEvent::Exited(seq, exit)) => {
                collected.advance_to(seq);
                collected.exit = Some(exit);
                return Ok(WindowState::Open);
            }
            Some(ExecProcessEvent::Closed(seq)) => {
                collected.advance_to(seq);
                collected.closed = true;
                return Ok(WindowState::Full);
            }
            // An earlier window returned the close.
            None if self.process.status().closed => {
                collected.closed = true;
                return Ok(WindowState::Full);
            }
            None => ProcessError::missing_close(),
            Some(ExecProcessEvent::Failed(error)) => error,
        };
        if collected.chunks.is_empty() && collected.exit.is_none() {
            return Err(failure);
        }
        Ok(WindowState::Full)
    }
}

impl CollectedOutput {
    fn advance_to(&mut self, seq: OutputSeq) {
        self.missed_chunks += seq.0.saturating_sub(self.last.next().0);
        self.last = seq;
    }
}
