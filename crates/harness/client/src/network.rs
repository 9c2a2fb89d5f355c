//! The network of a remote environment: tunnels, listeners and ports.
//!
//! A tunnel survives its connections: both ends retain unacknowledged data
//! ([`exec_transport::session_tunnels`]). It ends with the session.

use std::{
    collections::BTreeMap,
    io,
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use exec_core::tunnel_table::TunnelIdError;
use exec_env::tunnel::{
    EnvironmentNetwork, TunnelError, TunnelFuture, TunnelListener, TunnelStream, TunnelTarget,
};
use exec_transport::session_tunnels::{SessionTunnels, TunnelEnd};
use exec_wire::{
    error::ErrorCode,
    id::{ListenId, ProcessId, TunnelId},
    initialize::ProtocolExtension,
    limits,
    method::MethodName,
    tunnel::{IncomingTunnel, ListPorts, ListenTunnel, ListeningPort, OpenTunnel, TunnelMessage},
};
use futures_util::future::{BoxFuture, FutureExt, ready};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::mpsc,
};

use crate::{
    client::{ExecServerClient, decode},
    client_shared::WaiterGuard,
    driver::{OpenedResource, ResponseSink},
    error::ExecServerError,
};

/// Opens tunnels over a client's connection.
#[derive(Clone, Debug)]
pub(crate) struct RemoteNetwork {
    client: ExecServerClient,
}

impl RemoteNetwork {
    pub(crate) fn new(client: ExecServerClient) -> Self {
        Self { client }
    }

    fn check_grant(&self) -> Result<(), TunnelError> {
        let session = self.client.session();
        match session.extensions.contains(&ProtocolExtension::Tunnels) {
            true => Ok(()),
            false => Err(TunnelError::Unsupported),
        }
    }

    fn tunnels(&self) -> &ClientTunnels {
        &self.client.shared().tunnels
    }

    async fn open_tunnel(self, target: TunnelTarget) -> Result<RemoteTunnel, TunnelError> {
        self.check_grant()?;
        let id = self.client.shared().next_tunnel_id();
        let end = self.tunnels().tunnels.register(&id).map_err(table_full)?;
        let params = OpenTunnel {
            tunnel_id: id.clone(),
            host: target.host,
            port: target.port,
            process_id: target.process,
            sandbox: target.sandbox,
        };
        let sink = |reply| ResponseSink::Cancellable(reply, OpenedResource::Tunnel(id));
        let response = self.client.call_with_sink(params, sink).await;
        let mut response = response.map_err(tunnel_error)?;
        // From now on the end closes the tunnel.
        response.keep_resource();
        end.confirm();
        Ok(RemoteTunnel::new(self.client, end))
    }

    async fn open_listener(self, target: TunnelTarget) -> Result<RemoteListener, TunnelError> {
        self.check_grant()?;
        let tunnel_id = self.client.shared().next_tunnel_id();
        let id = ListenId::from(&tunnel_id);
        let incoming = self.tunnels().register_listener(&id);
        let mut listener = RemoteListener {
            client: self.client,
            id: id.clone(),
            port: 0,
            incoming,
            is_open: false,
        };
        let params = ListenTunnel {
            listen_id: id,
            host: target.host,
            port: target.port,
            process_id: target.process,
            sandbox: target.sandbox,
        };
        let sink = |reply| ResponseSink::Cancellable(reply, OpenedResource::Tunnel(tunnel_id));
        let response = listener.client.call_with_sink(params, sink).await;
        let mut response = response.map_err(tunnel_error)?;
        let opened = decode::<ListenTunnel>(&response).map_err(tunnel_error)?;
        response.keep_resource();
        (listener.port, listener.is_open) = (opened.port, true);
        Ok(listener)
    }
}

impl EnvironmentNetwork for RemoteNetwork {
    fn open(&self, target: TunnelTarget) -> TunnelFuture<Box<dyn TunnelStream>> {
        let opened = self.clone().open_tunnel(target);
        async move { Ok(Box::new(opened.await?) as Box<dyn TunnelStream>) }.boxed()
    }

    fn listen(&self, target: TunnelTarget) -> TunnelFuture<Box<dyn TunnelListener>> {
        let opened = self.clone().open_listener(target);
        async move { Ok(Box::new(opened.await?) as Box<dyn TunnelListener>) }.boxed()
    }

    fn ports(&self, process: Option<ProcessId>) -> TunnelFuture<Vec<ListeningPort>> {
        if self.client.check(MethodName::PortsList).is_err() {
            return ready(Err(TunnelError::Unsupported)).boxed();
        }
        let params = ListPorts {
            process_id: process,
        };
        let list = self.client.call(params);
        async move { Ok(list.await.map_err(tunnel_error)?.ports) }.boxed()
    }
}

fn table_full(error: TunnelIdError) -> TunnelError {
    TunnelError::Host(error.to_string())
}

