//! Routes requests to endpoints.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use exec_transport::http::{
    site::{Answer, Peer, Site},
    wants_websocket,
};
use futures_util::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::time::timeout;

use super::Busy;
use crate::{
    admin::Admin,
    audit::{Action, Event, Outcome},
    direct::{Direct, DirectUpgrade},
    metrics::Metrics,
    nats::Mesh,
    registry::{Gate, Moment, Refusal, Registry},
    rendezvous::{self, Admission, Rendezvous},
    store::Store,
};

/// All HTTP endpoints of a hub.
#[derive(Debug)]
pub(super) struct Endpoints {
    pub(super) registry: Registry,
    pub(super) admin: Admin,
    pub(super) direct: Arc<Direct>,
    pub(super) rendezvous: Arc<Rendezvous>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) gate: Arc<Gate>,
    pub(super) mesh: Option<Arc<Mesh>>,
    /// Requests in progress.
    pub(super) requests: Busy,
}

/// An accepted websocket upgrade.
#[derive(Debug)]
pub(super) enum Upgrade {
    /// A relay websocket.
    Relay(Admission),
    /// A websocket of a direct executor or its harness.
    Direct(DirectUpgrade, Peer),
}

/// Timeout of the store's readiness check. Probes wait a few seconds at most.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);

type Reply = Response<Full<Bytes>>;

impl Site for Endpoints {
    type Upgrade = Upgrade;

    fn answer(&self, request: Request<Incoming>, peer: Peer) -> BoxFuture<'_, Answer<Upgrade>> {
        let busy = self.requests.begin();
        Box::pin(async move {
            let route = Route::of(request.uri().path());
            let answer = self.route(route, request, peer).await;
            let status = match &answer {
                Answer::Reply(reply) => reply.status(),
                Answer::Upgrade(_) => StatusCode::SWITCHING_PROTOCOLS,
            };
            self.metrics.answered(route.name(), status);
            drop(busy);
            answer
        })
    }
}

impl Endpoints {
    async fn route(&self, route: Route, request: Request<Incoming>, peer: Peer) -> Answer<Upgrade> {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        Answer::Reply(match route {
            Route::Health | Route::Ready | Route::Metrics if !reads => {
                Refusal::method("GET, HEAD").into_response()
            }
            Route::Health => text(StatusCode::OK, "ok\n"),
            Route::Ready => self.ready().await,
            Route::Metrics => self.metrics(),
            Route::Rendezvous => return self.rendezvous(&request, peer).await,
            Route::Registry | Route::Admin | Route::Direct if self.is_stopping() => stopping(),
            Route::Registry => self.registry.serve(request, peer).await,
            Route::Admin => self.admin.serve(request, peer).await,
            Route::Direct => {
                let (parts, _) = request.into_parts();
                match self.direct.upgrade(&parts, peer).await {
                    Ok(upgrade) => return Answer::Upgrade(Upgrade::Direct(upgrade, peer)),
                    Err(reply) => reply,
                }
            }
            Route::Unknown => Refusal::not_found().into_response(),
        })
    }

    async fn ready(&self) -> Reply {
        if self.is_stopping() {
            return text(StatusCode::SERVICE_UNAVAILABLE, "stopping\n");
        }
        if self.mesh.as_ref().is_some_and(|mesh| !mesh.is_connected()) {
            return text(StatusCode::SERVICE_UNAVAILABLE, "not connected to NATS\n");
        }
        store_readiness(&*self.rendezvous.store).await
    }

    fn metrics(&self) -> Reply {
        if let Some(mesh) = &self.mesh {
            self.metrics.mesh(mesh.nodes(), mesh.circuits());
        }
        text(StatusCode::OK, self.metrics.render())
    }

