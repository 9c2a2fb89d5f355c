//! The life of an executor: register, open, serve, wait, again.

use std::{convert::Infallible, sync::Arc};

use exec_relay::identity::Identity;
use exec_transport::{connect::ConnectError, link::Link, relay::executor::Executor};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep},
};

use super::{Dialing, ExecutorError, validator::RegistryValidator};
use crate::{
    api::{EnvironmentId, Registered},
    delay::Ladder,
    registry::Registry,
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
