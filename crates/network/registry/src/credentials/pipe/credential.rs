//! The newest token, and whoever reads the next.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use futures_util::future::{BoxFuture, FutureExt, ready};
use http::HeaderMap;
use tokio::{io::AsyncRead, sync::watch, task::JoinHandle, time::timeout};

use super::{PipeError, frame::Issued, lines::Lines};
use crate::{
    api::EnvironmentId,
    credentials::{Bodies, CredentialError, Credentials, Reach},
};

/// How long the first line may take.
pub(super) const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(30);

/// Authenticates with the newest token that the parent wrote. Nothing is sent when one comes: it
/// counts from the next request on.
#[derive(Clone)]
pub struct CredentialPipe {
    pub(super) newest: watch::Receiver<Issued>,
    clock: Clock,
}

/// Tells Unix seconds.
pub(super) type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

impl CredentialPipe {
    /// Waits for the first token, and reads on from then.
    ///
    /// # Errors
    /// When the first line is late, or wrong, or the pipe ends before it.
    pub async fn open<R>(
        reader: R,
        environment: EnvironmentId,
    ) -> Result<(Self, PipeEnd), PipeError>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        Self::open_by(reader, environment, Arc::new(unix_now)).await
    }

    pub(super) async fn open_by<R>(
        reader: R,
        environment: EnvironmentId,
        clock: Clock,
    ) -> Result<(Self, PipeEnd), PipeError>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        let mut lines = Lines::new(reader);
        let first = timeout(FIRST_FRAME_TIMEOUT, lines.next())
            .await
            .map_err(|_| PipeError::Late(FIRST_FRAME_TIMEOUT))??;
        let first = first.ok_or(PipeError::Closed)?;
        let (sender, newest) = watch::channel(Issued::read(&first, &environment, clock())?);
        let pipe = Self {
            newest,
            clock: Arc::clone(&clock),
        };
        let reading = async move {
            while let Some(line) = lines.next().await? {
                sender.send_replace(Issued::read(&line, &environment, clock())?);
                tracing::debug!("executor credential is replaced");
            }
            Ok(())
        };
        Ok((pipe, PipeEnd(tokio::spawn(reading))))
    }
}

impl Credentials for CredentialPipe {
    fn headers(&self) -> BoxFuture<'_, Result<HeaderMap, CredentialError>> {
        let newest = self.newest.borrow().clone();
        let headers = if newest.is_expired((self.clock)()) {
            Err(CredentialError::Expired)
        } else {
            Ok(newest.token.headers())
        };
        ready(headers).boxed()
    }

    fn reach(&self) -> Reach {
        Reach::Private
    }

    fn bodies(&self) -> Bodies {
        Bodies::Hidden
    }
}

impl fmt::Debug for CredentialPipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialPipe").finish_non_exhaustive()
    }
}

/// Resolves when the pipe ends: in order, or because of what the parent wrote. Dropping it stops
/// the reading; the last token stays.
#[derive(Debug)]
pub struct PipeEnd(JoinHandle<Result<(), PipeError>>);

impl Future for PipeEnd {
    type Output = Result<(), PipeError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0
            .poll_unpin(cx)
            .map(|ended| ended.unwrap_or(Err(PipeError::Gone)))
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A clock that stands before 1970 counts as standing there: every token is in its future.
fn unix_now() -> u64 {
    SystemTime::UNIX_EPOCH
        .elapsed()
        .map_or(0, |since| since.as_secs())
}
