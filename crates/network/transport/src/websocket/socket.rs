//! A websocket that carries raw binary messages, for relays and their endpoints.
//! Invariant: a peer that answers no pings or stops reading is detected; an idle socket keeps
//! almost no memory. Elsewhere: the meaning of the messages (`relay`).

#[cfg(test)]
mod tests;

use std::{
    future::poll_fn,
    io,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::OwnedSemaphorePermit,
};

use super::{
    FrameOpcode, UpgradedStream,
    frame_output::{FrameOutput, close_payload},
    keepalive::KeepaliveTimers,
    message_decoder::MessageKind,
    reader::FrameReader,
    writer::FrameWriter,
};
use crate::link::{BinarySupport, Link, LinkReadError, LinkRole};

/// Reader and writer of a websocket. Dropping both closes the connection without a close frame.
#[derive(Debug)]
pub struct BinarySocket {
    /// Messages from the peer.
    pub reader: SocketReader,
    /// Messages to the peer.
    pub writer: SocketWriter,
}

/// Limits and timeouts of a socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SocketLimits {
    /// Maximum size of an incoming message.
    pub max_message_bytes: usize,
    /// Time between a pong and the next ping.
    pub ping_interval: Duration,
    /// How long a written ping may stay unanswered.
    pub pong_timeout: Duration,
    /// How long a write may make no progress.
    pub write_timeout: Duration,
}

impl Default for SocketLimits {
    /// The limits of both ends of a relay.
    fn default() -> Self {
        Self {
            max_message_bytes: RELAY_FRAME_BYTES,
            ping_interval: Duration::from_secs(30),
            pong_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
        }
    }
}

/// Maximum size of a relay frame.
const RELAY_FRAME_BYTES: usize = 256 << 10;
#[cfg(feature = "relay")]
const _: () = assert!(RELAY_FRAME_BYTES == exec_relay::limits::FRAME_BYTES);

/// Buffer memory that a writer keeps between flushes. Only a masking side copies payloads.
const RETAINED_BUFFER_BYTES: usize = 256 << 10;

impl BinarySocket {
    /// Makes a socket of an upgraded connection. `already_read` holds bytes that followed the
    /// handshake.
    pub fn new<R, W>(
        input: R,
        output: W,
        already_read: &[u8],
        role: LinkRole,
        limits: SocketLimits,
    ) -> Self
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        UpgradedStream::new((input, output), Bytes::copy_from_slice(already_read))
            .into_socket(role, limits)
    }

    /// Makes a socket of its frames in both directions.
    pub(super) fn of_frames(
        reader: FrameReader,
        output: FrameOutput,
        limits: SocketLimits,
    ) -> Self {
        let timers = KeepaliveTimers::new(limits);
        Self {
            reader: SocketReader(reader),
            writer: SocketWriter { output, timers },
        }
    }

    /// Converts a socket that carries a session into a link. Nothing may have been read from it.
    pub fn into_link(self, peer: String) -> Link {
        let (SocketReader(reader), SocketWriter { output, .. }) = (self.reader, self.writer);
        let reader = reader.with_limit(output.role.max_message_bytes());
        Link::new(
            reader,
            FrameWriter::new(output),
            peer,
            BinarySupport::Supported,
        )
    }

    /// Holds a connection slot of a listener until both halves are dropped.
    pub(crate) fn hold_slot(&self, slot: OwnedSemaphorePermit) {
        // A socket gets one slot.
        drop(self.writer.output.control.slot.set(slot));
    }
}

/// A received message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RawMessage {
    /// Binary data.
    Binary(Bytes),
    /// Text, which relays do not use.
    Text,
}

/// Reads messages from a socket. Pings are answered through the writer.
#[derive(Debug)]
pub struct SocketReader(FrameReader);

impl SocketReader {
    /// Returns the next message; `None` when the peer has closed. Cancel safe.
    pub fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<RawMessage>, LinkReadError>> {
        let next = ready!(self.0.poll_next(cx))?;
        Poll::Ready(Ok(next.map(|(kind, message)| match kind {
            MessageKind::Binary => RawMessage::Binary(message),
            MessageKind::Text => RawMessage::Text,
        })))
    }

    /// Returns the number of bytes received so far, including control frames.
    pub fn bytes_received(&self) -> u64 {
        self.0.received()
    }

    /// Waits for the next message.
    pub async fn next(&mut self) -> Result<Option<RawMessage>, LinkReadError> {
        poll_fn(|cx| self.poll_message(cx)).await
    }
}

/// Writes messages to a socket.
#[derive(Debug)]
pub struct SocketWriter {
    output: FrameOutput,
    timers: KeepaliveTimers,
}

impl SocketWriter {
    /// Encodes a message after those not flushed yet. Copies it only if it must be masked.
    pub fn push(&mut self, message: Bytes) {
        if !self.output.is_closed() {
            self.output.push_payload(FrameOpcode::Binary, true, message);
        }
    }

    /// Returns the number of bytes waiting to be flushed.
    pub fn buffered(&self) -> usize {
        self.output.buffered()
    }

    /// Hands the buffered bytes to the operating system.
    ///
    /// # Errors
    /// Fails if the connection is broken, or if the peer has stopped reading for too long.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.handle_control();
        match self.output.poll_flush(cx, RETAINED_BUFFER_BYTES) {
            Poll::Ready(flushed) => {
                self.timers.handle_flushed();
                Poll::Ready(flushed)
            }
            Poll::Pending => self.timers.poll_stalled(cx, self.output.written()).map(Err),
        }
    }

    /// Pings the peer now, unless a ping is outstanding.
    pub fn ping(&mut self) {
        if self.timers.ping() {
            self.output.push_control(FrameOpcode::Ping, &[]);
        }
    }

    /// Restarts the ping interval, unless a ping is outstanding.
    pub fn defer_ping(&mut self) {
        self.timers.defer_ping();
    }

    /// Resolves when the socket itself has something to flush, such as a keepalive ping.
    ///
    /// # Errors
    /// Fails if the peer has not answered a ping in time.
    pub fn poll_keepalive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.output.control.waker.register(cx.waker());
        self.handle_control();
        if let Poll::Ready(due) = self.timers.poll_ping(cx) {
            due?;
            self.output.release();
            self.output.push_control(FrameOpcode::Ping, &[]);
        }
        if self.output.buffered() > 0 {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// Flushes, sends a close frame and closes the connection.
    ///
    /// # Errors
    /// Fails if the connection is broken, or if the peer has stopped reading for too long.
    pub fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.output.poll_close(cx) {
            Poll::Ready(closed) => Poll::Ready(closed),
            Poll::Pending => self.timers.poll_stalled(cx, self.output.written()).map(Err),
        }
    }

    /// Closes with a code (RFC 6455 section 7.4) and a reason, which is truncated to fit.
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

    /// Flushes the buffered bytes.
    ///
    /// # Errors
    /// As [`poll_flush`](Self::poll_flush).
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    /// Flushes and closes the connection.
    ///
    /// # Errors
    /// As [`poll_close`](Self::poll_close).
    pub async fn close(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_close(cx)).await
    }

    /// Encodes pending control frames and handles pongs.
    fn handle_control(&mut self) {
        if self.output.push_pending_control().pong_received {
            self.timers.handle_pong();
        }
    }
}
