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
    refusal::{Refusal, ok},
    request_body::{BodyBudget, Posted},
};

use std::{
    error::Error,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use exec_transport::http::site::Peer;
use http::{HeaderMap, Method, Request, Response, header, request::Parts};
use http_body_util::Full;
use hyper::body::Body;
use tokio::sync::Semaphore;

use crate::{
    audit::{Action, Audit, Event, Outcome},
    circuit_dialer::Exchange,
    direct::Direct,
    limits,
    principal::Principal,
    rate_limit::{Asked, RateLimits},
    store::{EnvironmentId, Store, Timestamp},
    tokens::Authenticator,
    url::{PublicUrl, Signer},
};

/// Dependencies of the hub's HTTP endpoints.
#[derive(Clone, Debug)]
pub struct Services {
    /// Authentication, rate limits and audit log.
    pub gate: Arc<Gate>,
    /// Persistent state.
    pub store: Arc<dyn Store>,
    /// Connected executors.
    pub exchange: Arc<dyn Exchange>,
    /// Signs rendezvous URLs.
    pub signer: Arc<Signer>,
    /// URL under which clients reach this hub.
    pub address: PublicUrl,
}

impl Services {
    /// Closes executor websockets of an environment that do not belong to its current registration.
    pub(crate) async fn close_others(&self, environment: &EnvironmentId) {
        let closing = self.exchange.supersede(environment.clone(), &*self.store);
        if tokio::time::timeout(CLOSING, closing).await.is_err() {
            tracing::warn!(%environment, "failed to close websockets of superseded executors in time");
        }
    }
}

/// How long closing superseded websockets may delay a response. They are refused in any case.
const CLOSING: Duration = Duration::from_secs(2);

/// Handler of `POST /cloud/environment/<id>/<operation>`.
#[derive(Clone, Debug)]
pub struct Registry {
    services: Services,
    direct: Arc<Direct>,
}

impl Registry {
    /// Creates the handler.
    pub fn new(services: Services, direct: Arc<Direct>) -> Self {
        Self { services, direct }
    }

    /// Returns whether this handler serves a path.
    pub fn answers(path: &str) -> bool {
        path.starts_with(Route::PREFIX)
    }

    /// Serves a request. Once its body has been read, the operation runs to completion even if the
    /// future is dropped.
    pub async fn serve<B>(&self, request: Request<B>, peer: Peer) -> Response<Full<Bytes>>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        self.serve_at(request, peer, Moment::now()).await
    }

    /// Like [`Self::serve`], at a given time.
    async fn serve_at<B>(
        &self,
        request: Request<B>,
        peer: Peer,
        moment: Moment,
    ) -> Response<Full<Bytes>>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let (parts, body) = request.into_parts();
        let answered = self.route(parts, body, peer, moment).await;
        answered.unwrap_or_else(Refusal::into_response)
    }

    async fn route<B>(
        &self,
        parts: Parts,
        body: B,
        peer: Peer,
        moment: Moment,
    ) -> Result<Response<Full<Bytes>>, Refusal>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let route = Route::parse(parts.uri.path()).ok_or_else(Refusal::not_found)?;
        if parts.method != Method::POST {
            return Err(Refusal::method("POST"));
        }
        let operation = route.operation;
        let environment: EnvironmentId = route.environment.parse()?;
        let mut event = Event::new(moment.at, operation.action(), peer);
        event.environment = Some(environment.clone());
        let call = Call {
            parts,
            environment,
            peer,
            moment,
        };
        let gate = &self.services.gate;
        let (principal, posted) = match self.admit(&call, operation, body, &mut event).await {
            Ok(admitted) => admitted,
            Err(refusal) => return gate.conclude(event, Err(refusal)),
        };
        let registry = self.clone();
        let answered = async move {
            let answered = registry.answer(&call, operation, principal, &posted, &mut event);
            let answered = answered.await;
            registry.services.gate.conclude(event, answered)
        };
        gate.finish(answered).await
    }

    /// Authenticates the caller and reads the body.
    async fn admit<B>(
        &self,
        call: &Call,
        operation: Operation,
        body: B,
        event: &mut Event,
    ) -> Result<(Principal, Posted), Refusal>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let gate = &self.services.gate;
        let (headers, moment) = (&call.parts.headers, call.moment);
        let asked = match operation {
            // Executors treat any refusal as final, so registrations are not rate limited. Failed
            // authentication is.
            Operation::Register => {
                let principal = gate.authenticate(headers, moment);
                let principal =
                    principal.map_err(|refusal| gate.stranger(refusal, call.peer, moment))?;
                event.by(&principal);
                return Ok((principal, Posted::read(headers, body, gate.bodies()).await?));
            }
            Operation::DirectRegister => {
                let caller = self.direct.greet(&call.parts, moment);
                let caller = caller.map_err(|refusal| gate.stranger(refusal, call.peer, moment))?;
                let posted = Posted::read(headers, body, gate.bodies()).await?;
                let principal = self.direct.admit(caller, &call.parts, &posted, moment);
                let principal =
                    principal.map_err(|refusal| gate.stranger(refusal, call.peer, moment))?;
                event.by(&principal);
                return Ok((principal, posted));
            }
            Operation::Connect => Asked::Connect,
            Operation::Validate => Asked::Validate,
        };
        gate.address(call.peer, moment)?;
        let principal = gate.admit(headers, asked, moment)?;
        event.by(&principal);
        Ok((principal, Posted::read(headers, body, gate.bodies()).await?))
    }

    async fn answer(
        &self,
        call: &Call,
        operation: Operation,
        principal: Principal,
        posted: &Posted,
        event: &mut Event,
    ) -> Result<Response<Full<Bytes>>, Refusal> {
        match operation {
            Operation::Register => self.register(call, &principal, posted, event).await,
            Operation::Connect => self.connect(call, &principal, posted, event).await,
            Operation::Validate => self.validate(call, &principal, posted, event).await,
            Operation::DirectRegister => self.direct.register(call, principal, posted, event).await,
        }
    }
}

