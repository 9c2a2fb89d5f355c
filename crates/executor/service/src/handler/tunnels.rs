//! `tunnel/open` and `tunnel/listen`. Their notifications go to the session's tunnels directly.

use std::sync::Arc;

use exec_wire::{error::RpcError, message::RequestId};
use futures_util::future::BoxFuture;
use serde::Serialize;

use super::{Dispatch, HandlerContext, respond_now, respond_when_ready};
use crate::session::TunnelRegistry;

impl HandlerContext<'_> {
    /// Makes a request of the session's tunnels, if the extension was granted.
    pub(super) fn tunnel_request<R: Serialize + 'static>(
        &self,
        id: RequestId,
        request: impl FnOnce(&Arc<TunnelRegistry>) -> BoxFuture<'static, Result<R, RpcError>>,
    ) -> Dispatch {
        if !self.has_tunnels {
            let error = RpcError::invalid_request(
                "tunnels were not granted: request the extension `tunnels` in initialize",
            );
            return respond_now(&id, Err::<R, _>(error));
        }
        respond_when_ready(id, request(&self.session.tunnels), |result| result)
    }
}
