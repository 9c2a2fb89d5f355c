//! What is shown at the door that a direct executor comes to.

use std::sync::Arc;

use exec_transport::connect::{HeaderError, WebSocket};
use http::{HeaderMap, Method, header};
use url::Url;

use super::{DirectError, SigV4};
use crate::{
    api::Secret,
    credentials::{Credentials, Outgoing},
};

/// How a direct executor shows who it is.
#[derive(Clone, Debug)]
pub enum Proof {
    /// By a signature of the request, which is good for that request only.
    Signature(Arc<SigV4>),
    /// By a secret that the registry knows. The websocket gets it only if it is at the registry's own
    /// host and port: nobody else has a right to it.
    Token(Arc<dyn Credentials>),
}

impl Proof {
    /// Returns what a registry is asked with.
    pub fn credentials(&self) -> Arc<dyn Credentials> {
        match self {
            Self::Signature(signer) => Arc::<SigV4>::clone(signer),
            Self::Token(credentials) => Arc::clone(credentials),
        }
    }

    /// Makes the headers of an upgrade.
    pub(super) async fn headers(
        &self,
        url: &Secret,
        registry: &Url,
    ) -> Result<HeaderMap, DirectError> {
        let Some(url) = as_http(url.expose()) else {
            return Ok(HeaderMap::new());
        };
        let request = Outgoing {
            method: &Method::GET,
            url: &url,
            body: b"",
        };
        match self {
            Self::Signature(signer) => Ok(signer.headers_for(request).await?),
            Self::Token(credentials) if url.origin() == registry.origin() => {
                Ok(credentials.headers_for(request).await?)
            }
            Self::Token(_) => Ok(HeaderMap::new()),
        }
    }
}

/// Adds headers to those of an upgrade.
pub(super) fn show(shown: &HeaderMap, socket: &mut WebSocket) -> Result<(), DirectError> {
    for (name, value) in shown {
        if name == header::AUTHORIZATION {
            socket.headers.authorize(value.clone());
            continue;
        }
        // Whoever made a header made one that can be sent.
        let value = value
            .to_str()
            .map_err(|_| HeaderError::Value(name.to_string()))?;
        socket.headers.add(name.as_str(), value)?;
    }
    Ok(())
}

/// A websocket begins as a request for `http`, and is signed as one.
fn as_http(url: &str) -> Option<Url> {
    let (scheme, rest) = url.trim().split_once(':')?;
    let scheme = match scheme.to_ascii_lowercase().as_str() {
        "ws" => "http",
        "wss" => "https",
        _ => return None,
    };
    Url::parse(&format!("{scheme}:{rest}")).ok()
}
