//! The registry itself: from a request to the one who answers it.

use std::{error::Error, sync::Arc};

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

/// Answers `POST /cloud/environment/<id>/<operation>`.
#[derive(Debug)]
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

    /// Answers a request. Dropping the future midway leaves a registration made or not made.
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
        let answered = self.route(&parts, body, peer, moment).await;
        answered.unwrap_or_else(Refusal::into_response)
    }

    async fn route<B>(
        &self,
        parts: &Parts,
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
        let environment: EnvironmentId = route.environment.parse()?;
        let mut event = Event::new(moment.at, route.operation.action(), peer);
        event.environment = Some(environment.clone());
        let call = Call {
            parts,
            environment,
            peer,
            moment,
        };
        let answered = self.answer(&call, route.operation, body, &mut event).await;
        self.services.gate.conclude(event, answered)
    }

    async fn answer<B>(
        &self,
        call: &Call<'_>,
        operation: Operation,
        body: B,
        event: &mut Event,
    ) -> Result<Response<Full<Bytes>>, Refusal>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let gate = &self.services.gate;
        let (headers, moment) = (&call.parts.headers, call.moment);
        match operation {
            // Executors take any refusal for good, so nobody counts how often they register. Those
            // who cannot say who they are are no executors.
            Operation::Register => {
                let principal = gate.authenticate(headers, moment);
                let principal =
                    principal.map_err(|refusal| gate.stranger(refusal, call.peer, moment))?;
                event.by(&principal);
                let posted = Posted::read(headers, body).await?;
                self.register(call, &principal, &posted, event).await
            }
            Operation::Connect => {
                gate.address(call.peer, moment)?;
                let principal = gate.admit(headers, Asked::Connect, moment)?;
                event.by(&principal);
                let posted = Posted::read(headers, body).await?;
                self.connect(call, &principal, &posted, event).await
            }
            Operation::Validate => {
                gate.address(call.peer, moment)?;
                let principal = gate.admit(headers, Asked::Validate, moment)?;
                event.by(&principal);
                let posted = Posted::read(headers, body).await?;
                self.validate(call, &principal, &posted, event).await
            }
            Operation::DirectRegister => {
                let caller = self.direct.greet(call.parts, moment);
                let caller = caller.map_err(|refusal| gate.stranger(refusal, call.peer, moment))?;
                let posted = Posted::read(headers, body).await?;
                let principal = self.direct.admit(caller, call.parts, &posted, moment);
                let principal =
                    principal.map_err(|refusal| gate.stranger(refusal, call.peer, moment))?;
                event.by(&principal);
                self.direct.register(call, principal, &posted, event).await
            }
        }
    }
}

/// A request, as far as all operations look at it.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(super) parts: &'a Parts,
    pub(crate) environment: EnvironmentId,
    pub(super) peer: Peer,
    pub(super) moment: Moment,
}

impl Call<'_> {
    /// The hub's own websocket URL, as the client knows it.
    pub(crate) fn websocket(&self, address: &PublicUrl) -> Result<String, Refusal> {
        Ok(address.websocket(host(&self.parts.headers))?)
    }
}

fn host(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::HOST)?.to_str().ok()
}
