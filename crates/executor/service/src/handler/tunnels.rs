//! `tunnel/open`, `tunnel/listen` and `ports/list`. Their notifications go to the tunnels of the
//! session directly.

use std::sync::Arc;

use exec_env::tunnel::EnvironmentNetwork;
use exec_wire::{
    error::RpcError,
    id::ProcessId,
    message::RequestId,
    tunnel::{ListPorts, PortList},
};
use futures_util::future::{BoxFuture, FutureExt};
use serde::Serialize;

use super::{Dispatch, HandlerContext, respond_when_ready};
use crate::session::{ProcessLookup, TunnelRegistry};

impl HandlerContext<'_> {
    /// Returns the network that a request is about: the one that knows the process, which another
    /// session may have started.
    pub(super) fn network(&self, process: Option<&ProcessId>) -> Arc<dyn EnvironmentNetwork> {
        match process.map(|id| self.find(id)) {
            Some(ProcessLookup::Started(process)) => Arc::clone(&process.network),
            Some(ProcessLookup::Starting(_) | ProcessLookup::Unknown) | None => {
                Arc::clone(&self.session.environment.network)
            }
        }
    }

    /// Lists the ports that listen in the environment.
    pub(super) fn ports(
        &self,
        params: ListPorts,
    ) -> BoxFuture<'static, Result<PortList, RpcError>> {
        let network = self.network(params.process_id.as_ref());
        let listing = match params.process_id {
            Some(process) => network.ports(Some(process)),
            // Other sessions started the detached processes.
            None => network.ports_with_owners(self.shared.detached.live_processes()),
        };
        let listed = |ports| PortList { ports };
        async move { Ok(listing.await.map(listed)?) }.boxed()
    }

    /// Makes a request of the session's tunnels, if the extension was granted.
    pub(super) fn tunnel_request<R: Serialize + 'static>(
        &self,
        id: RequestId,
        request: impl FnOnce(&Arc<TunnelRegistry>) -> BoxFuture<'static, Result<R, RpcError>>,
    ) -> Result<Dispatch, RpcError> {
        if !self.has_tunnels {
            return Err(RpcError::invalid_request(
                "tunnels were not granted: request the extension `tunnels` in initialize",
            ));
        }
        let opened = request(&self.session.tunnels);
        Ok(respond_when_ready(id, opened, |result| result))
    }
}
