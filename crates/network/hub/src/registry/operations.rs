//! The operations of the registry: `register`, `connect` and `validate`.

use std::time::Duration;

use aws_lc_rs::rand;
use base64_simd::URL_SAFE_NO_PAD;
use bytes::Bytes;
use exec_registry::api::{
    HarnessConnectRequest, HarnessConnectResponse, RegisterRequest, RegisterResponse,
    RegistryErrorCode, SECURITY_PROFILE, SecretString, ValidateRequest, ValidateResponse,
};
use exec_relay::limits::AUTHORIZATION_BYTES;
use http::{Response, StatusCode};
use http_body_util::Full;

use super::{HttpRefusal, RegistryCall, RegistryService, RequestBody, ok};
use crate::{
    audit::{AuditEvent, AuditOutcome},
    principal::Principal,
    rate_limit::RateLimitExceeded,
    store::{
        Authorization, AuthorizeError, NewRegistration, RegisterError, RegistrationId, StoreError,
        TokenHash,
    },
};

impl RegistryService {
    pub(super) async fn register(
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
            return Err(refuse_registration(RegisterError::Foreign));
        }
        let new = NewRegistration {
            environment: call.environment.clone(),
            id: RegistrationId::generate(),
            executor_key: request.executor_public_key,
            principal: principal.name.clone(),
            at: call.moment.at,
        };
        let made = services
            .store
            .register(new)
            .await
            .map_err(refuse_registration)?;
        event.registration = Some(made.id.clone());
        services.close_superseded_executors(&made.environment).await;
        let signer = &services.signer;
        let url = signer.executor_url(&websocket, &made.environment, &made.id);
        Ok(ok(&RegisterResponse {
            environment_id: made.environment.to_string(),
            url: SecretString::new(url),
            security_profile: SECURITY_PROFILE.to_owned(),
            executor_registration_id: made.id.to_string(),
        }))
    }
}

fn refuse_registration(error: RegisterError) -> HttpRefusal {
    match error {
        RegisterError::Foreign => {
            HttpRefusal::forbidden("this environment is not yours to register")
        }
        RegisterError::Conflict => {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            HttpRefusal::new(
                status,
                RegistryErrorCode::RegistrationConflict.as_str(),
                error,
            )
        }
        RegisterError::Limit | RegisterError::Full => {
            HttpRefusal::new(StatusCode::FORBIDDEN, "environment_limit", error)
        }
        RegisterError::Store(error) => retry_later(&error),
    }
}

/// Executors exit on all failures but two. This one makes them retry without limit, so that a store
/// outage of a minute does not end them all.
pub(crate) fn retry_later(error: &StoreError) -> HttpRefusal {
    tracing::error!(
        error = error as &dyn std::error::Error,
        "store failed during a registration"
    );
    let code = RegistryErrorCode::AuthenticationServiceUnavailable.as_str();
    let message = "the hub cannot reach its store";
    HttpRefusal::new(StatusCode::BAD_GATEWAY, code, message)
}

/// Lifetime of an authorization. A harness needs twenty seconds at most.
const LIFETIME: Duration = Duration::from_secs(60);

impl RegistryService {
    pub(super) async fn connect(
        &self,
        call: &RegistryCall,
        principal: &Principal,
        body_bytes: &RequestBody,
        event: &mut AuditEvent,
    ) -> Result<Response<Full<Bytes>>, HttpRefusal> {
        let HarnessConnectRequest { harness_public_key } = body_bytes.parse()?;
        let services = &self.services;
        let websocket = call.websocket(&services.address)?;
        let found = services.store.registration(&call.environment).await;
        let found = found.map_err(|error| HttpRefusal::store(&error))?;
        let current = match found {
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
        let presence = services.store.presence(&call.environment).await;
        let presence = presence.map_err(|error| HttpRefusal::store(&error))?;
        // The handshake is bound to the registration, so an unconnected one cannot succeed.
        if presence.is_none_or(|seen| seen.registration != current.id) {
            return Err(HttpRefusal::offline());
        }
        let now = call.moment.at;
        let token = token()?;
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
            harness_key_authorization: SecretString::new(token.into_exposed()),
        }))
    }
}

/// Generates a token of 256 random bits.
fn token() -> Result<SecretString, HttpRefusal> {
    let mut bytes = [0; 32];
    rand::fill(&mut bytes).map_err(|_| {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        HttpRefusal::new(status, "internal", "no randomness available on the host")
    })?;
    Ok(SecretString::new(URL_SAFE_NO_PAD.encode_to_string(bytes)))
}

fn refuse_connection(error: AuthorizeError) -> HttpRefusal {
    match error {
        AuthorizeError::Limit | AuthorizeError::Full => HttpRefusal::limited(RateLimitExceeded {
            retry_after: Duration::from_secs(1),
        }),
        AuthorizeError::Store(error) => HttpRefusal::store(&error),
    }
}

impl RegistryService {
    /// Accepts each authorization once, and only for the same registration and key.
    ///
    /// Any attempt by an executor of the environment consumes the token, even a failing one: a
    /// different registration or key means that the token reached the wrong party.
    pub(super) async fn validate(
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
        let found = store.registration(&call.environment).await;
        let found = found.map_err(|error| HttpRefusal::store(&error))?;
        let current = match found {
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
        let redeemed = store.redeem(hash, call.moment.at).await;
        let redeemed = redeemed.map_err(|error| HttpRefusal::store(&error))?;
        let Some(authorization) = redeemed else {
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
