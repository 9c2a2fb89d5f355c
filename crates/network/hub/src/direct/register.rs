//! `direct/register`: an executor asks where it is awaited.

use bytes::Bytes;
use exec_registry::api::{DIRECT_TRANSPORT, DirectRegister, DirectRegistered, Secret};
use http::{Response, StatusCode};
use http_body_util::Full;

use super::{Direct, table::Full as TableFull};
use crate::{
    audit::Event,
    principal::Principal,
    registry::{Call, Posted, Refusal, ok},
    store::{ClaimError, RegistrationId},
};

impl Direct {
    pub(crate) async fn register(
        &self,
        call: &Call,
        principal: Principal,
        posted: &Posted,
        event: &mut Event,
    ) -> Result<Response<Full<Bytes>>, Refusal> {
        let environment = &call.environment;
        let wanted: DirectRegister = posted.parse()?;
        if wanted.transport != DIRECT_TRANSPORT {
            let message = format!("the only direct transport here is {DIRECT_TRANSPORT}");
            let status = StatusCode::BAD_REQUEST;
            return Err(Refusal::new(status, "unsupported_transport", message));
        }
        let websocket = call.websocket(&self.services.address)?;
        if !principal.may_claim(environment) {
            return Err(refuse(ClaimError::Foreign));
        }
        // The store decides: of two who come first, on whichever nodes, one is.
        let claimed = self.services.store.claim(environment, &principal.name);
        claimed.await.map_err(refuse)?;
        let registration = RegistrationId::generate();
        self.table()
            .register(environment.clone(), principal.name, registration.clone())
            .map_err(|TableFull| {
                let message = "the hub holds as many direct environments as it can";
                Refusal::new(StatusCode::FORBIDDEN, "environment_limit", message)
            })?;
        event.registration = Some(registration.clone());
        let url = format!("{websocket}/direct/{environment}/executor?registration={registration}");
        Ok(ok(&DirectRegistered {
            environment_id: environment.to_string(),
            transport: DIRECT_TRANSPORT.to_owned(),
            registration_id: registration.to_string(),
            url: Secret::new(url),
        }))
    }
}

fn refuse(error: ClaimError) -> Refusal {
    match error {
        ClaimError::Foreign => Refusal::forbidden("this environment is not yours to register"),
        ClaimError::Limit | ClaimError::Full => {
            Refusal::new(StatusCode::FORBIDDEN, "environment_limit", error)
        }
        ClaimError::Store(error) => Refusal::store(&error),
    }
}
