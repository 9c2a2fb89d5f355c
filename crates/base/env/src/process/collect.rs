//! The output of a while: what a process writes until a deadline, its close, or a cap.
//!
//! Invariant: windows that follow each other's cursor give every chunk once and the exit once, in the
//! order of their numbers. What was in a pipe when the process was reaped comes behind the exit, so a
//! process is over with its close. Between two windows it is not held up: what falls out of its log is
//! counted as missed. Whoever may not miss anything keeps a [`Hold`](super::Hold) between them.

use std::time::Duration;

use exec_core::log::{Exit, Follow, From, OutputChunk, Pace};
use exec_wire::{id::OutputSeq, limits};
use futures_util::{FutureExt, StreamExt};
use tokio::{task::coop::consume_budget, time};

use super::{EventStream, ExecProcess, ExecProcessEvent, ProcessError};

/// A window of output.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Collect {
    /// The last number the caller holds.
    pub after: OutputSeq,
    /// How long to gather.
    pub window: Duration,
    /// Most bytes to gather; the window ends before a chunk that would exceed it. One whole chunk is
    /// always given.
    pub max_bytes: usize,
}

impl Collect {
    /// How long is gathered after a start: most commands are over by then.
    pub const AFTER_START: Duration = Duration::from_secs(10);
    /// How long is gathered after a write: the answer to a keystroke is there by then.
    pub const AFTER_WRITE: Duration = Duration::from_millis(250);

    /// Gathers from the first event on, for as long as is usual after a start.
    pub fn after_start() -> Self {
        Self {
            after: OutputSeq(0),
            window: Self::AFTER_START,
            max_bytes: limits::RETAINED_OUTPUT_BYTES,
        }
    }

    /// Gathers what comes after `after`, for as long as is usual after a write.
    pub fn after_write(after: OutputSeq) -> Self {
        Self {
            after,
            window: Self::AFTER_WRITE,
            ..Self::after_start()
        }
    }
}

/// What was gathered in a window.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Collected {
    /// Output, in the order of its numbers.
    pub chunks: Vec<OutputChunk>,
    /// The last number the caller holds: where the next window begins.
    pub last: OutputSeq,
    /// How the process ended, if that was told in this window. Output may come behind it until the close.
    pub exit: Option<Exit>,
    /// The output ended; the next window is empty.
    pub closed: bool,
    /// The process was not reaped by the end of this window, as far as its events tell.
    pub running: bool,
    /// Chunks of output that had been dropped before this window took them.
    pub missed_chunks: u64,
}

impl Collected {
    /// Returns the output of all streams, in the order in which it was written.
    pub fn bytes(&self) -> Vec<u8> {
        let chunks: Vec<&[u8]> = self.chunks.iter().map(|chunk| &chunk.data[..]).collect();
        chunks.concat()
    }
}

impl dyn ExecProcess {
    /// Gathers output until the window's time is up, the close, or the cap. What was there before the
    /// deadline is in it. If nothing more can be learned of the process, what came before is given
    /// first, and the error in the next window. Dropping the future loses nothing: the next window
    /// may begin where this one did.
    pub async fn collect(&self, collect: Collect) -> Result<Collected, ProcessError> {
        let mut window = WindowCollector::new(self, collect);
        match time::timeout(collect.window, window.collect_until_full()).await {
            Ok(collected) => collected?,
            Err(_) => window.collect_available(self.status().next_seq)?,
        }
        Ok(window.finish())
    }
}

/// A window that is being filled.
struct WindowCollector<'a> {
    process: &'a dyn ExecProcess,
    events: EventStream,
    max_bytes: usize,
    collected_bytes: usize,
    collected: Collected,
}

/// Whether a window takes more.
enum WindowState {
    Open,
    Full,
}

impl<'a> WindowCollector<'a> {
    fn new(process: &'a dyn ExecProcess, collect: Collect) -> Self {
        let events = process.follow(Follow {
            from: From::After(collect.after),
            pace: Pace::Held,
        });
        Self {
            process,
            events,
            max_bytes: collect.max_bytes,
            collected_bytes: 0,
            collected: Collected {
                chunks: Vec::new(),
                last: collect.after,
                exit: None,
                closed: false,
                running: true,
                missed_chunks: 0,
            },
        }
    }

    /// Takes events until the window is full or the process closed.
    async fn collect_until_full(&mut self) -> Result<(), ProcessError> {
        loop {
            let event = self.events.next().await;
            if let WindowState::Full = self.add_event(event)? {
                return Ok(());
            }
            // A process that never pauses leaves no moment to look at the time otherwise.
            consume_budget().await;
        }
    }

    /// Takes events that are there already and have a number below `end`: the process may go on
    /// writing for ever.
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

    fn finish(mut self) -> Collected {
        let status = self.process.status();
        // The exit has a number of its own: when none is left to take, it was told if there is one.
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
            // Nothing follows the close, which an earlier window told.
            None if self.process.status().closed => {
                collected.closed = true;
                return Ok(WindowState::Full);
            }
            None => ProcessError::ended_before_the_close(),
            Some(ExecProcessEvent::Failed(error)) => error,
        };
        if collected.chunks.is_empty() && collected.exit.is_none() {
            return Err(failure);
        }
        Ok(WindowState::Full)
    }
}

impl Collected {
    fn advance_to(&mut self, seq: OutputSeq) {
        self.missed_chunks += seq.0.saturating_sub(self.last.next().0);
        self.last = seq;
    }
}
