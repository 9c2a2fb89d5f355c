//! `direct/register`: an executor asks where it is awaited.

use bytes::Bytes;
use exec_remote::api::{DIRECT_TRANSPORT, DirectRegister, DirectRegistered, Secret};
use http::{Response, StatusCode, request::Parts};
use http_body_util::Full;

use super::{Direct, table::Full as TableFull};
use crate::{
    audit::Event,
    registry::{Moment, Posted, Refusal, host, ok},
    store::{ClaimError, EnvironmentId, RegistrationId},
};

impl Direct {
    pub(crate) async fn register(
        &self,
        parts: &Parts,
        environment: &EnvironmentId,
        posted: &Posted,
        moment: Moment,
        event: &mut Event,
    ) -> Result<Response<Full<Bytes>>, Refusal> {
        let principal = self.identify(parts, posted.bytes(), moment)?;
        event.by(&principal);
        let wanted: DirectRegister = posted.parse()?;
        if wanted.transport != DIRECT_TRANSPORT {
            let message = format!("the only direct transport here is {DIRECT_TRANSPORT}");
            let status = StatusCode::BAD_REQUEST;
            return Err(Refusal::new(status, "unsupported_transport", message));
        }
        let websocket = self.services.address.websocket(host(&parts.headers))?;
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