    async fn rendezvous(&self, request: &Request<Incoming>, peer: Peer) -> Answer<Upgrade> {
        if *request.method() != Method::GET {
            return Answer::Reply(Refusal::method("GET").into_response());
        }
        // Checked before auditing: the audit log only has websocket requests.
        if !wants_websocket(request.headers()) {
            let status = StatusCode::UPGRADE_REQUIRED;
            let message = "expected a websocket upgrade";
            let refusal = Refusal::new(status, "upgrade_required", message);
            return Answer::Reply(refusal.into_response());
        }
        let moment = Moment::now();
        let now = moment.at;
        let uri = request.uri();
        let admitted = self.rendezvous.admit(uri.path(), uri.query(), now).await;
        match admitted {
            Ok(admission) => {
                let (action, environment, registration) = match &admission {
                    Admission::Executor(attachment) => {
                        let presence = attachment.presence();
                        let ids = (&presence.environment, &presence.registration);
                        (Action::ExecutorSocket, ids.0, ids.1)
                    }
                    Admission::Harness(dial) => {
                        (Action::HarnessSocket, &dial.environment, &dial.registration)
                    }
                };
                let mut event = Event::new(now, action, peer);
                event.environment = Some(environment.clone());
                event.registration = Some(registration.clone());
                self.gate.audit().record(&event);
                Answer::Upgrade(Upgrade::Relay(admission))
            }
            Err(refusal) => {
                if let Some(action) = refused_action(uri.query()) {
                    let mut event = Event::new(now, action, peer);
                    event.outcome = Outcome::Refused(refusal.code());
                    self.gate.audit().record(&event);
                }
                Answer::Reply(self.refuse(&refusal, peer, moment))
            }
        }
    }

    /// Requests with invalid URLs count against the address's rate limit.
    fn refuse(&self, refusal: &rendezvous::Refusal, peer: Peer, moment: Moment) -> Reply {
        let answer = Refusal::new(refusal.status(), refusal.code(), refusal);
        let answer = match refusal {
            rendezvous::Refusal::Url(_) => self.gate.stranger(answer, peer, moment),
            rendezvous::Refusal::Superseded
            | rendezvous::Refusal::Store
            | rendezvous::Refusal::Stopping => answer,
        };
        answer.into_response()
    }

    fn is_stopping(&self) -> bool {
        *self.rendezvous.stopping.borrow()
    }
}

/// A store that hangs counts as failed.
async fn store_readiness(store: &dyn Store) -> Reply {
    match timeout(STORE_TIMEOUT, store.check()).await {
        Ok(Ok(())) => text(StatusCode::OK, "ready\n"),
        Ok(Err(_)) | Err(_) => {
            let message = "the store cannot write\n";
            text(StatusCode::SERVICE_UNAVAILABLE, message)
        }
    }
}

/// Guesses the action of a rejected URL, for the audit log.
fn refused_action(query: Option<&str>) -> Option<Action> {
    let query = query?;
    if query.contains("role=environment") {
        Some(Action::ExecutorSocket)
    } else if query.contains("role=harness") {
        Some(Action::HarnessSocket)
    } else {
        None
    }
}

/// 502 with this code makes executors retry; they treat other refusals as final. Harnesses retry
/// after any 5xx.
fn stopping() -> Reply {
    let code = exec_registry::api::Code::AuthenticationServiceUnavailable.as_str();
    Refusal::new(StatusCode::BAD_GATEWAY, code, "the hub is stopping").into_response()
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Reply {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// The endpoint of a path. Names are metric labels, so there are few.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Route {
    Health,
    Ready,
    Metrics,
    Rendezvous,
    Registry,
    Admin,
    Direct,
    Unknown,
}

impl Route {
    fn of(path: &str) -> Self {
        match path {
            "/healthz" => Self::Health,
            "/readyz" => Self::Ready,
            "/metrics" => Self::Metrics,
            path if path.starts_with("/rendezvous/") => Self::Rendezvous,
            path if Registry::answers(path) => Self::Registry,
            path if Admin::answers(path) => Self::Admin,
            path if Direct::answers(path) => Self::Direct,
            _ => Self::Unknown,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::Ready => "ready",
            Self::Metrics => "metrics",
            Self::Rendezvous => "rendezvous",
            Self::Registry => "registry",
            Self::Admin => "admin",
            Self::Direct => "direct",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{lose_writer, on_disk};

    #[tokio::test]
    async fn hub_is_not_ready_when_its_store_cannot_write() {
        let (environment, alice) = ("env".parse().unwrap(), "alice".parse().unwrap());
        let (store, disk) = on_disk();
        assert_eq!(store_readiness(&store).await.status(), StatusCode::OK);
        disk.fail();
        assert!(store.claim(&environment, &alice).await.is_err());
        let unready = StatusCode::SERVICE_UNAVAILABLE;
        assert_eq!(store_readiness(&store).await.status(), unready);

        let (store, disk) = on_disk();
        lose_writer(&store, &disk).await;
        assert_eq!(store_readiness(&store).await.status(), unready);
    }
}
