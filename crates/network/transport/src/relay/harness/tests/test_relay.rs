//! A relay that routes by stream id, and can be told to misbehave.

use std::{
    collections::HashMap,
    future::poll_fn,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use exec_relay::{
    frame::{Body, Frame, StreamId},
    route::{Kind, Route},
};
use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::{
    sync::{mpsc, watch},
    task::{AbortHandle, JoinHandle},
};

use crate::{
    http::site::{Answer, Peer, Site, SiteOptions},
    listener::Listener,
    websocket::socket::{Raw, Socket, SocketReader, SocketWriter},
};

/// A relay on loopback. Dropping it ends everything.
pub(super) struct Relay {
    address: String,
    routes: Arc<Routes>,
    serving: JoinHandle<()>,
}

/// Who is connected.
struct Routes {
    state: Mutex<State>,
    executor_is_there: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    executor: Option<Connected>,
    harnesses: HashMap<u64, Connected>,
    streams: HashMap<String, u64>,
    next: u64,
    /// Harnesses up to this number are cut off, and do not know it.
    held: u64,
    /// The executor that is there is cut off, and does not know it.
    executor_is_held: bool,
    is_closed_to_executors: bool,
    /// Statuses that the next harnesses are refused with.
    refusals: Vec<u16>,
    /// What harnesses have sent.
    said: Vec<Kind>,
    /// What the last harness said that it belongs to.
    traceparent: Option<HeaderValue>,
}

struct Connected {
    out: mpsc::Sender<Bytes>,
    tasks: [AbortHandle; 2],
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Relay {
    pub(super) async fn start() -> Self {
        let bind = Listener::bind_tcp("127.0.0.1:0".parse().unwrap(), false);
        let listener = bind.await.unwrap();
        let address = listener.address().to_string();
        let routes = Arc::new(Routes {
            state: Mutex::default(),
            executor_is_there: watch::Sender::new(false),
        });
        let door = Arc::new(Door(Arc::clone(&routes)));
        let upgraded = Arc::clone(&routes);
        let site = listener.serve_site(door, None, SiteOptions::default(), move |role, socket| {
            upgraded.connect(role, socket);
        });
        Self {
            address,
            routes,
            serving: tokio::spawn(site),
        }
    }

    pub(super) fn url(&self, role: &str) -> String {
        format!("{}/{role}?sig=secret", self.address)
    }

    pub(super) async fn executor_is_there(&self) {
        let mut there = self.routes.executor_is_there.subscribe();
        there.wait_for(|there| *there).await.unwrap();
    }

    /// Cuts every harness off; the executor is told.
    pub(super) fn cut_harnesses(&self) {
        let gone: Vec<u64> = self.state(|state| state.harnesses.keys().copied().collect());
        gone.into_iter()
            .for_each(|one| self.routes.lose_harness(one));
    }

    /// Cuts the executor off, and with it every harness.
    pub(super) fn cut_executor(&self) {
        self.routes.lose_executor();
    }

    /// Loses all that the harnesses that are there say, and all that they are told.
    pub(super) fn hold_harnesses(&self) {
        self.state(|state| state.held = state.next);
    }

    /// Loses all that the executor says, pings among it, and all that it is told, until it comes anew.
    pub(super) fn hold_executor(&self) {
        self.state(|state| {
            state.executor_is_held = true;
            // Who reads nothing answers nothing; the socket stays open.
            let [reading, _] = &state.executor.as_ref().unwrap().tasks;
            reading.abort();
        });
    }

    /// The same for all harnesses that are to come.
    pub(super) fn hold_everybody(&self) {
        self.state(|state| state.held = u64::MAX);
    }

    /// Cuts the executor off, and lets it not come back: harnesses are let in, and closed.
    pub(super) fn lose_executor_for_good(&self) {
        self.state(|state| state.is_closed_to_executors = true);
        self.routes.lose_executor();
    }

    pub(super) fn refuse(&self, statuses: &[u16]) {
        self.state(|state| state.refusals = statuses.iter().rev().copied().collect());
    }

    /// What harnesses have sent so far.
    pub(super) fn said(&self) -> Vec<Kind> {
        self.state(|state| state.said.clone())
    }

    /// What the last harness said that it belongs to.
    pub(super) fn traceparent(&self) -> Option<HeaderValue> {
        self.state(|state| state.traceparent.clone())
    }

    /// Sends a message to every harness.
    pub(super) async fn tell_harnesses(&self, message: Bytes) {
        let outs: Vec<_> = self.state(|state| {
            state
                .harnesses
                .values()
                .map(|one| one.out.clone())
                .collect()
        });
        for out in outs {
            out.send(message.clone()).await.unwrap();
        }
    }

    /// The streams that harnesses have named.
    pub(super) fn streams(&self) -> Vec<String> {
        self.state(|state| state.streams.keys().cloned().collect())
    }

    fn state<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.routes.state.lock().unwrap())
    }
}

