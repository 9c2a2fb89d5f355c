//! The commands of agents as detached processes of a server, so that they outlive this process.

use std::sync::Arc;

use exec_client::{client::ExecServerClient, error::ExecServerError};
use exec_env::{
    environment::{Command, StartError, StartedProcess},
    process::ExecProcess,
};
use exec_tools::unified::{CommandStore, Durability};
use exec_wire::{
    error::RpcError,
    id::{OutputSeq, ProcessId},
    process::{ProcessSummary, ReleaseProcess},
};
use futures_util::future::{BoxFuture, FutureExt};

/// Detached processes of a server.
#[derive(Clone, Debug)]
pub(super) struct DetachedCommands {
    client: ExecServerClient,
}

impl DetachedCommands {
    /// Creates the store, if the server has detached processes.
    pub(super) fn of(client: &ExecServerClient) -> Option<Self> {
        let client = client.clone();
        client.has_extensions().then_some(Self { client })
    }
}

impl CommandStore for DetachedCommands {
    fn durability(&self) -> Durability {
        Durability::Durable
    }

    fn start(&self, command: Command) -> BoxFuture<'_, Result<StartedProcess, StartError>> {
        self.client.start_detached(command).boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<ProcessSummary>, RpcError>> {
        async {
            let listed = self.client.processes().await;
            let mut listed = listed.map_err(rpc_error)?;
            // Commands of sessions end with them, and are not for others.
            listed.retain(|process| process.detached);
            Ok(listed)
        }
        .boxed()
    }

    fn attach(
        &self,
        listed: ProcessSummary,
    ) -> BoxFuture<'_, Result<Arc<dyn ExecProcess>, RpcError>> {
        async move {
            let attached = self.client.attach_listed(&listed, Some(OutputSeq(0)));
            attached.await.map_err(rpc_error)
        }
        .boxed()
    }

    fn forget(&self, id: ProcessId) -> BoxFuture<'_, ()> {
        async move {
            let forget = ReleaseProcess {
                process_id: id,
                forget: true,
            };
            if let Err(error) = self.client.call(forget).await {
                tracing::debug!(%error, "failed to remove an ended command from the server");
            }
        }
        .boxed()
    }
}

/// Converts to the error of a store.
fn rpc_error(error: ExecServerError) -> RpcError {
    if let ExecServerError::Remote(error) = error {
        return error;
    }
    RpcError::internal(error.to_string())
}
