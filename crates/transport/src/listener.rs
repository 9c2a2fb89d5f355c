//! Listening sockets: accept, secure, upgrade, and hand over links.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::{Semaphore, mpsc},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use crate::{
    http::{self, Door, Splits},
    link::Link,
    listen::ListenUrl,
};

/// Connections that may be open at once; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 4096;
/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait when the host has run out of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// A bound socket.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: ListenUrl,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        _file: SocketFile,
    },
}

impl Listener {
    /// Binds a TCP socket.
    pub async fn bind_tcp(address: SocketAddr, secure: bool) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let bound = listener.local_addr()?;
        let address = if secure {
            ListenUrl::Wss(bound)
        } else {
            ListenUrl::Ws(bound)
        };
        Ok(Self {
            socket: Socket::Tcp(listener),
            address,
        })
    }

    /// Binds a unix socket that only its owner can connect to. A file left by a server that is
    /// gone is replaced; one that still answers is an error.
    pub async fn bind_unix(path: &Path) -> io::Result<Self> {
        if let Ok(metadata) = fs::symlink_metadata(path)
            && metadata.file_type().is_socket()
        {
            if UnixStream::connect(path).await.is_ok() {
                return Err(io::Error::from(io::ErrorKind::AddrInUse));
            }
            fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        let file = SocketFile(path.to_owned());
        let address = ListenUrl::Unix(path.to_owned());
        Ok(Self {
            socket: Socket::Unix {
                listener,
                _file: file,
            },
            address,
        })
    }

    /// Returns where it listens, with the port that was given.
    pub fn address(&self) -> &ListenUrl {
        &self.address
    }

    /// Accepts connections and sends each that became a link. Ends when nobody takes them.
    pub async fn run(self, door: Door, tls: Option<TlsAcceptor>, links: mpsc::Sender<Link>) {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
                return;
            };
            let accepted = tokio::select! {
                accepted = self.accept() => accepted,
                () = links.closed() => return,
            };
            let stream = match accepted {
                Ok(Some(stream)) => stream,
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!(%error, "connection was not accepted");
                    sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            let (door, tls, links) = (door.clone(), tls.clone(), links.clone());
            tokio::spawn(async move {
                if let Some(link) = stream.into_link(door, tls).await {
                    // If nobody takes links any more, the server is ending.
                    drop(
                        links
                            .send(Link {
                                slot: Some(slot),
                                ..link
                            })
                            .await,
                    );
                }
            });
        }
    }

    async fn accept(&self) -> io::Result<Option<Stream>> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Some(Stream::Tcp(stream, peer)))
            }
            Socket::Unix { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                let peer = stream.peer_cred()?.uid();
                let ours = rustix::process::geteuid().as_raw();
                if peer != ours && peer != 0 {
                    tracing::warn!(peer, "connection of another account refused");
                    return Ok(None);
                }
                Ok(Some(Stream::Unix(stream, peer)))
            }
        }
    }
}

enum Stream {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream, u32),
}

impl Stream {
    async fn into_link(self, door: Door, tls: Option<TlsAcceptor>) -> Option<Link> {
        match (self, tls) {
            (Self::Tcp(stream, peer), None) => serve(stream, door, peer.to_string()).await,
            (Self::Tcp(stream, peer), Some(tls)) => {
                match timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
                    Ok(Ok(stream)) => serve(stream, door, peer.to_string()).await,
                    Ok(Err(error)) => {
                        tracing::debug!(%peer, %error, "TLS handshake failed");
                        None
                    }
                    Err(_) => None,
                }
            }
            (Self::Unix(stream, uid), _) => serve(stream, door, format!("unix uid {uid}")).await,
        }
    }
}

async fn serve<S: Splits>(stream: S, door: Door, peer: String) -> Option<Link> {
    http::serve(stream, door, peer).await
}

/// Removes the socket's file when the listener is gone.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::debug!(%error, "socket file was not removed");
        }
    }
}
