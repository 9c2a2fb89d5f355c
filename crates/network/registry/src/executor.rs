//! An executor that waits for harnesses at a rendezvous.
//!
//! It registers, opens the websocket that the registry names, and serves the streams in it; when the
//! websocket ends it comes back by itself, with the same identity. Every stream becomes a link that
//! somebody else serves. Not here: streams and handshakes (`exec-transport`), methods
//! (`exec-service`).

use std::{convert::Infallible, sync::Arc};

use exec_relay::identity::Identity;
use exec_transport::{
    connect::{Address, CONNECT_TIMEOUT, ConnectError, Headers, Proxy, WebSocket},
    link::Link,
    relay::executor::{Claim, Executor, ValidationOutcome, Validator},
    tls::Trust,
    websocket::socket::Socket,
};
use futures_util::future::BoxFuture;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep},
};
use uuid::Uuid;

use crate::{
    api::{EnvironmentId, Registered, Secret, Validate},
    delay::Ladder,
    registry::{Registry, RegistryError},
};

/// What an executor is to be.
#[derive(Debug)]
pub struct Settings {
    /// Where it registers and has harnesses validated.
    pub registry: Registry,
    /// What it offers.
    pub environment: EnvironmentId,
    /// Who it is, for as long as the process lives.
    pub identity: Arc<Identity>,
    /// How it gets to the rendezvous.
    pub dialing: Dialing,
}

/// An executor that waits for harnesses at a rendezvous.
#[derive(Debug)]
pub struct RemoteExecutor {
    settings: Settings,
    presence: watch::Sender<Presence>,
}

/// Whether harnesses can reach an executor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Presence {
    /// It has no websocket: it has just begun, or is about to open another.
    Away,
    /// It waits at the rendezvous.
    Online,
}

