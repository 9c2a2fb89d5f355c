//! The registry's HTTP API: registers environments and authorizes connections to them.
//! Invariant: every request is checked in the same order (route, method, rate limit, principal,
//! body, permissions), every refusal has the envelope `{"error":{"code","message"}}`, and every
//! request that names an environment is audited.
//! Elsewhere: the websockets behind the URLs (`rendezvous`), persistence (`store`).

mod operations;
mod refusal;
mod request_body;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use self::{
    refusal::{HttpRefusal, ok},
    request_body::{BodyBudget, RequestBody},
};

use std::{
    error::Error,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use exec_transport::http::service::HttpPeer;
use http::{HeaderMap, Method, Request, Response, header, request::Parts};
use http_body_util::Full;
use hyper::body::Body;
use tokio::sync::Semaphore;

use crate::{
    audit::{AuditAction, AuditEvent, AuditLog, AuditOutcome},
    circuit_dialer::CircuitDialer,
    direct::DirectService,
    limits,
    principal::Principal,
    rate_limit::{LimitedRequest, RateLimiter},
    store::{EnvironmentId, Store, Timestamp},
    tokens::TokenAuthenticator,
    url::{PublicUrl, UrlSigner},
};

/// Dependencies of the hub's HTTP endpoints.
#[derive(Clone, Debug)]
pub struct HubServices {
    /// Authentication, rate limits and audit log.
    pub gate: Arc<RequestGate>,
    /// Persistent state.
    pub store: Arc<dyn Store>,
    /// Connected executors.
    pub dialer: Arc<dyn CircuitDialer>,
    /// Signs rendezvous URLs.
    pub signer: Arc<UrlSigner>,
    /// URL under which clients reach this hub.
    pub address: PublicUrl,
}

impl HubServices {
    /// Closes executor websockets of an environment that do not belong to its current registration.
    pub(crate) async fn close_superseded_executors(&self, environment: &EnvironmentId) {
        let closing = self.dialer.supersede(environment.clone(), &*self.store);
        if tokio::time::timeout(CLOSE_TIMEOUT, closing).await.is_err() {
            tracing::warn!(%environment, "failed to close websockets of superseded executors in time");
        }
    }
}

/// How long closing superseded websockets may delay a response. They are refused in any case.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Handler of `POST /cloud/environment/<id>/<operation>`.
#[derive(Clone, Debug)]
pub struct RegistryService {
    services: HubServices,
    direct: Arc<DirectService>,
}

impl RegistryService {
    /// Creates the handler.
    pub fn new(services: HubServices, direct: Arc<DirectService>) -> Self {
        Self { services, direct }
    }

    /// Returns whether this handler serves a path.
    pub fn answers(path: &str) -> bool {
        path.starts_with(RegistryRoute::PREFIX)
    }

    /// Serves a request. Once its body has been read, the operation runs to completion even if the
    /// future is dropped.
    pub async fn serve<B>(&self, request: Request<B>, peer: HttpPeer) -> Response<Full<Bytes>>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        self.serve_at(request, peer, RequestTime::now()).await
    }

    /// Like [`Self::serve`], at a given time.
    async fn serve_at<B>(
        &self,
        request: Request<B>,
        peer: HttpPeer,
        moment: RequestTime,
    ) -> Response<Full<Bytes>>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let (parts, body) = request.into_parts();
        let answered = self.route(parts, body, peer, moment).await;
        answered.unwrap_or_else(HttpRefusal::into_response)
    }

    async fn route<B>(
        &self,
        parts: Parts,
        body: B,
        peer: HttpPeer,
        moment: RequestTime,
    ) -> Result<Response<Full<Bytes>>, HttpRefusal>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let route = RegistryRoute::parse(parts.uri.path()).ok_or_else(HttpRefusal::not_found)?;
        if parts.method != Method::POST {
            return Err(HttpRefusal::method("POST"));
        }
        let operation = route.operation;
        let environment: EnvironmentId = route.environment.parse()?;
        let mut event = AuditEvent::new(moment.at, operation.action(), peer);
        event.environment = Some(environment.clone());
        let call = RegistryCall {
            parts,
            environment,
            peer,
            moment,
        };
        let gate = &self.services.gate;
        let (principal, body_bytes) = match self.admit(&call, operation, body, &mut event).await {
            Ok(admitted) => admitted,
            Err(refusal) => return gate.audit_result(event, Err(refusal)),
        };
        let registry = self.clone();
        let answered = async move {
            let answered = registry.answer(&call, operation, principal, &body_bytes, &mut event);
            let answered = answered.await;
            registry.services.gate.audit_result(event, answered)
        };
        gate.run_to_completion(answered).await
    }

    /// Authenticates the caller and reads the body.
    async fn admit<B>(
        &self,
        call: &RegistryCall,
        operation: RegistryOperation,
        body: B,
        event: &mut AuditEvent,
    ) -> Result<(Principal, RequestBody), HttpRefusal>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let gate = &self.services.gate;
        let (headers, moment) = (&call.parts.headers, call.moment);
        let limited = match operation {
            // Executors treat any refusal as final, so registrations are not rate limited. Failed
            // authentication is.
            RegistryOperation::Register => {
                let principal = gate.authenticate(headers, moment);
                let principal =
                    principal.map_err(|refusal| gate.limit_failure(refusal, call.peer, moment))?;
                event.set_principal(&principal);
                return Ok((
                    principal,
                    RequestBody::read(headers, body, gate.bodies()).await?,
                ));
            }
            RegistryOperation::DirectRegister => {
                let caller = self.direct.authenticate_head(&call.parts, moment);
                let caller =
                    caller.map_err(|refusal| gate.limit_failure(refusal, call.peer, moment))?;
                let body_bytes = RequestBody::read(headers, body, gate.bodies()).await?;
                let principal =
                    self.direct
                        .authenticate_body(caller, &call.parts, &body_bytes, moment);
                let principal =
                    principal.map_err(|refusal| gate.limit_failure(refusal, call.peer, moment))?;
                event.set_principal(&principal);
                return Ok((principal, body_bytes));
            }
            RegistryOperation::Connect => LimitedRequest::Connect,
            RegistryOperation::Validate => LimitedRequest::Validate,
        };
        gate.address(call.peer, moment)?;
        let principal = gate.admit(headers, limited, moment)?;
        event.set_principal(&principal);
        Ok((
            principal,
            RequestBody::read(headers, body, gate.bodies()).await?,
        ))
    }

    async fn answer(
        &self,
        call: &RegistryCall,
        operation: RegistryOperation,
        principal: Principal,
        body_bytes: &RequestBody,
        event: &mut AuditEvent,
    ) -> Result<Response<Full<Bytes>>, HttpRefusal> {
        match operation {
            RegistryOperation::Register => self.register(call, &principal, body_bytes, event).await,
            RegistryOperation::Connect => self.connect(call, &principal, body_bytes, event).await,
            RegistryOperation::Validate => self.validate(call, &principal, body_bytes, event).await,
            RegistryOperation::DirectRegister => {
                self.direct
                    .register(call, principal, body_bytes, event)
                    .await
            }
        }
    }
}

