//! Direct executors: they dial the hub and speak JSON-RPC on the socket, without relay and Noise.
//!
//! An executor registers, opens its socket and waits; a harness opens `GET /direct/<environment>`
//! with its token, and the two are joined message by message, one harness at a time. When either
//! ends, the other is closed, and the executor dials again.
//! **This path is not end-to-end encrypted**: the hub can read every message. TLS guards the two
//! ways to it. Who needs more takes the relay.
//! Invariant: of two executors the newer wins, and the older is told to end. Whose an environment is
//! the store knows; the table here holds sockets and who registered them, so that losing it costs a
//! reconnect and nothing else. Executor and harness must come to the same node.

mod access_keys;
mod slot_table;
#[cfg(test)]
mod tests;
mod upgrade;

pub use self::{
    access_keys::{AccessKeys, KeysError},
    upgrade::DirectUpgrade,
};

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use exec_registry::api::{
    DIRECT_TRANSPORT, DirectRegisterRequest, DirectRegisterResponse, Secret, sigv4::SignedRequest,
};
use http::{HeaderValue, Response, StatusCode, header, request::Parts};
use http_body_util::Full;
use tokio::sync::watch;

use self::slot_table::{Full as TableFull, Table};
use crate::{
    audit::Event,
    principal::{Principal, PrincipalName},
    registry::{Call, Moment, Posted, Refusal, Services, ok},
    store::{ClaimError, EnvironmentId, RegistrationId},
};

/// Registers direct executors and joins them with harnesses.
#[derive(Debug)]
pub struct Direct {
    services: Services,
    keys: Option<AccessKeys>,
    table: Mutex<Table>,
    /// Counts whenever an executor begins to wait, or is joined: harnesses look again.
    arrivals: watch::Sender<u64>,
}

/// What is known of a direct environment, for lists.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Listed {
    /// Its current registration.
    pub registration: RegistrationId,
    /// Whether its executor is connected.
    pub online: bool,
}

impl Direct {
    /// Takes what it works with. Without keys, only tokens count.
    pub fn new(services: Services, keys: Option<AccessKeys>) -> Self {
        Self {
            services,
            keys,
            table: Mutex::default(),
            arrivals: watch::Sender::new(0),
        }
    }

    /// What this process knows of an environment of `owner`. `None`: it has not been registered
    /// here since the start, or had to make room.
    pub fn find(&self, environment: &EnvironmentId, owner: &PrincipalName) -> Option<Listed> {
        let table = self.table();
        let slot = table.get(environment, owner)?;
        Some(Listed {
            registration: slot.registration.clone(),
            online: slot.is_online(),
        })
    }

    /// Forgets a registration and closes its sockets. False: there was none.
    pub fn remove(&self, environment: &EnvironmentId) -> bool {
        self.table().remove(environment)
    }

    /// Never held across a wait.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self) {
        self.arrivals
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    fn arrivals(&self) -> watch::Receiver<u64> {
        self.arrivals.subscribe()
    }
}

impl Direct {
    pub(crate) async fn register(
        &self,
        call: &Call,
        principal: Principal,
        posted: &Posted,
        event: &mut Event,
    ) -> Result<Response<Full<Bytes>>, Refusal> {
        let environment = &call.environment;
        let wanted: DirectRegisterRequest = posted.parse()?;
        if wanted.transport != DIRECT_TRANSPORT {
            let message = format!("the only direct transport here is {DIRECT_TRANSPORT}");
            let status = StatusCode::BAD_REQUEST;
            return Err(Refusal::new(status, "unsupported_transport", message));
        }
        let websocket = call.websocket(&self.services.address)?;
        if !principal.may_claim(environment) {
            return Err(refuse_registration(ClaimError::Foreign));
        }
        // The store decides: of two who come first, on whichever nodes, one is.
        let claimed = self.services.store.claim(environment, &principal.name);
        claimed.await.map_err(refuse_registration)?;
        let registration = RegistrationId::generate();
        self.table()
            .register(environment.clone(), principal.name, registration.clone())
            .map_err(|TableFull| {
                let message = "the hub holds as many direct environments as it can";
                Refusal::new(StatusCode::FORBIDDEN, "environment_limit", message)
            })?;
        event.registration = Some(registration.clone());
        let url = format!("{websocket}/direct/{environment}/executor?registration={registration}");
        Ok(ok(&DirectRegisterResponse {
            environment_id: environment.to_string(),
            transport: DIRECT_TRANSPORT.to_owned(),
            registration_id: registration.to_string(),
            url: Secret::new(url),
        }))
    }
}

fn refuse_registration(error: ClaimError) -> Refusal {
    match error {
        ClaimError::Foreign => Refusal::forbidden("this environment is not yours to register"),
        ClaimError::Limit | ClaimError::Full => {
            Refusal::new(StatusCode::FORBIDDEN, "environment_limit", error)
        }
        ClaimError::Store(error) => Refusal::store(&error),
    }
}

/// How a signed request begins its `Authorization`.
const SIGNED: &[u8] = b"AWS4-HMAC-SHA256";

/// Somebody whose body has not been read.
#[derive(Debug)]
pub(crate) enum Caller {
    /// Known by a token.
    Known(Principal),
    /// Names an access key of ours. The signature covers the body, so that comes first.
    Signed,
}

impl Direct {
    /// Finds out who it is, as far as the head of a request tells.
    pub(crate) fn greet(&self, parts: &Parts, moment: Moment) -> Result<Caller, Refusal> {
        let Some(signed) = signed(parts) else {
            let known = self.services.gate.authenticate(&parts.headers, moment)?;
            return Ok(Caller::Known(known));
        };
        if !self.keys()?.are_named_by(signed) {
            return Err(refuse_signature(
                "the signature names no access key of this hub",
            ));
        }
        Ok(Caller::Signed)
    }

    /// Finds out who it is, now that the body is there.
    pub(crate) fn admit(
        &self,
        caller: Caller,
        parts: &Parts,
        posted: &Posted,
        moment: Moment,
    ) -> Result<Principal, Refusal> {
        match caller {
            Caller::Known(principal) => Ok(principal),
            Caller::Signed => self.verify(parts, posted.bytes(), moment),
        }
    }

    /// Finds out who makes a request without a body.
    fn identify(&self, parts: &Parts, moment: Moment) -> Result<Principal, Refusal> {
        match self.greet(parts, moment)? {
            Caller::Known(principal) => Ok(principal),
            Caller::Signed => self.verify(parts, &[], moment),
        }
    }

    fn verify(&self, parts: &Parts, body: &[u8], moment: Moment) -> Result<Principal, Refusal> {
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

    fn keys(&self) -> Result<&AccessKeys, Refusal> {
        let keys = self.keys.as_ref();
        keys.ok_or_else(|| refuse_signature("this hub has no access keys"))
    }
}

fn signed(parts: &Parts) -> Option<&HeaderValue> {
    let authorization = parts.headers.get(header::AUTHORIZATION)?;
    let signed = authorization.as_bytes().starts_with(SIGNED);
    signed.then_some(authorization)
}

fn refuse_signature(message: &str) -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
}
