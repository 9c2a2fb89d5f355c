//! Links through a relay that cannot read them: the drivers of `exec-relay` over websockets.
//!
//! A [harness] opens one websocket for one stream; an [executor] serves many streams on its one. Each
//! stream is a [`Link`](crate::link::Link) to whoever uses it. Frames, keys, order and acknowledgement
//! are `exec-relay`'s business; here sockets are read and written, streams are found by their id, and
//! the clock runs.
//!
//! Invariant: a stream that fails or is slow costs no other stream anything; whatever a peer can make
//! us keep has a bound. Not here: how tickets are got and claims are checked (`exec-registry`).

pub mod executor;
pub mod harness;
mod stream_link;
mod stream_shared;

use std::{io, pin::Pin, task::Context};

use exec_relay::{
    limits,
    stream::{PushError, StreamError},
};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::link::ReadError;

/// Why a stream is over.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamCloseReason {
    /// This side closed it.
    #[error("stream was closed")]
    Closed,
    /// The other end, or the relay on its behalf, reset it.
    #[error("stream was reset")]
    Reset,
    /// The relay's connection was lost, and did not come back in time.
    #[error("relay connection was lost")]
    Lost,
    /// The executor that held the session is gone: another one answers under its name.
    #[error("executor key changed")]
    ExecutorChanged,
    /// The registry or the relay will not have us back.
    #[error("relay cannot be reached again: {0}")]
    Refused(String),
    /// The peer, or the relay, does not keep to the rules.
    #[error("{0}")]
    Protocol(&'static str),
    /// This side has a message that no stream carries.
    #[error(transparent)]
    Message(#[from] PushError),
    /// The stream itself failed.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

impl StreamCloseReason {
    /// Tells a reader.
    fn read_error(&self) -> Result<(), ReadError> {
        match self {
            Self::Closed => Ok(()),
            Self::Reset | Self::Lost | Self::Refused(_) => Err(ReadError::Io(self.io_error())),
            Self::ExecutorChanged => Err(ReadError::ExecutorChanged),
            Self::Protocol(what) => Err(ReadError::Protocol(what)),
            Self::Message(_) => Err(ReadError::TooLong(limits::MESSAGE_BYTES)),
            Self::Stream(error) => Err(ReadError::Stream(*error)),
        }
    }

    /// Tells a writer.
    fn io_error(&self) -> io::Error {
        let kind = match self {
            Self::Closed => io::ErrorKind::BrokenPipe,
            Self::Reset
            | Self::Lost
            | Self::ExecutorChanged
            | Self::Refused(_)
            | Self::Protocol(_)
            | Self::Message(_)
            | Self::Stream(_) => io::ErrorKind::ConnectionReset,
        };
        io::Error::new(kind, self.clone())
    }
}

/// What waits in a socket at most, about: a keystroke does not wait behind more.
const SEND_BUFFER_BYTES: usize = 256 << 10;
/// What one of several streams may put there before others have their turn: a record.
const STREAM_QUANTUM_BYTES: usize = 60 << 10;
/// Messages that are read in a row before other tasks have their turn.
const MAX_READS_PER_POLL: usize = 64;
/// Times that a socket is filled and emptied before other tasks have their turn.
const MAX_FLUSHES_PER_POLL: usize = 16;

/// Whether a driver's timers had expired when it checked them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum TimerState {
    /// A deadline has passed and was handled; there may be more to send.
    Due,
    /// The next deadline is in the future, and the timer is set to it.
    Later,
}

/// Wakes at or before the time it was set to. Deadlines of streams move with every frame, nearly
/// always to later: then the clock is left alone, and whoever is woken too early sets it again.
#[derive(Debug, Default)]
struct DeadlineTimer(Option<Pin<Box<Sleep>>>);

impl DeadlineTimer {
    /// Sets it to a time that is not over yet.
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

    /// Waits until a driver that wants to be woken at `at` is.
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
        // Set to later and then to earlier: it is the earlier that counts.
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
