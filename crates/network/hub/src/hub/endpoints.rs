//! Routes requests to endpoints.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use exec_transport::http::{
    service::{HttpOutcome, HttpPeer, HttpService},
    wants_websocket,
};
use futures_util::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::{sync::watch, time::timeout};

use crate::{
    admin::AdminService,
    audit::{AuditAction, AuditEvent, AuditOutcome},
    circuit::ClusterNode,
    direct::{DirectService, DirectUpgrade},
    invites::InviteService,
    metrics::HubMetrics,
    registry::{HttpRefusal, RegistryService, RequestGate, RequestTime},
    rendezvous::{self, RendezvousAcceptor, UpgradeAdmission},
    store::Store,
};

/// All HTTP endpoints of a hub.
#[derive(Debug)]
pub(super) struct HubEndpoints {
    pub(super) registry: RegistryService,
    pub(super) invites: InviteService,
    pub(super) admin: AdminService,
    pub(super) direct: Arc<DirectService>,
    pub(super) rendezvous: Arc<RendezvousAcceptor>,
    pub(super) metrics: Arc<HubMetrics>,
    pub(super) gate: Arc<RequestGate>,
    pub(super) cluster: Option<Arc<dyn ClusterNode>>,
    /// Each request in progress holds a receiver.
    pub(super) requests: watch::Sender<()>,
}

/// An accepted websocket upgrade.
#[derive(Debug)]
pub(super) enum HubUpgrade {
    /// A relay websocket.
    Relay(UpgradeAdmission),
    /// A websocket of a direct executor or its harness.
    Direct(DirectUpgrade, HttpPeer),
}

/// Timeout of the store's readiness check. Probes wait a few seconds at most.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);

type Reply = Response<Full<Bytes>>;

impl HttpService for HubEndpoints {
    type Upgrade = HubUpgrade;

    fn respond(
        &self,
        request: Request<Incoming>,
        peer: HttpPeer,
    ) -> BoxFuture<'_, HttpOutcome<HubUpgrade>> {
        let busy = self.requests.subscribe();
        Box::pin(async move {
            let route = EndpointRoute::of(request.uri().path());
            let answer = self.route(route, request, peer).await;
            let answer =
                answer.unwrap_or_else(|refusal| HttpOutcome::Reply(refusal.into_response()));
            let status = match &answer {
                HttpOutcome::Reply(reply) => reply.status(),
                HttpOutcome::Upgrade(_) => StatusCode::SWITCHING_PROTOCOLS,
            };
            self.metrics.record_response(route.name(), status);
            drop(busy);
            answer
        })
    }
}

impl HubEndpoints {
    async fn route(
        &self,
        route: EndpointRoute,
        request: Request<Incoming>,
        peer: HttpPeer,
    ) -> Result<HttpOutcome<HubUpgrade>, HttpRefusal> {
        let moment = RequestTime::now();
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        let reply = match route {
            EndpointRoute::Health | EndpointRoute::Ready | EndpointRoute::Metrics if !reads => {
                return Err(HttpRefusal::method("GET, HEAD"));
            }
            EndpointRoute::Health => text(StatusCode::OK, "ok\n"),
            EndpointRoute::Ready => self.ready().await,
            EndpointRoute::Metrics => self.metrics(),
            EndpointRoute::Rendezvous => return self.rendezvous(&request, peer, moment).await,
            EndpointRoute::Registry
            | EndpointRoute::Invite
            | EndpointRoute::Admin
            | EndpointRoute::Direct
                if self.is_stopping() =>
            {
                return Err(HttpRefusal::retry_later("the hub is stopping"));
            }
            EndpointRoute::Registry => self.registry.serve(request, peer, moment).await?,
            EndpointRoute::Invite => self.invites.serve(request, peer, moment).await?,
            EndpointRoute::Admin => {
                let (parts, _) = request.into_parts();
                self.admin.serve(&parts, peer, moment).await?
            }
            EndpointRoute::Direct => {
                let (parts, _) = request.into_parts();
                let upgrade = self.direct.upgrade(&parts, peer, moment).await?;
                return Ok(HttpOutcome::Upgrade(HubUpgrade::Direct(upgrade, peer)));
            }
            EndpointRoute::Unknown => return Err(HttpRefusal::not_found()),
        };
        Ok(HttpOutcome::Reply(reply))
    }

