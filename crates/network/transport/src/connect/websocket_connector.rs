//! Connects links and sockets over a websocket: dials, performs the TLS handshake, and sends the
//! upgrade request and checks its response (RFC 6455 section 4.1).

use std::{borrow::Cow, io, net::SocketAddr, path::Path, time::Duration};

use base64_simd::STANDARD;
use bytes::Bytes;
use http::StatusCode;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream, lookup_host},
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{self, pki_types::ServerName},
};

use super::{
    BearerToken, CertificateFault, ConnectError, HttpProxy, ListenerTrust, RequestHeaders,
    ServerAddress, ServerHost, WebSocketScheme, request_headers,
};
use crate::{
    link::{Link, LinkRole},
    socket_path::SocketPath,
    tls::TrustStore,
    websocket::{
        LinkOptions, UpgradedStream, accept_key,
        socket::{BinarySocket, SocketLimits},
    },
};

/// Default timeout for connecting, from name resolution to the last byte of the handshake.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A server reached over a websocket, and how to reach it.
#[derive(Clone, Debug)]
pub struct WebSocketConnector {
    /// Address of the server.
    pub address: ServerAddress,
    /// Headers of the upgrade request.
    pub headers: RequestHeaders,
    /// Bearer token of the client.
    pub bearer_token: Option<BearerToken>,
    /// Certificates that the client trusts.
    pub trust: TrustStore,
    /// Which listeners the client trusts on a unix socket.
    pub listener: ListenerTrust,
    /// Timeout for connecting.
    pub connect_timeout: Duration,
}

impl WebSocketConnector {
    /// Describes a server that requires no credentials.
    pub fn new(address: ServerAddress) -> Self {
        Self {
            address,
            headers: RequestHeaders::default(),
            bearer_token: None,
            trust: TrustStore::default(),
            listener: ListenerTrust::default(),
            connect_timeout: CONNECT_TIMEOUT,
        }
    }

    /// Checks the configuration without connecting.
    ///
    /// # Errors
    /// Fails if a credential would be sent unencrypted over a network.
    pub fn check(&self) -> Result<(), ConnectError> {
        if self.has_secret() && !self.address.is_private() {
            return Err(ConnectError::TokenOverPlaintext(self.address.to_string()));
        }
        Ok(())
    }

    /// Opens a link. Dropping the future closes the connection.
    ///
    /// # Errors
    /// Fails if the websocket is not open within the timeout.
    pub async fn open(&self) -> Result<Link, ConnectError> {
        self.open_with(LinkOptions::of(LinkRole::Client), None)
            .await
    }

    /// Opens a link with options, optionally through a proxy. Dropping the future closes the
    /// connection.
    ///
    /// # Errors
    /// Fails if the websocket is not open within the timeout.
    pub async fn open_with(
        &self,
        options: LinkOptions,
        proxy: Option<&HttpProxy>,
    ) -> Result<Link, ConnectError> {
        let stream = self.connect_and_upgrade(proxy).await?;
        Ok(stream.into_link(LinkRole::Client, self.peer(), options))
    }

    /// Opens a socket for binary messages, optionally through a proxy. Dropping the future closes
    /// the connection.
    ///
    /// # Errors
    /// Fails if the websocket is not open within the timeout.
    pub async fn open_socket(
        &self,
        proxy: Option<&HttpProxy>,
    ) -> Result<BinarySocket, ConnectError> {
        let stream = self.connect_and_upgrade(proxy).await?;
        Ok(stream.into_socket(LinkRole::Client, SocketLimits::default()))
    }

    async fn connect_and_upgrade(
        &self,
        proxy: Option<&HttpProxy>,
    ) -> Result<UpgradedStream, ConnectError> {
        self.check()?;
        let within = self.connect_timeout;
        let open = async {
            match &self.address {
                ServerAddress::Network(host) => self.connect_network(host, proxy).await,
                ServerAddress::Unix(path) => self.connect_unix(path).await,
            }
        };
        timeout(within, open).await.unwrap_or_else(|_| {
            Err(ConnectError::Timeout {
                peer: self.peer(),
                within,
            })
        })
    }

