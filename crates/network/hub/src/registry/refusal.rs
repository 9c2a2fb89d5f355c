//! JSON responses, and refusals in their envelope.

use std::time::Duration;

use bytes::Bytes;
use exec_registry::api::{ErrorBody, RegistryErrorCode};
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use serde::Serialize;

use crate::{
    rate_limit::RateLimitExceeded,
    store::{ClaimError, HubIdError, StoreError},
    tokens::AuthenticateError,
    url::PublicUrlError,
};

/// Message of a refusal because of the store.
pub(crate) const STORE_UNREACHABLE: &str = "the hub cannot reach its store";

/// Creates a success response. It may contain a secret, so caches must not store it.
pub(crate) fn ok<T: Serialize>(value: &T) -> Response<Full<Bytes>> {
    json(StatusCode::OK, value)
}

fn json<T: Serialize>(status: StatusCode, value: &T) -> Response<Full<Bytes>> {
    // All values are structs of strings, so serialization cannot fail.
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

/// Why a request is not served.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct HttpRefusal {
    pub(crate) status: StatusCode,
    /// Error code for clients and the audit log.
    pub(crate) code: &'static str,
    /// Code for the audit log, where the response must not reveal it.
    pub(crate) hidden: Option<&'static str>,
    /// Human-readable message.
    message: String,
    retry_after: Option<Duration>,
    allow: Option<&'static str>,
}

impl HttpRefusal {
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
        Self::new(StatusCode::NOT_FOUND, "not_found", "not found")
    }

    pub(crate) fn unknown_environment() -> Self {
        let message = "environment does not exist or belongs to another principal";
        Self::new(StatusCode::NOT_FOUND, "environment_not_found", message)
    }

    pub(crate) fn method(allow: &'static str) -> Self {
        let message = format!("only {allow} is allowed");
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
        let code = RegistryErrorCode::EnvironmentOffline.as_str();
        let message = "no accessible executor is connected";
        Self::new(StatusCode::CONFLICT, code, message)
    }

    /// Audits `reason` instead of the code: callers without access must not learn whether an
    /// environment exists.
    pub(crate) fn with_audit_code(self, reason: &'static str) -> Self {
        Self {
            hidden: Some(reason),
            ..self
        }
    }

    pub(crate) fn invalid(message: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    pub(crate) fn upgrade_required() -> Self {
        let message = "expected a websocket upgrade";
        Self::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", message)
    }

    /// 502 with this code makes executors retry; they treat other refusals as final. Harnesses
    /// retry after any 5xx.
    pub(crate) fn retry_later(message: &'static str) -> Self {
        let code = RegistryErrorCode::AuthenticationServiceUnavailable.as_str();
        Self::new(StatusCode::BAD_GATEWAY, code, message)
    }

    pub(crate) fn limited(limited: RateLimitExceeded) -> Self {
        Self {
            retry_after: Some(limited.retry_after),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", limited)
        }
    }

    pub(crate) fn into_response(self) -> Response<Full<Bytes>> {
        let body = ErrorBody::new(self.code, self.message);
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
            // Rounded up, because an earlier retry would be refused again.
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<AuthenticateError> for HttpRefusal {
    fn from(error: AuthenticateError) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", error)
    }
}

impl From<HubIdError> for HttpRefusal {
    fn from(error: HubIdError) -> Self {
        let message = format!("environment id: {error}");
        Self::new(StatusCode::BAD_REQUEST, "invalid_environment_id", message)
    }
}

impl From<PublicUrlError> for HttpRefusal {
    fn from(error: PublicUrlError) -> Self {
        Self::invalid(error)
    }
}

/// For clients that retry after 503.
impl From<StoreError> for HttpRefusal {
    fn from(error: StoreError) -> Self {
        tracing::error!(
            error = &error as &dyn std::error::Error,
            "store failed during a request"
        );
        let (status, code) = (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable");
        Self::new(status, code, STORE_UNREACHABLE)
    }
}

impl From<ClaimError> for HttpRefusal {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::Foreign => Self::forbidden("this environment is not yours to register"),
            ClaimError::Limit | ClaimError::Full => {
                Self::new(StatusCode::FORBIDDEN, "environment_limit", error)
            }
            ClaimError::Store(error) => error.into(),
        }
    }
}

impl From<RateLimitExceeded> for HttpRefusal {
    fn from(limited: RateLimitExceeded) -> Self {
        Self::limited(limited)
    }
}