impl Drop for Relay {
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

struct Door(Arc<Routes>);

impl Site for Door {
    type Upgrade = Role;

    fn answer(&self, request: Request<Incoming>, _: Peer) -> BoxFuture<'_, Answer<Role>> {
        let mut state = self.0.state.lock().unwrap();
        let answer = match request.uri().path() {
            "/executor" if state.is_closed_to_executors => refusal(503),
            "/executor" => Answer::Upgrade(Role::Executor),
            _ => {
                state.traceparent = request.headers().get("traceparent").cloned();
                match state.refusals.pop() {
                    None => Answer::Upgrade(Role::Harness),
                    Some(status) => refusal(status),
                }
            }
        };
        Box::pin(async { answer })
    }
}

fn refusal(status: u16) -> Answer<Role> {
    let mut refusal = Response::new(Full::default());
    *refusal.status_mut() = StatusCode::from_u16(status).unwrap();
    Answer::Reply(refusal)
}

impl Routes {
    fn connect(self: &Arc<Self>, role: Role, socket: Socket) {
        let mut state = self.state.lock().unwrap();
        state.next += 1;
        let number = state.next;
        let (out, waiting) = mpsc::channel(64);
        let Socket { reader, writer } = socket;
        let reading = Arc::clone(self).read(role, number, reader);
        let tasks = [tokio::spawn(reading), tokio::spawn(write(writer, waiting))];
        let connected = Connected {
            out,
            tasks: tasks.map(|task| task.abort_handle()),
        };
        match role {
            Role::Executor => {
                if state.executor.replace(connected).is_some() {
                    // It knows of no loss, so the harnesses have to find one.
                    state.harnesses.clear();
                }
                state.executor_is_held = false;
                self.executor_is_there.send_replace(true);
            }
            Role::Harness => {
                state.harnesses.insert(number, connected);
            }
        }
    }

    async fn read(self: Arc<Self>, role: Role, number: u64, mut reader: SocketReader) {
        while let Ok(Some(Raw::Binary(message))) = reader.next().await {
            let Ok(Route { stream_id, kind }) = Route::peek(&message) else {
                continue;
            };
            let to = {
                let mut state = self.state.lock().unwrap();
                match role {
                    Role::Executor => {
                        let owner = state.streams.get(stream_id);
                        if owner.is_some_and(|owner| *owner <= state.held) {
                            continue;
                        }
                        let harness = owner.and_then(|owner| state.harnesses.get(owner));
                        harness.map(|one| one.out.clone())
                    }
                    Role::Harness if number <= state.held => continue,
                    Role::Harness => {
                        state.said.push(kind);
                        state.streams.insert(stream_id.to_owned(), number);
                        if state.executor_is_held {
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
            Role::Executor => self.lose_executor(),
            Role::Harness => self.lose_harness(number),
        }
    }

    fn lose_harness(&self, number: u64) {
        let mut state = self.state.lock().unwrap();
        let gone = state.harnesses.remove(&number);
        let streams = state.streams.iter().filter(|(_, owner)| **owner == number);
        for (stream, _) in streams {
            let reason = "harness_disconnected".to_owned();
            let id = StreamId::new(stream).unwrap();
            let reset = Frame::new(id, Body::Reset { reason }).encode();
            if let Some(executor) = &state.executor
                && !state.executor_is_held
            {
                executor.out.try_send(reset).unwrap();
            }
        }
        drop(state);
        drop(gone);
    }

    fn lose_executor(&self) {
        let mut state = self.state.lock().unwrap();
        self.executor_is_there.send_replace(false);
        let gone = (state.executor.take(), std::mem::take(&mut state.harnesses));
        drop(state);
        drop(gone);
    }
}

/// Writes what waits, and answers to pings. It sends none: who falls silent is for the ends to find out.
async fn write(mut writer: SocketWriter, mut waiting: mpsc::Receiver<Bytes>) {
    loop {
        writer.put_off_ping();
        tokio::select! {
            message = waiting.recv() => match message {
                Some(message) => writer.push(message),
                None => return,
            },
            alive = poll_fn(|cx| writer.poll_upkeep(cx)) => if alive.is_err() {
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
