//! The tunnels and listeners of a session: opens them in its environment, and joins each stream
//! there with the session's tunnel.
//!
//! Invariant: an id names at most one tunnel or listener. Elsewhere: windows and retransmission
//! ([`exec_core::tunnel_table`]), the streams ([`exec_transport::session_tunnels`]).

use std::{
    collections::BTreeMap,
    future::poll_fn,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use exec_core::tunnel_table::TunnelIdError;
use exec_env::tunnel::{EnvironmentNetwork, TunnelListener, TunnelTarget};
use exec_transport::session_tunnels::{SessionTunnels, TunnelSender, pump};
use exec_wire::{
    error::RpcError,
    id::{ListenId, TunnelId},
    limits,
    message::encode_json,
    process::EmptyResult,
    tunnel::{ListenResult, ListenTunnel, OpenTunnel, TunnelMessage},
};
use futures_util::future::BoxFuture;
use serde::Serialize;
use tokio::sync::Notify;

use crate::connection_files::AbortOnDrop;

#[cfg(test)]
mod tests;

/// The tunnels and listeners of one session. Dropping it closes them.
#[derive(Debug, Default)]
pub(crate) struct TunnelRegistry {
    tunnels: SessionTunnels,
    state: Mutex<State>,
    /// Number of the last connection that a listener accepted.
    accepted: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct State {
    /// Tunnels and listeners that are opening, and what cancels them.
    opening: BTreeMap<TunnelId, Arc<Notify>>,
    /// Fingerprints of the requests that opened tunnels, also of some that have ended.
    requests: BTreeMap<TunnelId, u64>,
    listeners: BTreeMap<TunnelId, OpenListener>,
}

#[derive(Debug)]
struct OpenListener {
    request: u64,
    port: u16,
    task: AbortOnDrop,
}

/// Caller: a tunnel or listener cannot be opened.
#[derive(Debug, thiserror::Error)]
enum TunnelRefusal {
    #[error(transparent)]
    Id(#[from] TunnelIdError),
    #[error("tunnel id `{0}` is opening")]
    Opening(TunnelId),
    #[error("session is at its limit of {0} listeners")]
    TooManyListeners(usize),
    #[error("tunnel `{0}` was closed while it was opening")]
    Cancelled(TunnelId),
}

impl From<TunnelRefusal> for RpcError {
    fn from(refusal: TunnelRefusal) -> Self {
        Self::invalid_request(refusal.to_string())
    }
}

impl TunnelRegistry {
    /// Returns whether there are neither tunnels nor listeners.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.lock();
        self.tunnels.is_empty() && state.listeners.is_empty()
    }

    /// Begins a connection: returns what its writer sends.
    pub(crate) fn connect(&self) -> TunnelSender {
        self.tunnels.connect()
    }

    /// Closes everything, also what is opening.
    pub(crate) fn clear(&self, reason: &str) {
        let mut state = self.lock();
        let opening = std::mem::take(&mut state.opening);
        let listeners = std::mem::take(&mut state.listeners);
        drop(state);
        opening.values().for_each(|cancel| cancel.notify_one());
        drop(listeners);
        self.tunnels.fail_all(reason);
    }

    /// Handles a message of the client.
    pub(crate) fn handle_message(&self, message: TunnelMessage) {
        if let TunnelMessage::Close(close) = &message {
            let mut state = self.lock();
            if let Some(cancel) = state.opening.remove(&close.tunnel_id) {
                cancel.notify_one();
            }
            let listener = state.listeners.remove(&close.tunnel_id);
            drop(state);
            drop(listener);
        }
        self.tunnels.handle_message(message);
    }

    /// Opens a tunnel. Repeating the request of an open tunnel has no effect.
    pub(crate) fn open(
        self: &Arc<Self>,
        network: Arc<dyn EnvironmentNetwork>,
        params: OpenTunnel,
    ) -> BoxFuture<'static, Result<EmptyResult, RpcError>> {
        let this = Arc::clone(self);
        Box::pin(async move {
            let request = fingerprint(&params);
            let Some(opening) = this.begin_tunnel(&params.tunnel_id, request)? else {
                return Ok(EmptyResult {});
            };
            let target = TunnelTarget {
                host: params.host,
                port: params.port,
                process: params.process_id,
                sandbox: params.sandbox,
            };
            let stream = opening.run(network.open(target)).await?;
            let end = opening.finish(|state| {
                let end = this.tunnels.open(&opening.id)?;
                this.remember(state, opening.id.clone(), request);
                Ok(end)
            })?;
            tokio::spawn(pump(stream, end));
            Ok(EmptyResult {})
        })
    }

    /// Opens a listener. Repeating the request of an open listener has no effect.
    pub(crate) fn listen(
        self: &Arc<Self>,
        network: Arc<dyn EnvironmentNetwork>,
        params: ListenTunnel,
    ) -> BoxFuture<'static, Result<ListenResult, RpcError>> {
        let this = Arc::clone(self);
        Box::pin(async move {
            let request = fingerprint(&params);
            let listen_id = params.listen_id;
            let opening = match this.begin_listener(&listen_id, request)? {
                ListenerStart::Open(port) => return Ok(ListenResult { port }),
                ListenerStart::New(opening) => opening,
            };
            let target = TunnelTarget {
                host: params.host,
                port: params.port,
                process: params.process_id,
                sandbox: params.sandbox,
            };
            let listener = opening.run(network.listen(target)).await?;
            let port = listener.port();
            let (tunnels, accepted) = (this.tunnels.clone(), Arc::clone(&this.accepted));
            opening.finish(|state| {
                let task = tokio::spawn(accept(tunnels, listener, listen_id, accepted));
                let listener = OpenListener {
                    request,
                    port,
                    task: AbortOnDrop(task.abort_handle()),
                };
                state.listeners.insert(opening.id.clone(), listener);
                Ok(())
            })?;
            Ok(ListenResult { port })
        })
    }

    /// Reserves the id of a tunnel. Returns `None` if the same request has opened it.
    fn begin_tunnel(
        self: &Arc<Self>,
        id: &TunnelId,
        request: u64,
    ) -> Result<Option<OpeningGuard>, TunnelRefusal> {
        let mut state = self.lock();
        if self.tunnels.contains(id) && state.requests.get(id) == Some(&request) {
            return Ok(None);
        }
        if self.tunnels.len() + state.opening.len() >= limits::MAX_TUNNELS {
            return Err(TunnelIdError::TooMany(limits::MAX_TUNNELS).into());
        }
        self.reserve(&mut state, id).map(Some)
    }

    /// Reserves the id of a listener, unless the same request has opened it.
    fn begin_listener(
        self: &Arc<Self>,
        listener: &ListenId,
        request: u64,
    ) -> Result<ListenerStart, TunnelRefusal> {
        let id = TunnelId::from(listener);
        let mut state = self.lock();
        // Those that have failed.
        let runs = |listener: &OpenListener| !listener.task.0.is_finished();
        state.listeners.retain(|_, listener| runs(listener));
        if let Some(open) = state.listeners.get(&id)
            && open.request == request
        {
            return Ok(ListenerStart::Open(open.port));
        }
        if state.listeners.len() >= limits::MAX_TUNNEL_LISTENERS {
            let max = limits::MAX_TUNNEL_LISTENERS;
            return Err(TunnelRefusal::TooManyListeners(max));
        }
        self.reserve(&mut state, &id).map(ListenerStart::New)
    }

    fn reserve(
        self: &Arc<Self>,
        state: &mut State,
        id: &TunnelId,
    ) -> Result<OpeningGuard, TunnelRefusal> {
        if self.tunnels.contains(id) || state.listeners.contains_key(id) {
            return Err(TunnelIdError::InUse(id.clone()).into());
        }
        if state.opening.contains_key(id) {
            return Err(TunnelRefusal::Opening(id.clone()));
        }
        let cancel = Arc::new(Notify::new());
        state.opening.insert(id.clone(), Arc::clone(&cancel));
        Ok(OpeningGuard {
            registry: Arc::clone(self),
            id: id.clone(),
            cancel,
        })
    }

    /// Remembers which request opened a tunnel.
    fn remember(&self, state: &mut State, id: TunnelId, request: u64) {
        if state.requests.len() >= 2 * limits::MAX_TUNNELS {
            state.requests.retain(|id, _| self.tunnels.contains(id));
        }
        state.requests.insert(id, request);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TunnelRegistry {
    fn drop(&mut self) {
        self.clear("session has ended");
    }
}

/// How a request for a listener goes on.
enum ListenerStart {
    /// It listens on this port already.
    Open(u16),
    New(OpeningGuard),
}

/// Reserves the id of a tunnel or listener until it is open, has failed or is cancelled.
struct OpeningGuard {
    registry: Arc<TunnelRegistry>,
    id: TunnelId,
    cancel: Arc<Notify>,
}

impl OpeningGuard {
    /// Waits for the environment, or until the opening is cancelled.
    async fn run<T>(
        &self,
        open: impl Future<Output = Result<T, exec_env::tunnel::TunnelError>>,
    ) -> Result<T, RpcError> {
        tokio::select! {
            opened = open => Ok(opened?),
            () = self.cancel.notified() => Err(self.cancelled().into()),
        }
    }

    /// Enters what was opened, unless the opening was cancelled meanwhile.
    fn finish<T>(
        &self,
        enter: impl FnOnce(&mut State) -> Result<T, TunnelRefusal>,
    ) -> Result<T, TunnelRefusal> {
        let mut state = self.registry.lock();
        match self.is_reserved(&state) {
            true => enter(&mut state),
            false => Err(self.cancelled()),
        }
    }

    /// Returns whether the id is still reserved for this opening. One that was cancelled has
    /// released it, perhaps to another.
    fn is_reserved(&self, state: &State) -> bool {
        let reserved = state.opening.get(&self.id);
        reserved.is_some_and(|cancel| Arc::ptr_eq(cancel, &self.cancel))
    }

    fn cancelled(&self) -> TunnelRefusal {
        TunnelRefusal::Cancelled(self.id.clone())
    }
}

impl Drop for OpeningGuard {
    fn drop(&mut self) {
        let mut state = self.registry.lock();
        if self.is_reserved(&state) {
            state.opening.remove(&self.id);
        }
    }
}

/// Accepts connections until the listener fails or the task is aborted.
async fn accept(
    tunnels: SessionTunnels,
    mut listener: Box<dyn TunnelListener>,
    id: ListenId,
    accepted: Arc<AtomicU64>,
) {
    loop {
        poll_fn(|cx| tunnels.poll_space(cx)).await;
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                return tunnels.send_close((&id).into(), Some(error.to_string()));
            }
        };
        let end = loop {
            let number = accepted.fetch_add(1, Ordering::Relaxed) + 1;
            #[expect(clippy::expect_used, reason = "the text is short")]
            let tunnel = TunnelId::new(&format!("accepted-{number}")).expect("short id");
            match tunnels.announce(&tunnel, id.clone()) {
                Ok(end) => break Some(end),
                // The client has taken this id.
                Err(TunnelIdError::InUse(_)) => {}
                // Others were faster. Dropping the stream ends the connection.
                Err(_) => break None,
            }
        };
        if let Some(end) = end {
            tokio::spawn(pump(stream, end));
        }
    }
}

/// Returns a value that differs for different requests.
fn fingerprint(request: &impl Serialize) -> u64 {
    let mut text = Vec::new();
    encode_json(request, &mut text);
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
