//! The registry's HTTP API: registers environments and authorizes connections to them.
//! Invariant: every request is checked in the same order (route, method, rate limit, principal,
//! body, permissions), every refusal has the envelope `{"error":{"code","message"}}`, and every
//! request that names an environment is audited.
//! Elsewhere: the websockets behind the URLs (`rendezvous`), persistence (`store`).

mod refusal;
mod request_gate;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use self::{
    refusal::{HttpRefusal, ok},
    request_gate::{IncomingBody, RequestBody, RequestTime},
};

pub use self::request_gate::RequestGate;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use exec_registry::api::{
    HarnessConnectRequest, HarnessConnectResponse, RegisterRequest, RegisterResponse,
    RegistryErrorCode, SECURITY_PROFILE, SecretString, ValidateRequest, ValidateResponse,
};
use exec_relay::limits::AUTHORIZATION_BYTES;
use exec_transport::http::service::HttpPeer;
use http::{HeaderMap, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::Full;

use self::refusal::STORE_UNREACHABLE;
use crate::{
    audit::{AuditAction, AuditEvent, AuditOutcome},
    circuit::CircuitDialer,
    direct::DirectService,
    principal::Principal,
    rate_limit::{LimitedRequest, RateLimitExceeded},
    store::{
        Authorization, AuthorizeError, ClaimError, EnvironmentId, NewRegistration, RegisterError,
        RegistrationId, Store, TokenHash,
    },
    tokens::random_secret,
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
    pub(crate) async fn serve(
        &self,
        request: Request<impl IncomingBody>,
        peer: HttpPeer,
        moment: RequestTime,
    ) -> Result<Response<Full<Bytes>>, HttpRefusal> {
        let (parts, body) = request.into_parts();
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
        let respond = async move {
            let result = registry.answer(&call, operation, principal, &body_bytes, &mut event);
            let result = result.await;
            registry.services.gate.audit_result(event, result)
        };
        gate.run_to_completion(respond).await
    }

    /// Authenticates the caller and reads the body.
    async fn admit(
        &self,
        call: &RegistryCall,
        operation: RegistryOperation,
        body: impl IncomingBody,
        event: &mut AuditEvent,
    ) -> Result<(Principal, RequestBody), HttpRefusal> {
        let gate = &self.services.gate;
        let (headers, peer, moment) = (&call.parts.headers, call.peer, call.moment);
        let limit_failure = |refusal| gate.limit_failure(refusal, peer, moment);
        let principal = match operation {
            // Executors treat any refusal as final, so registrations are not rate limited. Failed
            // authentication is.
            RegistryOperation::Register => {
                gate.authenticate(headers, moment).map_err(limit_failure)?
            }
            RegistryOperation::DirectRegister => {
                let known = self.direct.authenticate_head(&call.parts, moment);
                let known = known.map_err(limit_failure)?;
                let body_bytes = RequestBody::read(headers, body, gate.bodies()).await?;
                let (parts, bytes) = (&call.parts, body_bytes.bytes());
                let principal = self.direct.authenticate_body(known, parts, bytes, moment);
                let principal = principal.map_err(limit_failure)?;
                event.set_principal(&principal);
                return Ok((principal, body_bytes));
            }
            RegistryOperation::Connect => {
                gate.admit(headers, peer, LimitedRequest::Connect, moment)?
            }
            RegistryOperation::Validate => {
                gate.admit(headers, peer, LimitedRequest::Validate, moment)?
            }
        };
        event.set_principal(&principal);
        let body_bytes = RequestBody::read(headers, body, gate.bodies()).await?;
        Ok((principal, body_bytes))
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

impl RegistryService {
    async fn register(
        &self,
        call: &RegistryCall,
        principal: &Principal,
        body_bytes: &RequestBody,
        event: &mut AuditEvent,
    ) -> Result<Response<Full<Bytes>>, HttpRefusal> {
        let request: RegisterRequest = body_bytes.parse()?;
        if request.security_profile != SECURITY_PROFILE {
            let message = format!("the only supported security profile is {SECURITY_PROFILE}");
            let status = StatusCode::BAD_REQUEST;
            return Err(HttpRefusal::new(
                status,
                "unsupported_security_profile",
                message,
            ));
        }
        let services = &self.services;
        let websocket = call.websocket(&services.address)?;
        // The store checks atomically whether another principal owns the environment.
        if !principal.may_claim(&call.environment) {
            return Err(refuse_registration(ClaimError::Foreign.into()));
        }
        let new = NewRegistration {
            environment: call.environment.clone(),
            id: RegistrationId::generate(),
            executor_key: request.executor_public_key,
            principal: principal.name.clone(),
            at: call.moment.at,
        };
        let registration = services
            .store
            .register(new)
            .await
            .map_err(refuse_registration)?;
        event.registration = Some(registration.id.clone());
        services
            .close_superseded_executors(&registration.environment)
            .await;
        let signer = &services.signer;
        let url = signer.executor_url(&websocket, &registration.environment, &registration.id);
        Ok(ok(&RegisterResponse {
            environment_id: registration.environment.to_string(),
            url: SecretString::new(url),
            security_profile: SECURITY_PROFILE.to_owned(),
            executor_registration_id: registration.id.to_string(),
        }))
    }
}

fn refuse_registration(error: RegisterError) -> HttpRefusal {
    match error {
        RegisterError::Conflict => {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            let code = RegistryErrorCode::RegistrationConflict.as_str();
            HttpRefusal::new(status, code, error)
        }
        // Executors exit on all failures but two. This one makes them retry without limit, so that
        // a store outage of a minute does not end them all.
        RegisterError::Claim(ClaimError::Store(error)) => {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "store failed during a registration"
            );
            HttpRefusal::retry_later(STORE_UNREACHABLE)
        }
        RegisterError::Claim(error) => error.into(),
    }
}

/// Lifetime of an authorization. A harness needs twenty seconds at most.
const LIFETIME: Duration = Duration::from_secs(60);

impl RegistryService {
    async fn connect(
        &self,
        call: &RegistryCall,
        principal: &Principal,
        body_bytes: &RequestBody,
        event: &mut AuditEvent,
    ) -> Result<Response<Full<Bytes>>, HttpRefusal> {
        let HarnessConnectRequest { harness_public_key } = body_bytes.parse()?;
        let services = &self.services;
        let websocket = call.websocket(&services.address)?;
        let current = match services.store.registration(&call.environment).await? {
            Some(current) if principal.may_connect(&call.environment, &current.owner) => current,
            _ if !principal.may_wait_for(&call.environment) => {
                return Err(HttpRefusal::forbidden(
                    "you may not connect to this environment",
                ));
            }
            // A harness may start before its executor: it retries after this response and treats
            // any other as final.
            None => return Err(HttpRefusal::offline()),
            Some(_) => return Err(HttpRefusal::offline().with_audit_code("forbidden")),
        };
        event.registration = Some(current.id.clone());
        let presence = services.store.presence(&call.environment).await?;
        // The handshake is bound to the registration, so an unconnected one cannot succeed.
        if presence.is_none_or(|presence| presence.registration != current.id) {
            return Err(HttpRefusal::offline());
        }
        let now = call.moment.at;
        let token = random_secret("").map_err(|_| {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            HttpRefusal::new(status, "internal", "no randomness available on the host")
        })?;
        let authorization = Authorization {
            environment: call.environment.clone(),
            registration: current.id.clone(),
            harness_key: harness_public_key.clone(),
            principal: principal.name.clone(),
            expires_at: now.plus(LIFETIME),
        };
        let hash = TokenHash::of(&call.environment, token.expose());
        let stored = services.store.authorize(hash, authorization, now).await;
        stored.map_err(refuse_connection)?;
        let url = services.signer.harness_url(
            &websocket,
            &call.environment,
            &current.id,
            &harness_public_key,
            now,
        );
        Ok(ok(&HarnessConnectResponse {
            environment_id: call.environment.to_string(),
            url: SecretString::new(url),
            security_profile: SECURITY_PROFILE.to_owned(),
            executor_registration_id: current.id.to_string(),
            executor_public_key: current.executor_key,
            harness_key_authorization: token,
        }))
    }
}

fn refuse_connection(error: AuthorizeError) -> HttpRefusal {
    match error {
        AuthorizeError::Limit | AuthorizeError::Full => HttpRefusal::limited(RateLimitExceeded {
            retry_after: Duration::from_secs(1),
        }),
        AuthorizeError::Store(error) => error.into(),
    }
}

impl RegistryService {
    /// Accepts each authorization once, and only for the same registration and key.
    ///
    /// Any attempt by an executor of the environment consumes the token, even a failing one: a
    /// different registration or key means that the token reached the wrong party.
    async fn validate(
        &self,
        call: &RegistryCall,
        principal: &Principal,
        body_bytes: &RequestBody,
        event: &mut AuditEvent,
    ) -> Result<Response<Full<Bytes>>, HttpRefusal> {
        let request: ValidateRequest = body_bytes.parse()?;
        if !principal.may_claim(&call.environment) {
            return Err(HttpRefusal::forbidden("you may not run this environment"));
        }
        let store = &self.services.store;
        let current = match store.registration(&call.environment).await? {
            Some(current) if principal.may_register(&call.environment, &current.owner) => current,
            Some(_) => return Err(HttpRefusal::unknown_environment().with_audit_code("forbidden")),
            None => return Err(HttpRefusal::unknown_environment()),
        };
        event.registration = Some(current.id.clone());
        let token = request.harness_key_authorization.expose();
        if token.len() > AUTHORIZATION_BYTES {
            return Ok(deny(event, "invalid_authorization"));
        }
        let hash = TokenHash::of(&call.environment, token);
        let Some(authorization) = store.redeem(hash, call.moment.at).await? else {
            return Ok(deny(event, "invalid_authorization"));
        };
        event.harness = Some(authorization.principal.clone());
        if request.executor_registration_id != current.id.as_str() {
            return Ok(deny(event, "registration_superseded"));
        }
        let fits = authorization.environment == call.environment
            && authorization.registration == current.id
            && authorization.harness_key == request.harness_public_key;
        if !fits {
            return Ok(deny(event, "foreign_authorization"));
        }
        Ok(ok(&ValidateResponse { valid: true }))
    }
}

fn deny(event: &mut AuditEvent, reason: &'static str) -> Response<Full<Bytes>> {
    event.outcome = AuditOutcome::Refused(reason);
    ok(&ValidateResponse { valid: false })
}
