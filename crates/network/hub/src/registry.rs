//! The registry: who an environment is, and who may talk to it, over HTTP.
//! Invariant: a request is judged in one order (route, method, rate, principal, body, rights), every
//! refusal has the envelope `{"error":{"code","message"}}`, and every one that names an environment
//! leaves a line in the audit log.
//! Not here: the sockets that the URLs lead to (`rendezvous`), remembering (`store`).

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

/// What the HTTP endpoints of a hub work with.
#[derive(Clone, Debug)]
pub struct Services {
    /// Who comes in.
    pub gate: Arc<Gate>,
    /// What is remembered.
    pub store: Arc<dyn Store>,
    /// The sockets of executors.
    pub exchange: Arc<dyn Exchange>,
    /// Signs rendezvous URLs.
    pub signer: Arc<Signer>,
    /// Where clients find this hub.
    pub address: PublicUrl,
}

impl Services {
    /// Closes the executor sockets of an environment that do not belong to its current registration.
    pub(crate) async fn close_others(&self, environment: &EnvironmentId) {
        let closing = self.exchange.supersede(environment.clone(), &*self.store);
        if tokio::time::timeout(CLOSING, closing).await.is_err() {
            tracing::warn!(%environment, "sockets of superseded executors linger");
        }
    }
}

/// How long closing the sockets of those before may hold up an answer. They are refused in any case.
const CLOSING: Duration = Duration::from_secs(2);

/// Answers `POST /cloud/environment/<id>/<operation>`.
#[derive(Clone, Debug)]
pub struct Registry {
    services: Services,
    direct: Arc<Direct>,
}

impl Registry {
    /// Takes what it works with.
    pub fn new(services: Services, direct: Arc<Direct>) -> Self {
        Self { services, direct }
    }

    /// Whether a path is the registry's to answer.
    pub fn answers(path: &str) -> bool {
        path.starts_with(Route::PREFIX)
    }

    /// Answers a request. What it asks for is done to its end once its body has come, even if the
    /// future is dropped.
    pub async fn serve<B>(&self, request: Request<B>, peer: Peer) -> Response<Full<Bytes>>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        self.serve_at(request, peer, Moment::now()).await
    }

    /// The same, at a time of the caller's choice.
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

    /// Finds out who asks, and reads what for.
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
            // Executors take any refusal for good, so nobody counts how often they register. Those
            // who cannot say who they are are no executors.
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

/// A request, as far as all operations look at it.
#[derive(Debug)]
pub(crate) struct Call {
    parts: Parts,
    pub(crate) environment: EnvironmentId,
    peer: Peer,
    moment: Moment,
}

impl Call {
    /// The hub's own websocket URL, as the client knows it.
    pub(crate) fn websocket(&self, address: &PublicUrl) -> Result<String, Refusal> {
        Ok(address.websocket(host(&self.parts.headers))?)
    }
}

fn host(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::HOST)?.to_str().ok()
}

/// What a path asks for. The id is not checked yet.
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

    /// `None`: there is nothing at this path.
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

/// Lets requests in and keeps the log of it.
#[derive(Debug)]
pub struct Gate {
    authenticator: Authenticator,
    rates: RateLimits,
    audit: Audit,
    /// A place for each request that is being finished.
    places: Arc<Semaphore>,
    bodies: BodyBudget,
}

impl Gate {
    /// Takes what it judges by.
    pub fn new(authenticator: Authenticator, rates: RateLimits, audit: Audit) -> Self {
        Self {
            authenticator,
            rates,
            audit,
            places: Arc::new(Semaphore::new(limits::REQUESTS)),
            bodies: BodyBudget::default(),
        }
    }

    /// The log.
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Who may come in.
    pub fn authenticator(&self) -> &Authenticator {
        &self.authenticator
    }

    /// What the bodies of all requests share.
    pub(crate) fn bodies(&self) -> &BodyBudget {
        &self.bodies
    }

    /// Counts a request of an address.
    pub(crate) fn address(&self, peer: Peer, moment: Moment) -> Result<(), Refusal> {
        match peer {
            Peer::Network(address) => Ok(self.rates.address(address.ip(), moment.instant)?),
            // Accounts of this machine are let in by the operator, one by one.
            Peer::Account(_) => Ok(()),
        }
    }

    /// Finds out who it is, and counts it.
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

    /// Counts somebody who could not say who they are, where not all requests of an address are
    /// counted. Returns the answer: the refusal, or that there were too many of them.
    pub(crate) fn stranger(&self, refusal: Refusal, peer: Peer, moment: Moment) -> Refusal {
        self.address(peer, moment).err().unwrap_or(refusal)
    }

    /// Finds out who it is. Who fails is to be counted by the caller, unless that was done before.
    pub(crate) fn authenticate(
        &self,
        headers: &HeaderMap,
        moment: Moment,
    ) -> Result<Principal, Refusal> {
        Ok(self.authenticator.authenticate(headers, moment.at)?)
    }

    /// Counts a request of a principal.
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

    /// Does something to its end, even if whoever asked for it hangs up: what the store was told to
    /// do happens in any case, so what follows from it must happen, too. Dropping the future before
    /// there is a place for it leaves it undone.
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
        // It panicked, or the hub ends.
        done.await.unwrap_or_else(|_| Err(Refusal::unfinished()))
    }

    /// Resolves when nothing is left to be finished.
    pub(crate) async fn idle(&self) {
        let all = u32::try_from(limits::REQUESTS).unwrap_or(u32::MAX);
        drop(self.places.acquire_many(all).await);
    }

    /// Writes down what came of a request, and hands it on.
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

/// Both clocks, read once for each request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// For what others are told, and what is kept.
    pub(crate) at: Timestamp,
    /// For what is counted.
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
