//! Links through an untrusted relay: drives `exec-relay` over websockets.
//!
//! A [harness] opens one websocket per stream; an [executor] serves many streams on one websocket.
//! Each stream is a [`Link`](crate::link::Link). `exec-relay` handles frames, encryption, ordering
//! and acknowledgements; the drivers here read and write sockets, find streams by id, and run the
//! timers.
//!
//! Invariant: a failed or slow stream does not affect other streams, and all memory that a peer can
//! make us hold is bounded. Elsewhere: obtaining grants and checking claims (`exec-registry`).

pub mod executor;
pub mod harness;
mod stream_shared;

use std::{io, pin::Pin, task::Context};

use exec_relay::{
    limits,
    stream::{RelayStreamError, StreamPushError},
};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::link::LinkReadError;

/// Close reason of a stream.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamCloseReason {
    /// This end closed it.
    #[error("stream was closed")]
    Closed,
    /// The other end, or the relay on its behalf, reset it.
    #[error("stream was reset")]
    Reset,
    /// The relay connection was lost and not restored in time.
    #[error("relay connection was lost")]
    Lost,
    /// Another executor now uses the name of the one that held the session.
    #[error("executor key changed")]
    ExecutorChanged,
    /// The registry or the relay refused the reconnect.
    #[error("reconnecting to the relay failed: {0}")]
    Refused(String),
    /// The peer or the relay violated the protocol.
    #[error("{0}")]
    Protocol(&'static str),
    /// This end tried to send a message that exceeds the limit.
    #[error(transparent)]
    Message(#[from] StreamPushError),
    /// The stream core failed.
    #[error(transparent)]
    Stream(#[from] RelayStreamError),
}

impl StreamCloseReason {
    /// Converts to the result of a reader.
    fn read_error(&self) -> Result<(), LinkReadError> {
        match self {
            Self::Closed => Ok(()),
            Self::Reset | Self::Lost | Self::Refused(_) => Err(LinkReadError::Io(self.io_error())),
            Self::ExecutorChanged => Err(LinkReadError::ExecutorChanged),
            Self::Protocol(what) => Err(LinkReadError::Protocol(what)),
            Self::Message(_) => Err(LinkReadError::TooLong(limits::MESSAGE_BYTES)),
            Self::Stream(error) => Err(LinkReadError::Stream(*error)),
        }
    }

    /// Converts to the error of a writer.
    fn io_error(&self) -> io::Error {
        let kind = match *self == Self::Closed {
            true => io::ErrorKind::BrokenPipe,
            false => io::ErrorKind::ConnectionReset,
        };
        io::Error::new(kind, self.clone())
    }
}

/// Approximate limit of bytes buffered in a socket. Bounds the delay of a keystroke behind bulk
/// data.
const SEND_BUFFER_BYTES: usize = 256 << 10;
/// Bytes that one stream may send before other streams get their turn: one record.
const STREAM_QUANTUM_BYTES: usize = 60 << 10;
/// Messages read in a row before the driver yields.
const MAX_READS_PER_POLL: usize = 64;
/// Flush cycles in a row before the driver yields.
const MAX_FLUSHES_PER_POLL: usize = 16;

/// Whether a driver's timers had expired when it checked them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum TimerState {
    /// A deadline has passed and was handled; there may be more to send.
    Due,
    /// The next deadline is in the future, and the timer is set to it.
    Later,
}

/// A timer that fires at or before its deadline. Stream deadlines move with nearly every frame,
/// mostly to later; then the timer is left alone, and the driver sets it again after an early
/// wake-up.
#[derive(Debug, Default)]
struct DeadlineTimer(Option<Pin<Box<Sleep>>>);

impl DeadlineTimer {
    /// Sets the deadline, which must be in the future.
    fn set(&mut self, at: Instant, cx: &mut Context<'_>) {
        let timer = self.0.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if at < timer.deadline() {
            timer.as_mut().reset(at);
        }
        while timer.as_mut().poll(cx).is_ready() {
            timer.as_mut().reset(at);
            if at <= Instant::now() {
                cx.waker().wake_by_ref();
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, task::Poll, time::Duration};

    use super::*;

    /// Waits until a driver with this deadline is woken.
    async fn time_until_woken(timer: &mut DeadlineTimer, at: Instant) -> Duration {
        let start = Instant::now();
        let mut is_first = true;
        poll_fn(|cx| {
            if !std::mem::take(&mut is_first) {
                return Poll::Ready(());
            }
            timer.set(at, cx);
            Poll::Pending
        })
        .await;
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn timer_fires_on_time_and_at_most_once_early() {
        let mut timer = DeadlineTimer::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut seconds = async |at| time_until_woken(&mut timer, after(at)).await.as_secs();
        assert_eq!(seconds(10).await, 10);
        // Set to a later and then to an earlier deadline: the earlier one counts.
        let set = poll_fn(|cx| {
            timer.set(after(30), cx);
            timer.set(after(20), cx);
            timer.set(after(40), cx);
            Poll::Ready(())
        });
        set.await;
        let mut seconds = async |at| time_until_woken(&mut timer, after(at)).await.as_secs();
        assert_eq!(seconds(40).await, 10, "too early");
        assert_eq!(seconds(40).await, 20);
    }
}
