//! Executors that accept harnesses at a rendezvous.
//!
//! An executor registers, opens the websocket that the registry returns, and serves the streams in
//! it. When the websocket ends it reconnects with backoff, keeping its identity. Every stream
//! becomes a link that the caller serves. Elsewhere: streams and handshakes (`exec-transport`),
//! methods (`exec-service`).

use std::{convert::Infallible, sync::Arc};

use exec_relay::identity::NoiseIdentity;
use exec_transport::{
    connect::{ConnectError, HttpProxy, RequestHeaders, ServerAddress, WebSocketConnector},
    link::Link,
    relay::executor::{HarnessClaim, HarnessValidator, RelayExecutor, ValidationOutcome},
    tls::TrustStore,
    websocket::socket::BinarySocket,
};
use futures_util::future::BoxFuture;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep},
};
use uuid::Uuid;

use crate::{
    api::{RegisterResponse, RegistryEnvironmentId, SecretString, ValidateRequest},
    backoff::Backoff,
    registry::{RegistryClient, RegistryError},
};

/// Configuration of an executor.
#[derive(Debug)]
pub struct ExecutorSettings {
    /// Client of the registry that registers the executor and validates harnesses.
    pub registry: RegistryClient,
    /// Environment to offer.
    pub environment: RegistryEnvironmentId,
    /// Identity of this process.
    pub identity: Arc<NoiseIdentity>,
    /// How websockets are dialled.
    pub dial_options: DialOptions,
}

/// An executor that accepts harnesses at a rendezvous.
#[derive(Debug)]
pub struct RemoteExecutor {
    settings: ExecutorSettings,
    presence: watch::Sender<ExecutorPresence>,
}

/// Whether harnesses can reach an executor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ExecutorPresence {
    /// Not connected: starting, or about to reconnect.
    Away,
    /// Connected to the rendezvous.
    Online,
}

impl RemoteExecutor {
    /// Creates an executor. Nothing is sent yet.
    pub fn new(settings: ExecutorSettings) -> Self {
        Self {
            settings,
            presence: watch::Sender::new(ExecutorPresence::Away),
        }
    }

    /// Subscribes to the executor's presence.
    pub fn presence(&self) -> watch::Receiver<ExecutorPresence> {
        self.presence.subscribe()
    }

    /// Offers the environment until `stop` resolves. Every accepted harness becomes one of `links`.
    /// On stop, the websocket is dropped without a close frame and its streams end.
    ///
    /// # Errors
    /// Returns an error if the registry refuses the environment, at start or later.
    pub async fn run(
        self,
        links: mpsc::Sender<Link>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), ExecutorError> {
        let closed_links = links.clone();
        tokio::select! {
            biased;
            () = stop => Ok(()),
            () = closed_links.closed() => Err(ExecutorError::Abandoned),
            ended = self.serve(links) => match ended {
                Ok(never) => match never {},
                Err(error) => Err(error),
            },
        }
    }

    async fn serve(&self, links: mpsc::Sender<Link>) -> Result<Infallible, ExecutorError> {
        let environment = &self.settings.environment;
        let validator = RegistryValidator {
            registry: self.settings.registry.clone(),
            environment: environment.clone(),
        };
        let mut executor = RelayExecutor::new(
            Arc::clone(&self.settings.identity),
            environment.to_string(),
            Arc::new(validator),
            links,
        );
        let mut backoff = Backoff::random();
        let mut registered = self.register().await?;
        loop {
            match self.settings.dial_options.rendezvous(&registered.url).await {
                Ok(socket) => {
                    let since = Instant::now();
                    tracing::info!(%environment, "waiting for harnesses");
                    let registration = registered.executor_registration_id.clone();
                    self.presence.send_replace(ExecutorPresence::Online);
                    let ended = executor.serve(socket, registration).await;
                    self.presence.send_replace(ExecutorPresence::Away);
                    let lasted = since.elapsed();
                    tracing::info!(%environment, ?ended, ?lasted, "rendezvous connection ended");
                    backoff.record_connection(lasted);
                }
                // The registration is stale; the identity stays.
                Err(ConnectError::Refused { status, .. }) if (400..500).contains(&status) => {
                    tracing::info!(%environment, status, "rendezvous refused; registering again");
                    registered = self.register().await?;
                }
                Err(error) => {
                    tracing::warn!(%environment, %error, "failed to reach the rendezvous");
                }
            }
            sleep(backoff.next_delay()).await;
        }
    }

    async fn register(&self) -> Result<RegisterResponse, ExecutorError> {
        let ExecutorSettings {
            registry,
            environment,
            identity,
            ..
        } = &self.settings;
        let registered = registry.register(environment, identity.public_key()).await;
        let registered = registered.map_err(|source| ExecutorError::Register {
            environment: environment.clone(),
            source,
        })?;
        tracing::info!(%environment, "registered");
        Ok(registered)
    }
}