    async fn connect_network(
        &self,
        host: &ServerHost,
        proxy: Option<&HttpProxy>,
    ) -> Result<UpgradedStream, ConnectError> {
        let mut stream = match proxy {
            Some(proxy) => proxy.dial(&host.authority()).await?,
            None => self.dial(host).await?,
        };
        let authority = host.header();
        let request = self.request(&authority, &host.target);
        if host.scheme == WebSocketScheme::Ws {
            let already_read = request.upgrade(&mut stream).await?;
            return Ok(UpgradedStream::new(stream.into_split(), already_read));
        }
        let mut stream = self.tls_connect(host, stream).await?;
        let already_read = request.upgrade(&mut stream).await?;
        Ok(UpgradedStream::new(tokio::io::split(stream), already_read))
    }

    async fn connect_unix(&self, path: &Path) -> Result<UpgradedStream, ConnectError> {
        let mut stream = self.open_unix_stream(path).await?;
        let already_read = self.request("localhost", "/").upgrade(&mut stream).await?;
        Ok(UpgradedStream::new(stream.into_split(), already_read))
    }

    /// Connects to a unix socket without a handshake, and checks the listener.
    ///
    /// # Errors
    /// Fails if nothing listens there, or a process that this connector does not trust.
    pub async fn open_unix_stream(&self, path: &Path) -> Result<UnixStream, ConnectError> {
        let connected = match SocketPath::open(path) {
            Ok(path) => UnixStream::connect(path.as_path()).await,
            Err(error) => Err(error),
        };
        let stream = connected.map_err(|source| {
            if source.kind() != io::ErrorKind::PermissionDenied {
                return self.unreachable(source);
            }
            let peer = self.peer();
            ConnectError::Forbidden { peer, source }
        })?;
        if let Err(source) = self.listener.check(&stream)? {
            let peer = self.peer();
            return Err(ConnectError::Untrusted { peer, source });
        }
        Ok(stream)
    }

    /// Connects to the first reachable address of a host.
    async fn dial(&self, host: &ServerHost) -> Result<TcpStream, ConnectError> {
        let resolve = |source| ConnectError::Resolve {
            host: host.name.clone(),
            source,
        };
        let resolved = lookup_host((host.name.as_str(), host.port)).await;
        // `localhost` may resolve to any address. A token is sent only to loopback.
        let loopback_only = self.has_secret() && host.scheme == WebSocketScheme::Ws;
        let addresses: Vec<SocketAddr> = resolved
            .map_err(resolve)?
            .filter(|address| !loopback_only || address.ip().to_canonical().is_loopback())
            .collect();
        if addresses.is_empty() {
            return Err(resolve(io::Error::from(io::ErrorKind::AddrNotAvailable)));
        }
        let stream = TcpStream::connect(addresses.as_slice())
            .await
            .map_err(|source| self.unreachable(source))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn tls_connect(
        &self,
        host: &ServerHost,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, ConnectError> {
        let name = ServerName::try_from(host.name.clone())
            .map_err(|_| super::ServerAddressError::NoHost)?;
        let connected = TlsConnector::from(self.trust.config().await?)
            .connect(name, stream)
            .await;
        connected.map_err(|error| tls_error(&host.name, error))
    }

    fn request<'a>(&'a self, authority: &'a str, target: &'a str) -> UpgradeRequest<'a> {
        UpgradeRequest {
            authority,
            target,
            headers: &self.headers,
            bearer_token: self.bearer_token.as_ref(),
        }
    }

    fn has_secret(&self) -> bool {
        self.bearer_token.is_some() || self.headers.authorization().is_some()
    }

    fn unreachable(&self, source: io::Error) -> ConnectError {
        ConnectError::Unreachable {
            peer: self.peer(),
            source,
        }
    }

    fn peer(&self) -> String {
        self.address.to_string()
    }
}

/// Upgrades a connection to a server on this or another machine that asks for no credentials.
/// Returns the bytes that followed the response.
pub(super) async fn upgrade<S>(stream: &mut S) -> Result<Bytes, ConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let request = UpgradeRequest {
        authority: "localhost",
        target: "/",
        headers: &RequestHeaders::default(),
        bearer_token: None,
    };
    request.upgrade(stream).await
}

/// Distinguishes certificate errors, other TLS errors and connection failures.
fn tls_error(host: &str, error: io::Error) -> ConnectError {
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(source) = inner.cloned() else {
        return ConnectError::Io(error);
    };
    let host = host.to_owned();
    match CertificateFault::of(&source) {
        Some(fault) => ConnectError::Certificate {
            host,
            fault,
            source,
        },
        None => ConnectError::Tls { host, source },
    }
}

