//! The registry itself: from a request to the one who answers it.

use std::{error::Error, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_transport::http::site::Peer;
use http::{HeaderMap, Method, Request, Response, header, request::Parts};
use http_body_util::Full;
use hyper::body::Body;

use super::{
    Gate, Moment, Posted, Refusal,
    route::{Operation, Route},
};
use crate::{
    audit::Event,
    direct::Direct,
    exchange::Exchange,
    principal::Principal,
    rate::Asked,
    store::{EnvironmentId, Store},
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
    pub(super) services: Services,
    pub(super) direct: Arc<Direct>,
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
    pub(super) async fn serve_at<B>(
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
    pub(super) parts: Parts,
    pub(crate) environment: EnvironmentId,
    pub(super) peer: Peer,
    pub(super) moment: Moment,
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
