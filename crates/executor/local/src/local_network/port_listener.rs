//! A listening port, on one address or on both loopback addresses.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use exec_env::tunnel::{TunnelError, TunnelListener, TunnelStream};
use exec_process::spawner::Spawner;
use futures_util::future::{BoxFuture, FutureExt, select_all};
use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream};

use super::{NetworkPlace, tunnel_socket};

/// Connections that the kernel accepts ahead.
const BACKLOG: u32 = 128;
/// Attempts to find a free port that is free on every address.
const MAX_PORT_ATTEMPTS: usize = 8;
/// Delay after a failed accept: mostly, the process has no free descriptors at the moment.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// A port that listens. Dropping it closes the port.
#[derive(Debug)]
pub(crate) struct PortListener {
    port: u16,
    /// One for each address, at least one.
    listeners: Vec<TcpListener>,
}

impl PortListener {
    /// Listens on a port of all addresses that the network has. Port 0 lets the system choose.
    pub(crate) async fn open(
        spawner: &Spawner,
        place: &NetworkPlace,
        addresses: &[IpAddr],
        port: u16,
    ) -> Result<Self, TunnelError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match Self::try_open(spawner, place, addresses, port).await {
                Ok(listener) => return Ok(listener),
                // The system chose a port that is in use on another address.
                Err((_, error))
                    if port == 0
                        && error.kind() == io::ErrorKind::AddrInUse
                        && attempts < MAX_PORT_ATTEMPTS => {}
                Err((address, error)) => return Err(listen_error(&error, address, port, place)),
            }
        }
    }

    async fn try_open(
        spawner: &Spawner,
        place: &NetworkPlace,
        addresses: &[IpAddr],
        port: u16,
    ) -> Result<Self, (IpAddr, io::Error)> {
        let mut opened = Self {
            port,
            listeners: Vec::new(),
        };
        let mut missing = None;
        for &address in addresses {
            let listening = listen_on(spawner, place, SocketAddr::new(address, opened.port)).await;
            match listening.and_then(|it| Ok((it.local_addr()?.port(), it))) {
                Ok((port, listener)) => {
                    opened.port = port;
                    opened.listeners.push(listener);
                }
                // Only one of the loopback addresses exists, such as on a host without IPv6.
                Err(error) if is_missing_address(&error) && addresses.len() > 1 => {
                    missing = Some((address, error));
                }
                Err(error) => return Err((address, error)),
            }
        }
        match missing {
            Some(missing) if opened.listeners.is_empty() => Err(missing),
            Some(_) | None => Ok(opened),
        }
    }

    async fn next(&mut self) -> io::Result<TcpStream> {
        loop {
            let accepting = self.listeners.iter().map(|it| it.accept().boxed());
            let (accepted, ..) = select_all(accepting).await;
            match accepted {
                Ok((stream, _)) => return Ok(stream),
                Err(error) if is_gone_connection(&error) => {}
                Err(error) if is_exhausted(&error) => {
                    tracing::warn!(%error, port = self.port, "failed to accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl TunnelListener for PortListener {
    fn port(&self) -> u16 {
        self.port
    }

    fn accept(&mut self) -> BoxFuture<'_, Result<Box<dyn TunnelStream>, TunnelError>> {
        async {
            let accepted = self.next().await;
            let stream = accepted.map_err(|error| {
                TunnelError::Host(format!("cannot accept a connection: {error}"))
            })?;
            Ok(Box::new(tunnel_socket(stream)) as Box<dyn TunnelStream>)
        }
        .boxed()
    }
}

async fn listen_on(
    spawner: &Spawner,
    place: &NetworkPlace,
    address: SocketAddr,
) -> io::Result<TcpListener> {
    let socket = place.socket(spawner, address.ip()).await?;
    // Connections that an earlier listener has closed do not block the port.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn is_missing_address(error: &io::Error) -> bool {
    let missing = [Errno::ADDRNOTAVAIL, Errno::AFNOSUPPORT].map(|it| Some(it.raw_os_error()));
    missing.contains(&error.raw_os_error())
}

/// Returns whether the connection was reset before it was accepted.
fn is_gone_connection(error: &io::Error) -> bool {
    let kinds = [
        io::ErrorKind::ConnectionAborted,
        io::ErrorKind::ConnectionReset,
        io::ErrorKind::Interrupted,
    ];
    kinds.contains(&error.kind())
}

/// Returns whether descriptors or memory are used up, which may change.
fn is_exhausted(error: &io::Error) -> bool {
    let exhausted = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    exhausted
        .map(|errno| Some(errno.raw_os_error()))
        .contains(&error.raw_os_error())
}

fn listen_error(
    error: &io::Error,
    address: IpAddr,
    port: u16,
    place: &NetworkPlace,
) -> TunnelError {
    let place = place.possessive();
    let what = format!("cannot listen on {address} port {port} {place}");
    let is = |kind: io::ErrorKind| error.kind() == kind;
    TunnelError::Host(if is(io::ErrorKind::AddrInUse) {
        format!("port {port} {place} is in use on {address}: choose another, or 0 for any")
    } else if is(io::ErrorKind::PermissionDenied) {
        format!("{what}: it needs privileges; choose a port above 1023")
    } else if is(io::ErrorKind::AddrNotAvailable) {
        format!("{what}: not an address of it")
    } else {
        format!("{what}: {error}")
    })
}
