//! Direct executors: they dial the harness side themselves, without relay and without Noise.
//!
//! The registry returns a websocket URL; the server there is the JSON-RPC client. One link
//! exists at a time: when it ends, the executor dials again. Elsewhere: methods and sessions
//! (`exec-service`), which outlive a link.

use std::{convert::Infallible, sync::Arc, time::SystemTime};

use exec_transport::{
    connect::{
        ConnectError, RequestHeaderError, ServerAddress, ServerAddressError, WebSocketConnector,
    },
    link::Link,
    websocket::{LinkOptions, TextFraming},
};
use exec_wire::{error::error_chain, limits};
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, header};
use tokio::{
    sync::{Semaphore, mpsc},
    time::sleep,
};
use url::Url;

use crate::{
    api::{
        DirectRegisterResponse, RegistryEnvironmentId, SecretString,
        sigv4::{self, SigV4Timestamp, SigningRequest, SigningScope},
    },
    aws::{AwsKeySources, AwsRegionError},
    backoff::RegistryBackoff,
    credentials::{CredentialError, Credentials, OutgoingRequest, SecretScope},
    executor::DialOptions,
    http::BaseUrl,
    registry::{RegistryClient, RegistryError},
};

/// Configuration of a direct executor.
#[derive(Debug)]
pub struct DirectExecutorSettings {
    /// Client of the registry to register with.
    pub registry: RegistryClient,
    /// Base URL of that registry.
    pub base: BaseUrl,
    /// Environment to offer.
    pub environment: RegistryEnvironmentId,
    /// How the executor authenticates.
    pub auth: DirectAuth,
    /// How websockets are dialled.
    pub dial_options: DialOptions,
}

/// An executor that dials the harness side.
#[derive(Debug)]
pub struct DirectExecutor {
    settings: DirectExecutorSettings,
    delay: RegistryBackoff,
}

impl DirectExecutor {
    /// Creates an executor. Nothing is sent yet.
    pub fn new(settings: DirectExecutorSettings) -> Self {
        // Keyed by environment, so that executors of one harness do not reconnect at the same
        // moment.
        let delay = RegistryBackoff::new(settings.environment.as_str());
        Self { settings, delay }
    }

    /// Dials until `stop` resolves. Every websocket is sent to `links`; the next one is dialled
    /// when the previous link has been dropped.
    ///
    /// # Errors
    /// Returns an error if the registry refuses the environment or the peer rejects the executor.
    pub async fn run(
        self,
        links: mpsc::Sender<Link>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), DirectError> {
        tokio::select! {
            biased;
            () = stop => Ok(()),
            () = links.closed() => Err(DirectError::Abandoned),
            ended = self.serve(&links) => match ended {
                Ok(never) => match never {},
                Err(error) => Err(error),
            },
        }
    }

    async fn serve(&self, links: &mpsc::Sender<Link>) -> Result<Infallible, DirectError> {
        let environment = &self.settings.environment;
        let mut registered = self.register().await?;
        // One link at a time: it holds the only permit until it is dropped.
        let slots = Arc::new(Semaphore::new(1));
        let mut failures = 0;
        loop {
            match self.open(&registered).await? {
                DialOutcome::Link(mut link) => {
                    failures = 0;
                    tracing::info!(%environment, "connected");
                    let abandoned = |_| DirectError::Abandoned;
                    let permit = Arc::clone(&slots).acquire_owned().await;
                    link.slot = Some(permit.map_err(abandoned)?);
                    links.send(link).await.map_err(|_| DirectError::Abandoned)?;
                    // Available again when the link is dropped.
                    drop(slots.acquire().await.map_err(abandoned)?);
                    tracing::info!(%environment, "connection ended");
                }
                DialOutcome::Superseded => {
                    tracing::info!(%environment, "registration is not current; registering again");
                    registered = self.register().await?;
                }
                DialOutcome::Retry(error) => {
                    tracing::warn!(%environment, %error, "cannot connect");
                }
            }
            sleep(self.delay.after(failures)).await;
            failures = failures.saturating_add(1);
        }
    }

    async fn register(&self) -> Result<DirectRegisterResponse, DirectError> {
        let DirectExecutorSettings {
            registry,
            environment,
            ..
        } = &self.settings;
        let registered = registry.direct_register(environment).await;
        registered.map_err(|source| DirectError::Register {
            environment: environment.clone(),
            source,
        })
    }

    async fn open(&self, registered: &DirectRegisterResponse) -> Result<DialOutcome, DirectError> {
        let url = &registered.url;
        let address: ServerAddress = url.expose().trim().parse()?;
        let auth = &self.settings.auth;
        let auth_headers = auth.headers(url, self.settings.base.url()).await?;
        let dial_options = &self.settings.dial_options;
        let proxy = dial_options.proxy(&address);
        let mut socket = WebSocketConnector {
            headers: dial_options.headers.clone(),
            trust: dial_options.trust.clone(),
            ..WebSocketConnector::new(address)
        };
        add_auth_headers(&auth_headers, &mut socket)?;
        let options = LinkOptions {
            sends: TextFraming::Text,
            max_message_bytes: limits::MAX_MESSAGE_BYTES,
            budget: None,
        };
        match socket.open_with(options, proxy).await {
            Ok(link) => Ok(DialOutcome::Link(link)),
            Err(ConnectError::Refused { status: 409, .. }) => Ok(DialOutcome::Superseded),
            Err(error) if is_final(&error) => Err(DirectError::Refused(error)),
            Err(error) => Ok(DialOutcome::Retry(error)),
        }
    }
}

/// Result of dialling.
enum DialOutcome {
    Link(Link),
    /// The peer knows a newer registration.
    Superseded,
    /// Dialling may succeed later.
    Retry(ConnectError),
}

