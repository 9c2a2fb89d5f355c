//! Joins a tunnel with a byte stream, in both directions.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use exec_wire::limits;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use super::TunnelEnd;

/// Capacity of a read while little arrives. Kept while nothing does, for each tunnel.
const SMALL_READ_BYTES: usize = 2 << 10;
/// Rest of a small buffer that is worth a read.
const MIN_READ_BYTES: usize = SMALL_READ_BYTES / 4;

/// Copies in both directions until both have ended or one has failed. Dropping the future closes
/// both ends.
pub async fn pump<S: AsyncRead + AsyncWrite + Unpin>(stream: S, tunnel: TunnelEnd) {
    let mut pump = TunnelPump {
        stream,
        tunnel,
        outgoing: DirectionState::Open,
        incoming: DirectionState::Open,
        buffer: BytesMut::new(),
        read_bytes: SMALL_READ_BYTES,
        pending: Bytes::new(),
    };
    poll_fn(|cx| pump.poll(cx)).await;
}

struct TunnelPump<S> {
    stream: S,
    tunnel: TunnelEnd,
    /// From the stream to the peer.
    outgoing: DirectionState,
    /// From the peer to the stream.
    incoming: DirectionState,
    buffer: BytesMut,
    /// Capacity of the next read.
    read_bytes: usize,
    /// Data of the peer that the stream has not taken.
    pending: Bytes,
}

/// State of one direction of a pump.
#[derive(Debug)]
enum DirectionState {
    Open,
    /// All data of the peer was written, and the stream is shutting down.
    ShuttingDown,
    Ended,
    /// The stream accepts no more data, for this reason. Data of the peer is dropped.
    Failed(String),
}

impl DirectionState {
    fn has_ended(&self) -> bool {
        matches!(self, Self::Ended | Self::Failed(_))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TunnelPump<S> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let incoming = self.poll_incoming(cx);
        let outgoing = self.poll_outgoing(cx);
        if outgoing.is_ready()
            && let DirectionState::Failed(reason) = &self.outgoing
        {
            self.tunnel.close(reason.clone());
            return Poll::Ready(());
        }
        // A stream that takes no data may still have some to send: close when it has ended, too.
        if outgoing.is_ready() && incoming.is_ready() {
            return Poll::Ready(());
        }
        // Last, because it shares a waker with the incoming direction.
        self.tunnel.poll_closed(cx).map(drop)
    }

    /// Moves data of the peer to the stream.
    fn poll_incoming(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match self.incoming {
                DirectionState::Open => {}
                DirectionState::ShuttingDown => {
                    // The tunnel is the wrong place to report that a shutdown failed: the stream is
                    // gone, which the other direction sees.
                    drop(ready!(Pin::new(&mut self.stream).poll_shutdown(cx)));
                    self.incoming = DirectionState::Ended;
                    return Poll::Ready(());
                }
                DirectionState::Ended => return Poll::Ready(()),
                DirectionState::Failed(_) => {
                    // Dropped, so that the peer does not wait for space in the window.
                    while let Poll::Ready(Ok(Some(_))) = self.tunnel.poll_data(cx) {}
                    return Poll::Ready(());
                }
            }
            if !self.pending.has_remaining() {
                match self.tunnel.poll_data(cx) {
                    Poll::Ready(Ok(Some(data))) => self.pending = data,
                    Poll::Ready(Ok(None)) => {
                        self.incoming = DirectionState::ShuttingDown;
                        continue;
                    }
                    Poll::Ready(Err(error)) => {
                        self.incoming = DirectionState::Failed(error.to_string());
                        continue;
                    }
                    Poll::Pending => {
                        // A failure is the next write's, too.
                        drop(Pin::new(&mut self.stream).poll_flush(cx));
                        return Poll::Pending;
                    }
                }
            }
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.pending)) {
                Ok(0) => {
                    let error = io::Error::from(io::ErrorKind::WriteZero);
                    self.incoming = DirectionState::Failed(error.to_string());
                }
                Ok(written) => self.pending.advance(written),
                Err(error) => self.incoming = DirectionState::Failed(error.to_string()),
            }
        }
    }

    /// Moves data of the stream to the peer.
    fn poll_outgoing(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !self.outgoing.has_ended() {
            let Ok(capacity) = ready!(self.tunnel.poll_capacity(cx)) else {
                // Closed by the peer.
                self.outgoing = DirectionState::Ended;
                break;
            };
            match ready!(self.poll_read(cx, capacity)) {
                Ok(data) if data.is_empty() => {
                    self.tunnel.shutdown();
                    self.outgoing = DirectionState::Ended;
                }
                Ok(data) => self.tunnel.write(data),
                Err(error) => self.outgoing = DirectionState::Failed(error.to_string()),
            }
        }
        Poll::Ready(())
    }

    /// Reads at most `capacity` bytes from the stream. Empty at its end.
    fn poll_read(&mut self, cx: &mut Context<'_>, capacity: usize) -> Poll<io::Result<Bytes>> {
        let wanted = self.read_bytes.min(capacity);
        if self.buffer.capacity() < wanted.min(MIN_READ_BYTES) || wanted > SMALL_READ_BYTES {
            self.buffer.reserve(wanted);
        }
        let mut limited = (&mut self.buffer).limit(wanted);
        let read = pin!(self.stream.read_buf(&mut limited)).poll(cx);
        let Poll::Ready(read) = read else {
            if self.buffer.capacity() > SMALL_READ_BYTES {
                self.buffer = BytesMut::new();
            }
            return Poll::Pending;
        };
        let read = read?;
        if read == wanted {
            self.read_bytes = (self.read_bytes * 4).min(limits::TUNNEL_CHUNK_BYTES);
        } else if read < wanted / 4 {
            self.read_bytes = (self.read_bytes / 2).max(SMALL_READ_BYTES);
        }
        if wanted > SMALL_READ_BYTES && read < wanted / 2 {
            // Little data must not keep a large buffer alive until it is acknowledged.
            let data = Bytes::copy_from_slice(&self.buffer);
            self.buffer.clear();
            return Poll::Ready(Ok(data));
        }
        Poll::Ready(Ok(self.buffer.split().freeze()))
    }
}
