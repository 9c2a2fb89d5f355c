//! Serves `/hub/v1/environments`: lists and removes environments.
//! Admins see all environments, other principals their own.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use exec_transport::http::service::HttpPeer;
use http::{Method, Response, request::Parts};
use http_body_util::Full;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    audit::{AuditAction, AuditEvent},
    direct::DirectService,
    principal::Principal,
    rate_limit::LimitedRequest,
    registry::{HttpRefusal, HubServices, RequestTime, ok},
    store::{EnvironmentId, OwnedEnvironment, Registration},
};

const PATH: &str = "/hub/v1/environments";
/// Environments per response.
const PAGE: usize = 500;
/// Records that one request scans, including those of other principals.
const MAX_SCANNED: usize = 8192;

/// Handler of `/hub/v1/environments`.
#[derive(Clone, Debug)]
pub struct AdminService {
    services: HubServices,
    direct: Arc<DirectService>,
}

impl AdminService {
    /// Creates the handler.
    pub fn new(services: HubServices, direct: Arc<DirectService>) -> Self {
        Self { services, direct }
    }

    /// Returns whether this handler serves a path.
    pub fn answers(path: &str) -> bool {
        path.starts_with("/hub/v1/")
    }

    /// Serves a request. Its body is ignored.
    pub(crate) async fn serve(
        &self,
        parts: &Parts,
        peer: HttpPeer,
        moment: RequestTime,
    ) -> Result<Response<Full<Bytes>>, HttpRefusal> {
        let rest = parts.uri.path().strip_prefix(PATH);
        let gate = &self.services.gate;
        match rest.ok_or_else(HttpRefusal::not_found)? {
            "" if parts.method == Method::GET => {
                let mut event = AuditEvent::new(moment.at, AuditAction::List, peer);
                let listed = self.list(parts, peer, moment, &mut event).await;
                gate.audit_result(event, listed)
            }
            "" => Err(HttpRefusal::method("GET")),
            rest => {
                let id = rest.strip_prefix('/').ok_or_else(HttpRefusal::not_found)?;
                let environment: EnvironmentId = id.parse()?;
                if parts.method != Method::DELETE {
                    return Err(HttpRefusal::method("DELETE"));
                }
                let mut event = AuditEvent::new(moment.at, AuditAction::Remove, peer);
                event.environment = Some(environment.clone());
                let principal = match self.admit(parts, peer, moment, &mut event) {
                    Ok(principal) => principal,
                    Err(refusal) => return gate.audit_result(event, Err(refusal)),
                };
                let admin = self.clone();
                let removed = async move {
                    let removed = admin.remove(&principal, &environment).await;
                    admin.services.gate.audit_result(event, removed)
                };
                gate.run_to_completion(removed).await
            }
        }
    }

    fn admit(
        &self,
        parts: &Parts,
        peer: HttpPeer,
        moment: RequestTime,
        event: &mut AuditEvent,
    ) -> Result<Principal, HttpRefusal> {
        let (gate, headers) = (&self.services.gate, &parts.headers);
        let principal = gate.admit(headers, peer, LimitedRequest::Admin, moment)?;
        event.set_principal(&principal);
        Ok(principal)
    }

    async fn list(
        &self,
        parts: &Parts,
        peer: HttpPeer,
        moment: RequestTime,
        event: &mut AuditEvent,
    ) -> Result<Response<Full<Bytes>>, HttpRefusal> {
        let principal = self.admit(parts, peer, moment, event)?;
        let after = match parts.uri.query() {
            None | Some("") => None,
            Some(query) => {
                let after = query.strip_prefix("after=");
                let after = after.ok_or_else(|| HttpRefusal::invalid("expected ?after=<id>"))?;
                Some(after.parse::<EnvironmentId>()?)
            }
        };
        Ok(ok(&self.page(&principal, after.as_ref()).await?))
    }

