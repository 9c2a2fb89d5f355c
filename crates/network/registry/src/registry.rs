//! Asking a registry.
//!
//! Whatever a registry answers is checked here: nothing deeper looks again. Which failures are worth
//! another try is known here too; `register` tries by itself. Not here: when a harness tries again
//! (`harness`), who is asking (`credentials`).

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

/// How long a request may take, from the first byte to the last.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer. The longest that makes sense has a key of 1.6 KiB, an authorization of 4 KiB and a
/// URL; errors are cut to 4096 characters.
const MAX_ANSWER: usize = 64 << 10;

/// A registry, and who asks it. Clones share connections.
#[derive(Clone, Debug)]
pub struct Registry {
    base: BaseUrl,
    credentials: Arc<dyn Credentials>,
    http: Http,
    trace: Option<TraceSource>,
}

impl Registry {
    /// Describes a registry. Nothing is sent.
    ///
    /// # Errors
    /// When these credentials may not be sent there.
    pub fn new(
        base: BaseUrl,
        credentials: Arc<dyn Credentials>,
        http: Http,
    ) -> Result<Self, CredentialError> {
        credentials.reach().admit(base.url())?;
        if !base.is_private() {
            tracing::warn!(registry = %base, "credentials are sent in the clear");
        }
        Ok(Self {
            base,
            credentials,
            http,
            trace: None,
        })
    }

    /// Tells the registry what each request belongs to.
    pub fn with_trace(mut self, trace: Option<TraceSource>) -> Self {
        self.trace = trace;
        self
    }

    /// Offers an environment. Tries again for as long as the registry says that it would help.
    /// Dropping the future may leave a registration that nobody uses.
    ///
    /// # Errors
    /// For everything else, at once.
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

    /// Asks for the way to an environment, once.
    ///
    /// # Errors
    /// When there is none. [`RegistryError::may_connect_again`] tells whether to ask again.
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

    /// Asks, once, whether the harness of a stream may come in.
    ///
    /// # Errors
    /// When there is no answer, which is the same as no.
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
            // What is said about a harness is nothing for logs.
            bodies: Bodies::Hidden,
        };
        let answer: Validated = self.ask(asked, request).await?;
        Ok(answer.valid)
    }

    /// Asks where an executor is awaited that dials by itself: once, and again for as long as nobody
    /// is reached.
    ///
    /// # Errors
    /// When it is awaited nowhere, or where others could read what is said.
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

/// What is asked, besides the body.
#[derive(Debug)]
struct Asked<'a> {
    environment: &'a EnvironmentId,
    operation: &'static str,
    stream_id: Option<HeaderValue>,
    connection: Connection,
    bodies: Bodies,
}

/// Sees that an answer is about what was asked, and means what we do.
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

/// Asks until the answer is final.
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
                    // Whoever runs it should know why nobody comes.
                    0 => tracing::error!(reason, "environment is not registered; trying again"),
                    _ => tracing::warn!(reason, ?pause, "environment is not registered yet"),
                }
                sleep(pause).await;
                attempt = attempt.saturating_add(1);
            }
            settled => return settled,
        }
    }
}

/// An error with its sources, for people.
fn chain(error: &dyn Error) -> String {
    let sources = iter::successors(Some(error), |error| (*error).source());
    let texts: Vec<String> = sources.map(ToString::to_string).collect();
    texts.join(": ")
}
