//! Admission of requests: authentication, rate limits, bounded bodies and the audit log.
//! Invariant: request bodies are JSON, and bounded per request and in total.

use std::{
    error::Error,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use exec_transport::http::service::HttpPeer;
use http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body;
use serde::de::DeserializeOwned;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::HttpRefusal;
use crate::{
    audit::{AuditEvent, AuditLog, AuditOutcome},
    limits,
    principal::Principal,
    rate_limit::{LimitedRequest, RateLimiter},
    store::Timestamp,
    tokens::TokenAuthenticator,
};

/// Authenticates, rate limits and audits requests.
#[derive(Debug)]
pub struct RequestGate {
    authenticator: TokenAuthenticator,
    rates: RateLimiter,
    audit: AuditLog,
    /// Permits of requests that run to completion.
    permits: Arc<Semaphore>,
    bodies: BodyBudget,
}

impl RequestGate {
    /// Creates a gate.
    pub fn new(authenticator: TokenAuthenticator, rates: RateLimiter, audit: AuditLog) -> Self {
        Self {
            authenticator,
            rates,
            audit,
            permits: Arc::new(Semaphore::new(limits::REQUESTS)),
            bodies: BodyBudget::default(),
        }
    }

    /// Returns the audit log.
    pub fn audit(&self) -> &AuditLog {
        &self.audit
    }

    /// Returns the authenticator.
    pub fn authenticator(&self) -> &TokenAuthenticator {
        &self.authenticator
    }

    /// Returns the memory budget of request bodies.
    pub(crate) fn bodies(&self) -> &BodyBudget {
        &self.bodies
    }

    /// Applies the rate limit of an address.
    pub(crate) fn address(&self, peer: HttpPeer, moment: RequestTime) -> Result<(), HttpRefusal> {
        match peer {
            HttpPeer::Network(address) => Ok(self.rates.address(address.ip(), moment.instant)?),
            // Peers on a unix socket are local accounts that the operator trusts.
            HttpPeer::Account(_) => Ok(()),
        }
    }

    /// Authenticates a caller and applies the rate limits of its address and of the principal.
    pub(crate) fn admit(
        &self,
        headers: &HeaderMap,
        peer: HttpPeer,
        limited: LimitedRequest,
        moment: RequestTime,
    ) -> Result<Principal, HttpRefusal> {
        self.address(peer, moment)?;
        let principal = self.authenticate(headers, moment)?;
        self.count(limited, &principal, moment)?;
        Ok(principal)
    }

    /// Applies the address rate limit to a failed authentication, for endpoints without one.
    /// Returns the refusal, or "too many requests".
    pub(crate) fn limit_failure(
        &self,
        refusal: HttpRefusal,
        peer: HttpPeer,
        moment: RequestTime,
    ) -> HttpRefusal {
        self.address(peer, moment).err().unwrap_or(refusal)
    }

    /// Authenticates a caller. The caller must apply the rate limit to failures, unless it did so
    /// before.
    pub(crate) fn authenticate(
        &self,
        headers: &HeaderMap,
        moment: RequestTime,
    ) -> Result<Principal, HttpRefusal> {
        Ok(self.authenticator.authenticate(headers, moment.at)?)
    }

    /// Applies the rate limit of a principal.
    pub(crate) fn count(
        &self,
        limited: LimitedRequest,
        principal: &Principal,
        moment: RequestTime,
    ) -> Result<(), HttpRefusal> {
        Ok(self
            .rates
            .principal(limited, &principal.name, moment.instant)?)
    }

    /// Runs an operation to completion even if the client disconnects: a change of the store must
    /// be followed by its consequences. Dropping the future before a permit is available leaves it
    /// undone.
    pub(crate) async fn run_to_completion<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, HttpRefusal>> + Send + 'static,
    ) -> Result<T, HttpRefusal> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let task = tokio::spawn(async move {
            let result = work.await;
            drop(permit);
            result
        });
        // The task panicked, or the runtime is shutting down.
        task.await.unwrap_or_else(|_| {
            Err(HttpRefusal::retry_later(
                "the hub did not finish the request",
            ))
        })
    }

    /// Resolves when all operations have completed.
    pub(crate) async fn idle(&self) {
        let all = u32::try_from(limits::REQUESTS).unwrap_or(u32::MAX);
        drop(self.permits.acquire_many(all).await);
    }

    /// Records the outcome in the audit log and returns the result.
    pub(crate) fn audit_result<T>(
        &self,
        mut event: AuditEvent,
        result: Result<T, HttpRefusal>,
    ) -> Result<T, HttpRefusal> {
        if let Err(refusal) = &result {
            event.outcome = AuditOutcome::Refused(refusal.hidden.unwrap_or(refusal.code));
        }
        self.audit.record(&event);
        result
    }
}

