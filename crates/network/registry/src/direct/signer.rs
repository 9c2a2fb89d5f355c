//! Requests that are signed for AWS.

use std::time::SystemTime;

use futures_util::future::BoxFuture;
use http::{HeaderMap, header};

use crate::{
    aws::{Chain, RegionError},
    credentials::{CredentialError, Credentials, Outgoing, Reach},
    sigv4::{Request, Scope, Signature, Timestamp},
};

/// The service that is signed for unless a caller names another.
pub const DEFAULT_SERVICE: &str = "execute-api";

/// Signs each request with the keys of that moment.
#[derive(Clone, Debug)]
pub struct SigV4 {
    /// Where keys come from.
    pub keys: Chain,
    /// Where signatures count.
    pub scope: Scope,
}

impl SigV4 {
    /// Signs for the region that the chain finds, and for a service.
    ///
    /// # Errors
    /// When there is no region.
    pub async fn new(keys: Chain, service: impl Into<String>) -> Result<Self, RegionError> {
        let (region, service) = (keys.region().await?, service.into());
        let scope = Scope { region, service };
        Ok(Self { keys, scope })
    }

    async fn sign(&self, request: Outgoing<'_>) -> Result<HeaderMap, CredentialError> {
        let failed = |error: &dyn std::error::Error| CredentialError::Sign(told(error));
        let keys = self.keys.keys().await.map_err(|error| failed(&error))?;
        let json = [(header::CONTENT_TYPE, "application/json")];
        let request = Request {
            method: request.method.as_str(),
            url: request.url,
            headers: if request.body.is_empty() { &[] } else { &json },
            body: request.body,
        };
        let at = Timestamp::new(SystemTime::now());
        let signature = Signature::new(request, &keys, &self.scope, &at);
        let mut headers = HeaderMap::new();
        signature
            .map_err(|error| failed(&error))?
            .apply(&mut headers);
        Ok(headers)
    }
}

impl Credentials for SigV4 {
    fn headers(&self) -> BoxFuture<'_, Result<HeaderMap, CredentialError>> {
        let told = "a signature needs the request".to_owned();
        Box::pin(async { Err(CredentialError::Sign(told)) })
    }

    fn headers_for<'a>(
        &'a self,
        request: Outgoing<'a>,
    ) -> BoxFuture<'a, Result<HeaderMap, CredentialError>> {
        Box::pin(self.sign(request))
    }

    fn reach(&self) -> Reach {
        Reach::Private
    }
}

/// Joins an error and what it comes from.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
