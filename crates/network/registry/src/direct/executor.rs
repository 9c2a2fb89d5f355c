//! The life of a direct executor: register, dial, serve, wait, again.

use std::{convert::Infallible, sync::Arc};

use exec_transport::{
    connect::{Address, CONNECT_TIMEOUT, ConnectError, WebSocket},
    link::Link,
    websocket::{LinkOptions, Sends},
};
use exec_wire::limits;
use tokio::{
    sync::{Semaphore, mpsc},
    time::sleep,
};

use super::{DirectError, Proof};
use crate::{
    api::{DirectRegistered, EnvironmentId},
    delay::RegistryDelay,
    executor::Dialing,
    http::BaseUrl,
    registry::Registry,
};

/// What a direct executor is to be.
#[derive(Debug)]
pub struct Settings {
    /// Where it registers.
    pub registry: Registry,
    /// Where that is.
    pub base: BaseUrl,
    /// What it offers.
    pub environment: EnvironmentId,
    /// How it shows who it is.
    pub proof: Proof,
    /// How it gets to where it is awaited.
    pub dialing: Dialing,
}

/// An executor that dials the harness side.
#[derive(Debug)]
pub struct DirectExecutor {
    settings: Settings,
    delay: RegistryDelay,
}

impl DirectExecutor {
    /// Describes an executor. Nothing is sent.
    pub fn new(settings: Settings) -> Self {
        // Keyed by the environment, so that executors of one harness side come back apart.
        let delay = RegistryDelay::new(settings.environment.as_str());
        Self { settings, delay }
    }

    /// Dials until told to stop. Every websocket becomes one of `links`, and the next is dialled when
    /// it was dropped.
    ///
    /// # Errors
    /// When the registry does not take the environment, or who is dialled does not want it.
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
        // One link at a time: it holds the only place until it is dropped.
        let places = Arc::new(Semaphore::new(1));
        let mut failures = 0;
        loop {
            match self.open(&registered).await? {
                Opened::Link(mut link) => {
                    failures = 0;
                    tracing::info!(%environment, "connected");
                    let abandoned = |_| DirectError::Abandoned;
                    let place = Arc::clone(&places).acquire_owned().await;
                    link.slot = Some(place.map_err(abandoned)?);
                    links.send(link).await.map_err(|_| DirectError::Abandoned)?;
                    // Comes back when the link is dropped.
                    drop(places.acquire().await.map_err(abandoned)?);
                    tracing::info!(%environment, "connection ended");
                }
                Opened::Superseded => {
                    tracing::info!(%environment, "registration is not current; registering again");
                    registered = self.register().await?;
                }
                Opened::Later(error) => {
                    tracing::warn!(%environment, %error, "cannot connect");
                }
            }
            sleep(self.delay.after(failures)).await;
            failures = failures.saturating_add(1);
        }
    }

    async fn register(&self) -> Result<DirectRegistered, DirectError> {
        let Settings {
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

    async fn open(&self, registered: &DirectRegistered) -> Result<Opened, DirectError> {
        let url = &registered.url;
        let address: Address = url.expose().trim().parse()?;
        let proof = &self.settings.proof;
        let shown = proof.headers(url, self.settings.base.url()).await?;
        let dialing = &self.settings.dialing;
        let proxy = dialing.proxy(&address);
        let mut socket = WebSocket {
            headers: dialing.headers.clone(),
            trust: dialing.trust.clone(),
            connect_timeout: CONNECT_TIMEOUT,
            ..WebSocket::new(address)
        };
        super::upgrade::show(&shown, &mut socket)?;
        let options = LinkOptions {
            sends: Sends::Text,
            max_message_bytes: limits::MAX_MESSAGE_BYTES,
            budget: None,
        };
        match socket.open_with(options, proxy).await {
            Ok(link) => Ok(Opened::Link(link)),
            Err(ConnectError::Refused { status: 409, .. }) => Ok(Opened::Superseded),
            Err(error) if is_final(&error) => Err(DirectError::Refused(error)),
            Err(error) => Ok(Opened::Later(error)),
        }
    }
}

/// What came of dialling.
enum Opened {
    Link(Link),
    /// Who is dialled knows a newer registration.
    Superseded,
    /// It may work later.
    Later(ConnectError),
}

/// Tells a refusal that stays one: being too slow or too many passes.
fn is_final(error: &ConnectError) -> bool {
    let ConnectError::Refused { status, .. } = error else {
        return false;
    };
    (400..500).contains(status) && !matches!(status, 408 | 429)
}
