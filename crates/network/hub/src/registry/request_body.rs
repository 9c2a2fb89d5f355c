//! Request bodies: JSON of bounded size, and bounded in sum.

use std::{error::Error, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_registry::api::Code;
use http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body;
use serde::de::DeserializeOwned;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::Refusal;
use crate::limits;

/// The largest body. Those of the protocol have two kilobytes; one with the longest authorization,
/// every character of it escaped, has 26.
pub(super) const MAX_BYTES: usize = 32 << 10;
/// Bodies up to this size are not counted: those of every client that means well.
const UNCOUNTED_BYTES: usize = 4 << 10;
/// How long a body may take. Clients give a whole request ten seconds.
const DEADLINE: Duration = Duration::from_secs(10);

/// Bounds the memory of all large bodies that are read at a time: whoever sends half of many keeps
/// the others from sending large ones, which nobody needs, and the hub from nothing else.
#[derive(Clone, Debug)]
pub(crate) struct BodyBudget(Arc<Semaphore>);

impl Default for BodyBudget {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(limits::BODY_BYTES)))
    }
}

impl BodyBudget {
    /// Reserves room for a body of at most `bytes`. `None`: it is too small to count.
    fn reserve(&self, bytes: usize) -> Result<Option<OwnedSemaphorePermit>, Refusal> {
        if bytes <= UNCOUNTED_BYTES {
            return Ok(None);
        }
        let permits = u32::try_from(bytes).map_err(|_| too_large())?;
        let reserved = Arc::clone(&self.0).try_acquire_many_owned(permits);
        reserved.map(Some).map_err(|_| {
            // The code with which executors ask again, too.
            let code = Code::AuthenticationServiceUnavailable.as_str();
            let message = "too many large requests at once; try again";
            Refusal::new(StatusCode::BAD_GATEWAY, code, message)
        })
    }
}

/// A body that has come whole.
#[derive(Debug)]
pub(crate) struct Posted {
    bytes: Vec<u8>,
    _reserved: Option<OwnedSemaphorePermit>,
}

impl Posted {
    /// Reads a body that says it is JSON.
    pub(crate) async fn read<B>(
        headers: &HeaderMap,
        body: B,
        budget: &BodyBudget,
    ) -> Result<Self, Refusal>
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
        let size = body.size_hint();
        if size.lower() > MAX_BYTES as u64 {
            return Err(too_large());
        }
        let most = size.upper().and_then(|bytes| usize::try_from(bytes).ok());
        let reserved = budget.reserve(most.map_or(MAX_BYTES, |bytes| bytes.min(MAX_BYTES)))?;
        let read = timeout(DEADLINE, collect(body)).await;
        let bytes = read.map_err(|_| {
            let status = StatusCode::REQUEST_TIMEOUT;
            Refusal::new(status, "request_timeout", "the body did not come in time")
        })??;
        Ok(Self {
            bytes,
            _reserved: reserved,
        })
    }

    /// The bytes as they came.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Parses the body. What is wrong is said by place, never by content: there are secrets in it.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        serde_json::from_slice(&self.bytes).map_err(|error| {
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

/// Copies the body into one piece: the pieces that it comes in may be one byte each, and each keeps
/// the buffer that it was read into.
async fn collect<B>(body: B) -> Result<Vec<u8>, Refusal>
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let mut body = pin!(Limited::new(body, MAX_BYTES));
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data)),
            Err(error) if error.is::<LengthLimitError>() => return Err(too_large()),
            Err(_) => return Err(Refusal::invalid("the body broke off")),
        }
    }
    Ok(bytes)
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
