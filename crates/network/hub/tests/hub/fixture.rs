//! A hub on a free port, and clients for it.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_hub::{
    config::HubConfig,
    hub::Hub,
    principal::{EnvironmentGlobs, RoleSet},
    rate_limit::RateLimitConfig,
    store::Timestamp,
    tokens::{self, NewToken},
};
use exec_registry::{
    api::RegistryEnvironmentId,
    credentials::{FixedCredentials, RegistryToken},
    http::{BaseUrl, HttpClient},
    registry::RegistryClient,
};
use exec_relay::{
    frame::{FrameBody, RelayFrame, StreamId},
    identity::NoiseIdentity,
};
use futures_util::{SinkExt as _, StreamExt as _};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream,
    tungstenite::{Error, Message},
};

/// Longer than anything here takes.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct HubFixture {
    pub(crate) hub: Hub,
    pub(crate) directory: TempDir,
    pub(crate) token: String,
}

impl HubFixture {
    /// Starts a hub with a token of one principal.
    pub(crate) async fn start() -> Self {
        Self::start_with(RateLimitConfig::default()).await
    }

    /// The same, with other rate limits.
    pub(crate) async fn start_with(rates: RateLimitConfig) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = HubConfig {
            rates,
            ..config(&directory)
        };
        let token = token(&config, "alice");
        let hub = Hub::start(config).await.unwrap();
        Self {
            hub,
            directory,
            token,
        }
    }

    /// Stops the hub and starts another in its place.
    pub(crate) async fn restart(self) -> Self {
        let config = HubConfig {
            listen: self.hub.address(),
            ..config(&self.directory)
        };
        self.hub.stop().await;
        Self {
            hub: Hub::start(config).await.unwrap(),
            directory: self.directory,
            token: self.token,
        }
    }

    /// Returns a registry client of the principal.
    pub(crate) fn registry(&self) -> RegistryClient {
        let token = FixedCredentials::registry_token(&RegistryToken::new(&self.token).unwrap());
        let base = BaseUrl::parse(&self.hub.url()).unwrap();
        RegistryClient::new(base, Arc::new(token), HttpClient::without_tls().unwrap()).unwrap()
    }

    /// Registers an executor and returns its URL.
    pub(crate) async fn register(&self, environment: &str, identity: &NoiseIdentity) -> String {
        let (registry, environment) = (self.registry(), id(environment));
        let registered = registry.register(&environment, identity.public_key());
        registered.await.unwrap().url.into_exposed()
    }

    /// Registers an executor and opens its websocket.
    pub(crate) async fn executor(&self, environment: &str) -> Client {
        let url = self.register(environment, &NoiseIdentity::generate()).await;
        Client::open(&url).await.unwrap()
    }

    /// Returns the URL of a harness. The executor is connected, so one request suffices.
    pub(crate) async fn harness_url(&self, environment: &str) -> String {
        let (registry, identity) = (self.registry(), NoiseIdentity::generate());
        let environment = id(environment);
        let connected = registry.connect(&environment, identity.public_key());
        connected.await.unwrap().url.into_exposed()
    }

    /// Opens the websocket of a harness.
    pub(crate) async fn harness(&self, environment: &str) -> Client {
        Client::open(&self.harness_url(environment).await)
            .await
            .unwrap()
    }

    /// Waits until this many executors are connected.
    pub(crate) async fn executors(&self, count: usize) {
        let line = format!("exec_hub_sockets{{role=\"executor\"}} {count}\n");
        let asking = async { while !self.ask("GET", "/metrics").await.1.contains(&line) {} };
        timeout(TEST_TIMEOUT, asking).await.unwrap();
    }

    /// Sends a request without body and returns status and body.
    pub(crate) async fn ask(&self, method: &str, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.hub.address()).await.unwrap();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let reading = stream.read_to_string(&mut answer);
        timeout(TEST_TIMEOUT, reading).await.unwrap().unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }
}

pub(crate) fn config(directory: &TempDir) -> HubConfig {
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    HubConfig {
        audit_log: Some(directory.path().join("audit.jsonl")),
        ..HubConfig::new(anywhere, directory.path().join("data"))
    }
}

/// Creates a token with the default roles.
pub(crate) fn token(config: &HubConfig, principal: &str) -> String {
    std::fs::create_dir_all(&config.data_dir).unwrap();
    let new = NewToken {
        principal: principal.parse().unwrap(),
        roles: RoleSet::default(),
        environments: EnvironmentGlobs::default(),
        expires_at: None,
    };
    let (_, token) = tokens::create(&config.token_file(), new, Timestamp::now()).unwrap();
    token.expose().to_owned()
}

pub(crate) fn id(environment: &str) -> RegistryEnvironmentId {
    RegistryEnvironmentId::new(environment).unwrap()
}

pub(crate) fn frame(stream: &str, body: FrameBody) -> Bytes {
    RelayFrame::new(StreamId::new(stream).unwrap(), body).encode()
}

pub(crate) fn resume(stream: &str) -> Bytes {
    frame(stream, FrameBody::Resume { next_seq: 0 })
}

/// The client end of a websocket.
pub(crate) struct Client(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Client {
    /// Opens a URL, or returns the status of the refusal.
    pub(crate) async fn open(url: &str) -> Result<Self, u16> {
        let opened = tokio_tungstenite::connect_async(url);
        match timeout(TEST_TIMEOUT, opened).await.unwrap() {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) async fn send(&mut self, frame: Bytes) {
        let sent = self.0.send(Message::Binary(frame));
        timeout(TEST_TIMEOUT, sent).await.unwrap().unwrap();
    }

    /// Returns the next frame, or the close code.
    pub(crate) async fn next(&mut self) -> Result<Bytes, Option<u16>> {
        timeout(TEST_TIMEOUT, self.read()).await.unwrap()
    }

    async fn read(&mut self) -> Result<Bytes, Option<u16>> {
        loop {
            match self.0.next().await {
                Some(Ok(Message::Binary(frame))) => return Ok(frame),
                Some(Ok(Message::Close(close))) => {
                    return Err(close.map(|close| close.code.into()));
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}
