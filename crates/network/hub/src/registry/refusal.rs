//! Answers: JSON, and refusals in their envelope.

use std::time::Duration;

use bytes::Bytes;
use exec_registry::api::{Code, ErrorBody};
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use serde::Serialize;

use crate::{
    rate_limit::Limited,
    store::{IdError, StoreError},
    tokens::AuthenticateError,
    url::HostError,
};

/// Answers with a value. It may hold a secret: nobody on the way shall keep it.
pub(crate) fn ok<T: Serialize>(value: &T) -> Response<Full<Bytes>> {
    json(StatusCode::OK, value)
}

fn json<T: Serialize>(status: StatusCode, value: &T) -> Response<Full<Bytes>> {
    // Values here are strings in structs: there is always a JSON for them.
    let body = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A request that is not served.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    /// For programs, and for the audit log.
    pub(crate) code: &'static str,
    /// What the audit log says instead, where the answer must not tell.
    pub(crate) hidden: Option<&'static str>,
    /// For people.
    message: String,
    retry_after: Option<Duration>,
    allow: Option<&'static str>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl ToString) -> Self {
        Self {
            status,
            code,
            hidden: None,
            message: message.to_string(),
            retry_after: None,
            allow: None,
        }
    }

    pub(crate) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "there is nothing here")
    }

    pub(crate) fn unknown_environment() -> Self {
        let message = "there is no such environment, or none of yours";
        Self::new(StatusCode::NOT_FOUND, "environment_not_found", message)
    }

    pub(crate) fn method(allow: &'static str) -> Self {
        let message = format!("only {allow} is possible here");
        Self {
            allow: Some(allow),
            ..Self::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                message,
            )
        }
    }

    pub(crate) fn forbidden(message: &'static str) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    pub(crate) fn offline() -> Self {
        let code = Code::EnvironmentOffline.as_str();
        let message = "no executor that you may use is connected";
        Self::new(StatusCode::CONFLICT, code, message)
    }

    /// The same answer, for an environment that exists and is somebody else's: who may not use it
    /// shall not learn of it. The log tells the difference.
    pub(crate) fn hiding(self, reason: &'static str) -> Self {
        Self {
            hidden: Some(reason),
            ..self
        }
    }

    pub(crate) fn invalid(message: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    /// For requests whose sender asks again after a 503.
    pub(crate) fn store(error: &StoreError) -> Self {
        tracing::error!(
            error = error as &dyn std::error::Error,
            "the store failed a request"
        );
        let message = "the hub cannot reach its store";
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "store_unavailable",
            message,
        )
    }

    /// 502 with this code makes executors ask again, where they would take any other refusal for
    /// good; harnesses ask again after any 5xx.
    pub(crate) fn unfinished() -> Self {
        let code = Code::AuthenticationServiceUnavailable.as_str();
        let message = "the hub did not finish the request";
        Self::new(StatusCode::BAD_GATEWAY, code, message)
    }

    pub(crate) fn limited(limited: Limited) -> Self {
        Self {
            retry_after: Some(limited.retry_after),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", limited)
        }
    }

    pub(crate) fn into_response(self) -> Response<Full<Bytes>> {
        let body = ErrorBody::with_code(self.code, self.message);
        let mut response = json(self.status, &body);
        let headers = response.headers_mut();
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer");
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        if let Some(allow) = self.allow {
            headers.insert(header::ALLOW, HeaderValue::from_static(allow));
        }
        if let Some(wait) = self.retry_after {
            // Rounded up: whoever comes earlier is refused again.
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<AuthenticateError> for Refusal {
    fn from(error: AuthenticateError) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", error)
    }
}

impl From<IdError> for Refusal {
    fn from(error: IdError) -> Self {
        let message = format!("environment id: {error}");
        Self::new(StatusCode::BAD_REQUEST, "invalid_environment_id", message)
    }
}

impl From<HostError> for Refusal {
    fn from(error: HostError) -> Self {
        Self::invalid(error)
    }
}

impl From<Limited> for Refusal {
    fn from(limited: Limited) -> Self {
        Self::limited(limited)
    }
}
