//! Who makes a request here: by a signature, or by a token like everywhere else.

use exec_remote::sigv4::Presented;
use http::{StatusCode, header, request::Parts};

use super::Direct;
use crate::{
    principal::Principal,
    registry::{Moment, Refusal},
};

/// How a signed request begins its `Authorization`.
const SIGNED: &[u8] = b"AWS4-HMAC-SHA256";

impl Direct {
    pub(super) fn identify(
        &self,
        parts: &Parts,
        body: &[u8],
        moment: Moment,
    ) -> Result<Principal, Refusal> {
        let authorization = parts.headers.get(header::AUTHORIZATION);
        let signed = authorization.is_some_and(|value| value.as_bytes().starts_with(SIGNED));
        if !signed {
            return self.services.gate.authenticate(&parts.headers, moment);
        }
        let refuse =
            |message: String| Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", message);
        let keys = self.keys.as_ref();
        let keys = keys.ok_or_else(|| refuse("this hub has no access keys".to_owned()))?;
        let request = Presented {
            method: parts.method.as_str(),
            path: parts.uri.path(),
            query: parts.uri.query().unwrap_or_default(),
            headers: &parts.headers,
            body,
        };
        keys.verify(request, moment.at)
            .map_err(|error| refuse(error.to_string()))
    }
}
