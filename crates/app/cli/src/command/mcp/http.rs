//! HTTP listener of `exec-server mcp --http`.

use std::{
    convert::Infallible,
    io::Write,
    net::{SocketAddr, TcpListener as StdListener},
    sync::Arc,
    time::{Duration, SystemTime},
};

use exec_tools::mcp::{McpHttpEndpoint, McpHttpOptions, McpTools};
use exec_transport::auth::{AuthPolicy, AuthRejection, TokenDigest, UnixSeconds};
use http::Request;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};

use crate::{
    command::{
        failure::{CommandFailure, FailureKind},
        mcp::McpCommand,
    },
    settings_source::read_text,
    shutdown_signal::ShutdownSignal,
};

/// Maximum connections. Each client holds a few: one for events, one per pending call.
const MAX_CONNECTIONS: usize = 512;
/// Limit for receiving a request head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Bound socket, and who may connect.
#[derive(Debug)]
pub(super) struct McpHttpServer {
    listener: StdListener,
    address: SocketAddr,
    auth: AuthPolicy,
    hosts: Vec<String>,
}

impl McpHttpServer {
    /// Binds the socket.
    pub(super) fn open(address: SocketAddr, line: &McpCommand) -> Result<Self, CommandFailure> {
        let auth = match line.token_file() {
            Some(path) => {
                let unreadable = |why: &dyn std::fmt::Display| {
                    let what = format!("cannot read the token in `{}`: {why}", path.display());
                    CommandFailure::new(FailureKind::NotFound, what)
                };
                let token = read_text(path).map_err(|error| unreadable(&error))?;
                if token.trim().is_empty() {
                    return Err(unreadable(&"it is empty"));
                }
                AuthPolicy::CapabilityToken(TokenDigest::of_token(&token))
            }
            None if address.ip().is_loopback() => AuthPolicy::Open,
            None => {
                let what = format!(
                    "{address} is reachable from other machines, which could run commands here"
                );
                return Err(CommandFailure::new(FailureKind::Usage, what)
                    .next("give --http-token-file, or listen on 127.0.0.1"));
            }
        };
        let bound = StdListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        });
        let (listener, address) = bound.map_err(|error| {
            let what = format!("cannot listen on {address}: {error}");
            CommandFailure::new(FailureKind::Unreachable, what).next("port 0 picks a free one")
        })?;
        let mut hosts = line.hosts().to_vec();
        hosts.push(address.ip().to_string());
        Ok(Self {
            listener,
            address,
            auth,
            hosts,
        })
    }

    /// Prints the URL and serves clients until shutdown.
    pub(super) async fn serve(
        self,
        tools: McpTools,
        stop: &mut ShutdownSignal,
    ) -> Result<(), CommandFailure> {
        let failed =
            |error| CommandFailure::new(FailureKind::Failed, format!("cannot listen: {error}"));
        let listener = TcpListener::from_std(self.listener).map_err(failed)?;
        let url = format!("http://{}{}\n", self.address, McpHttpEndpoint::PATH);
        std::io::stdout()
            .lock()
            .write_all(url.as_bytes())
            .map_err(failed)?;
        let auth = self.auth;
        let options = McpHttpOptions {
            authenticate: Arc::new(move |authorization| {
                let now = UnixSeconds::from(SystemTime::now());
                auth.check(authorization, now).map(drop).map_err(refused)
            }),
            hosts: self.hosts,
        };
        let door = McpHttpEndpoint::new(tools, options);
        let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.recv() => break,
                Some(_) = connections.join_next() => {}
                (stream, permit) = next(&listener, &room) => {
                    let door = door.clone();
                    connections.spawn(async move {
                        connection(stream, door).await;
                        drop(permit);
                    });
                }
            }
        }
        door.close().await;
        Ok(())
    }
}

/// Waits for a permit, then for a connection.
async fn next(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> (TcpStream, Option<tokio::sync::OwnedSemaphorePermit>) {
    // The semaphore is never closed.
    let permit = room.clone().acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, permit),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                // Out of descriptors: wait until other connections close.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Explains why a client is rejected.
fn refused(rejection: AuthRejection) -> String {
    let what = match rejection {
        AuthRejection::MissingToken => "the bearer token is missing",
        AuthRejection::InvalidHeader => "the authorization header must be `Bearer` and a token",
        AuthRejection::InvalidToken
        | AuthRejection::InvalidJwt
        | AuthRejection::ExpiredJwt
        | AuthRejection::JwtNotYetValid
        | AuthRejection::IssuerMismatch
        | AuthRejection::AudienceMismatch
        | _ => "the bearer token is wrong",
    };
    format!("{what}: send `Authorization: Bearer` and the token of --http-token-file\n")
}

async fn connection(stream: TcpStream, door: McpHttpEndpoint) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "failed to set TCP_NODELAY");
    }
    let service = service_fn(|request: Request<Incoming>| {
        let door = door.clone();
        async move { Ok::<_, Infallible>(door.handle(request).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "http connection failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_without_token_is_told_which_header_to_send() {
        for rejection in [
            AuthRejection::MissingToken,
            AuthRejection::InvalidHeader,
            AuthRejection::InvalidToken,
        ] {
            let text = refused(rejection);
            assert!(text.contains("Authorization: Bearer"), "{text}");
            assert!(!text.contains("websocket"), "{text}");
        }
    }
}
