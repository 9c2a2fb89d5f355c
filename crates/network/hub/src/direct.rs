//! Direct executors: they dial the hub and speak JSON-RPC on the websocket, without relay and
//! Noise.
//!
//! An executor registers, opens its websocket and waits. A harness opens `GET
//! /direct/<environment>` with its token, and the hub joins the two message by message, one harness
//! at a time. When either ends, the other is closed, and the executor dials again.
//! **This path is not end-to-end encrypted**: the hub can read every message. TLS protects the two
//! connections. Use the relay for end-to-end encryption.
//! Invariant: the newer of two executors wins, and the older one is closed. The store decides
//! ownership; the table here only holds websockets and registrations, so losing it costs a
//! reconnect. Executor and harness must connect to the same node.

mod access_keys;
mod slot_table;
#[cfg(test)]
mod tests;
mod upgrade;

pub use self::{
    access_keys::{AccessKeys, AccessKeysError},
    upgrade::DirectUpgrade,
};

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use exec_registry::api::{
    DIRECT_TRANSPORT, DirectRegisterRequest, DirectRegisterResponse, SecretString,
    sigv4::SignedRequest,
};
use http::{HeaderValue, Response, StatusCode, header, request::Parts};
use http_body_util::Full;
use tokio::sync::watch;

use self::slot_table::{SlotTable, SlotTableFull};
use crate::{
    audit::AuditEvent,
    principal::{Principal, PrincipalName},
    registry::{HttpRefusal, HubServices, RegistryCall, RequestBody, RequestTime, ok},
    store::{ClaimError, EnvironmentId, RegistrationId},
};

/// Registers direct executors and joins them with harnesses.
#[derive(Debug)]
pub struct DirectService {
    services: HubServices,
    keys: Option<AccessKeys>,
    table: Mutex<SlotTable>,
    /// Incremented when an executor becomes available or is joined, so that waiting harnesses check
    /// again.
    arrivals: watch::Sender<u64>,
}

/// Status of a direct environment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DirectStatus {
    /// Current registration.
    pub registration: RegistrationId,
    /// Whether the executor is connected.
    pub online: bool,
}

impl DirectService {
    /// Creates the service. Without keys, only tokens are accepted.
    pub fn new(services: HubServices, keys: Option<AccessKeys>) -> Self {
        Self {
            services,
            keys,
            table: Mutex::default(),
            arrivals: watch::Sender::new(0),
        }
    }

    /// Returns what this process knows about an environment of `owner`. `None`: not registered here
    /// since the start, or evicted from the table.
    pub fn find(&self, environment: &EnvironmentId, owner: &PrincipalName) -> Option<DirectStatus> {
        let table = self.table();
        let entry = table.get(environment, owner)?;
        Some(DirectStatus {
            registration: entry.registration.clone(),
            online: entry.is_online(),
        })
    }

    /// Removes a registration and closes its websockets. Returns whether it existed.
    pub fn remove(&self, environment: &EnvironmentId) -> bool {
        self.table().remove(environment)
    }

    /// Never held across an `.await`.
    fn table(&self) -> MutexGuard<'_, SlotTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify_arrival(&self) {
        self.arrivals
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    fn arrivals(&self) -> watch::Receiver<u64> {
        self.arrivals.subscribe()
    }
}

impl DirectService {
    pub(crate) async fn register(
        &self,
        call: &RegistryCall,
        principal: Principal,
        body_bytes: &RequestBody,
        event: &mut AuditEvent,
    ) -> Result<Response<Full<Bytes>>, HttpRefusal> {
        let environment = &call.environment;
        let request: DirectRegisterRequest = body_bytes.parse()?;
        if request.transport != DIRECT_TRANSPORT {
            let message = format!("the only supported direct transport is {DIRECT_TRANSPORT}");
            let status = StatusCode::BAD_REQUEST;
            return Err(HttpRefusal::new(status, "unsupported_transport", message));
        }
        let websocket = call.websocket(&self.services.address)?;
        if !principal.may_claim(environment) {
            return Err(refuse_registration(ClaimError::Foreign));
        }
        // The store decides atomically which of two concurrent claims wins, on any nodes.
        let claimed = self.services.store.claim(environment, &principal.name);
        claimed.await.map_err(refuse_registration)?;
        let registration = RegistrationId::generate();
        self.table()
            .register(environment.clone(), principal.name, registration.clone())
            .map_err(|SlotTableFull| {
                let message = "the hub has reached its limit of direct environments";
                HttpRefusal::new(StatusCode::FORBIDDEN, "environment_limit", message)
            })?;
        event.registration = Some(registration.clone());
        let url = format!("{websocket}/direct/{environment}/executor?registration={registration}");
        Ok(ok(&DirectRegisterResponse {
            environment_id: environment.to_string(),
            transport: DIRECT_TRANSPORT.to_owned(),
            registration_id: registration.to_string(),
            url: SecretString::new(url),
        }))
    }
}