    /// Returns a page of the store's environments that the principal may manage.
    async fn page(
        &self,
        principal: &Principal,
        after: Option<&EnvironmentId>,
    ) -> Result<EnvironmentList, HttpRefusal> {
        let store = &self.services.store;
        let (mut after, mut scanned) = (after.cloned(), 0);
        let mut list = EnvironmentList::default();
        while list.environments.len() < PAGE && scanned < MAX_SCANNED {
            let remaining = PAGE - list.environments.len();
            let page = store.environments(after.as_ref(), remaining).await?;
            scanned += page.len();
            let was_full = page.len() == remaining;
            for owned in page {
                after = Some(owned.environment.clone());
                if principal.may_manage(&owned.environment, &owned.owner) {
                    list.environments.extend(self.direct(&owned));
                    if let Some(registration) = owned.current {
                        list.environments.push(self.relayed(registration).await?);
                    }
                }
            }
            if !was_full {
                return Ok(list);
            }
        }
        list.next = after.map(|after| after.to_string());
        Ok(list)
    }

    async fn relayed(
        &self,
        registration: Registration,
    ) -> Result<HubEnvironmentStatus, HttpRefusal> {
        let store = &self.services.store;
        let presence = store.presence(&registration.environment).await?;
        let presence = presence.filter(|presence| presence.registration == registration.id);
        Ok(HubEnvironmentStatus {
            environment_id: registration.environment.to_string(),
            owner: registration.owner.to_string(),
            registration_id: Some(registration.id.to_string()),
            transport: ExecutorTransport::Noise,
            online: presence.is_some(),
            node: presence.map(|presence| presence.node.to_string()),
            registered_at: Some(registration.created_at.rfc3339()),
        })
    }

    /// Returns the status of the direct executor, as far as this node knows. An environment without
    /// relay registration was registered as direct, before a restart or on another node.
    fn direct(&self, owned: &OwnedEnvironment) -> Option<HubEnvironmentStatus> {
        let found = self.direct.find(&owned.environment, &owned.owner);
        if found.is_none() && owned.current.is_some() {
            return None;
        }
        Some(HubEnvironmentStatus {
            environment_id: owned.environment.to_string(),
            owner: owned.owner.to_string(),
            online: found.as_ref().is_some_and(|found| found.online),
            registration_id: found.map(|found| found.registration.to_string()),
            transport: ExecutorTransport::Direct,
            node: None,
            registered_at: None,
        })
    }

    async fn remove(
        &self,
        principal: &Principal,
        environment: &EnvironmentId,
    ) -> Result<Response<Full<Bytes>>, HttpRefusal> {
        let services = &self.services;
        let owner = services.store.owner(environment).await?;
        let owner = owner.ok_or_else(HttpRefusal::unknown_environment)?;
        if !principal.may_manage(environment, &owner) {
            return Err(HttpRefusal::unknown_environment().with_audit_code("forbidden"));
        }
        self.direct.remove(environment);
        services.store.remove(environment).await?;
        services.close_superseded_executors(environment).await;
        Ok(ok(&json!({"removed": true})))
    }
}

/// A page of environments, ordered by id.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct EnvironmentList {
    /// The environments of this page.
    pub environments: Vec<HubEnvironmentStatus>,
    /// Pass `?after=<this>` for the next page. Absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Status of one environment.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HubEnvironmentStatus {
    /// The id.
    pub environment_id: String,
    /// The principal that owns it.
    pub owner: String,
    /// The current registration. Absent for a direct one unknown to this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registration_id: Option<String>,
    /// How the executor is reached.
    pub transport: ExecutorTransport,
    /// Whether the executor is connected.
    pub online: bool,
    /// The node that the executor is connected to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Time of registration, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered_at: Option<String>,
}

/// How an executor is reached.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExecutorTransport {
    /// Through the relay, encrypted end to end.
    Noise,
    /// Through a direct websocket to the hub.
    Direct,
}