/// Both clocks, read once per request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTime {
    /// Wall-clock time, for clients and the store.
    pub(crate) at: Timestamp,
    /// Monotonic time, for rate limits.
    pub(crate) instant: Instant,
}

impl RequestTime {
    /// Reads the clocks.
    pub(crate) fn now() -> Self {
        Self {
            at: Timestamp::now(),
            instant: Instant::now(),
        }
    }
}

/// Largest body. Those of the protocol take two kilobytes; the longest authorization with every
/// character escaped takes 26.
pub(super) const MAX_BODY_BYTES: usize = 32 << 10;
/// Bodies up to this size are not counted against the budget. Well-behaved clients send no larger
/// ones.
const UNCOUNTED_BYTES: usize = 4 << 10;
/// Time limit for reading a body. Clients allow ten seconds per request.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Memory budget of all large bodies being read. Slow senders of large bodies can only block other
/// large bodies.
#[derive(Clone, Debug)]
pub(crate) struct BodyBudget(Arc<Semaphore>);

impl Default for BodyBudget {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(limits::BODY_BYTES)))
    }
}

impl BodyBudget {
    /// Reserves memory for a body of at most `bytes`. `None`: the body is too small to count.
    fn reserve(&self, bytes: usize) -> Result<Option<OwnedSemaphorePermit>, HttpRefusal> {
        if bytes <= UNCOUNTED_BYTES {
            return Ok(None);
        }
        let permits = u32::try_from(bytes).map_err(|_| too_large())?;
        let reserved = Arc::clone(&self.0).try_acquire_many_owned(permits);
        let refused = |_| HttpRefusal::retry_later("too many large requests at once; try again");
        reserved.map(Some).map_err(refused)
    }
}

/// The body of a request, of any HTTP library.
pub(crate) trait IncomingBody:
    Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send
{
}

impl<B> IncomingBody for B where
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send
{
}

/// A completely received body.
#[derive(Debug)]
pub(crate) struct RequestBody {
    bytes: Vec<u8>,
    _reserved: Option<OwnedSemaphorePermit>,
}

impl RequestBody {
    /// Reads a JSON body.
    pub(crate) async fn read(
        headers: &HeaderMap,
        body: impl IncomingBody,
        budget: &BodyBudget,
    ) -> Result<Self, HttpRefusal> {
        if !is_json(headers) {
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            let message = "expected Content-Type: application/json";
            return Err(HttpRefusal::new(status, "unsupported_media_type", message));
        }
        // Checked before reading anything.
        let size = body.size_hint();
        if size.lower() > MAX_BODY_BYTES as u64 {
            return Err(too_large());
        }
        let most = size.upper().and_then(|bytes| usize::try_from(bytes).ok());
        let reserved =
            budget.reserve(most.map_or(MAX_BODY_BYTES, |bytes| bytes.min(MAX_BODY_BYTES)))?;
        let read = timeout(BODY_TIMEOUT, collect(body)).await;
        let bytes = read.map_err(|_| {
            let status = StatusCode::REQUEST_TIMEOUT;
            HttpRefusal::new(status, "request_timeout", "timeout while reading the body")
        })??;
        Ok(Self {
            bytes,
            _reserved: reserved,
        })
    }

    /// Returns the raw bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Parses the body. Errors name the position, never the content, which contains secrets.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, HttpRefusal> {
        serde_json::from_slice(&self.bytes).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            let what = match error.classify() {
                serde_json::error::Category::Data => "has unexpected members",
                serde_json::error::Category::Syntax
                | serde_json::error::Category::Eof
                | serde_json::error::Category::Io => "is not JSON",
            };
            HttpRefusal::invalid(format!("the body {what} (line {line}, column {column})"))
        })
    }
}

/// Copies the body into one buffer: chunks may be one byte each, and each would keep its read
/// buffer alive.
async fn collect(body: impl IncomingBody) -> Result<Vec<u8>, HttpRefusal> {
    let mut body = pin!(Limited::new(body, MAX_BODY_BYTES));
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data)),
            Err(error) if error.is::<LengthLimitError>() => return Err(too_large()),
            Err(_) => return Err(HttpRefusal::invalid("the body is incomplete")),
        }
    }
    Ok(bytes)
}

fn too_large() -> HttpRefusal {
    let message = format!("the body exceeds {MAX_BODY_BYTES} bytes");
    HttpRefusal::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", message)
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE);
    let value = value.and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}
