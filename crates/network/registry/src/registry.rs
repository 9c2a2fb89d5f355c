//! Client of the registry API.
//!
//! All responses are validated here. This module also decides which failures are worth a retry;
//! `register` retries by itself. Elsewhere: retries of a harness (`harness`), authentication
//! (`credentials`).

mod error;
#[cfg(test)]
mod tests;

pub use self::error::{Member, RegistryError};

use std::{error::Error, iter, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_relay::identity::PublicKey;
use exec_transport::trace::TraceSource;
use http::{HeaderMap, HeaderValue, Method, header};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::sleep;
use url::Url;

use crate::{
    api::{
        Connect, Connected, DIRECT_TRANSPORT, DirectRegister, DirectRegistered, EnvironmentId,
        Register, Registered, SECURITY_PROFILE, STREAM_ID_HEADER, Validate, Validated, read_object,
    },
    credentials::{Bodies, CredentialError, Credentials, Outgoing},
    delay::RegistryDelay,
    http::{BaseUrl, Call, Connection, Http, is_near},
};

/// Timeout of a request, from the first byte to the last.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest response. A valid one has a key of 1.6 KiB, an authorization of 4 KiB and a URL; error
/// texts are cut to 4096 characters.
const MAX_ANSWER: usize = 64 << 10;

/// Client of a registry with the credentials of one caller. Clones share connections.
#[derive(Clone, Debug)]
pub struct Registry {
    base: BaseUrl,
    credentials: Arc<dyn Credentials>,
    http: Http,
    trace: Option<TraceSource>,
}

impl Registry {
    /// Creates a client. Nothing is sent yet.
    ///
    /// # Errors
    /// Returns an error if these credentials must not be sent to this URL.
    pub fn new(
        base: BaseUrl,
        credentials: Arc<dyn Credentials>,
        http: Http,
    ) -> Result<Self, CredentialError> {
        credentials.reach().admit(base.url())?;
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
        environment: &EnvironmentId,
        key: &PublicKey,
    ) -> Result<Registered, RegistryError> {
        let request = Register {
            security_profile: SECURITY_PROFILE.to_owned(),
            executor_public_key: key.clone(),
        };
        let delay = RegistryDelay::random();
        let again = RegistryError::may_register_again;
        until_settled(&delay, again, || self.register_once(environment, &request)).await
    }

    /// Asks once for a connection to an environment.
    ///
    /// # Errors
    /// Returns an error if there is none. [`RegistryError::may_connect_again`] says whether to
    /// retry.
    pub async fn connect(
        &self,
        environment: &EnvironmentId,
        key: &PublicKey,
    ) -> Result<Connected, RegistryError> {
        let request = Connect {
            harness_public_key: key.clone(),
        };
        let asked = Asked {
            environment,
            operation: "connect",
            stream_id: None,
            connection: Connection::Kept,
            bodies: self.credentials.bodies(),
        };
        let answer: Connected = self.ask(asked, &request).await?;
        meant(
            environment,
            &answer.environment_id,
            &answer.security_profile,
        )?;
        there(Member::Url, answer.url.expose())?;
        there(Member::RegistrationId, &answer.executor_registration_id)?;
        there(
            Member::Authorization,
            answer.harness_key_authorization.expose(),
        )?;
        Ok(answer)
    }

    /// Asks once whether to accept the harness of a stream.
    ///
    /// # Errors
    /// Returns an error without a valid response; treat it as a refusal.
    pub async fn validate(
        &self,
        environment: &EnvironmentId,
        stream_id: &str,
        request: &Validate,
    ) -> Result<bool, RegistryError> {
        let stream_id = HeaderValue::from_str(stream_id).map_err(|_| RegistryError::StreamId)?;
        let asked = Asked {
            environment,
            operation: "validate",
            stream_id: Some(stream_id),
            connection: Connection::Kept,
            // Responses about a harness must not be logged.
            bodies: Bodies::Hidden,
        };
        let answer: Validated = self.ask(asked, request).await?;
        Ok(answer.valid)
    }

    /// Registers a direct executor and returns the websocket to dial. Retries while the registry is
    /// unreachable.
    ///
    /// # Errors
    /// Returns an error if the registry refuses or the websocket would not be encrypted.
    pub async fn direct_register(
        &self,
        environment: &EnvironmentId,
    ) -> Result<DirectRegistered, RegistryError> {
        let delay = RegistryDelay::random();
        let again = RegistryError::was_not_sent;
        until_settled(&delay, again, || self.direct_register_once(environment)).await
    }

    async fn direct_register_once(
        &self,
        environment: &EnvironmentId,
    ) -> Result<DirectRegistered, RegistryError> {
        if !self.base.is_private() {
            return Err(RegistryError::InTheClear(self.base.to_string()));
        }
        let request = DirectRegister {
            transport: DIRECT_TRANSPORT.to_owned(),
        };
        let asked = Asked {
            environment,
            operation: "direct/register",
            stream_id: None,
            connection: Connection::Fresh,
            bodies: self.credentials.bodies(),
        };
        let answer: DirectRegistered = self.ask(asked, &request).await?;
        same(
            Member::EnvironmentId,
            &answer.environment_id,
            environment.as_str(),
        )?;
        same(Member::Transport, &answer.transport, DIRECT_TRANSPORT)?;
        there(Member::RegistrationId, &answer.registration_id)?;
        there(Member::Url, answer.url.expose())?;
        let url =
            Url::parse(answer.url.expose()).map_err(|_| RegistryError::Member(Member::Url))?;
        match url.scheme() {
            "wss" => Ok(answer),
            "ws" if is_near(&url) => Ok(answer),
            "ws" => Err(RegistryError::InTheClear(
                url.origin().ascii_serialization(),
            )),
            _ => Err(RegistryError::Member(Member::Url)),
        }
    }

    async fn register_once(
        &self,
        environment: &EnvironmentId,
        request: &Register,
    ) -> Result<Registered, RegistryError> {
        let asked = Asked {
            environment,
            operation: "register",
            stream_id: None,
            connection: Connection::Fresh,
            bodies: self.credentials.bodies(),
        };
        let answer: Registered = self.ask(asked, request).await?;
        meant(
            environment,
            &answer.environment_id,
            &answer.security_profile,
        )?;
        Ok(answer)
    }

    async fn ask<Q: Serialize + Sync, A: DeserializeOwned>(
        &self,
        asked: Asked<'_>,
        request: &Q,
    ) -> Result<A, RegistryError> {
        let bodies = asked.bodies;
        let url = self
            .base
            .operation(asked.environment, asked.operation)
            .map_err(RegistryError::Url)?;
        let body = serde_json::to_vec(request)
            .map_err(|error| RegistryError::malformed(error, Bodies::Hidden))?;
        let outgoing = Outgoing {
            method: &Method::POST,
            url: &url,
            body: &body,
        };
        let mut headers: HeaderMap = self.credentials.headers_for(outgoing).await?;
        headers.extend(self.trace.iter().flat_map(TraceSource::headers));
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        if let Some(stream_id) = asked.stream_id {
            headers.insert(STREAM_ID_HEADER, stream_id);
        }
        let call = Call {
            method: Method::POST,
            url,
            headers,
            body: Some(Bytes::from(body)),
            connection: asked.connection,
            within: REQUEST_TIMEOUT,
            limit: MAX_ANSWER,
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
struct Asked<'a> {
    environment: &'a EnvironmentId,
    operation: &'static str,
    stream_id: Option<HeaderValue>,
    connection: Connection,
    bodies: Bodies,
}

/// Checks that a response is for this environment and security profile.
fn meant(
    environment: &EnvironmentId,
    environment_id: &str,
    security_profile: &str,
) -> Result<(), RegistryError> {
    same(Member::EnvironmentId, environment_id, environment.as_str())?;
    same(Member::SecurityProfile, security_profile, SECURITY_PROFILE)
}

fn same(member: Member, said: &str, expected: &str) -> Result<(), RegistryError> {
    if said == expected {
        Ok(())
    } else {
        Err(RegistryError::Member(member))
    }
}

fn there(member: Member, said: &str) -> Result<(), RegistryError> {
    if said.trim().is_empty() {
        Err(RegistryError::Member(member))
    } else {
        Ok(())
    }
}

/// Retries with backoff until the result is final.
async fn until_settled<T, F>(
    delay: &RegistryDelay,
    may_ask_again: fn(&RegistryError) -> bool,
    mut ask: impl FnMut() -> F,
) -> Result<T, RegistryError>
where
    F: Future<Output = Result<T, RegistryError>>,
{
    let mut attempt = 0;
    loop {
        match ask().await {
            Err(error) if may_ask_again(&error) => {
                let reason = chain(&error);
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
            settled => return settled,
        }
    }
}

/// Joins an error with its sources.
fn chain(error: &dyn Error) -> String {
    let sources = iter::successors(Some(error), |error| (*error).source());
    let texts: Vec<String> = sources.map(ToString::to_string).collect();
    texts.join(": ")
}
