//! Tests of relay websockets over in-memory connections with a paused clock.

mod relaying;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use exec_relay::{
    frame::{FrameBody, RelayFrame, SealedRecord, StreamId},
    identity::{NoiseIdentity, NoisePublicKey},
};
use exec_transport::{
    link::LinkRole,
    websocket::socket::{BinarySocket, SocketLimits},
};
use futures_util::{SinkExt as _, StreamExt as _, future::BoxFuture};
use tokio::{io::DuplexStream, sync::watch, task::JoinHandle, time::timeout};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol},
};

use super::{RendezvousAcceptor, UpgradeAdmission, UpgradeRefusal};
use crate::{
    executor_table::ExecutorTable,
    metrics::HubMetrics,
    principal::PrincipalName,
    store::{
        AttachError, Authorization, AuthorizeError, ClaimError, EnvironmentId, InviteClaim,
        NewRegistration, OwnedEnvironment, Presence, RegisterError, Registration, RegistrationId,
        SigningKey, Store, StoreError, Timestamp, TokenHash,
    },
    url::UrlSigner,
};

/// Longer than anything here takes, in paused time.
const TEST_TIMEOUT: Duration = Duration::from_secs(600);
/// Buffer size of the in-memory sockets.
const SOCKET_BYTES: usize = 64 << 10;
const NOW: Timestamp = Timestamp::from_seconds(1_800_000_000);

struct HubFixture {
    rendezvous: Arc<RendezvousAcceptor>,
    store: Arc<SingleEnvironmentStore>,
    stop: watch::Sender<bool>,
    harness: NoisePublicKey,
}

impl HubFixture {
    fn new() -> Self {
        let store = Arc::new(SingleEnvironmentStore::default());
        let executor_table = Arc::new(ExecutorTable::default());
        let (stop, stopping) = watch::channel(false);
        let key = SigningKey::from_bytes(&[7; SigningKey::LEN]).unwrap();
        let rendezvous = RendezvousAcceptor {
            signer: Arc::new(UrlSigner::new(&key)),
            store: Arc::clone(&store) as Arc<dyn Store>,
            dialer: Arc::clone(&executor_table) as _,
            executor_table,
            node: "node".parse().unwrap(),
            metrics: Arc::new(HubMetrics::default()),
            stopping,
        };
        Self {
            rendezvous: Arc::new(rendezvous),
            store,
            stop,
            harness: NoiseIdentity::generate().public_key().clone(),
        }
    }

    fn executor_url(&self, registration: &str) -> String {
        let registration = registration.parse().unwrap();
        let signer = &self.rendezvous.signer;
        signer.executor_url("ws://h", &environment(), &registration)
    }

    fn harness_url(&self) -> String {
        let signer = &self.rendezvous.signer;
        let registration = "reg-1".parse().unwrap();
        signer.harness_url("ws://h", &environment(), &registration, &self.harness, NOW)
    }

    async fn admit(&self, url: &str) -> Result<UpgradeAdmission, UpgradeRefusal> {
        let url = url::Url::parse(url).unwrap();
        self.rendezvous.admit(url.path(), url.query(), NOW).await
    }

    /// Opens an admitted websocket.
    async fn open(&self, admission: UpgradeAdmission) -> Client {
        let (ours, theirs) = tokio::io::duplex(SOCKET_BYTES);
        let (input, output) = tokio::io::split(theirs);
        let limits = SocketLimits {
            write_timeout: crate::limits::STALL,
            ..SocketLimits::default()
        };
        let socket = BinarySocket::new(input, output, &[], LinkRole::Server, limits);
        let rendezvous = Arc::clone(&self.rendezvous);
        let serving = tokio::spawn(async move { rendezvous.serve(admission, socket).await });
        let socket = WebSocketStream::from_raw_socket(ours, protocol::Role::Client, None).await;
        Client { socket, serving }
    }

    /// Connects the executor.
    async fn executor(&self) -> Client {
        let admission = self.admit(&self.executor_url("reg-1")).await.unwrap();
        self.open(admission).await
    }

    /// Connects a harness.
    async fn harness(&self) -> Client {
        let admission = self.admit(&self.harness_url()).await.unwrap();
        self.open(admission).await
    }

    /// Connects a harness and opens a stream at the executor.
    async fn stream(&self, executor: &mut Client, id: &str) -> Client {
        let mut harness = self.harness().await;
        harness.send(resume(id)).await;
        assert_eq!(executor.next().await, Ok(resume(id)));
        harness
    }

    /// Waits until the store has no executor.
    async fn until_detached(&self) {
        let detached = async {
            while self.store.is_attached() {
                tokio::task::yield_now().await;
            }
        };
        timeout(TEST_TIMEOUT, detached).await.unwrap();
    }

    fn counts(&self, line: &str) -> bool {
        let text = self.rendezvous.metrics.render(None);
        text.lines().any(|seen| seen == line)
    }
}

fn environment() -> EnvironmentId {
    "env-1".parse().unwrap()
}

fn frame(id: &str, body: FrameBody) -> Bytes {
    RelayFrame::new(StreamId::new(id).unwrap(), body).encode()
}

fn resume(id: &str) -> Bytes {
    frame(id, FrameBody::Resume { next_seq: 0 })
}

fn handshake(id: &str) -> Bytes {
    frame(id, FrameBody::Handshake(Bytes::from_static(b"m")))
}

fn reset(id: &str, reason: &str) -> Bytes {
    let reason = reason.into();
    frame(id, FrameBody::Reset { reason })
}

fn data(id: &str, seq: u32, length: usize) -> Bytes {
    let data = SealedRecord {
        seq,
        segment_index: 0,
        segment_count: 1,
        payload: Bytes::from(vec![b'x'; length]),
    };
    frame(id, FrameBody::Data(data))
}

