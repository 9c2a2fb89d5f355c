//! Request bodies: JSON of bounded size.

use std::{error::Error, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body;
use serde::de::DeserializeOwned;

use super::Refusal;

/// The largest body. Those of the protocol have two kilobytes.
const MAX_BYTES: usize = 64 << 10;
/// How long a body may take. Clients give a whole request ten seconds.
const DEADLINE: Duration = Duration::from_secs(10);

/// A body that has come whole.
#[derive(Debug)]
pub(crate) struct Posted(Bytes);

impl Posted {
    /// Reads a body that says it is JSON.
    pub(crate) async fn read<B>(headers: &HeaderMap, body: B) -> Result<Self, Refusal>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        if !is_json(headers) {
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            let message = "expected Content-Type: application/json";
            return Err(Refusal::new(status, "unsupported_media_type", message));
        }
        // Said before a byte of it is read.
        if body.size_hint().lower() > MAX_BYTES as u64 {
            return Err(too_large());
        }
        let limited = std::pin::pin!(Limited::new(body, MAX_BYTES));
        let read = tokio::time::timeout(DEADLINE, limited.collect()).await;
        let read = read.map_err(|_| {
            let status = StatusCode::REQUEST_TIMEOUT;
            Refusal::new(status, "request_timeout", "the body did not come in time")
        })?;
        match read {
            Ok(body) => Ok(Self(body.to_bytes())),
            Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
            Err(_) => Err(Refusal::invalid("the body broke off")),
        }
    }

    /// The bytes as they came.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Parses the body. What is wrong is said by place, never by content: there are secrets in it.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        serde_json::from_slice(&self.0).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            let what = match error.classify() {
                serde_json::error::Category::Data => "has other members than expected",
                serde_json::error::Category::Syntax
                | serde_json::error::Category::Eof
                | serde_json::error::Category::Io => "is no JSON",
            };
            Refusal::invalid(format!("the body {what} (line {line}, column {column})"))
        })
    }
}

fn too_large() -> Refusal {
    let message = format!("the body has more than {MAX_BYTES} bytes");
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", message)
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE);
    let value = value.and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}
