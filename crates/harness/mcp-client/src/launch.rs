//! Launching a server in an environment, and shaking hands with it.

use exec_env::backend::ExecBackend;
use exec_wire::id::ProcessId;
use rmcp::{
    RoleClient,
    service::{RunningService, Service, serve_client},
};
use tokio::time;

use crate::{
    config::McpServerConfig,
    error::{LaunchError, McpTransportError},
    transport::{McpTransport, Watch},
};

/// A server that has answered `initialize`.
#[derive(Debug)]
pub struct Connected<S: Service<RoleClient>> {
    /// Calls the server. When it is dropped, the server is ended.
    pub service: RunningService<RoleClient, S>,
    /// Learns of the server's fate.
    pub watch: Watch,
}

impl McpServerConfig {
    /// Starts the server as the process `id`. Dropping the future leaves nothing running.
    pub async fn launch(
        &self,
        backend: &dyn ExecBackend,
        id: ProcessId,
    ) -> Result<McpTransport, LaunchError> {
        let started = backend.start(self.command(id)).await;
        let started = started.map_err(|error| LaunchError::Start {
            server: self.name.clone(),
            error,
        })?;
        Ok(McpTransport::new(started.process, self))
    }

    /// Starts the server and waits until it has answered `initialize`, for at most
    /// [`startup_timeout`](Self::startup_timeout). `handler` answers what the server asks. Dropping
    /// the future leaves nothing running.
    pub async fn connect<S: Service<RoleClient>>(
        &self,
        backend: &dyn ExecBackend,
        id: ProcessId,
        handler: S,
    ) -> Result<Connected<S>, LaunchError> {
        let begun = time::Instant::now();
        let timed_out = |stderr| LaunchError::TimedOut {
            server: self.name.clone(),
            limit: self.startup_timeout,
            stderr,
        };
        let launched = time::timeout(self.startup_timeout, self.launch(backend, id)).await;
        let transport = launched.map_err(|_| timed_out(String::new()))??;
        let watch = transport.watch();
        let left = self.startup_timeout.saturating_sub(begun.elapsed());
        match time::timeout(left, serve_client(handler, transport)).await {
            Ok(Ok(service)) => Ok(Connected { service, watch }),
            Ok(Err(error)) => Err(match watch.ended() {
                // It ended because the handshake failed, and that says more.
                None | Some(McpTransportError::Closed(_)) => LaunchError::Initialize {
                    server: self.name.clone(),
                    error: Box::new(error),
                },
                Some(end) => end.into(),
            }),
            Err(_) => Err(timed_out(watch.last_words())),
        }
    }
}
