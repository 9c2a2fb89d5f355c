//! How long a request may take, and why it failed.

use std::{error::Error, time::Duration};

use exec_env::http::HttpError;
use tokio::time::{Instant, timeout_at};

/// When a request must be over, its body included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    limit: Option<(Instant, Duration)>,
}

impl Deadline {
    /// Ends in `timeout`. One that is too far away to be told is none.
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        let limit = timeout.and_then(|limit| Some((Instant::now().checked_add(limit)?, limit)));
        Self { limit }
    }

    /// Waits for something that is part of the request. What comes too late is not taken, also when
    /// nobody was there to take it in time.
    pub(crate) async fn bound<F: Future>(&self, future: F) -> Result<F::Output, HttpError> {
        let Some((at, limit)) = self.limit else {
            return Ok(future.await);
        };
        let late = || HttpError::Host(late(limit));
        if Instant::now() >= at {
            return Err(late());
        }
        timeout_at(at, future).await.map_err(|_| late())
    }
}

/// Says that a request took too long; without any time at all, as the stock server does.
fn late(limit: Duration) -> String {
    match limit.as_millis() {
        0 => "http/request failed: route-aware request timed out".to_owned(),
        limit => format!("http/request failed: no complete response within {limit} ms"),
    }
}

/// Host: the request was not answered. The text has every cause, and no URL: it may hold a secret.
pub(crate) fn failed(error: reqwest::Error) -> HttpError {
    let error = error.without_url();
    let mut text = format!("http/request failed: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    HttpError::Host(text)
}
