//! A scripted registry server: the test sends every response.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_registry::{
    api::RegistryEnvironmentId,
    credentials::{FixedCredentials, RegistryToken},
    executor::{DialOptions, ExecutorSettings, RemoteExecutor},
    http::{BaseUrl, HttpClient},
    registry::RegistryClient,
};
use exec_relay::{
    frame::{FrameBody, RelayFrame},
    identity::NoiseIdentity,
};
use exec_transport::{
    link::{Link, LinkRole},
    websocket::{
        accept_key,
        socket::{BinarySocket, SocketLimits},
    },
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::{Instant, timeout},
};

use crate::relay_client::{ExecutorInfo, RelayPeer, RelayStream};

/// Longer than anything a test waits for, in paused time.
const PATIENCE: Duration = Duration::from_secs(300);

/// A server on a loopback port.
pub(crate) struct RegistryServer {
    pub(crate) address: SocketAddr,
    requests: mpsc::UnboundedReceiver<Request>,
}

/// A request that awaits its response.
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
    /// Time of arrival.
    pub(crate) at: Instant,
    stream: TcpStream,
}

impl RegistryServer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (found, requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                // Delayed ACKs cost real time, during which the paused clock would advance by
                // hours.
                stream.set_nodelay(true).unwrap();
                let found = found.clone();
                tokio::spawn(async move {
                    if let Some(request) = Request::read(stream).await {
                        drop(found.send(request));
                    }
                });
            }
        });
        Self { address, requests }
    }

    /// Waits for the next request and asserts its method and target.
    pub(crate) async fn expect(&mut self, method: &str, target: &str) -> Request {
        let request = self.next().await;
        assert_eq!((&*request.method, &*request.target), (method, target));
        request
    }

    pub(crate) async fn next(&mut self) -> Request {
        let next = timeout(PATIENCE, self.requests.recv()).await;
        next.expect("a request").unwrap()
    }

    /// Asserts that no request arrives within a time.
    pub(crate) async fn expect_nothing(&mut self, within: Duration) {
        if let Ok(Some(request)) = timeout(within, self.requests.recv()).await {
            panic!("unexpected {} {}", request.method, request.target);
        }
    }

    pub(crate) fn http(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn ws(&self, path: &str) -> String {
        format!("ws://{}{path}", self.address)
    }
}

impl Request {
    async fn read(mut stream: TcpStream) -> Option<Self> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?);
        }
        let at = Instant::now();
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.lines();
        let mut first = lines.next()?.split(' ');
        let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
        let mut headers = http::HeaderMap::new();
        for line in lines.filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(": ").unwrap();
            let name: http::HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        let length = headers.get("content-length");
        let length = length.map_or(0, |value| value.to_str().unwrap().parse().unwrap());
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.ok()?;
        Some(Self {
            method,
            target,
            headers,
            body: body.into(),
            at,
            stream,
        })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Sends a response and closes the connection.
    pub(crate) async fn reply(mut self, status: u16, body: impl std::fmt::Display) {
        let body = body.to_string();
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
             connection: close\r\n\r\n"
        );
        self.stream
            .write_all((head + &body).as_bytes())
            .await
            .unwrap();
    }

    /// Accepts a websocket upgrade.
    pub(crate) async fn upgrade(mut self) -> TcpStream {
        assert_eq!(self.method, "GET");
        assert_eq!(self.header("upgrade"), Some("websocket"));
        assert_eq!(self.header("sec-websocket-version"), Some("13"));
        let accept = accept_key(self.headers["sec-websocket-key"].as_bytes());
        let head = format!(
            "HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-accept: {accept}\r\n\r\n"
        );
        self.stream.write_all(head.as_bytes()).await.unwrap();
        self.stream
    }

    /// Accepts a websocket that carries relay frames.
    pub(crate) async fn socket(self) -> BinarySocket {
        let (read, write) = self.upgrade().await.into_split();
        BinarySocket::new(read, write, &[], LinkRole::Server, SocketLimits::default())
    }
}

