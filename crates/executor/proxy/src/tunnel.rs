//! Tunnels: copies bytes between two connections in both directions.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};

use crate::limits;

/// One end of a tunnel, with bytes that were already read from it.
#[derive(Debug)]
pub(crate) struct TunnelEnd {
    pub(crate) stream: TcpStream,
    pub(crate) buffered: Vec<u8>,
}

impl From<TcpStream> for TunnelEnd {
    fn from(stream: TcpStream) -> Self {
        Self {
            stream,
            buffered: Vec::new(),
        }
    }
}

/// Copies bytes until both ends are closed, one fails, or no byte was transferred for `idle`. A
/// half close is propagated, while the other direction continues.
pub(crate) async fn copy_both(mut client: TunnelEnd, mut server: TunnelEnd, idle: Duration) {
    let idle_timer = IdleTimer::start();
    let (mut client_reader, mut client_writer) = client.stream.split();
    let (mut server_reader, mut server_writer) = server.stream.split();
    let both = async {
        tokio::try_join!(
            copy(
                &client.buffered,
                &mut client_reader,
                &mut server_writer,
                &idle_timer
            ),
            copy(
                &server.buffered,
                &mut server_reader,
                &mut client_writer,
                &idle_timer
            ),
        )
    };
    tokio::select! {
        // Both ends are closed in every case, so the result does not matter.
        _ = both => {}
        () = idle_timer.expired(idle) => {}
    }
}

/// Shuts down the write half, then reads until the peer closes. Closing a socket with unread bytes
/// would reset the connection, and discard data that the peer has not read yet.
pub(crate) async fn close_gracefully(stream: &mut TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut discarded = vec![0; 4096];
    let mut budget = limits::MAX_HEAD_BYTES * 16;
    loop {
        let count = stream.read(&mut discarded).await?;
        if count == 0 || count > budget {
            return Ok(());
        }
        budget -= count;
    }
}

async fn copy(
    buffered: &[u8],
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    idle_timer: &IdleTimer,
) -> io::Result<()> {
    writer.write_all(buffered).await?;
    let mut buffer = vec![0; limits::BUFFER_BYTES];
    loop {
        let count = reader.read(&mut buffer).await?;
        if count == 0 {
            return writer.shutdown().await;
        }
        idle_timer.reset();
        writer.write_all(&buffer[..count]).await?;
        idle_timer.reset();
    }
}

/// Tracks the time since the last transferred byte.
#[derive(Debug)]
pub(crate) struct IdleTimer {
    start: Instant,
    last_activity_ms: AtomicU64,
}

impl IdleTimer {
    /// Starts the timer.
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
            last_activity_ms: AtomicU64::new(0),
        }
    }

    /// Restarts the idle period.
    pub(crate) fn reset(&self) {
        self.last_activity_ms
            .store(self.now_ms(), Ordering::Relaxed);
    }

    /// Waits until no byte was transferred for `idle`.
    pub(crate) async fn expired(&self, idle: Duration) {
        loop {
            let last = self.last_activity_ms.load(Ordering::Relaxed);
            let idle_time = Duration::from_millis(self.now_ms().saturating_sub(last));
            match idle.checked_sub(idle_time) {
                None | Some(Duration::ZERO) => return,
                Some(remaining) => tokio::time::sleep(remaining).await,
            }
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
