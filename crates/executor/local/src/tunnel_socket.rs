//! A TCP connection at one end of a tunnel.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// A TCP connection that breaks unless it was shut down.
///
/// The kernel ends a dropped connection like a complete one, so its reader would take a part of the
/// data for all of it. Until its writer is shut down, dropping this socket resets the connection
/// instead. The kernel does so even if this process is killed.
#[derive(Debug)]
pub struct TunnelSocket {
    stream: TcpStream,
}

impl TunnelSocket {
    /// Makes a connection reset itself until it is shut down.
    pub fn new(stream: TcpStream) -> Self {
        set_linger(&stream, Some(Duration::ZERO));
        Self { stream }
    }
}

/// Sets what closing the connection does: without a delay it resets it, by default it sends what
/// is left.
fn set_linger(stream: &TcpStream, delay: Option<Duration>) {
    if let Err(error) = sockopt::set_socket_linger(stream, delay) {
        // The connection is broken already, which its reader notices.
        tracing::debug!(%error, "failed to set SO_LINGER of a tunnel's socket");
    }
}

impl AsyncRead for TunnelSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for TunnelSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        // A reset would discard what the kernel has not sent.
        set_linger(&self.stream, None);
        Poll::Ready(Ok(()))
    }
}
