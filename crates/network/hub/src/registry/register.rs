//! `register`: an executor offers an environment.

use bytes::Bytes;
use exec_registry::api::{Code, Register, Registered, SECURITY_PROFILE, Secret};
use http::{Response, StatusCode};
use http_body_util::Full;

use super::{Posted, Refusal, Registry, ok, service::Call};
use crate::{
    audit::Event,
    principal::Principal,
    store::{NewRegistration, RegisterError, RegistrationId, StoreError},
};

impl Registry {
    pub(super) async fn register(
        &self,
        call: &Call,
        principal: &Principal,
        posted: &Posted,
        event: &mut Event,
    ) -> Result<Response<Full<Bytes>>, Refusal> {
        let wanted: Register = posted.parse()?;
        if wanted.security_profile != SECURITY_PROFILE {
            let message = format!("the only security profile here is {SECURITY_PROFILE}");
            let status = StatusCode::BAD_REQUEST;
            return Err(Refusal::new(
                status,
                "unsupported_security_profile",
                message,
            ));
        }
        let services = &self.services;
        let websocket = call.websocket(&services.address)?;
        // Whether it is another principal's already the store decides, in one go with the rest.
        if !principal.may_claim(&call.environment) {
            return Err(refuse(RegisterError::Foreign));
        }
        let new = NewRegistration {
            environment: call.environment.clone(),
            id: RegistrationId::generate(),
            executor_key: wanted.executor_public_key,
            principal: principal.name.clone(),
            at: call.moment.at,
        };
        let made = services.store.register(new).await.map_err(refuse)?;
        event.registration = Some(made.id.clone());
        services.close_others(&made.environment).await;
        let signer = &services.signer;
        let url = signer.executor_url(&websocket, &made.environment, &made.id);
        Ok(ok(&Registered {
            environment_id: made.environment.to_string(),
            url: Secret::new(url),
            security_profile: SECURITY_PROFILE.to_owned(),
            executor_registration_id: made.id.to_string(),
        }))
    }
}

fn refuse(error: RegisterError) -> Refusal {
    match error {
        RegisterError::Foreign => Refusal::forbidden("this environment is not yours to register"),
        RegisterError::Conflict => {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            Refusal::new(status, Code::RegistrationConflict.as_str(), error)
        }
        RegisterError::Limit | RegisterError::Full => {
            Refusal::new(StatusCode::FORBIDDEN, "environment_limit", error)
        }
        RegisterError::Store(error) => later(&error),
    }
}

/// Executors end at every failure but two. This one makes them ask again, for as long as it takes:
/// a store that is away for a minute shall not end them all.
pub(crate) fn later(error: &StoreError) -> Refusal {
    tracing::error!(
        error = error as &dyn std::error::Error,
        "the store failed a registration"
    );
    let code = Code::AuthenticationServiceUnavailable.as_str();
    let message = "the hub cannot reach its store";
    Refusal::new(StatusCode::BAD_GATEWAY, code, message)
}