impl RemoteExecutor {
    /// Describes an executor. Nothing is sent.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            presence: watch::Sender::new(Presence::Away),
        }
    }

    /// Tells whether harnesses can reach it, from now on.
    pub fn presence(&self) -> watch::Receiver<Presence> {
        self.presence.subscribe()
    }

    /// Offers the environment until told to stop. Every harness that is let in becomes one of
    /// `links`. When it stops the websocket is cut without a word, and its streams end.
    ///
    /// # Errors
    /// When the registry does not take the environment, at first or later.
    pub async fn run(
        self,
        links: mpsc::Sender<Link>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), ExecutorError> {
        let gone = links.clone();
        tokio::select! {
            biased;
            () = stop => Ok(()),
            () = gone.closed() => Err(ExecutorError::Abandoned),
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
        let mut executor = Executor::new(
            Arc::clone(&self.settings.identity),
            environment.to_string(),
            Arc::new(validator),
            links,
        );
        let mut ladder = Ladder::random();
        let mut registered = self.register().await?;
        loop {
            match self.settings.dialing.rendezvous(&registered.url).await {
                Ok(socket) => {
                    let since = Instant::now();
                    tracing::info!(%environment, "waiting for harnesses");
                    let registration = registered.executor_registration_id.clone();
                    self.presence.send_replace(Presence::Online);
                    let ended = executor.serve(socket, registration).await;
                    self.presence.send_replace(Presence::Away);
                    let lasted = since.elapsed();
                    tracing::info!(%environment, ?ended, ?lasted, "rendezvous ended");
                    ladder.handle_connection(lasted);
                }
                // The registration is not current any more; the identity stays.
                Err(ConnectError::Refused { status, .. }) if (400..500).contains(&status) => {
                    tracing::info!(%environment, status, "rendezvous refused; registering again");
                    registered = self.register().await?;
                }
                Err(error) => {
                    tracing::warn!(%environment, %error, "rendezvous cannot be reached");
                }
            }
            sleep(ladder.step()).await;
        }
    }

    async fn register(&self) -> Result<Registered, ExecutorError> {
        let Settings {
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

/// Why an executor gave up. Everything else it outlives.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecutorError {
    /// As the source says: the registry does not take the environment. Nobody knows whether another
    /// registration has replaced ours, so it is not tried again.
    #[error("cannot register environment `{environment}`")]
    Register {
        /// The environment.
        environment: EnvironmentId,
        /// Why.
        source: RegistryError,
    },
    /// We: nobody takes the links any more.
    #[error("nobody serves the connections of this executor any more")]
    Abandoned,
}

/// What holds for every websocket that is opened.
#[derive(Clone, Debug, Default)]
pub struct Dialing {
    /// Whose certificates are accepted.
    pub trust: Trust,
    /// Who is asked for a tunnel. What is on this machine is dialled without.
    pub proxy: Option<Proxy>,
    /// What is sent with every upgrade, such as the name of a cluster.
    pub headers: Headers,
}

impl Dialing {
    /// Opens the websocket of a rendezvous. Each attempt has a number of its own, by which both sides
    /// find it in their logs.
    async fn rendezvous(&self, url: &Secret) -> Result<Socket, ConnectError> {
        let address: Address = url.expose().parse()?;
        if matches!(address, Address::Unix(_)) {
            // A registry is somewhere else, and knows no paths of this machine.
            return Err(ConnectError::NotWebSocket(
                "its URL is the path of a socket",
            ));
        }
        let proxy = self.proxy(&address);
        let mut headers = self.headers.clone();
        headers.add("x-request-id", &request_id())?;
        let socket = WebSocket {
            headers,
            trust: self.trust.clone(),
            connect_timeout: CONNECT_TIMEOUT,
            ..WebSocket::new(address)
        };
        match proxy {
            Some(proxy) => socket.open_socket_through(proxy).await,
            None => socket.open_socket().await,
        }
    }

    /// Returns who is asked for a tunnel to an address.
    pub(crate) fn proxy(&self, address: &Address) -> Option<&Proxy> {
        let near = match address {
            Address::Network(host) => host.is_loopback(),
            Address::Unix(_) => true,
        };
        self.proxy.as_ref().filter(|_| !near)
    }
}

fn request_id() -> String {
    format!("req_{}", Uuid::new_v4().simple())
}

/// Lets in whom the registry lets in. A registry that does not answer lets in nobody.
#[derive(Debug)]
struct RegistryValidator {
    registry: Registry,
    environment: EnvironmentId,
}

impl Validator for RegistryValidator {
    fn validate(&self, claim: Claim) -> BoxFuture<'static, ValidationOutcome> {
        let (registry, environment) = (self.registry.clone(), self.environment.clone());
        Box::pin(async move {
            let request = Validate {
                executor_registration_id: claim.registration_id,
                harness_public_key: claim.harness_key,
                harness_key_authorization: Secret::new(claim.authorization),
            };
            // The stream's id is the peer's choice: it is not for logs.
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
                    tracing::warn!(%environment, %error, "harness cannot be validated");
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
    fn requests_are_numbered_in_lower_case_hexadecimal() {
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
    fn this_machine_is_dialled_without_a_proxy() {
        let dialing = Dialing {
            proxy: Some("http://p.test:3128".parse().unwrap()),
            ..Dialing::default()
        };
        for (url, asked) in [
            ("wss://a.test/x", true),
            ("ws://10.0.0.1", true),
            ("ws://localhost:1", false),
            ("ws://127.0.0.1:1/x", false),
            ("unix:///tmp/x", false),
        ] {
            let address = url.parse().unwrap();
            assert_eq!(dialing.proxy(&address).is_some(), asked, "{url}");
        }
    }

    #[tokio::test]
    async fn a_url_that_leads_nowhere_is_an_error_and_not_a_panic() {
        for url in ["", "x", "http://a.test", "unix:///tmp/x", "ws://"] {
            let refused = Dialing::default().rendezvous(&Secret::new(url)).await;
            assert!(refused.is_err(), "{url}");
        }
    }
}
