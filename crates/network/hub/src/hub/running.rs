//! A hub that runs.

use std::{net::SocketAddr, sync::Arc};

use tokio::{sync::watch, task::JoinSet, time::timeout};

use super::{StartError, busy::Busy};
use crate::{
    circuit::Ending, config::HubConfig, limits, nats::Mesh, registry::Gate, switch::Switch,
};

/// A hub that runs. Dropping it takes no more connections and closes those there are.
#[derive(Debug)]
pub struct Hub {
    pub(super) address: SocketAddr,
    pub(super) scheme: &'static str,
    pub(super) stopping: watch::Sender<bool>,
    pub(super) switch: Arc<Switch>,
    pub(super) mesh: Option<Arc<Mesh>>,
    pub(super) gate: Arc<Gate>,
    pub(super) requests: Busy,
    pub(super) sockets: Busy,
    /// The listener, and what follows files.
    pub(super) tasks: JoinSet<()>,
}

impl Hub {
    /// Starts a hub. When this returns, it serves.
    ///
    /// # Errors
    /// See [`StartError`]. Dropping the future leaves nothing running.
    pub async fn start(config: HubConfig) -> Result<Self, StartError> {
        super::start::start(config).await
    }

    /// Returns where it listens, with the port that was given.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns where it listens, as a URL.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// Stops: requests are finished, sockets are told to come back, and both within bounds.
    pub async fn stop(mut self) {
        self.stopping.send_replace(true);
        self.switch.close_all(Ending::Stopping);
        let ended = async {
            self.requests.idle().await;
            self.gate.idle().await;
            self.sockets.idle().await;
            if let Some(mesh) = &self.mesh {
                mesh.leave().await;
            }
        };
        if timeout(limits::STOP, ended).await.is_err() {
            tracing::warn!("connections are cut that did not end in time");
        }
        self.tasks.shutdown().await;
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        // Sockets have tasks of their own.
        self.stopping.send_replace(true);
        self.switch.close_all(Ending::Stopping);
    }
}
