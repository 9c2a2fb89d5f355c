//! What every way to authenticate offers.

use std::fmt;

use futures_util::future::BoxFuture;
use http::{HeaderMap, Method};
use url::Url;

use super::{CredentialError, Reach};

/// Makes the headers that authenticate requests.
pub trait Credentials: fmt::Debug + Send + Sync {
    /// Makes the headers for the next request. Values are marked as sensitive.
    fn headers(&self) -> BoxFuture<'_, Result<HeaderMap, CredentialError>>;

    /// Makes the headers for one request, where they depend on it.
    fn headers_for<'a>(
        &'a self,
        request: Outgoing<'a>,
    ) -> BoxFuture<'a, Result<HeaderMap, CredentialError>> {
        let _: Outgoing<'a> = request;
        self.headers()
    }

    /// Tells where these headers may be sent.
    fn reach(&self) -> Reach;

    /// Tells whether errors may show what a registry answered.
    fn bodies(&self) -> Bodies {
        Bodies::Shown
    }
}

/// A request that is about to be sent, without the headers that authenticate it. Its content type is
/// `application/json` if it has a body.
#[derive(Clone, Copy)]
pub struct Outgoing<'a> {
    /// The method.
    pub method: &'a Method,
    /// The whole URL.
    pub url: &'a Url,
    /// The body; empty if there is none.
    pub body: &'a [u8],
}

// Bodies hold authorizations.
impl fmt::Debug for Outgoing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing")
            .field("method", self.method)
            .field("url", &self.url.as_str())
            .finish_non_exhaustive()
    }
}

/// Whether errors show the bodies of answers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Bodies {
    /// They do.
    Shown,
    /// They do not: what is answered may repeat the secret of somebody who cannot see our errors.
    Hidden,
}
