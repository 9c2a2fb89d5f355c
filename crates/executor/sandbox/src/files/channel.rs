//! The server's end of the socket to a hand.

use std::{
    hint, io,
    num::NonZeroUsize,
    os::{fd::BorrowedFd, unix},
    thread,
    time::{Duration, Instant},
};

use tokio::{io::Interest, net::UnixStream};

use super::frame::{Class, Frame, Incoming, Outgoing};

/// The server's end of the socket.
#[derive(Debug)]
pub(super) struct Channel {
    socket: UnixStream,
    incoming: Incoming,
    attention: Duration,
}

/// How long an answer is looked for before the thread waits for it: most come sooner than a core wakes
/// up. With one core there is nobody to answer meanwhile.
const ATTENTION: Duration = Duration::from_micros(80);

/// Why nothing was answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The other end was gone before it got anything.
    #[error("nothing was sent")]
    Unsent(#[source] io::Error),
    /// The other end may have got it, and done it.
    #[error("nothing was answered")]
    Unanswered(#[source] io::Error),
}

impl Channel {
    /// Makes one, and the hand's end of it.
    pub(super) fn pair() -> io::Result<(Self, unix::net::UnixStream)> {
        let (ours, theirs) = unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let channel = Self {
            socket: UnixStream::from_std(ours)?,
            incoming: Incoming::default(),
            attention: if cores > 1 { ATTENTION } else { Duration::ZERO },
        };
        Ok((channel, theirs))
    }

    /// Asks, and waits for the answer. If it is dropped in between, the channel is of no further use.
    pub(super) async fn exchange(
        &mut self,
        text: &[u8],
        data: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Frame, Broken> {
        let mut outgoing = Outgoing::new(Class::Good, text, data).with(descriptors);
        loop {
            let send = || outgoing.send(&self.socket);
            match self.socket.async_io(Interest::WRITABLE, send).await {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) if outgoing.has_begun() => return Err(Broken::Unanswered(error)),
                Err(error) => return Err(Broken::Unsent(error)),
            }
        }
        let asked = Instant::now();
        while asked.elapsed() < self.attention {
            // The socket itself: the runtime would not look again before it has heard of something.
            match self.incoming.receive(&self.socket) {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => hint::spin_loop(),
                Err(error) => return Err(Broken::Unanswered(error)),
            }
        }
        self.next().await.map_err(Broken::Unanswered)
    }

    /// Waits for what the hand says next. Cancelling loses nothing.
    pub(super) async fn next(&mut self) -> io::Result<Frame> {
        loop {
            let incoming = &mut self.incoming;
            let receive = || incoming.receive(&self.socket);
            if let Some(frame) = self.socket.async_io(Interest::READABLE, receive).await? {
                return Ok(frame);
            }
        }
    }
}
