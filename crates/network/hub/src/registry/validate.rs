//! `validate`: an executor asks whether a harness may come in.

use bytes::Bytes;
use exec_registry::api::{Validate, Validated};
use exec_relay::limits::AUTHORIZATION_BYTES;
use http::Response;
use http_body_util::Full;

use super::{Posted, Refusal, Registry, ok, service::Call};
use crate::{
    audit::{Event, Outcome},
    principal::Principal,
    store::TokenHash,
};

impl Registry {
    /// Says yes once for each authorization, and only if everything is as it was when it was made.
    ///
    /// Whatever is asked with a token by an executor of its environment uses it up, fitting or not:
    /// whoever asks with another registration or key holds what was meant for another.
    pub(super) async fn validate(
        &self,
        call: &Call,
        principal: &Principal,
        posted: &Posted,
        event: &mut Event,
    ) -> Result<Response<Full<Bytes>>, Refusal> {
        let asked: Validate = posted.parse()?;
        if !principal.may_claim(&call.environment) {
            return Err(Refusal::forbidden("you may not run this environment"));
        }
        let store = &self.services.store;
        let found = store.registration(&call.environment).await;
        let found = found.map_err(|error| Refusal::store(&error))?;
        let current = match found {
            Some(current) if principal.may_register(&call.environment, &current.owner) => current,
            Some(_) => return Err(Refusal::unknown_environment().hiding("forbidden")),
            None => return Err(Refusal::unknown_environment()),
        };
        event.registration = Some(current.id.clone());
        let token = asked.harness_key_authorization.expose();
        if token.len() > AUTHORIZATION_BYTES {
            return Ok(no(event, "invalid_authorization"));
        }
        let hash = TokenHash::of(&call.environment, token);
        let redeemed = store.redeem(hash, call.moment.at).await;
        let redeemed = redeemed.map_err(|error| Refusal::store(&error))?;
        let Some(authorization) = redeemed else {
            return Ok(no(event, "invalid_authorization"));
        };
        event.harness = Some(authorization.principal.clone());
        if asked.executor_registration_id != current.id.as_str() {
            return Ok(no(event, "registration_superseded"));
        }
        let fits = authorization.environment == call.environment
            && authorization.registration == current.id
            && authorization.harness_key == asked.harness_public_key;
        if !fits {
            return Ok(no(event, "foreign_authorization"));
        }
        Ok(ok(&Validated { valid: true }))
    }
}

fn no(event: &mut Event, reason: &'static str) -> Response<Full<Bytes>> {
    event.outcome = Outcome::Refused(reason);
    ok(&Validated { valid: false })
}