/// The parts of a request that all operations use.
#[derive(Debug)]
pub(crate) struct RegistryCall {
    parts: Parts,
    pub(crate) environment: EnvironmentId,
    peer: HttpPeer,
    moment: RequestTime,
}

impl RegistryCall {
    /// Returns the hub's websocket URL as the client knows it.
    pub(crate) fn websocket(&self, address: &PublicUrl) -> Result<String, HttpRefusal> {
        Ok(address.websocket(host(&self.parts.headers))?)
    }
}

fn host(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::HOST)?.to_str().ok()
}

/// A parsed path. The environment id is not validated yet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct RegistryRoute<'a> {
    environment: &'a str,
    operation: RegistryOperation,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum RegistryOperation {
    Register,
    Connect,
    Validate,
    DirectRegister,
}

impl<'a> RegistryRoute<'a> {
    const PREFIX: &'static str = "/cloud/environment/";

    /// Returns `None` if the path is unknown.
    fn parse(path: &'a str) -> Option<Self> {
        let rest = path.strip_prefix(Self::PREFIX)?;
        let (environment, operation) = rest.split_once('/')?;
        let operation = match operation {
            "register" => RegistryOperation::Register,
            "connect" => RegistryOperation::Connect,
            "validate" => RegistryOperation::Validate,
            "direct/register" => RegistryOperation::DirectRegister,
            _ => return None,
        };
        Some(Self {
            environment,
            operation,
        })
    }
}

impl RegistryOperation {
    fn action(self) -> AuditAction {
        match self {
            Self::Register => AuditAction::Register,
            Self::Connect => AuditAction::Connect,
            Self::Validate => AuditAction::Validate,
            Self::DirectRegister => AuditAction::DirectRegister,
        }
    }
}

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

    /// Authenticates a caller and applies the principal's rate limit.
    pub(crate) fn admit(
        &self,
        headers: &HeaderMap,
        limited: LimitedRequest,
        moment: RequestTime,
    ) -> Result<Principal, HttpRefusal> {
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
        let done = tokio::spawn(async move {
            let result = work.await;
            drop(permit);
            result
        });
        // The task panicked, or the runtime is shutting down.
        done.await
            .unwrap_or_else(|_| Err(HttpRefusal::incomplete()))
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