/// The client end of a websocket.
struct Client {
    socket: WebSocketStream<DuplexStream>,
    /// Task that serves the websocket.
    serving: JoinHandle<()>,
}

impl Client {
    async fn send(&mut self, frame: Bytes) {
        self.send_message(Message::Binary(frame)).await;
    }

    async fn send_message(&mut self, message: Message) {
        timeout(TEST_TIMEOUT, self.socket.send(message))
            .await
            .unwrap()
            .unwrap();
    }

    /// Returns the next frame, or the close code.
    async fn next(&mut self) -> Result<Bytes, Option<u16>> {
        timeout(TEST_TIMEOUT, self.read()).await.unwrap()
    }

    async fn read(&mut self) -> Result<Bytes, Option<u16>> {
        loop {
            match self.socket.next().await {
                Some(Ok(Message::Binary(frame))) => return Ok(frame),
                Some(Ok(Message::Close(close))) => {
                    return Err(close.map(|close| close.code.into()));
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Drops the connection without a close frame, and waits until the rendezvous has noticed.
    async fn cut(self) {
        drop(self.socket);
        timeout(TEST_TIMEOUT, self.serving).await.unwrap().unwrap();
    }
}

/// How the store fails after recording an executor.
#[derive(Clone, Copy, Debug)]
enum StoreFailure {
    Fails,
    Hangs,
}

/// A store with one environment and the registration `reg-1`.
#[derive(Debug)]
struct SingleEnvironmentStore {
    current: Mutex<RegistrationId>,
    presence: Mutex<Option<Presence>>,
    /// Failure after an executor was recorded.
    broken: Mutex<Option<StoreFailure>>,
    executor: NoisePublicKey,
}

impl Default for SingleEnvironmentStore {
    fn default() -> Self {
        Self {
            current: Mutex::new("reg-1".parse().unwrap()),
            presence: Mutex::default(),
            broken: Mutex::default(),
            executor: NoiseIdentity::generate().public_key().clone(),
        }
    }
}

impl SingleEnvironmentStore {
    fn is_attached(&self) -> bool {
        self.presence.lock().unwrap().is_some()
    }
}

fn ready<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, T> {
    Box::pin(std::future::ready(value))
}

impl Store for SingleEnvironmentStore {
    fn check(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        ready(Ok(()))
    }

    fn signing_key(&self) -> BoxFuture<'_, Result<SigningKey, StoreError>> {
        ready(Err(StoreError::Closed))
    }

    fn claim<'a>(
        &'a self,
        _: &'a EnvironmentId,
        _: &'a PrincipalName,
    ) -> BoxFuture<'a, Result<(), ClaimError>> {
        ready(Err(StoreError::Closed.into()))
    }

    fn owner<'a>(
        &'a self,
        _: &'a EnvironmentId,
    ) -> BoxFuture<'a, Result<Option<PrincipalName>, StoreError>> {
        ready(Err(StoreError::Closed))
    }

    fn register(&self, _: NewRegistration) -> BoxFuture<'_, Result<Registration, RegisterError>> {
        ready(Err(StoreError::Closed.into()))
    }

    fn registration<'a>(
        &'a self,
        environment: &'a EnvironmentId,
    ) -> BoxFuture<'a, Result<Option<Registration>, StoreError>> {
        ready(Ok(Some(Registration {
            environment: environment.clone(),
            id: self.current.lock().unwrap().clone(),
            executor_key: self.executor.clone(),
            owner: "alice".parse().unwrap(),
            created_at: NOW,
        })))
    }

    fn environments<'a>(
        &'a self,
        _: Option<&'a EnvironmentId>,
        _: usize,
    ) -> BoxFuture<'a, Result<Vec<OwnedEnvironment>, StoreError>> {
        ready(Err(StoreError::Closed))
    }

    fn remove<'a>(&'a self, _: &'a EnvironmentId) -> BoxFuture<'a, Result<bool, StoreError>> {
        ready(Err(StoreError::Closed))
    }

    fn attach(&self, presence: Presence) -> BoxFuture<'_, Result<(), AttachError>> {
        if *self.current.lock().unwrap() != presence.registration {
            return ready(Err(AttachError::Superseded));
        }
        *self.presence.lock().unwrap() = Some(presence);
        match *self.broken.lock().unwrap() {
            None => {}
            Some(StoreFailure::Fails) => return ready(Err(StoreError::Closed.into())),
            Some(StoreFailure::Hangs) => return Box::pin(std::future::pending()),
        }
        ready(Ok(()))
    }

    fn detach<'a>(
        &'a self,
        presence: &'a Presence,
        _: Timestamp,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.presence
            .lock()
            .unwrap()
            .take_if(|known| known == presence);
        ready(Ok(()))
    }

    fn presence<'a>(
        &'a self,
        _: &'a EnvironmentId,
    ) -> BoxFuture<'a, Result<Option<Presence>, StoreError>> {
        ready(Ok(self.presence.lock().unwrap().clone()))
    }

    fn authorize(
        &self,
        _: TokenHash,
        _: Authorization,
        _: Timestamp,
    ) -> BoxFuture<'_, Result<(), AuthorizeError>> {
        ready(Err(StoreError::Closed.into()))
    }

    fn redeem(
        &self,
        _: TokenHash,
        _: Timestamp,
    ) -> BoxFuture<'_, Result<Option<Authorization>, StoreError>> {
        ready(Err(StoreError::Closed))
    }

    fn redeem_invite(&self, _: InviteClaim) -> BoxFuture<'_, Result<bool, StoreError>> {
        ready(Err(StoreError::Closed))
    }
}
