//! `direct/register`: an executor asks where it is awaited.

use bytes::Bytes;
use exec_remote::api::{DIRECT_TRANSPORT, DirectRegister, DirectRegistered, Secret};
use http::{Response, StatusCode, request::Parts};
use http_body_util::Full;

use super::{Direct, table::Full as TableFull};
use crate::{
    audit::Event,
    registry::{Moment, Posted, Refusal, host, ok},
    store::{EnvironmentId, RegistrationId},
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
        let relayed = self.services.store.registration(environment).await;
        let relayed = relayed.map_err(|error| Refusal::store(&error))?;
        let registration = RegistrationId::generate();
        {
            // Judged and registered in one go: of two who come first, one is.
            let mut table = self.table();
            let owner = relayed.map(|current| current.owner);
            let owner = owner.or_else(|| table.owner(environment).cloned());
            let allowed = match &owner {
                Some(owner) => principal.may_register(environment, owner),
                None => principal.may_claim(environment),
            };
            if !allowed {
                return Err(Refusal::forbidden(
                    "this environment is not yours to register",
                ));
            }
            let (environment, registration) = (environment.clone(), registration.clone());
            table
                .register(environment, principal.name, registration)
                .map_err(|TableFull| {
                    let message = "the hub holds as many direct environments as it can";
                    Refusal::new(StatusCode::FORBIDDEN, "environment_limit", message)
                })?;
        }
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