/// Returns whether a refusal is permanent. Timeouts and rate limits are not.
fn is_final(error: &ConnectError) -> bool {
    let ConnectError::Refused { status, .. } = error else {
        return false;
    };
    (400..500).contains(status) && !matches!(status, 408 | 429)
}

/// Why a direct executor stopped. All other failures are retried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectError {
    /// As the source says: the registry refused the environment.
    #[error("cannot register environment `{environment}`")]
    Register {
        /// The environment.
        environment: RegistryEnvironmentId,
        /// Why.
        source: RegistryError,
    },
    /// Caller: the upgrade request cannot be authenticated.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// Peer: the registry returned a URL that cannot be dialled. The error does not repeat it.
    #[error("registry returned an unusable websocket URL")]
    Address(#[from] ServerAddressError),
    /// Caller: a header of the upgrade request is invalid.
    #[error(transparent)]
    Header(#[from] RequestHeaderError),
    /// Peer: the acceptor rejected this executor.
    #[error("executor was rejected by the websocket that the registry returned")]
    Refused(#[source] ConnectError),
    /// Us: the receiver of links was dropped.
    #[error("receiver of this executor's connections was dropped")]
    Abandoned,
}

/// How a direct executor authenticates.
#[derive(Clone, Debug)]
pub enum DirectAuth {
    /// With a signature that is valid for a single request.
    Signature(Arc<SigV4Signer>),
    /// With a secret known to the registry. It is sent to the websocket only if that has the
    /// registry's own origin.
    Token(Arc<dyn Credentials>),
}

impl DirectAuth {
    /// Returns the credentials for requests to the registry.
    pub fn credentials(&self) -> Arc<dyn Credentials> {
        match self {
            Self::Signature(signer) => Arc::<SigV4Signer>::clone(signer),
            Self::Token(credentials) => Arc::clone(credentials),
        }
    }

    /// Returns the authentication headers of an upgrade request.
    async fn headers(&self, url: &SecretString, registry: &Url) -> Result<HeaderMap, DirectError> {
        let Some(url) = upgrade_url(url.expose()) else {
            return Ok(HeaderMap::new());
        };
        let request = OutgoingRequest {
            method: &Method::GET,
            url: &url,
            body: b"",
        };
        match self {
            Self::Signature(signer) => Ok(signer.headers_for(request).await?),
            Self::Token(credentials) if url.origin() == registry.origin() => {
                Ok(credentials.headers_for(request).await?)
            }
            Self::Token(_) => Ok(HeaderMap::new()),
        }
    }
}

/// Adds authentication headers to an upgrade request.
fn add_auth_headers(
    auth_headers: &HeaderMap,
    socket: &mut WebSocketConnector,
) -> Result<(), DirectError> {
    for (name, value) in auth_headers {
        if name == header::AUTHORIZATION {
            socket.headers.authorize(value.clone());
            continue;
        }
        // Credentials only produce visible ASCII values.
        let value = value
            .to_str()
            .map_err(|_| RequestHeaderError::Value(name.to_string()))?;
        socket.headers.add(name.as_str(), value)?;
    }
    Ok(())
}

/// Converts a websocket URL to the HTTP URL of its upgrade request, which is what gets signed.
fn upgrade_url(url: &str) -> Option<Url> {
    let (scheme, rest) = url.trim().split_once(':')?;
    let scheme = match scheme.to_ascii_lowercase().as_str() {
        "ws" => "http",
        "wss" => "https",
        _ => return None,
    };
    Url::parse(&format!("{scheme}:{rest}")).ok()
}

/// Service name in signatures unless the caller sets another.
pub const DEFAULT_SERVICE: &str = "execute-api";

/// Signs each request with the keys that are current at that moment.
#[derive(Clone, Debug)]
pub struct SigV4Signer {
    /// Source of the keys.
    pub keys: AwsKeySources,
    /// Region and service that signatures are valid for.
    pub scope: SigningScope,
}

impl SigV4Signer {
    /// Creates a signer for `service` in the region that the chain resolves.
    ///
    /// # Errors
    /// Returns an error if the region cannot be resolved.
    pub async fn new(
        keys: AwsKeySources,
        service: impl Into<String>,
    ) -> Result<Self, AwsRegionError> {
        let (region, service) = (keys.region().await?, service.into());
        let scope = SigningScope { region, service };
        Ok(Self { keys, scope })
    }

    async fn sign(&self, request: OutgoingRequest<'_>) -> Result<HeaderMap, CredentialError> {
        let failed = |error: &dyn std::error::Error| CredentialError::Sign(error_chain(error));
        let keys = self.keys.keys().await.map_err(|error| failed(&error))?;
        let json = [(header::CONTENT_TYPE, "application/json")];
        let request = SigningRequest {
            method: request.method.as_str(),
            url: request.url,
            headers: if request.body.is_empty() { &[] } else { &json },
            body: request.body,
        };
        let at = SigV4Timestamp::new(SystemTime::now());
        sigv4::sign(request, &keys, &self.scope, &at).map_err(|error| failed(&error))
    }
}

impl Credentials for SigV4Signer {
    fn headers(&self) -> BoxFuture<'_, Result<HeaderMap, CredentialError>> {
        let reason = "a signature needs the request".to_owned();
        Box::pin(async { Err(CredentialError::Sign(reason)) })
    }

    fn headers_for<'a>(
        &'a self,
        request: OutgoingRequest<'a>,
    ) -> BoxFuture<'a, Result<HeaderMap, CredentialError>> {
        Box::pin(self.sign(request))
    }

    fn secret_scope(&self) -> SecretScope {
        SecretScope::Private
    }
}
