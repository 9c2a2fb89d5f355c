//! A websocket that carries raw binary messages: what relays and their ends talk over.
//! Invariant: a peer that answers no ping, or takes nothing that is written, is found out; an idle
//! socket keeps next to no memory.
//! Not here: what the messages mean (`relay`).

#[cfg(test)]
mod tests;

use std::{
    future::poll_fn,
    io,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::OwnedSemaphorePermit,
};

use super::{
    frame::FrameOpcode,
    frame_output::{FrameOutput, SharedControl, close_payload},
    keepalive::{KeepaliveTimers, PingDecision},
    message_decoder::MessageKind,
    reader::FrameReader,
    writer::FrameWriter,
};
use crate::link::{Binary, Link, ReadError, Role};

/// Both halves of a websocket. Dropping them cuts the connection without a word.
#[derive(Debug)]
pub struct Socket {
    /// Messages from the peer.
    pub reader: SocketReader,
    /// Messages to the peer.
    pub writer: SocketWriter,
}

/// What a socket takes, and how long it waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SocketLimits {
    /// Longest message that is taken in.
    pub max_message_bytes: usize,
    /// How long after the last ping was answered the next is sent.
    pub ping_interval: Duration,
    /// How long a ping may stay unanswered once it was written.
    pub pong_timeout: Duration,
    /// How long the system may take nothing of what is to be written.
    pub write_timeout: Duration,
}

impl Default for SocketLimits {
    /// What both ends of a relay use.
    fn default() -> Self {
        Self {
            max_message_bytes: exec_relay::limits::FRAME_BYTES,
            ping_interval: Duration::from_secs(30),
            pong_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
        }
    }
}

/// Memory that a writer keeps between two flushes. Only a side that masks copies payloads.
const RETAINED_BUFFER_BYTES: usize = 256 << 10;

impl Socket {
    /// Makes a socket of an upgraded connection. `already_read` came with the handshake.
    pub fn new<R, W>(
        input: R,
        output: W,
        already_read: &[u8],
        role: Role,
        limits: SocketLimits,
    ) -> Self
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        Self::boxed(
            Box::new(input),
            Box::new(output),
            already_read,
            role,
            limits,
        )
    }

    /// The same of halves that are in boxes already.
    pub(crate) fn boxed(
        input: Box<dyn AsyncRead + Send + Unpin>,
        output: Box<dyn AsyncWrite + Send + Unpin>,
        already_read: &[u8],
        role: Role,
        limits: SocketLimits,
    ) -> Self {
        let control = Arc::new(SharedControl::default());
        let reader = FrameReader::new(
            input,
            BytesMut::from(already_read),
            role,
            limits.max_message_bytes,
            Arc::clone(&control),
        );
        Self {
            reader: SocketReader(reader),
            writer: SocketWriter {
                output: FrameOutput::new(output, role, control),
                timers: KeepaliveTimers::new(limits),
            },
        }
    }

    /// Makes a link of a socket that turns out to carry sessions, before anything is read from it.
    pub fn into_link(self, peer: String) -> Link {
        let (SocketReader(reader), SocketWriter { output, .. }) = (self.reader, self.writer);
        Link {
            reader: Box::new(reader.with_limit(output.role.max_message_bytes())),
            writer: Box::new(FrameWriter::new(output)),
            peer,
            binary: Binary::Possible,
            most_unanswered: usize::MAX,
            slot: None,
            handshake_began: None,
            principal: None,
            path: None,
        }
    }

    /// Keeps a place among the connections of a listener until both halves are gone.
    pub(crate) fn hold_slot(&self, slot: OwnedSemaphorePermit) {
        // A socket is given one place.
        drop(self.writer.output.control.slot.set(slot));
    }
}

/// A message as it came.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Raw {
    /// Bytes.
    Binary(Bytes),
    /// Text, which no relay has a use for.
    Text,
}

/// Takes messages off a socket, and answers pings by way of the writer.
#[derive(Debug)]
pub struct SocketReader(FrameReader);

