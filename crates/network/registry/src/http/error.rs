//! Why a request brought no answer.

use std::{error::Error, io, time::Duration};

use tokio_rustls::rustls;

/// Host: no client could be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The library refuses what it was told.
    #[error("HTTP client cannot be set up")]
    Client(#[source] reqwest::Error),
    /// There is no TLS that could be used.
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
}

/// Why there is no answer to a request. The URL is not repeated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// Transport: no connection came about. The request was not sent.
    #[error("cannot connect")]
    Unreachable(#[source] reqwest::Error),
    /// Transport: the connection broke before the end of the answer.
    #[error("connection broke before the end of the answer")]
    Interrupted(#[source] reqwest::Error),
    /// Transport: it took too long.
    #[error("no whole answer within {0:?}")]
    Timeout(Duration),
    /// Peer: the answer is longer than any that makes sense.
    #[error("answer is longer than {0} bytes")]
    TooLarge(usize),
}

impl ExchangeError {
    /// Tells whether asking again may help.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Interrupted(_) | Self::Timeout(_) => true,
            Self::TooLarge(_) => false,
        }
    }

    /// Tells whether nobody was reached, such as a server that is not up yet. A server with which no
    /// TLS comes about was reached: who runs it, or trusts it, has to act.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unreachable(error) => !has_tls_error(error),
            Self::Interrupted(_) | Self::Timeout(_) | Self::TooLarge(_) => false,
        }
    }
}

fn has_tls_error(error: &(dyn Error + 'static)) -> bool {
    if error.is::<rustls::Error>() {
        return true;
    }
    // An error of the system that wraps another has that one's source, and not that one, as its own.
    let wrapped = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    match wrapped {
        Some(wrapped) => has_tls_error(wrapped),
        None => error.source().is_some_and(has_tls_error),
    }
}
