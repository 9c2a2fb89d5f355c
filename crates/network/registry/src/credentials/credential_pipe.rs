//! Tokens that a parent process writes to standard input, one per line. The newest is used.
//!
//! Input is validated strictly: an invalid line ends the pipe with an error. End of input is always
//! a normal end, because the parent no longer wants an executor; an incomplete line is ignored.
//! Elsewhere: standard input itself, since any reader works.

#[cfg(test)]
mod tests;

use std::{
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use futures_util::future::{BoxFuture, FutureExt, ready};
use http::HeaderMap;
use serde::Deserialize;
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, BufReader},
    sync::watch,
    task::JoinHandle,
    time::timeout,
};

use super::{BodyDisclosure, CredentialError, Credentials, RegistryToken, SecretScope};
use crate::api::{RegistryEnvironmentId, read_object};

/// Time limit for the first line.
pub(super) const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(30);

/// Authenticates with the newest token that the parent wrote. A new token takes effect with the
/// next request.
#[derive(Clone)]
pub struct CredentialPipe {
    pub(super) newest: watch::Receiver<IssuedToken>,
    clock: UnixClock,
}

/// Returns the current Unix time in seconds.
pub(super) type UnixClock = Arc<dyn Fn() -> u64 + Send + Sync>;

impl CredentialPipe {
    /// Waits for the first token, then keeps reading in the background.
    ///
    /// # Errors
    /// Returns an error if the first line is late or invalid, or the input ends before it.
    pub async fn open<R>(
        reader: R,
        environment: RegistryEnvironmentId,
    ) -> Result<(Self, PipeEnd), PipeError>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        Self::open_by(reader, environment, Arc::new(unix_now)).await
    }

    pub(super) async fn open_by<R>(
        reader: R,
        environment: RegistryEnvironmentId,
        clock: UnixClock,
    ) -> Result<(Self, PipeEnd), PipeError>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        let mut lines = CredentialLineReader::new(reader);
        let first = timeout(FIRST_FRAME_TIMEOUT, lines.next())
            .await
            .map_err(|_| PipeError::Late(FIRST_FRAME_TIMEOUT))??;
        let first = first.ok_or(PipeError::Closed)?;
        let (sender, newest) = watch::channel(IssuedToken::read(&first, &environment, clock())?);
        let pipe = Self {
            newest,
            clock: Arc::clone(&clock),
        };
        let reading = async move {
            while let Some(line) = lines.next().await? {
                sender.send_replace(IssuedToken::read(&line, &environment, clock())?);
                tracing::debug!("executor credential replaced");
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

    fn secret_scope(&self) -> SecretScope {
        SecretScope::Private
    }

    fn body_disclosure(&self) -> BodyDisclosure {
        BodyDisclosure::Hidden
    }
}

impl fmt::Debug for CredentialPipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialPipe").finish_non_exhaustive()
    }
}

/// Resolves when the pipe ends, normally or because of an invalid line. Dropping it stops the
/// reader; the last token remains usable.
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

/// Returns Unix seconds. A clock before 1970 reads as 0, so that no token counts as expired.
fn unix_now() -> u64 {
    SystemTime::UNIX_EPOCH
        .elapsed()
        .map_or(0, |since| since.as_secs())
}

/// Why a credential pipe failed or ended. The error never repeats a line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipeError {
    /// Caller: the first line was late.
    #[error("no executor credential within {0:?}")]
    Late(Duration),
    /// The pipe ended before the first line. This is not a failure: there is nothing to do.
    #[error("executor credential pipe closed before the first credential")]
    Closed,
    /// Caller: a line exceeds the limit.
    #[error("executor credential frame is longer than {0} bytes")]
    TooLong(usize),
    /// Caller: a line is not a valid credential.
    #[error("invalid executor credential frame")]
    Invalid,
    /// Caller: the credential had already expired on arrival.
    #[error("executor credential had already expired on arrival")]
    Expired,
    /// Caller: the credential is for another environment.
    #[error("executor credential is for another environment")]
    OtherEnvironment,
    /// Host: reading failed.
    #[error("failed to read executor credentials")]
    Read(#[source] io::Error),
    /// Host: the reader task ended unexpectedly.
    #[error("reader of executor credentials ended unexpectedly")]
    Gone,
}

/// The only supported version.
const VERSION: u64 = 1;

/// A token and its expiry.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct IssuedToken {
    pub(super) token: RegistryToken,
    /// Unix seconds. The token is invalid from then on.
    pub(super) expires_at: u64,
}

impl IssuedToken {
    /// Parses a line, with or without its line feed.
    pub(super) fn read(
        line: &[u8],
        environment: &RegistryEnvironmentId,
        now: u64,
    ) -> Result<Self, PipeError> {
        // serde's error messages may repeat values, so they are dropped.
        let frame: CredentialFrame = read_object(line).map_err(|_| PipeError::Invalid)?;
        let is_one_word = frame.token.bytes().all(|byte| byte.is_ascii_graphic());
        if frame.version != VERSION || !is_one_word {
            return Err(PipeError::Invalid);
        }
        let token = RegistryToken::new(&frame.token).map_err(|_| PipeError::Invalid)?;
        if frame.environment_id != environment.as_str() {
            return Err(PipeError::OtherEnvironment);
        }
        let credential = Self {
            token,
            expires_at: frame.expires_at,
        };
        if credential.is_expired(now) {
            return Err(PipeError::Expired);
        }
        Ok(credential)
    }

    pub(super) fn is_expired(&self, now: u64) -> bool {
        self.expires_at <= now
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CredentialFrame {
    version: u64,
    environment_id: String,
    token: String,
    expires_at: u64,
}

/// Longest line, including the line feed.
pub(super) const MAX_LINE: usize = 16_384;

/// Reads complete lines.
#[derive(Debug)]
pub(in crate::credentials) struct CredentialLineReader<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
}

impl<R: AsyncRead + Unpin> CredentialLineReader<R> {
    pub(in crate::credentials) fn new(reader: R) -> Self {
        Self {
            reader: BufReader::new(reader),
            line: Vec::new(),
        }
    }

    /// Returns the next line without its line feed, or `None` at the end of input. An incomplete
    /// last line is dropped. Cancel-safe.
    pub(in crate::credentials) async fn next(&mut self) -> Result<Option<Vec<u8>>, PipeError> {
        loop {
            let buffer = self.reader.fill_buf().await.map_err(PipeError::Read)?;
            if buffer.is_empty() {
                return Ok(None);
            }
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let consumed = end.map_or(buffer.len(), |end| end + 1);
            if self.line.len() + consumed > MAX_LINE {
                return Err(PipeError::TooLong(MAX_LINE));
            }
            let text = buffer.get(..end.unwrap_or(consumed)).unwrap_or_default();
            self.line.extend_from_slice(text);
            AsyncBufRead::consume(std::pin::Pin::new(&mut self.reader), consumed);
            if end.is_some() {
                return Ok(Some(std::mem::take(&mut self.line)));
            }
        }
    }
}