fn refuse_registration(error: ClaimError) -> HttpRefusal {
    match error {
        ClaimError::Foreign => HttpRefusal::forbidden("this environment is not yours to register"),
        ClaimError::Limit | ClaimError::Full => {
            HttpRefusal::new(StatusCode::FORBIDDEN, "environment_limit", error)
        }
        ClaimError::Store(error) => HttpRefusal::store(&error),
    }
}

/// Prefix of the `Authorization` header of a signed request.
const SIGV4_PREFIX: &[u8] = b"AWS4-HMAC-SHA256";

/// A caller before the request body has been read.
#[derive(Debug)]
pub(crate) enum DirectCaller {
    /// Authenticated by a token.
    Known(Principal),
    /// The signature names a known access key. It covers the body, which must be read before
    /// verifying.
    Signed,
}

impl DirectService {
    /// Authenticates a caller as far as the request head allows.
    pub(crate) fn authenticate_head(
        &self,
        parts: &Parts,
        moment: RequestTime,
    ) -> Result<DirectCaller, HttpRefusal> {
        let Some(signed) = signature_header(parts) else {
            let known = self.services.gate.authenticate(&parts.headers, moment)?;
            return Ok(DirectCaller::Known(known));
        };
        if !self.keys()?.are_named_by(signed) {
            return Err(refuse_signature(
                "signature does not name an access key of this hub",
            ));
        }
        Ok(DirectCaller::Signed)
    }

    /// Completes authentication once the body has been read.
    pub(crate) fn authenticate_body(
        &self,
        caller: DirectCaller,
        parts: &Parts,
        body_bytes: &RequestBody,
        moment: RequestTime,
    ) -> Result<Principal, HttpRefusal> {
        match caller {
            DirectCaller::Known(principal) => Ok(principal),
            DirectCaller::Signed => self.verify(parts, body_bytes.bytes(), moment),
        }
    }

    /// Authenticates a request without body.
    fn authenticate_upgrade(
        &self,
        parts: &Parts,
        moment: RequestTime,
    ) -> Result<Principal, HttpRefusal> {
        match self.authenticate_head(parts, moment)? {
            DirectCaller::Known(principal) => Ok(principal),
            DirectCaller::Signed => self.verify(parts, &[], moment),
        }
    }

    fn verify(
        &self,
        parts: &Parts,
        body: &[u8],
        moment: RequestTime,
    ) -> Result<Principal, HttpRefusal> {
        let request = SignedRequest {
            method: parts.method.as_str(),
            path: parts.uri.path(),
            query: parts.uri.query().unwrap_or_default(),
            headers: &parts.headers,
            body,
        };
        self.keys()?
            .verify(request, moment.at)
            .map_err(|error| refuse_signature(&error.to_string()))
    }

    fn keys(&self) -> Result<&AccessKeys, HttpRefusal> {
        let keys = self.keys.as_ref();
        keys.ok_or_else(|| refuse_signature("this hub has no access keys"))
    }
}

fn signature_header(parts: &Parts) -> Option<&HeaderValue> {
    let authorization = parts.headers.get(header::AUTHORIZATION)?;
    let signed = authorization.as_bytes().starts_with(SIGV4_PREFIX);
    signed.then_some(authorization)
}

fn refuse_signature(message: &str) -> HttpRefusal {
    HttpRefusal::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
}
