//! Client of the registry API.
//!
//! All responses are validated here. [`RegistryError`] says which failures are worth a retry;
//! `register` retries by itself. Elsewhere: retries of a harness (`harness`), authentication
//! (`credentials`).

#[cfg(test)]
mod tests;

use std::sync::Arc;

use exec_relay::identity::NoisePublicKey;
use exec_transport::trace::TraceSource;
use exec_wire::error::error_chain;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::sleep;
use url::Url;

use crate::{
    api::{
        DIRECT_TRANSPORT, DirectRegisterRequest, DirectRegisterResponse, ErrorBody,
        HarnessConnectRequest, HarnessConnectResponse, RegisterRequest, RegisterResponse,
        RegistryEnvironmentId, RegistryErrorCode, SECURITY_PROFILE, STREAM_ID_HEADER,
        ValidateRequest, ValidateResponse, read_object,
    },
    backoff::RegistryBackoff,
    credentials::{BodyDisclosure, CredentialError, Credentials, OutgoingRequest},
    http::{BaseUrl, ConnectionReuse, ExchangeError, HttpCall, HttpClient, HttpReply, is_loopback},
};

/// Client of a registry with the credentials of one caller. Clones share connections.
#[derive(Clone, Debug)]
pub struct RegistryClient {
    base: BaseUrl,
    credentials: Arc<dyn Credentials>,
    http: HttpClient,
    trace: Option<TraceSource>,
}

impl RegistryClient {
    /// Creates a client. Nothing is sent yet.
    ///
    /// # Errors
    /// Returns an error if these credentials must not be sent to this URL.
    pub fn new(
        base: BaseUrl,
        credentials: Arc<dyn Credentials>,
        http: HttpClient,
    ) -> Result<Self, CredentialError> {
        credentials.secret_scope().admit(base.url())?;
        if !base.is_private() {
            tracing::warn!(registry = %base, "credentials are sent without encryption");
        }
        Ok(Self {
            base,
            credentials,
            http,
            trace: None,
        })
    }

    /// Adds trace context headers to each request.
    pub fn with_trace(mut self, trace: Option<TraceSource>) -> Self {
        self.trace = trace;
        self
    }

    /// Registers an environment. Retries with backoff while the registry asks for it. Dropping the
    /// future may leave an unused registration.
    ///
    /// # Errors
    /// Returns all other errors immediately.
    pub async fn register(
        &self,
        environment: &RegistryEnvironmentId,
        key: &NoisePublicKey,
    ) -> Result<RegisterResponse, RegistryError> {
        let request = RegisterRequest {
            security_profile: SECURITY_PROFILE.to_owned(),
            executor_public_key: key.clone(),
        };
        let delay = RegistryBackoff::random();
        let may_retry = RegistryError::may_register_again;
        retry_until_final(&delay, may_retry, || {
            self.register_once(environment, &request)
        })
        .await
    }

    /// Asks once for a connection to an environment.
    ///
    /// # Errors
    /// Returns an error on failure. [`RegistryError::may_connect_again`] says whether to
    /// retry.
    pub async fn connect(
        &self,
        environment: &RegistryEnvironmentId,
        key: &NoisePublicKey,
    ) -> Result<HarnessConnectResponse, RegistryError> {
        let request = HarnessConnectRequest {
            harness_public_key: key.clone(),
        };
        let context = RequestContext {
            connection: ConnectionReuse::Pooled,
            ..self.context(environment, "connect")
        };
        let answer: HarnessConnectResponse = self.post(context, &request).await?;
        check_target(
            environment,
            &answer.environment_id,
            &answer.security_profile,
        )?;
        check_present("url", answer.url.expose())?;
        check_present("registration id", &answer.executor_registration_id)?;
        check_present("authorization", answer.harness_key_authorization.expose())?;
        Ok(answer)
    }

    /// Asks once whether to accept the harness of a stream.
    ///
    /// # Errors
    /// Returns an error without a valid response; treat it as a refusal.
    pub async fn validate(
        &self,
        environment: &RegistryEnvironmentId,
        stream_id: &str,
        request: &ValidateRequest,
    ) -> Result<bool, RegistryError> {
        let stream_id = HeaderValue::from_str(stream_id).map_err(|_| RegistryError::StreamId)?;
        let context = RequestContext {
            stream_id: Some(stream_id),
            connection: ConnectionReuse::Pooled,
            // Responses about a harness must not be logged.
            bodies: BodyDisclosure::Hidden,
            ..self.context(environment, "validate")
        };
        let answer: ValidateResponse = self.post(context, request).await?;
        Ok(answer.valid)
    }

    /// Registers a direct executor and returns the websocket to dial. Retries while the registry is
    /// unreachable.
    ///
    /// # Errors
    /// Returns an error if the registry refuses or the websocket would not be encrypted.
    pub async fn direct_register(
        &self,
        environment: &RegistryEnvironmentId,
    ) -> Result<DirectRegisterResponse, RegistryError> {
        let delay = RegistryBackoff::random();
        let may_retry = RegistryError::was_not_sent;
        retry_until_final(&delay, may_retry, || self.direct_register_once(environment)).await
    }