/// Why an executor stopped. All other failures are retried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecutorError {
    /// As the source says: the registry refused the environment. Not retried, because another
    /// registration may have replaced ours.
    #[error("cannot register environment `{environment}`")]
    Register {
        /// The environment.
        environment: RegistryEnvironmentId,
        /// Why.
        source: RegistryError,
    },
    /// Us: the receiver of links was dropped.
    #[error("receiver of this executor's connections was dropped")]
    Abandoned,
}

/// Options for every websocket that is dialled.
#[derive(Clone, Debug, Default)]
pub struct DialOptions {
    /// Accepted certificates.
    pub trust: TrustStore,
    /// Proxy for tunnels. Loopback addresses are dialled directly.
    pub proxy: Option<HttpProxy>,
    /// Headers of every upgrade request, such as the name of a cluster.
    pub headers: RequestHeaders,
}

impl DialOptions {
    /// Opens the websocket of a rendezvous. Each attempt has its own request id, which appears in
    /// the logs of both sides.
    async fn rendezvous(&self, url: &SecretString) -> Result<BinarySocket, ConnectError> {
        let address: ServerAddress = url.expose().parse()?;
        if matches!(address, ServerAddress::Unix(_)) {
            // A registry is on another host and cannot know paths of this one.
            return Err(ConnectError::NotWebSocket(
                "URL is the path of a unix socket",
            ));
        }
        let proxy = self.proxy(&address);
        let mut headers = self.headers.clone();
        headers.add("x-request-id", &request_id())?;
        let socket = WebSocketConnector {
            headers,
            trust: self.trust.clone(),
            ..WebSocketConnector::new(address)
        };
        socket.open_socket(proxy).await
    }

    /// Returns the proxy to use for an address.
    pub(crate) fn proxy(&self, address: &ServerAddress) -> Option<&HttpProxy> {
        let is_local = match address {
            ServerAddress::Network(host) => host.is_loopback(),
            ServerAddress::Unix(_) => true,
        };
        self.proxy.as_ref().filter(|_| !is_local)
    }
}

fn request_id() -> String {
    format!("req_{}", Uuid::new_v4().simple())
}

/// Accepts the harnesses that the registry accepts. Without a response, harnesses are refused.
#[derive(Debug)]
struct RegistryValidator {
    registry: RegistryClient,
    environment: RegistryEnvironmentId,
}

impl HarnessValidator for RegistryValidator {
    fn validate(&self, claim: HarnessClaim) -> BoxFuture<'static, ValidationOutcome> {
        let (registry, environment) = (self.registry.clone(), self.environment.clone());
        Box::pin(async move {
            let request = ValidateRequest {
                executor_registration_id: claim.registration_id,
                harness_public_key: claim.harness_key,
                harness_key_authorization: SecretString::new(claim.authorization),
            };
            // The peer chose the stream id, so it is not logged.
            match registry
                .validate(&environment, claim.stream_id.as_str(), &request)
                .await
            {
                Ok(true) => ValidationOutcome::Accepted,
                Ok(false) => ValidationOutcome::Refused,
                Err(error @ RegistryError::Denied { status: 401, .. }) => {
                    tracing::error!(
                        %environment,
                        %error,
                        "registry rejects this executor's credential; restart it with a new one"
                    );
                    ValidationOutcome::ExecutorUnauthenticated
                }
                Err(error) => {
                    tracing::warn!(%environment, %error, "failed to validate a harness");
                    ValidationOutcome::Refused
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_are_lower_case_hexadecimal() {
        let (one, two) = (request_id(), request_id());
        assert_ne!(one, two);
        for id in [one, two] {
            let digits = id.strip_prefix("req_").unwrap();
            assert_eq!(digits.len(), 32);
            assert!(
                digits
                    .bytes()
                    .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
            );
        }
    }

    #[test]
    fn loopback_is_dialled_without_a_proxy() {
        let dial_options = DialOptions {
            proxy: Some("http://p.test:3128".parse().unwrap()),
            ..DialOptions::default()
        };
        for (url, uses_proxy) in [
            ("wss://a.test/x", true),
            ("ws://10.0.0.1", true),
            ("ws://localhost:1", false),
            ("ws://127.0.0.1:1/x", false),
            ("unix:///tmp/x", false),
        ] {
            let address = url.parse().unwrap();
            assert_eq!(dial_options.proxy(&address).is_some(), uses_proxy, "{url}");
        }
    }

    #[tokio::test]
    async fn unusable_rendezvous_url_is_an_error() {
        for url in ["", "x", "http://a.test", "unix:///tmp/x", "ws://"] {
            let refused = DialOptions::default()
                .rendezvous(&SecretString::new(url))
                .await;
            assert!(refused.is_err(), "{url}");
        }
    }
}