/// Maximum length of a response head.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Maximum number of headers in a response.
const MAX_HEADERS: usize = 64;
/// How much of a refusal's body is read, and how much of it is shown.
const MAX_BODY_BYTES: usize = 4 << 10;
const MAX_SHOWN_CHARS: usize = 500;
/// Shorter strings are not treated as secrets: they occur in any text.
const MIN_SECRET_BYTES: usize = 4;
/// How long reading the body of a refusal may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// An upgrade request.
#[derive(Debug)]
struct UpgradeRequest<'a> {
    authority: &'a str,
    target: &'a str,
    headers: &'a RequestHeaders,
    bearer_token: Option<&'a BearerToken>,
}

impl UpgradeRequest<'_> {
    /// Upgrades a connection and returns the bytes that followed the response.
    async fn upgrade<S>(&self, stream: &mut S) -> Result<Bytes, ConnectError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let key = STANDARD.encode_to_string(handshake_nonce());
        stream.write_all(&self.encode(&key)).await?;
        stream.flush().await?;
        let mut response_bytes = Vec::new();
        loop {
            // A connection that is cut during the response says nothing about the peer.
            if stream.read_buf(&mut response_bytes).await? == 0 {
                return Err(ConnectError::Closed);
            }
            let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
            let mut response = httparse::Response::new(&mut headers);
            let length = match response.parse(&response_bytes) {
                Ok(httparse::Status::Complete(length)) => length,
                Ok(httparse::Status::Partial) if response_bytes.len() <= MAX_HEAD_BYTES => continue,
                Ok(httparse::Status::Partial) => {
                    return Err(ConnectError::NotWebSocket("its response is too long"));
                }
                Err(_) => return Err(ConnectError::NotWebSocket("its response is not HTTP")),
            };
            let head = ResponseHead(&response);
            let status = response.code.unwrap_or(0);
            if status == 101 {
                head.check(&key)?;
                return Ok(response_bytes.split_off(length).into());
            }
            let (framing, phrase) = (head.framing(), response.reason.unwrap_or("").to_owned());
            let body = framing.read(stream, response_bytes.split_off(length)).await;
            let candidates = [&body[..], phrase.as_bytes()].map(one_line);
            let shown = candidates
                .into_iter()
                .find(|text| !text.is_empty() && !self.is_secret_in(text));
            let known = StatusCode::from_u16(status).ok();
            let known = known.and_then(|status| status.canonical_reason());
            let reason = shown.unwrap_or_else(|| known.unwrap_or_default().to_owned());
            let reason = reason.chars().take(MAX_SHOWN_CHARS).collect();
            return Err(ConnectError::Refused { status, reason });
        }
    }

    /// Returns whether a text contains something secret. A "no such path" response often names the
    /// path.
    fn is_secret_in(&self, text: &str) -> bool {
        let (path, query) = self.target.split_once('?').unwrap_or((self.target, ""));
        let token = self.bearer_token.map(BearerToken::secret);
        let secrets = [path.as_bytes(), query.as_bytes()].into_iter();
        let mut secrets = secrets.chain(token).chain(self.headers.values());
        secrets.any(|secret| {
            let secret = one_line(secret);
            secret.len() >= MIN_SECRET_BYTES && text.contains(&secret)
        })
    }

    fn encode(&self, key: &str) -> Vec<u8> {
        let mut request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n",
            self.target, self.authority
        )
        .into_bytes();
        let token = self.bearer_token.map(BearerToken::authorization);
        if let Some(authorization) = token.or(self.headers.authorization()) {
            request_headers::append_header(&mut request, "Authorization", authorization);
        }
        self.headers.encode(&mut request);
        request.extend_from_slice(b"\r\n");
        request
    }
}

/// The head of a response.
struct ResponseHead<'a>(&'a httparse::Response<'a, 'a>);

