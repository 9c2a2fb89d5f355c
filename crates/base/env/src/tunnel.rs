//! Tunnels: byte streams to and from the network of an environment, and its open ports.

use std::{fmt, net::IpAddr, sync::Arc};

use exec_wire::{
    error::RpcError,
    id::ProcessId,
    sandbox::SandboxPolicy,
    tunnel::{ListeningPort, TunnelHost},
};
use futures_util::future::{BoxFuture, FutureExt, ready};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{environment::DisconnectReason, process::ExecProcess};

/// Future of a tunnel operation.
pub type TunnelFuture<T> = BoxFuture<'static, Result<T, TunnelError>>;

/// Opens connections in the network of an environment. Dropping a future opens nothing.
pub trait EnvironmentNetwork: fmt::Debug + Send + Sync {
    /// Connects to a port. The stream of a remote environment survives a lost connection to its
    /// server.
    fn open(&self, target: TunnelTarget) -> TunnelFuture<Box<dyn TunnelStream>>;

    /// Listens on a port of the environment. Dropping the listener closes the port; streams that
    /// it has accepted stay.
    fn listen(&self, target: TunnelTarget) -> TunnelFuture<Box<dyn TunnelListener>>;

    /// Lists the TCP ports that listen in the environment, or in the network of one process.
    fn ports(&self, process: Option<ProcessId>) -> TunnelFuture<Vec<ListeningPort>>;

    /// Lists the TCP ports that listen in the environment, and names these processes of other
    /// environments as owners, too, if this one can inspect them.
    fn ports_with_owners(
        &self,
        processes: Vec<Arc<dyn ExecProcess>>,
    ) -> TunnelFuture<Vec<ListeningPort>> {
        drop(processes);
        self.ports(None)
    }

    /// Makes the id of a process name it here, although an earlier server has started it.
    fn adopt(&self, process: &Arc<dyn ExecProcess>) {
        let _ = process;
    }
}

/// One end of a tunnel.
///
/// Shutting down the writer half-closes the tunnel: the other direction stays open. A connection
/// that breaks at the far end is a read error of kind `ConnectionReset`. Dropping the stream closes
/// both directions: after a shutdown the far end still receives everything that was written;
/// without one, it sees a broken connection and not an early end of the data.
pub trait TunnelStream: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin> TunnelStream for S {}

/// A port of the environment that accepts connections.
pub trait TunnelListener: fmt::Debug + Send + Sync {
    /// Returns the port, also if the system chose it.
    fn port(&self) -> u16;

    /// Waits for the next connection.
    fn accept(&mut self) -> BoxFuture<'_, Result<Box<dyn TunnelStream>, TunnelError>>;
}

/// Far end of a tunnel.
#[derive(Clone, Debug)]
pub struct TunnelTarget {
    /// Host as the environment resolves it. Absent: its loopback.
    pub host: Option<TunnelHost>,
    /// TCP port. For a listener, 0 lets the system choose.
    pub port: u16,
    /// Selects the network of this process, which may be in a sandbox.
    pub process: Option<ProcessId>,
    /// Sandbox policy that must allow the connection. Absent: no sandbox.
    pub sandbox: Option<Box<SandboxPolicy>>,
}

impl TunnelTarget {
    /// Names a port of the environment's loopback.
    pub fn loopback(port: u16) -> Self {
        Self {
            host: None,
            port,
            process: None,
            sandbox: None,
        }
    }

    /// Returns whether the host is certainly this machine's loopback.
    pub fn is_loopback(&self) -> bool {
        self.host.as_ref().is_none_or(|host| {
            let name = host.as_str();
            name == "localhost"
                || name
                    .parse()
                    .is_ok_and(|address: IpAddr| address.is_loopback())
        })
    }
}

/// Why a tunnel failed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TunnelError {
    /// Caller: the request is invalid, or a policy forbids it.
    #[error("{0}")]
    Refused(String),
    /// Host: the connection or the listener could not be opened.
    #[error("{0}")]
    Host(String),
    /// Caller: the environment does not support tunnels.
    #[error("this environment does not support tunnels")]
    Unsupported,
    /// Peer: the server returned any other error.
    #[error(transparent)]
    Remote(RpcError),
    /// Transport: the session is lost.
    #[error(transparent)]
    Disconnected(#[from] DisconnectReason),
}

impl From<TunnelError> for RpcError {
    fn from(error: TunnelError) -> Self {
        match error {
            TunnelError::Refused(text) => Self::invalid_params(text),
            TunnelError::Host(text) => Self::internal(text),
            TunnelError::Remote(error) => error,
            TunnelError::Unsupported => Self::invalid_request(error.to_string()),
            TunnelError::Disconnected(_) => Self::internal(error.to_string()),
        }
    }
}

/// The network of an environment that has no tunnels.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoNetwork;

impl EnvironmentNetwork for NoNetwork {
    fn open(&self, _: TunnelTarget) -> TunnelFuture<Box<dyn TunnelStream>> {
        ready(Err(TunnelError::Unsupported)).boxed()
    }

    fn listen(&self, _: TunnelTarget) -> TunnelFuture<Box<dyn TunnelListener>> {
        ready(Err(TunnelError::Unsupported)).boxed()
    }

    fn ports(&self, _: Option<ProcessId>) -> TunnelFuture<Vec<ListeningPort>> {
        ready(Err(TunnelError::Unsupported)).boxed()
    }
}
