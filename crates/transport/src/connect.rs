//! Opening links to a server.

use std::{io, path::Path, process::Stdio, time::Duration};

use base64_simd::STANDARD;
use http::Uri;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    process::{Child, Command},
    time::timeout,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use crate::{
    lines,
    link::{Link, Role},
    websocket::{self, accept_key},
};

/// How long connecting and upgrading may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer to a handshake.
const MAX_RESPONSE_BYTES: usize = 16 << 10;

/// Connects to `ws://…`, or to `wss://…` with a connector.
pub async fn websocket(
    url: &str,
    bearer_token: Option<&str>,
    tls: Option<&TlsConnector>,
) -> Result<Link, ConnectError> {
    let within = timeout(CONNECT_TIMEOUT, open(url, bearer_token, tls));
    within
        .await
        .map_err(|_| ConnectError::Timeout(url.to_owned()))?
}

/// Connects to a websocket on a unix socket.
pub async fn unix(path: &Path) -> Result<Link, ConnectError> {
    let open = async {
        let mut stream = UnixStream::connect(path).await?;
        let rest = upgrade(&mut stream, "localhost", "/", None).await?;
        let (read, write) = stream.into_split();
        Ok(websocket::link(
            read,
            write,
            &rest,
            Role::Client,
            path.display().to_string(),
        ))
    };
    let name = || path.display().to_string();
    timeout(CONNECT_TIMEOUT, open)
        .await
        .map_err(|_| ConnectError::Timeout(name()))?
}

/// Starts a server as a child and speaks with it over its standard input and output. The child is
/// killed when it is dropped.
pub fn program(command: &mut Command) -> Result<(Link, Child), ConnectError> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let (Some(input), Some(output)) = (child.stdout.take(), child.stdin.take()) else {
        return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
    };
    Ok((lines::link(input, output, Role::Client, "stdio"), child))
}

/// Why a server could not be reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Caller: the URL is not one of a websocket.
    #[error("`{0}` is not a websocket URL: expected ws://HOST:PORT or wss://HOST:PORT")]
    Url(String),
    /// Caller: TLS needs to know whom to trust.
    #[error("wss:// needs trusted certificates")]
    NoTls,
    /// Host: the connection failed.
    #[error("connection failed")]
    Io(#[from] io::Error),
    /// Peer: the upgrade was refused.
    #[error("server refused the connection: {status} {reason}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// What the server said.
        reason: String,
    },
    /// Peer: the answer is not one of a websocket server.
    #[error("server does not speak websocket")]
    Handshake,
    /// Peer: it took too long.
    #[error("connecting to `{0}` took too long")]
    Timeout(String),
}

async fn open(
    url: &str,
    bearer_token: Option<&str>,
    tls: Option<&TlsConnector>,
) -> Result<Link, ConnectError> {
    let bad = || ConnectError::Url(url.to_owned());
    let uri: Uri = url.parse().map_err(|_| bad())?;
    let host = uri.host().ok_or_else(bad)?;
    let (port, secure) = match uri.scheme_str() {
        Some("ws") => (uri.port_u16().unwrap_or(80), false),
        Some("wss") => (uri.port_u16().unwrap_or(443), true),
        _ => return Err(bad()),
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let mut stream = TcpStream::connect((bare, port)).await?;
    stream.set_nodelay(true)?;
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    let authority = format!("{host}:{port}");
    if !secure {
        let rest = upgrade(&mut stream, &authority, target, bearer_token).await?;
        let (read, write) = stream.into_split();
        return Ok(websocket::link(
            read,
            write,
            &rest,
            Role::Client,
            url.to_owned(),
        ));
    }
    let name = ServerName::try_from(bare.to_owned()).map_err(|_| bad())?;
    let mut stream = tls
        .ok_or(ConnectError::NoTls)?
        .connect(name, stream)
        .await?;
    let rest = upgrade(&mut stream, &authority, target, bearer_token).await?;
    let (read, write) = tokio::io::split(stream);
    Ok(websocket::link(
        read,
        write,
        &rest,
        Role::Client,
        url.to_owned(),
    ))
}

/// Upgrades a connection; returns what came behind the answer.
async fn upgrade<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    authority: &str,
    target: &str,
    bearer_token: Option<&str>,
) -> Result<Vec<u8>, ConnectError> {
    let key = STANDARD.encode_to_string(nonce());
    let authorization = bearer_token.map_or_else(String::new, |token| {
        format!("Authorization: Bearer {token}\r\n")
    });
    let request = format!(
        "GET {target} HTTP/1.1\r\nHost: {authority}\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\
         {authorization}\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    loop {
        if answer.len() > MAX_RESPONSE_BYTES || stream.read_buf(&mut answer).await? == 0 {
            return Err(ConnectError::Handshake);
        }
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut headers);
        let parsed = response
            .parse(&answer)
            .map_err(|_| ConnectError::Handshake)?;
        let httparse::Status::Complete(length) = parsed else {
            continue;
        };
        let status = response.code.unwrap_or(0);
        if status != 101 {
            let body = String::from_utf8_lossy(&answer[length..]);
            let reason = if body.is_empty() {
                response.reason.unwrap_or("").into()
            } else {
                body
            };
            return Err(ConnectError::Refused {
                status,
                reason: reason.into_owned(),
            });
        }
        let accepted = response.headers.iter().any(|header| {
            header.name.eq_ignore_ascii_case("sec-websocket-accept")
                && header.value == accept_key(key.as_bytes()).as_bytes()
        });
        if !accepted {
            return Err(ConnectError::Handshake);
        }
        return Ok(answer.split_off(length));
    }
}

/// Sixteen bytes that tell this handshake from a cached one; they are no secret.
fn nonce() -> [u8; 16] {
    use std::hash::{BuildHasher, RandomState};

    let state = RandomState::new();
    let [high, low] = [state.hash_one(0), state.hash_one(1)];
    (u128::from(high) << 64 | u128::from(low)).to_ne_bytes()
}