impl ResponseHead<'_> {
    /// Checks that the response is a websocket handshake for this request.
    fn check(&self, key: &str) -> Result<(), ConnectError> {
        let refusal = if !self.has("upgrade", "websocket") || !self.has("connection", "upgrade") {
            "it switched to another protocol"
        } else if self.value("sec-websocket-accept") != Some(accept_key(key.as_bytes()).as_bytes())
        {
            "its response belongs to another request"
        } else if self.value("sec-websocket-extensions").is_some() {
            "it uses an extension that was not requested"
        } else if self.value("sec-websocket-protocol").is_some() {
            "it uses a subprotocol that was not requested"
        } else {
            return Ok(());
        };
        Err(ConnectError::NotWebSocket(refusal))
    }

    /// Returns how the body is framed.
    fn framing(&self) -> BodyFraming {
        if self.has("transfer-encoding", "chunked") {
            return BodyFraming::Chunked;
        }
        let length = self
            .value("content-length")
            .and_then(|value| str::from_utf8(value).ok()?.trim().parse().ok());
        BodyFraming::Plain(length.unwrap_or(usize::MAX).min(MAX_BODY_BYTES))
    }

    fn values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        let named = move |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case(name);
        self.0
            .headers
            .iter()
            .filter(named)
            .map(|header| header.value)
    }

    fn value(&self, name: &str) -> Option<&[u8]> {
        self.values(name).next().map(<[u8]>::trim_ascii)
    }

    fn has(&self, name: &str, token: &str) -> bool {
        self.values(name)
            .flat_map(|value| value.split(|byte| *byte == b','))
            .any(|part| part.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
    }
}

/// How a body is framed.
enum BodyFraming {
    /// Up to this many bytes, or until the peer closes.
    Plain(usize),
    /// Chunked transfer encoding.
    Chunked,
}

impl BodyFraming {
    /// Reads the available body within the timeout. `body` holds the bytes that came with the head.
    async fn read<S: AsyncRead + Unpin>(self, stream: &mut S, mut body: Vec<u8>) -> Vec<u8> {
        let limit = match self {
            Self::Plain(length) => length,
            Self::Chunked => MAX_BODY_BYTES,
        };
        let read_body = async {
            let is_complete = |body: &[u8]| match self {
                Self::Plain(length) => body.len() >= length,
                Self::Chunked => body.len() >= limit || body.ends_with(b"0\r\n\r\n"),
            };
            while !is_complete(&body) && stream.read_buf(&mut body).await? > 0 {}
            Ok::<_, io::Error>(())
        };
        // The refusal is reported with the text that has arrived.
        drop(timeout(BODY_TIMEOUT, read_body).await);
        body.truncate(limit);
        match self {
            Self::Plain(_) => body,
            Self::Chunked => join_chunks(&body),
        }
    }
}

/// Joins the chunks that have arrived.
fn join_chunks(mut body: &[u8]) -> Vec<u8> {
    let mut joined = Vec::new();
    while let Ok(httparse::Status::Complete((start, length))) = httparse::parse_chunk_size(body) {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let remaining = &body[start..];
        joined.extend_from_slice(&remaining[..length.min(remaining.len())]);
        match remaining.get(length.saturating_add(2)..) {
            Some(next) if length > 0 => body = next,
            Some(_) | None => break,
        }
    }
    joined
}

/// Collapses text of a peer into one printable line.
fn one_line(text: &[u8]) -> String {
    let text: Cow<'_, str> = String::from_utf8_lossy(text);
    let words: Vec<&str> = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .collect();
    words.join(" ")
}

/// Returns sixteen bytes that distinguish this handshake from a cached one. They are not secret.
fn handshake_nonce() -> [u8; 16] {
    use std::hash::{BuildHasher, RandomState};

    let state = RandomState::new();
    let [high, low] = [state.hash_one(0), state.hash_one(1)];
    (u128::from(high) << 64 | u128::from(low)).to_ne_bytes()
}

/// Parses bytes as a handshake response, for the fuzz target `http_handshake`.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_response(data: &[u8]) {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    if let Ok(httparse::Status::Complete(length)) = response.parse(data) {
        let head = ResponseHead(&response);
        if head.check("dGhlIHNhbXBsZSBub25jZQ==").is_ok() {
            assert!(head.value("sec-websocket-extensions").is_none());
        }
        let joined = match head.framing() {
            BodyFraming::Plain(limit) => data[length..].iter().take(limit).copied().collect(),
            BodyFraming::Chunked => join_chunks(&data[length..]),
        };
        assert!(!one_line(&joined).contains(char::is_control));
    }
}
