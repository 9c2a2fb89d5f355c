//! Who makes a request here: by a signature, or by a token like everywhere else.

use exec_registry::api::sigv4::Presented;
use http::{HeaderValue, StatusCode, header, request::Parts};

use super::{AccessKeys, Direct};
use crate::{
    principal::Principal,
    registry::{Moment, Posted, Refusal},
};

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
            return Err(refuse("the signature names no access key of this hub"));
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
    pub(super) fn identify(&self, parts: &Parts, moment: Moment) -> Result<Principal, Refusal> {
        match self.greet(parts, moment)? {
            Caller::Known(principal) => Ok(principal),
            Caller::Signed => self.verify(parts, &[], moment),
        }
    }

    fn verify(&self, parts: &Parts, body: &[u8], moment: Moment) -> Result<Principal, Refusal> {
        let request = Presented {
            method: parts.method.as_str(),
            path: parts.uri.path(),
            query: parts.uri.query().unwrap_or_default(),
            headers: &parts.headers,
            body,
        };
        self.keys()?
            .verify(request, moment.at)
            .map_err(|error| refuse(&error.to_string()))
    }

    fn keys(&self) -> Result<&AccessKeys, Refusal> {
        let keys = self.keys.as_ref();
        keys.ok_or_else(|| refuse("this hub has no access keys"))
    }
}

fn signed(parts: &Parts) -> Option<&HeaderValue> {
    let authorization = parts.headers.get(header::AUTHORIZATION)?;
    let signed = authorization.as_bytes().starts_with(SIGNED);
    signed.then_some(authorization)
}

fn refuse(message: &str) -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
}
