//! Carries bytes between two connections, both ways, until both have ended or nothing moves.

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

/// One end of a tunnel, with what was already read from it.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) stream: TcpStream,
    pub(crate) early: Vec<u8>,
}

impl From<TcpStream> for End {
    fn from(stream: TcpStream) -> Self {
        Self {
            stream,
            early: Vec::new(),
        }
    }
}

/// Carries bytes until both ends have said their last, one fails, or none moved for `idle`. An end
/// that closes its half is told to the other one; the other half goes on.
pub(crate) async fn join(mut near: End, mut far: End, idle: Duration) {
    let activity = Activity::start();
    let (mut near_reader, mut near_writer) = near.stream.split();
    let (mut far_reader, mut far_writer) = far.stream.split();
    let both = async {
        tokio::try_join!(
            copy(&near.early, &mut near_reader, &mut far_writer, &activity),
            copy(&far.early, &mut far_reader, &mut near_writer, &activity),
        )
    };
    tokio::select! {
        // Both ends are closed in every case, so that it does not matter how it came.
        _ = both => {}
        () = activity.silence(idle) => {}
    }
}

/// Closes our half, and reads until the client has closed its own. Closing all at once would reset
/// the connection if there are unread bytes, and with it what the client has not read yet.
pub(crate) async fn part(stream: &mut TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut waste = vec![0; 4096];
    let mut budget = limits::MAX_HEAD * 16;
    loop {
        let count = stream.read(&mut waste).await?;
        if count == 0 || count > budget {
            return Ok(());
        }
        budget -= count;
    }
}

async fn copy(
    early: &[u8],
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    activity: &Activity,
) -> io::Result<()> {
    writer.write_all(early).await?;
    let mut buffer = vec![0; limits::BUFFER];
    loop {
        let count = reader.read(&mut buffer).await?;
        if count == 0 {
            return writer.shutdown().await;
        }
        activity.mark();
        writer.write_all(&buffer[..count]).await?;
        activity.mark();
    }
}

/// When something last moved.
#[derive(Debug)]
pub(crate) struct Activity {
    start: Instant,
    last_ms: AtomicU64,
}

impl Activity {
    /// Counts as activity, too.
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
            last_ms: AtomicU64::new(0),
        }
    }

    /// Notes that something moved.
    pub(crate) fn mark(&self) {
        self.last_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    /// Waits until nothing has moved for `idle`.
    pub(crate) async fn silence(&self, idle: Duration) {
        loop {
            let last = self.last_ms.load(Ordering::Relaxed);
            let quiet = Duration::from_millis(self.now_ms().saturating_sub(last));
            match idle.checked_sub(quiet) {
                None | Some(Duration::ZERO) => return,
                Some(rest) => tokio::time::sleep(rest).await,
            }
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