impl SocketReader {
    /// Returns the next message; `None` when the peer is done. Cancelling loses nothing.
    pub fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Raw>, ReadError>> {
        let next = ready!(self.0.poll_next(cx))?;
        Poll::Ready(Ok(next.map(|(kind, message)| match kind {
            MessageKind::Binary => Raw::Binary(message),
            MessageKind::Text => Raw::Text,
        })))
    }

    /// Returns how many bytes have come so far, of whatever kind.
    pub fn received(&self) -> u64 {
        self.0.received()
    }

    /// Waits for the next message.
    pub async fn next(&mut self) -> Result<Option<Raw>, ReadError> {
        poll_fn(|cx| self.poll_message(cx)).await
    }
}

/// Puts messages on a socket.
#[derive(Debug)]
pub struct SocketWriter {
    output: FrameOutput,
    timers: KeepaliveTimers,
}

impl SocketWriter {
    /// Encodes a message behind those not flushed yet. It is not copied, unless it must be masked.
    pub fn push(&mut self, message: Bytes) {
        if !self.output.is_closed() {
            self.output.push_whole(FrameOpcode::Binary, true, message);
        }
    }

    /// Returns how many bytes wait to be flushed.
    pub fn buffered(&self) -> usize {
        self.output.buffered()
    }

    /// Hands what is buffered to the operating system.
    ///
    /// # Errors
    /// When the connection broke, or the peer has taken nothing for too long.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.handle_control();
        let flushed = self.output.poll_flush(cx, RETAINED_BUFFER_BYTES);
        match flushed {
            Poll::Ready(flushed) => {
                self.timers.handle_flushed();
                Poll::Ready(flushed)
            }
            Poll::Pending => self.timers.poll_stalled(cx, self.output.written()).map(Err),
        }
    }

    /// Asks the peer for a sign of life now, unless a ping is unanswered already.
    pub fn ping(&mut self) {
        if self.timers.ping() == PingDecision::Send {
            self.output.push_control(FrameOpcode::Ping, &[]);
        }
    }

    /// Lets the time until the next ping begin anew, unless one is unanswered.
    pub fn defer_ping(&mut self) {
        self.timers.defer_ping();
    }

    /// Resolves when the socket itself has something to flush, such as a ping.
    ///
    /// # Errors
    /// When the peer has left a ping unanswered for too long.
    pub fn poll_upkeep(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.output.control.waker.register(cx.waker());
        self.handle_control();
        if ready_now(self.timers.poll_ping(cx))? {
            self.output.release();
            self.output.push_control(FrameOpcode::Ping, &[]);
        }
        if self.output.buffered() > 0 {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// Flushes, tells the peer that this is the end, and ends the connection.
    ///
    /// # Errors
    /// When the connection broke, or the peer has taken nothing for too long.
    pub fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.output.poll_close(cx) {
            Poll::Ready(closed) => Poll::Ready(closed),
            Poll::Pending => self.timers.poll_stalled(cx, self.output.written()).map(Err),
        }
    }

    /// The same with a code (RFC 6455 section 7.4) and a reason, which is cut to what a control
    /// frame holds.
    ///
    /// # Errors
    /// As [`poll_close`](Self::poll_close).
    pub fn poll_close_with(
        &mut self,
        code: u16,
        reason: &str,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.output.push_close_with(&close_payload(code, reason));
        self.poll_close(cx)
    }

    /// Flushes what is buffered.
    ///
    /// # Errors
    /// As [`poll_flush`](Self::poll_flush).
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    /// Flushes and ends the connection.
    ///
    /// # Errors
    /// As [`poll_close`](Self::poll_close).
    pub async fn close(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_close(cx)).await
    }

    /// Takes what the reader has to tell.
    fn handle_control(&mut self) {
        if self.output.push_pending_control().pong_received {
            self.timers.handle_pong();
        }
    }
}

fn ready_now(poll: Poll<io::Result<()>>) -> io::Result<bool> {
    match poll {
        Poll::Ready(result) => result.map(|()| true),
        Poll::Pending => Ok(false),
    }
}