    async fn direct_register_once(
        &self,
        environment: &RegistryEnvironmentId,
    ) -> Result<DirectRegisterResponse, RegistryError> {
        if !self.base.is_private() {
            return Err(RegistryError::InTheClear(self.base.to_string()));
        }
        let request = DirectRegisterRequest {
            transport: DIRECT_TRANSPORT.to_owned(),
        };
        let context = self.context(environment, "direct/register");
        let answer: DirectRegisterResponse = self.post(context, &request).await?;
        check_equal(
            "environment id",
            &answer.environment_id,
            environment.as_str(),
        )?;
        check_equal("transport", &answer.transport, DIRECT_TRANSPORT)?;
        check_present("registration id", &answer.registration_id)?;
        check_present("url", answer.url.expose())?;
        let url =
            Url::parse(answer.url.expose()).map_err(|_| RegistryError::ResponseMember("url"))?;
        match url.scheme() {
            "wss" => Ok(answer),
            "ws" if is_loopback(&url) => Ok(answer),
            "ws" => Err(RegistryError::InTheClear(
                url.origin().ascii_serialization(),
            )),
            _ => Err(RegistryError::ResponseMember("url")),
        }
    }

    async fn register_once(
        &self,
        environment: &RegistryEnvironmentId,
        request: &RegisterRequest,
    ) -> Result<RegisterResponse, RegistryError> {
        let context = self.context(environment, "register");
        let answer: RegisterResponse = self.post(context, request).await?;
        check_target(
            environment,
            &answer.environment_id,
            &answer.security_profile,
        )?;
        Ok(answer)
    }

    fn context<'a>(
        &self,
        environment: &'a RegistryEnvironmentId,
        operation: &'static str,
    ) -> RequestContext<'a> {
        RequestContext {
            environment,
            operation,
            stream_id: None,
            connection: ConnectionReuse::Fresh,
            bodies: self.credentials.body_disclosure(),
        }
    }

    async fn post<Q: Serialize + Sync, A: DeserializeOwned>(
        &self,
        context: RequestContext<'_>,
        request: &Q,
    ) -> Result<A, RegistryError> {
        let bodies = context.bodies;
        let url = self
            .base
            .operation(context.environment, context.operation)
            .map_err(RegistryError::Url)?;
        let body = serde_json::to_vec(request)
            .map_err(|error| RegistryError::malformed(error, BodyDisclosure::Hidden))?;
        let outgoing = OutgoingRequest {
            method: &Method::POST,
            url: &url,
            body: &body,
        };
        let mut headers: HeaderMap = self.credentials.headers_for(outgoing).await?;
        headers.extend(self.trace.iter().flat_map(TraceSource::headers));
        if let Some(stream_id) = context.stream_id {
            headers.insert(STREAM_ID_HEADER, stream_id);
        }
        let call = HttpCall {
            connection: context.connection,
            ..HttpCall::post_json(url, headers, body)
        };
        let reply = self.http.send(call).await?;
        if !reply.status.is_success() {
            return Err(RegistryError::refused(&reply, bodies));
        }
        read_object(&reply.body).map_err(|error| RegistryError::malformed(error, bodies))
    }
}

/// Everything about a request except its body.
#[derive(Debug)]
struct RequestContext<'a> {
    environment: &'a RegistryEnvironmentId,
    operation: &'static str,
    stream_id: Option<HeaderValue>,
    connection: ConnectionReuse,
    bodies: BodyDisclosure,
}

/// Checks that a response is for this environment and security profile.
fn check_target(
    environment: &RegistryEnvironmentId,
    environment_id: &str,
    security_profile: &str,
) -> Result<(), RegistryError> {
    check_equal("environment id", environment_id, environment.as_str())?;
    check_equal("security profile", security_profile, SECURITY_PROFILE)
}

fn check_equal(member: &'static str, found: &str, expected: &str) -> Result<(), RegistryError> {
    if found == expected {
        Ok(())
    } else {
        Err(RegistryError::ResponseMember(member))
    }
}

fn check_present(member: &'static str, found: &str) -> Result<(), RegistryError> {
    if found.trim().is_empty() {
        Err(RegistryError::ResponseMember(member))
    } else {
        Ok(())
    }
}

/// Retries with backoff until the result is final.
async fn retry_until_final<T, F>(
    delay: &RegistryBackoff,
    may_retry: fn(&RegistryError) -> bool,
    mut send: impl FnMut() -> F,
) -> Result<T, RegistryError>
where
    F: Future<Output = Result<T, RegistryError>>,
{
    let mut attempt = 0;
    loop {
        match send().await {
            Err(error) if may_retry(&error) => {
                let reason = error_chain(&error);
                let pause = delay.after(attempt);
                match attempt {
                    // Logged as an error, so that the operator learns why no harness connects.
                    0 => tracing::error!(reason, "failed to register the environment; retrying"),
                    _ => tracing::warn!(
                        reason,
                        ?pause,
                        "failed to register the environment; retrying"
                    ),
                }
                sleep(pause).await;
                attempt = attempt.saturating_add(1);
            }
            outcome => return outcome,
        }
    }
}