/// The parts of a request that all operations use.
#[derive(Debug)]
pub(crate) struct Call {
    parts: Parts,
    pub(crate) environment: EnvironmentId,
    peer: Peer,
    moment: Moment,
}

impl Call {
    /// Returns the hub's websocket URL as the client knows it.
    pub(crate) fn websocket(&self, address: &PublicUrl) -> Result<String, Refusal> {
        Ok(address.websocket(host(&self.parts.headers))?)
    }
}

fn host(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::HOST)?.to_str().ok()
}

/// A parsed path. The environment id is not validated yet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Route<'a> {
    environment: &'a str,
    operation: Operation,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Operation {
    Register,
    Connect,
    Validate,
    DirectRegister,
}

impl<'a> Route<'a> {
    const PREFIX: &'static str = "/cloud/environment/";

    /// Returns `None` if the path is unknown.
    fn parse(path: &'a str) -> Option<Self> {
        let rest = path.strip_prefix(Self::PREFIX)?;
        let (environment, operation) = rest.split_once('/')?;
        let operation = match operation {
            "register" => Operation::Register,
            "connect" => Operation::Connect,
            "validate" => Operation::Validate,
            "direct/register" => Operation::DirectRegister,
            _ => return None,
        };
        Some(Self {
            environment,
            operation,
        })
    }
}

impl Operation {
    fn action(self) -> Action {
        match self {
            Self::Register => Action::Register,
            Self::Connect => Action::Connect,
            Self::Validate => Action::Validate,
            Self::DirectRegister => Action::DirectRegister,
        }
    }
}

/// Authenticates, rate limits and audits requests.
#[derive(Debug)]
pub struct Gate {
    authenticator: Authenticator,
    rates: RateLimits,
    audit: Audit,
    /// Permits of requests that run to completion.
    places: Arc<Semaphore>,
    bodies: BodyBudget,
}