/// Restores the error that the environment of the server returned.
fn tunnel_error(error: ExecServerError) -> TunnelError {
    match error.into_disconnect() {
        Ok(reason) => TunnelError::Disconnected(reason),
        Err(ExecServerError::Remote(error)) => match error.code {
            ErrorCode::METHOD_NOT_FOUND => TunnelError::Unsupported,
            ErrorCode::INVALID_PARAMS => TunnelError::Refused(error.message),
            ErrorCode::INTERNAL => TunnelError::Host(error.message),
            _ => TunnelError::Remote(error),
        },
        Err(error) => TunnelError::Host(error.to_string()),
    }
}

/// The tunnels of a client, and its listeners.
#[derive(Debug, Default)]
pub(crate) struct ClientTunnels {
    pub(crate) tunnels: SessionTunnels,
    listeners: Mutex<BTreeMap<ListenId, mpsc::Sender<TunnelEnd>>>,
}

impl ClientTunnels {
    fn register_listener(&self, id: &ListenId) -> mpsc::Receiver<TunnelEnd> {
        // As many as there may be tunnels, so that sending never waits.
        let (accepted, incoming) = mpsc::channel(limits::MAX_TUNNELS);
        self.lock().insert(id.clone(), accepted);
        incoming
    }

    /// Handles a message of the server.
    pub(crate) fn handle_message(&self, message: TunnelMessage) {
        match message {
            TunnelMessage::Incoming(incoming) => self.handle_incoming(&incoming),
            TunnelMessage::Close(close) => {
                // The server has ended the listener.
                if let Some(listen_id) = self.find_listener(&close.tunnel_id) {
                    self.lock().remove(&listen_id);
                }
                self.tunnels.handle_message(TunnelMessage::Close(close));
            }
            message @ (TunnelMessage::Data { .. }
            | TunnelMessage::Acknowledge(_)
            | TunnelMessage::Shutdown(_)) => self.tunnels.handle_message(message),
        }
    }

    fn handle_incoming(&self, incoming: &IncomingTunnel) {
        let accepted = self.lock().get(&incoming.listen_id).cloned();
        let Some(accepted) = accepted else {
            // The listener is gone, and the server may have missed that.
            let listener = TunnelId::from(&incoming.listen_id);
            self.tunnels.send_close(listener, None);
            return self.tunnels.send_close(incoming.tunnel_id.clone(), None);
        };
        if let Some(end) = self.tunnels.handle_incoming(incoming) {
            // If the listener was dropped, so is the tunnel, which closes it.
            drop(accepted.try_send(end));
        }
    }

    fn find_listener(&self, id: &TunnelId) -> Option<ListenId> {
        let id = ListenId::from(id);
        self.lock().contains_key(&id).then_some(id)
    }

    /// Ends everything with the session.
    pub(crate) fn fail_all(&self, reason: &str) {
        self.lock().clear();
        self.tunnels.fail_all(reason);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ListenId, mpsc::Sender<TunnelEnd>>> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// One end of a tunnel. It keeps the connection open.
#[derive(Debug)]
struct RemoteTunnel {
    end: TunnelEnd,
    client: ExecServerClient,
    /// A waiting reader keeps the driver reading.
    waiting: Option<WaiterGuard>,
}

impl RemoteTunnel {
    fn new(client: ExecServerClient, end: TunnelEnd) -> Self {
        Self {
            end,
            client,
            waiting: None,
        }
    }
}

impl AsyncRead for RemoteTunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.end).poll_read(cx, buf);
        if read.is_ready() {
            self.waiting = None;
        } else if self.waiting.is_none() {
            self.waiting = Some(self.client.shared().register_waiter());
        }
        read
    }
}

impl AsyncWrite for RemoteTunnel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.end).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.end).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.end).poll_shutdown(cx)
    }
}

/// A listener of the server.
#[derive(Debug)]
struct RemoteListener {
    client: ExecServerClient,
    id: ListenId,
    port: u16,
    incoming: mpsc::Receiver<TunnelEnd>,
    /// Whether the server has it. Until then the driver closes it.
    is_open: bool,
}

impl TunnelListener for RemoteListener {
    fn port(&self) -> u16 {
        self.port
    }

    fn accept(&mut self) -> BoxFuture<'_, Result<Box<dyn TunnelStream>, TunnelError>> {
        async move {
            let _waiting = self.client.shared().register_waiter();
            match self.incoming.recv().await {
                Some(end) => {
                    let tunnel = RemoteTunnel::new(self.client.clone(), end);
                    Ok(Box::new(tunnel) as Box<dyn TunnelStream>)
                }
                None => Err(self.end_reason()),
            }
        }
        .boxed()
    }
}

impl RemoteListener {
    fn end_reason(&self) -> TunnelError {
        let session_state = self.client.shared().session_state.borrow();
        match session_state.lost.clone() {
            Some(reason) => TunnelError::Disconnected(reason),
            None => TunnelError::Host("the listener was closed by the server".to_owned()),
        }
    }
}

impl Drop for RemoteListener {
    fn drop(&mut self) {
        let tunnels = &self.client.shared().tunnels;
        tunnels.lock().remove(&self.id);
        if self.is_open {
            tunnels.tunnels.send_close((&self.id).into(), None);
        }
    }
}