/// Maximum length of a response body in an error, in characters.
const MAX_TEXT_CHARS: usize = 4096;

/// Why a request to a registry failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Caller: base URL and environment id do not form a URL.
    #[error("environment id does not form a valid URL")]
    Url(#[source] url::ParseError),
    /// Caller: the connection would not be encrypted.
    #[error("direct transport requires https:// or a loopback address, not `{0}`")]
    InTheClear(String),
    /// Caller: the request cannot be authenticated.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// Peer: the stream id is not allowed in a header.
    #[error("stream id is not allowed in a header")]
    StreamId,
    /// Transport: no response arrived. A response that is too long counts as the peer's fault.
    #[error("registry did not respond")]
    Exchange(#[from] ExchangeError),
    /// Caller: the registry does not know the caller (401) or denies access (403).
    #[error("registry refused the credentials: {status}{}", text_suffix(.text.as_ref()))]
    Denied {
        /// The HTTP status.
        status: u16,
        /// Response text, if it may be shown.
        text: Option<String>,
    },
    /// Peer: the registry refused.
    #[error("registry refused: {status}{}", text_suffix(.text.as_ref()))]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The error code, if known.
        code: Option<RegistryErrorCode>,
        /// Response text, if it may be shown.
        text: Option<String>,
    },
    /// Peer: the response of a successful request is malformed.
    #[error("invalid response from the registry")]
    Malformed(#[source] Option<serde_json::Error>),
    /// Peer: a member of the response is missing or does not match the request.
    #[error("response of the registry has a missing or unexpected {0}")]
    ResponseMember(&'static str),
}

impl RegistryError {
    /// Creates the error of a response without a success status.
    fn refused(reply: &HttpReply, bodies: BodyDisclosure) -> Self {
        let read = ErrorBody::read(&reply.body);
        let text = match bodies {
            BodyDisclosure::Shown => display_text(read.as_ref(), &reply.body),
            BodyDisclosure::Hidden => None,
        };
        let status = reply.status.as_u16();
        if matches!(
            reply.status,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN
        ) {
            return Self::Denied { status, text };
        }
        let code = read.and_then(|body| RegistryErrorCode::find(body.error.code.as_deref()?));
        Self::Refused { status, code, text }
    }

    /// Creates the error of a malformed success response.
    fn malformed(error: serde_json::Error, bodies: BodyDisclosure) -> Self {
        // serde's error messages may repeat values.
        match bodies {
            BodyDisclosure::Shown => Self::Malformed(Some(error)),
            BodyDisclosure::Hidden => Self::Malformed(None),
        }
    }

    /// Returns whether to retry `register`. All other failures are ambiguous: by then, a newer
    /// registration may exist and must not be replaced.
    pub fn may_register_again(&self) -> bool {
        self.was_not_sent()
            || matches!(
                self,
                Self::Refused {
                    status: 503,
                    code: Some(RegistryErrorCode::RegistrationConflict),
                    ..
                } | Self::Refused {
                    status: 502,
                    code: Some(RegistryErrorCode::AuthenticationServiceUnavailable),
                    ..
                }
            )
    }

    /// Returns whether the request cannot have arrived: the registry is down or unreachable.
    pub fn was_not_sent(&self) -> bool {
        matches!(self, Self::Exchange(error) if error.is_unreachable())
    }

    /// Returns whether to retry `connect`.
    pub fn may_connect_again(&self) -> bool {
        match self {
            Self::Exchange(error) => error.is_transient(),
            Self::Refused { status, code, .. } => match status {
                408 | 429 | 500..=599 => true,
                409 => *code == Some(RegistryErrorCode::EnvironmentOffline),
                _ => false,
            },
            Self::Url(_)
            | Self::InTheClear(_)
            | Self::Credential(_)
            | Self::StreamId
            | Self::Denied { .. }
            | Self::Malformed(_)
            | Self::ResponseMember(_) => false,
        }
    }
}

/// Returns the displayable text of an error response: code and message, or the body if it has
/// neither.
fn display_text(read: Option<&ErrorBody>, body: &[u8]) -> Option<String> {
    let text = match read.map(|body| &body.error) {
        Some(error) => {
            let parts = [error.code.as_deref(), error.message.as_deref()];
            let parts: Vec<_> = parts.into_iter().flatten().collect();
            parts.join(": ")
        }
        None => String::from_utf8_lossy(body).into_owned(),
    };
    // Prevents terminal escape sequences.
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    let text: String = text
        .trim()
        .chars()
        .take(MAX_TEXT_CHARS)
        .map(printable)
        .collect();
    (!text.is_empty()).then_some(text)
}

fn text_suffix(text: Option<&String>) -> String {
    text.map_or_else(String::new, |text| format!(": {text}"))
}