impl Gate {
    /// Creates a gate.
    pub fn new(authenticator: Authenticator, rates: RateLimits, audit: Audit) -> Self {
        Self {
            authenticator,
            rates,
            audit,
            places: Arc::new(Semaphore::new(limits::REQUESTS)),
            bodies: BodyBudget::default(),
        }
    }

    /// Returns the audit log.
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Returns the authenticator.
    pub fn authenticator(&self) -> &Authenticator {
        &self.authenticator
    }

    /// Returns the memory budget of request bodies.
    pub(crate) fn bodies(&self) -> &BodyBudget {
        &self.bodies
    }

    /// Applies the rate limit of an address.
    pub(crate) fn address(&self, peer: Peer, moment: Moment) -> Result<(), Refusal> {
        match peer {
            Peer::Network(address) => Ok(self.rates.address(address.ip(), moment.instant)?),
            // Peers on a unix socket are local accounts that the operator trusts.
            Peer::Account(_) => Ok(()),
        }
    }

    /// Authenticates a caller and applies the principal's rate limit.
    pub(crate) fn admit(
        &self,
        headers: &HeaderMap,
        asked: Asked,
        moment: Moment,
    ) -> Result<Principal, Refusal> {
        let principal = self.authenticate(headers, moment)?;
        self.count(asked, &principal, moment)?;
        Ok(principal)
    }

    /// Applies the address rate limit to a failed authentication, for endpoints without one.
    /// Returns the refusal, or "too many requests".
    pub(crate) fn stranger(&self, refusal: Refusal, peer: Peer, moment: Moment) -> Refusal {
        self.address(peer, moment).err().unwrap_or(refusal)
    }

    /// Authenticates a caller. The caller must apply the rate limit to failures, unless it did so
    /// before.
    pub(crate) fn authenticate(
        &self,
        headers: &HeaderMap,
        moment: Moment,
    ) -> Result<Principal, Refusal> {
        Ok(self.authenticator.authenticate(headers, moment.at)?)
    }

    /// Applies the rate limit of a principal.
    pub(crate) fn count(
        &self,
        asked: Asked,
        principal: &Principal,
        moment: Moment,
    ) -> Result<(), Refusal> {
        Ok(self
            .rates
            .principal(asked, &principal.name, moment.instant)?)
    }

    /// Runs an operation to completion even if the client disconnects: a change of the store must
    /// be followed by its consequences. Dropping the future before a permit is available leaves it
    /// undone.
    pub(crate) async fn finish<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, Refusal> {
        let place = Arc::clone(&self.places).acquire_owned().await;
        let done = tokio::spawn(async move {
            let result = work.await;
            drop(place);
            result
        });
        // The task panicked, or the runtime is shutting down.
        done.await.unwrap_or_else(|_| Err(Refusal::unfinished()))
    }

    /// Resolves when all operations have completed.
    pub(crate) async fn idle(&self) {
        let all = u32::try_from(limits::REQUESTS).unwrap_or(u32::MAX);
        drop(self.places.acquire_many(all).await);
    }

    /// Records the outcome in the audit log and returns the result.
    pub(crate) fn conclude<T>(
        &self,
        mut event: Event,
        result: Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        if let Err(refusal) = &result {
            event.outcome = Outcome::Refused(refusal.hidden.unwrap_or(refusal.code));
        }
        self.audit.record(&event);
        result
    }
}

/// Both clocks, read once per request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// Wall-clock time, for clients and the store.
    pub(crate) at: Timestamp,
    /// Monotonic time, for rate limits.
    pub(crate) instant: Instant,
}

impl Moment {
    /// Reads the clocks.
    pub(crate) fn now() -> Self {
        Self {
            at: Timestamp::now(),
            instant: Instant::now(),
        }
    }
}
