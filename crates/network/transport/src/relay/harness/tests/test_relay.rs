//! A relay that routes by stream id and can misbehave on demand.

use std::{
    collections::HashMap,
    future::poll_fn,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use exec_relay::frame::{FrameBody, FrameKind, FrameRoute, RelayFrame, StreamId};
use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::{
    sync::{mpsc, watch},
    task::{AbortHandle, JoinHandle},
};

use crate::{
    http::service::{HttpOutcome, HttpPeer, HttpService, HttpServiceOptions},
    listener::Listener,
    websocket::socket::{BinarySocket, RawMessage, SocketReader, SocketWriter},
};

/// A relay on loopback. Dropping it closes all connections.
pub(super) struct TestRelay {
    address: String,
    routes: Arc<RelayRoutes>,
    serving: JoinHandle<()>,
}

/// Connected clients.
struct RelayRoutes {
    state: Mutex<RelayState>,
    executor_connected: watch::Sender<bool>,
}

#[derive(Default)]
struct RelayState {
    executor: Option<RelayClient>,
    harnesses: HashMap<u64, RelayClient>,
    streams: HashMap<String, u64>,
    next: u64,
    /// Frames of harnesses up to this number are silently dropped.
    blackholed_up_to: u64,
    /// Frames of the current executor are silently dropped.
    executor_is_blackholed: bool,
    is_closed_to_executors: bool,
    /// Statuses with which the next harnesses are refused.
    refusals: Vec<u16>,
    /// Kinds of frames received from harnesses.
    received_kinds: Vec<FrameKind>,
    /// `traceparent` of the last harness.
    traceparent: Option<HeaderValue>,
}

struct RelayClient {
    out: mpsc::Sender<Bytes>,
    tasks: [AbortHandle; 2],
}

impl Drop for RelayClient {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl TestRelay {
    pub(super) async fn start() -> Self {
        let bind = Listener::bind_tcp("127.0.0.1:0".parse().unwrap(), false);
        let listener = bind.await.unwrap();
        let address = listener.address().to_string();
        let routes = Arc::new(RelayRoutes {
            state: Mutex::default(),
            executor_connected: watch::Sender::new(false),
        });
        let service = Arc::new(RelayService(Arc::clone(&routes)));
        let upgraded = Arc::clone(&routes);
        let server = listener.serve_http(
            service,
            None,
            HttpServiceOptions::default(),
            move |role, socket| {
                upgraded.connect(role, socket);
            },
        );
        Self {
            address,
            routes,
            serving: tokio::spawn(server),
        }
    }

    pub(super) fn url(&self, role: &str) -> String {
        format!("{}/{role}?sig=secret", self.address)
    }

    pub(super) async fn executor_connected(&self) {
        let mut connected = self.routes.executor_connected.subscribe();
        connected.wait_for(|connected| *connected).await.unwrap();
    }

    /// Disconnects every harness and informs the executor.
    pub(super) fn cut_harnesses(&self) {
        let harnesses: Vec<u64> = self.state(|state| state.harnesses.keys().copied().collect());
        harnesses
            .into_iter()
            .for_each(|one| self.routes.disconnect_harness(one));
    }

    /// Disconnects the executor and every harness.
    pub(super) fn cut_executor(&self) {
        self.routes.disconnect_executor();
    }

    /// Drops all frames from and to the connected harnesses.
    pub(super) fn blackhole_harnesses(&self) {
        self.state(|state| state.blackholed_up_to = state.next);
    }

    /// Drops all frames and pings from and to the executor until it reconnects.
    pub(super) fn blackhole_executor(&self) {
        self.state(|state| {
            state.executor_is_blackholed = true;
            // An aborted reader answers no pings; the socket stays open.
            let [reading, _] = &state.executor.as_ref().unwrap().tasks;
            reading.abort();
        });
    }

    /// Drops all frames from and to all harnesses, including future ones.
    pub(super) fn blackhole_all_harnesses(&self) {
        self.state(|state| state.blackholed_up_to = u64::MAX);
    }

    /// Disconnects the executor for good: harnesses are accepted and then closed.
    pub(super) fn remove_executor(&self) {
        self.state(|state| state.is_closed_to_executors = true);
        self.routes.disconnect_executor();
    }

    pub(super) fn refuse(&self, statuses: &[u16]) {
        self.state(|state| state.refusals = statuses.iter().rev().copied().collect());
    }

    /// Returns the kinds of frames received from harnesses.
    pub(super) fn received_kinds(&self) -> Vec<FrameKind> {
        self.state(|state| state.received_kinds.clone())
    }

    /// Returns the `traceparent` of the last harness.
    pub(super) fn traceparent(&self) -> Option<HeaderValue> {
        self.state(|state| state.traceparent.clone())
    }

    /// Sends a message to every harness.
    pub(super) async fn send_to_harnesses(&self, message: Bytes) {
        let senders: Vec<_> = self.state(|state| {
            state
                .harnesses
                .values()
                .map(|one| one.out.clone())
                .collect()
        });
        for sender in senders {
            sender.send(message.clone()).await.unwrap();
        }
    }

    /// Returns the streams named by harnesses.
    pub(super) fn streams(&self) -> Vec<String> {
        self.state(|state| state.streams.keys().cloned().collect())
    }

    fn state<T>(&self, act: impl FnOnce(&mut RelayState) -> T) -> T {
        act(&mut self.routes.state.lock().unwrap())
    }
}

impl Drop for TestRelay {
    fn drop(&mut self) {
        self.serving.abort();
        self.state(|state| {
            state.harnesses.clear();
            state.executor = None;
        });
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Role {
    Executor,
    Harness,
}

struct RelayService(Arc<RelayRoutes>);

impl HttpService for RelayService {
    type Upgrade = Role;

    fn respond(&self, request: Request<Incoming>, _: HttpPeer) -> BoxFuture<'_, HttpOutcome<Role>> {
        let mut state = self.0.state.lock().unwrap();
        let answer = match request.uri().path() {
            "/executor" if state.is_closed_to_executors => refusal(503),
            "/executor" => HttpOutcome::Upgrade(Role::Executor),
            _ => {
                state.traceparent = request.headers().get("traceparent").cloned();
                match state.refusals.pop() {
                    None => HttpOutcome::Upgrade(Role::Harness),
                    Some(status) => refusal(status),
                }
            }
        };
        Box::pin(async { answer })
    }
}

fn refusal(status: u16) -> HttpOutcome<Role> {
    let mut refusal = Response::new(Full::default());
    *refusal.status_mut() = StatusCode::from_u16(status).unwrap();
    HttpOutcome::Reply(refusal)
}

impl RelayRoutes {
    fn connect(self: &Arc<Self>, role: Role, socket: BinarySocket) {
        let mut state = self.state.lock().unwrap();
        state.next += 1;
        let number = state.next;
        let (out, waiting) = mpsc::channel(64);
        let BinarySocket { reader, writer } = socket;
        let reading = Arc::clone(self).read(role, number, reader);
        let tasks = [tokio::spawn(reading), tokio::spawn(write(writer, waiting))];
        let client = RelayClient {
            out,
            tasks: tasks.map(|task| task.abort_handle()),
        };
        match role {
            Role::Executor => {
                if state.executor.replace(client).is_some() {
                    // The relay missed its loss, so the harnesses have to notice.
                    state.harnesses.clear();
                }
                state.executor_is_blackholed = false;
                self.executor_connected.send_replace(true);
            }
            Role::Harness => {
                state.harnesses.insert(number, client);
            }
        }
    }

    async fn read(self: Arc<Self>, role: Role, number: u64, mut reader: SocketReader) {
        while let Ok(Some(RawMessage::Binary(message))) = reader.next().await {
            let Ok(FrameRoute { stream_id, kind }) = FrameRoute::peek(&message) else {
                continue;
            };
            let to = {
                let mut state = self.state.lock().unwrap();
                match role {
                    Role::Executor => {
                        let owner = state.streams.get(stream_id);
                        if owner.is_some_and(|owner| *owner <= state.blackholed_up_to) {
                            continue;
                        }
                        let harness = owner.and_then(|owner| state.harnesses.get(owner));
                        harness.map(|one| one.out.clone())
                    }
                    Role::Harness if number <= state.blackholed_up_to => continue,
                    Role::Harness => {
                        state.received_kinds.push(kind);
                        state.streams.insert(stream_id.to_owned(), number);
                        if state.executor_is_blackholed {
                            continue;
                        }
                        state.executor.as_ref().map(|one| one.out.clone())
                    }
                }
            };
            match to {
                Some(to) => drop(to.send(message).await),
                None if role == Role::Harness => break,
                None => {}
            }
        }
        match role {
            Role::Executor => self.disconnect_executor(),
            Role::Harness => self.disconnect_harness(number),
        }
    }

    fn disconnect_harness(&self, number: u64) {
        let mut state = self.state.lock().unwrap();
        let removed = state.harnesses.remove(&number);
        let streams = state.streams.iter().filter(|(_, owner)| **owner == number);
        for (stream, _) in streams {
            let reason = "harness_disconnected".to_owned();
            let id = StreamId::new(stream).unwrap();
            let reset = RelayFrame::new(id, FrameBody::Reset { reason }).encode();
            if let Some(executor) = &state.executor
                && !state.executor_is_blackholed
            {
                executor.out.try_send(reset).unwrap();
            }
        }
        drop(state);
        drop(removed);
    }

    fn disconnect_executor(&self) {
        let mut state = self.state.lock().unwrap();
        self.executor_connected.send_replace(false);
        let removed = (state.executor.take(), std::mem::take(&mut state.harnesses));
        drop(state);
        drop(removed);
    }
}

/// Writes queued messages and pongs. Sends no pings: the endpoints must detect silence themselves.
async fn write(mut writer: SocketWriter, mut waiting: mpsc::Receiver<Bytes>) {
    loop {
        writer.defer_ping();
        tokio::select! {
            message = waiting.recv() => match message {
                Some(message) => writer.push(message),
                None => return,
            },
            alive = poll_fn(|cx| writer.poll_keepalive(cx)) => if alive.is_err() {
                return;
            },
            () = tokio::time::sleep(Duration::from_secs(20)) => continue,
        }
        while let Ok(message) = waiting.try_recv() {
            writer.push(message);
        }
        if writer.flush().await.is_err() {
            return;
        }
    }
}