pub(crate) const REGISTER: &str = "/cloud/environment/env-1/register";
pub(crate) const VALIDATE: &str = "/cloud/environment/env-1/validate";

/// Creates an executor that uses this registry.
pub(crate) fn executor(server: &RegistryServer) -> RemoteExecutor {
    let token = RegistryToken::new("hub-token").unwrap();
    let base = BaseUrl::parse(&server.http()).unwrap();
    let (credentials, http) = (
        Arc::new(FixedCredentials::registry_token(&token)),
        HttpClient::without_tls().unwrap(),
    );
    RemoteExecutor::new(ExecutorSettings {
        registry: RegistryClient::new(base, credentials, http).unwrap(),
        environment: RegistryEnvironmentId::new("env-1").unwrap(),
        identity: Arc::new(NoiseIdentity::generate()),
        dial_options: DialOptions::default(),
    })
}

pub(crate) fn registered(url: &str, registration: &str) -> Value {
    json!({
        "environment_id": "env-1",
        "url": url,
        "security_profile": "noise_hybrid_ik_v1",
        "executor_registration_id": registration,
    })
}

/// Answers a registration with a rendezvous at `path`; returns what a harness needs to connect.
pub(crate) async fn register(
    server: &mut RegistryServer,
    path: &str,
    registration: &str,
) -> ExecutorInfo {
    let request = server.expect("POST", REGISTER).await;
    assert_eq!(request.header("authorization"), Some("Bearer hub-token"));
    let body = request.json();
    assert_eq!(body["security_profile"], "noise_hybrid_ik_v1");
    let key = serde_json::from_value(body["executor_public_key"].clone()).unwrap();
    request
        .reply(200, registered(&server.ws(path), registration))
        .await;
    ExecutorInfo {
        key,
        registration: registration.to_owned(),
    }
}

/// Completes the handshake of a harness that the registry accepts.
pub(crate) async fn admit(
    server: &mut RegistryServer,
    relay: &mut RelayPeer,
    known: &ExecutorInfo,
    id: &str,
) -> RelayStream {
    let identity = NoiseIdentity::generate();
    let initiator = relay.start_handshake(known, id, &identity).await;
    let request = server.expect("POST", VALIDATE).await;
    assert_eq!(request.header("x-codex-noise-stream-id"), Some(id));
    let expected = json!({
        "executor_registration_id": known.registration,
        "harness_public_key": identity.public_key(),
        "harness_key_authorization": "authorization-1",
    });
    assert_eq!(request.json(), expected);
    request.reply(200, r#"{"valid":true}"#).await;
    relay.finish_handshake(id, initiator).await
}

impl Request {
    /// Accepts a websocket that carries messages.
    pub(crate) async fn link(self) -> Link {
        let (read, write) = self.upgrade().await.into_split();
        let limits = SocketLimits::default();
        BinarySocket::new(read, write, &[], LinkRole::Server, limits).into_link("test".to_owned())
    }
}

impl RelayPeer {
    /// Resets a stream, as a relay does when the harness disconnects.
    pub(crate) async fn reset(&mut self, stream: RelayStream) {
        let reason = "harness_disconnected".to_owned();
        self.send(&RelayFrame::new(stream.id, FrameBody::Reset { reason }))
            .await;
    }
}

/// Reads one frame of a client: the first header byte and the payload.
pub(crate) async fn frame(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let first = stream.read_u8().await.ok()?;
    let second = stream.read_u8().await.ok()?;
    assert!(second >= 0x80, "clients mask");
    let length = match second & 0x7f {
        126 => u64::from(stream.read_u16().await.ok()?),
        127 => stream.read_u64().await.ok()?,
        length => u64::from(length),
    };
    let mut mask = [0; 4];
    stream.read_exact(&mut mask).await.ok()?;
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    stream.read_exact(&mut payload).await.ok()?;
    for (byte, mask) in payload.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
    Some((first, payload))
}