    async fn ready(&self) -> Reply {
        if self.is_stopping() {
            return text(StatusCode::SERVICE_UNAVAILABLE, "stopping\n");
        }
        let cluster = self.cluster.as_ref();
        if cluster.is_some_and(|cluster| !cluster.is_connected()) {
            return text(StatusCode::SERVICE_UNAVAILABLE, "not connected to NATS\n");
        }
        store_readiness(&*self.rendezvous.store).await
    }

    fn metrics(&self) -> Reply {
        let cluster = self.cluster.as_ref().map(|cluster| cluster.gauges());
        text(StatusCode::OK, self.metrics.render(cluster))
    }

    async fn rendezvous(
        &self,
        request: &Request<Incoming>,
        peer: HttpPeer,
        moment: RequestTime,
    ) -> Result<HttpOutcome<HubUpgrade>, HttpRefusal> {
        if *request.method() != Method::GET {
            return Err(HttpRefusal::method("GET"));
        }
        // Checked before auditing: the audit log only has websocket requests.
        if !wants_websocket(request.headers()) {
            return Err(HttpRefusal::upgrade_required());
        }
        let now = moment.at;
        let uri = request.uri();
        let admitted = self.rendezvous.admit(uri.path(), uri.query(), now).await;
        match admitted {
            Ok(admission) => {
                let (action, environment, registration) = match &admission {
                    UpgradeAdmission::Executor(attachment) => {
                        let presence = attachment.presence();
                        let ids = (&presence.environment, &presence.registration);
                        (AuditAction::ExecutorSocket, ids.0, ids.1)
                    }
                    UpgradeAdmission::Harness(dial) => (
                        AuditAction::HarnessSocket,
                        &dial.environment,
                        &dial.registration,
                    ),
                };
                let mut event = AuditEvent::new(now, action, peer);
                event.environment = Some(environment.clone());
                event.registration = Some(registration.clone());
                self.gate.audit().record(&event);
                Ok(HttpOutcome::Upgrade(HubUpgrade::Relay(admission)))
            }
            Err(refusal) => {
                if let Some(action) = refused_action(uri.query()) {
                    let mut event = AuditEvent::new(now, action, peer);
                    event.outcome = AuditOutcome::Refused(refusal.code());
                    self.gate.audit().record(&event);
                }
                Err(self.refuse(&refusal, peer, moment))
            }
        }
    }

    /// Requests with invalid URLs count against the address's rate limit.
    fn refuse(
        &self,
        refusal: &rendezvous::UpgradeRefusal,
        peer: HttpPeer,
        moment: RequestTime,
    ) -> HttpRefusal {
        let answer = HttpRefusal::new(refusal.status(), refusal.code(), refusal);
        match refusal {
            rendezvous::UpgradeRefusal::Url(_) => self.gate.limit_failure(answer, peer, moment),
            rendezvous::UpgradeRefusal::Superseded
            | rendezvous::UpgradeRefusal::Store
            | rendezvous::UpgradeRefusal::Stopping => answer,
        }
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
fn refused_action(query: Option<&str>) -> Option<AuditAction> {
    let query = query?;
    if query.contains("role=environment") {
        Some(AuditAction::ExecutorSocket)
    } else if query.contains("role=harness") {
        Some(AuditAction::HarnessSocket)
    } else {
        None
    }
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
enum EndpointRoute {
    Health,
    Ready,
    Metrics,
    Rendezvous,
    Registry,
    Invite,
    Admin,
    Direct,
    Unknown,
}

impl EndpointRoute {
    fn of(path: &str) -> Self {
        match path {
            "/healthz" => Self::Health,
            "/readyz" => Self::Ready,
            "/metrics" => Self::Metrics,
            path if path.starts_with("/rendezvous/") => Self::Rendezvous,
            path if RegistryService::answers(path) => Self::Registry,
            path if InviteService::answers(path) => Self::Invite,
            path if AdminService::answers(path) => Self::Admin,
            path if DirectService::answers(path) => Self::Direct,
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
            Self::Invite => "invite",
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
