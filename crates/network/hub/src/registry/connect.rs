//! `connect`: a harness asks for the way to an environment.

use std::time::Duration;

use aws_lc_rs::rand;
use base64_simd::URL_SAFE_NO_PAD;
use bytes::Bytes;
use exec_registry::api::{Connect, Connected, SECURITY_PROFILE, Secret};
use http::{Response, StatusCode};
use http_body_util::Full;

use super::{Posted, Refusal, Registry, ok, service::Call};
use crate::{
    audit::Event,
    principal::Principal,
    rate::Limited,
    store::{Authorization, AuthorizeError, TokenHash},
};

/// How long an authorization may be used. A harness needs twenty seconds at the most.
const LIFETIME: Duration = Duration::from_secs(60);

impl Registry {
    pub(super) async fn connect(
        &self,
        call: &Call,
        principal: &Principal,
        posted: &Posted,
        event: &mut Event,
    ) -> Result<Response<Full<Bytes>>, Refusal> {
        let Connect { harness_public_key } = posted.parse()?;
        let services = &self.services;
        let websocket = call.websocket(&services.address)?;
        let found = services.store.registration(&call.environment).await;
        let found = found.map_err(|error| Refusal::store(&error))?;
        let current = match found {
            Some(current) if principal.may_connect(&call.environment, &current.owner) => current,
            _ if !principal.may_await(&call.environment) => {
                return Err(Refusal::forbidden(
                    "you may not connect to this environment",
                ));
            }
            // A harness may be started before its executor: it asks again after this answer, and
            // takes any other for good.
            None => return Err(Refusal::offline()),
            Some(_) => return Err(Refusal::offline().hiding("forbidden")),
        };
        event.registration = Some(current.id.clone());
        let presence = services.store.presence(&call.environment).await;
        let presence = presence.map_err(|error| Refusal::store(&error))?;
        // A handshake binds the registration, so one that is not connected leads nowhere.
        if presence.is_none_or(|seen| seen.registration != current.id) {
            return Err(Refusal::offline());
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
        let kept = services.store.authorize(hash, authorization, now).await;
        kept.map_err(refuse)?;
        let url = services.signer.harness_url(
            &websocket,
            &call.environment,
            &current.id,
            &harness_public_key,
            now,
        );
        Ok(ok(&Connected {
            environment_id: call.environment.to_string(),
            url: Secret::new(url),
            security_profile: SECURITY_PROFILE.to_owned(),
            executor_registration_id: current.id.to_string(),
            executor_public_key: current.executor_key,
            harness_key_authorization: Secret::new(token.into_exposed()),
        }))
    }
}

/// 256 random bits.
fn token() -> Result<Secret, Refusal> {
    let mut bytes = [0; 32];
    rand::fill(&mut bytes).map_err(|_| {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Refusal::new(status, "internal", "the host gave no randomness")
    })?;
    Ok(Secret::new(URL_SAFE_NO_PAD.encode_to_string(bytes)))
}

fn refuse(error: AuthorizeError) -> Refusal {
    match error {
        AuthorizeError::Limit | AuthorizeError::Full => Refusal::limited(Limited {
            retry_after: Duration::from_secs(1),
        }),
        AuthorizeError::Store(error) => Refusal::store(&error),
    }
}
