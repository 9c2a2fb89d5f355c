//! A connection to this machine's server that outlives the server: it starts another one when it
//! reconnects and none is listening.

use std::sync::Arc;

use exec_client::{
    client::ExecServerClient,
    connect::{BackoffDelay, RemoteConnector, ServerConnector, SessionContinuity},
};
use exec_settings::{
    background_server::{self, BackgroundServerError, OutdatedServer},
    local_socket::LocalSocket,
};
use exec_transport::{connect::ConnectError, link::Link};
use futures_util::future::{BoxFuture, FutureExt};

use crate::command::{failure::CommandFailure, process_session::print_notice};

/// Connects to the local server like [`background_server::connect`].
pub(super) async fn connect_restarting(
    socket: &LocalSocket,
    client: &str,
) -> Result<ExecServerClient, CommandFailure> {
    // Starts the server if needed, and reports why it cannot. Only the second connection is kept.
    let first = background_server::connect(socket, client).await?;
    if let Some(outdated) = OutdatedServer::of(&first)
        && !outdated.upgrade_if_idle(socket, &first).await
    {
        print_notice(&outdated.to_string());
    }
    drop(first);
    let connector = RestartingConnector {
        remote: RemoteConnector::own_unix(socket.path()),
        socket: socket.clone(),
        client: client.to_owned(),
    };
    let connecting =
        ExecServerClient::connect_with(Arc::new(connector), background_server::options(client));
    Ok(connecting
        .await
        .map_err(|error| BackgroundServerError::unreachable(socket, error))?)
}

/// Opens links to the local server, and starts it if none is listening.
#[derive(Debug)]
struct RestartingConnector {
    remote: RemoteConnector,
    socket: LocalSocket,
    client: String,
}

impl RestartingConnector {
    /// Connects. If nothing listens, starts the server and tries again: the second attempt reports
    /// any failure.
    async fn connect_or_start(
        &self,
        connect: fn(&RemoteConnector) -> BoxFuture<'_, Result<Link, ConnectError>>,
    ) -> Result<Link, ConnectError> {
        match connect(&self.remote).await {
            Err(ConnectError::Unreachable { .. }) => {}
            outcome => return outcome,
        }
        if let Err(error) = background_server::connect(&self.socket, &self.client).await {
            tracing::warn!(%error, "failed to start the server of this machine");
        }
        connect(&self.remote).await
    }
}

impl ServerConnector for RestartingConnector {
    fn connect(&self) -> BoxFuture<'_, Result<Link, ConnectError>> {
        self.remote.connect()
    }

    fn reconnect(&self) -> BoxFuture<'_, Result<Link, ConnectError>> {
        self.connect_or_start(RemoteConnector::reconnect).boxed()
    }

    fn renew(&self) -> BoxFuture<'_, Result<Link, ConnectError>> {
        self.connect_or_start(RemoteConnector::renew).boxed()
    }

    fn continuity(&self) -> SessionContinuity {
        self.remote.continuity()
    }

    fn backoff(&self, failures: u32) -> BackoffDelay {
        self.remote.backoff(failures)
    }
}
