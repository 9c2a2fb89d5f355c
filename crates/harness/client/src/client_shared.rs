//! What handles tell the driver without a call: that somebody waits, caught up, or let go.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use exec_env::disconnect::Disconnect;
use exec_wire::{
    id::{HandleId, HttpRequestId, WatchId},
    initialize::InitializeResponse,
};
use tokio::sync::{Notify, watch};

use crate::{client::ConnectionState, driver::ConnectionNumber, events::ProcessEvents};

/// Bytes of writes that may wait for the driver to take them.
pub(crate) const QUEUED_BYTES: usize = 64 << 20;

/// Shared by the driver of one client and all handles that came from it.
#[derive(Debug)]
pub(crate) struct Hub {
    /// The session, and whether it is lost.
    current: watch::Sender<Current>,
    connection: watch::Sender<ConnectionState>,
    /// Wakes the driver: something here has changed.
    poke: Notify,
    /// Wakes the driver while it waits for its next attempt to reconnect.
    retry: Notify,
    /// After how long without a connection the session is given up, if that is earlier than the server
    /// does.
    reconnect_timeout: Mutex<Option<Duration>>,
    /// The driver does not read: followers lag behind.
    full: AtomicBool,
    /// How far the followers of all processes lag behind, in bytes.
    lag: AtomicU64,
    /// Whether the server is told what was taken of each process.
    acknowledged: AtomicBool,
    /// Processes of which enough was taken to tell so. Each is here once, and none when the driver is
    /// gone: they hold this, too, and would be kept by it.
    due: Mutex<Option<Vec<Arc<ProcessEvents>>>>,
    waiting: AtomicUsize,
    queued: AtomicUsize,
    /// Bounded by the handles there are: each is let go of once. As above when the driver is gone.
    released: Mutex<Option<Vec<Released>>>,
    /// Numbers the names of open files and watches.
    names: AtomicU64,
    /// The last number of a watch for missing paths.
    missing: Mutex<u64>,
}

/// What nobody holds any more, and the server is to be told of.
#[derive(Debug)]
pub(crate) enum Released {
    /// A process, which is to be ended.
    Process(Arc<ProcessEvents>),
    /// A process that belongs to the server, which runs on.
    Attached(Arc<ProcessEvents>),
    /// A file of this connection, which is to be closed.
    File(HandleId, ConnectionNumber),
    /// A watch, which is over.
    Watch(WatchId),
    /// A watch for missing paths, which is over.
    Missing(u64),
    /// A streamed body, of which nothing more is wanted.
    Body(HttpRequestId),
}

/// What is known of a client's session.
#[derive(Clone, Debug)]
pub(crate) struct Current {
    /// What the server answered to `initialize`.
    pub(crate) session: Arc<InitializeResponse>,
    /// Why it is lost, if it is.
    pub(crate) lost: Option<Disconnect>,
}

impl Hub {
    pub(crate) fn new(session: InitializeResponse) -> Self {
        let current = Current {
            session: Arc::new(session),
            lost: None,
        };
        Self {
            current: watch::Sender::new(current),
            connection: watch::Sender::new(ConnectionState::Connected),
            poke: Notify::new(),
            retry: Notify::new(),
            reconnect_timeout: Mutex::default(),
            full: AtomicBool::new(false),
            lag: AtomicU64::new(0),
            acknowledged: AtomicBool::new(false),
            due: Mutex::new(Some(Vec::new())),
            waiting: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            released: Mutex::new(Some(Vec::new())),
            names: AtomicU64::new(0),
            missing: Mutex::default(),
        }
    }

    /// Returns what is known of the session, and of those that follow it.
    pub(crate) fn current(&self) -> &watch::Sender<Current> {
        &self.current
    }

    /// Returns whether there is a connection.
    pub(crate) fn connection(&self) -> &watch::Sender<ConnectionState> {
        &self.connection
    }

    /// Says whether there is a connection, to those who have not heard it.
    pub(crate) fn set_connection(&self, state: ConnectionState) {
        self.connection
            .send_if_modified(|before| std::mem::replace(before, state) != state);
    }

    /// Wakes the driver.
    pub(crate) fn poke(&self) {
        self.poke.notify_one();
    }

    /// Has the next attempt to reconnect made at once, if there is no connection.
    pub(crate) fn request_retry(&self) {
        if *self.connection.borrow() == ConnectionState::Reconnecting {
            self.retry.notify_one();
        }
    }

    /// Resolves when the next attempt to reconnect is wanted at once.
    pub(crate) async fn retry_requested(&self) {
        self.retry.notified().await;
    }

    /// Sets after how long without a connection the session is given up.
    pub(crate) fn set_reconnect_timeout(&self, limit: Duration) {
        *lock(&self.reconnect_timeout) = Some(limit);
    }

    /// Returns after how long without a connection the session is given up, if that was set.
    pub(crate) fn reconnect_timeout(&self) -> Option<Duration> {
        *lock(&self.reconnect_timeout)
    }

    /// There is a connection.
    pub(crate) fn handle_session(&self, session: InitializeResponse, acknowledged: bool) {
        self.acknowledged.store(acknowledged, Ordering::Relaxed);
        self.current.send_replace(Current {
            session: Arc::new(session),
            lost: None,
        });
        self.set_connection(ConnectionState::Connected);
    }

    /// The session is lost.
    pub(crate) fn handle_lost(&self, gone: &Disconnect) {
        self.current
            .send_modify(|current| current.lost = Some(gone.clone()));
    }

    /// Says whether the driver reads.
    pub(crate) fn set_full(&self, full: bool) {
        // In one order with what is said of the lag: one of both sides sees the other.
        self.full.store(full, Ordering::SeqCst);
    }

    /// Returns how far the followers of all processes lag behind, in bytes.
    pub(crate) fn lag(&self) -> u64 {
        self.lag.load(Ordering::SeqCst)
    }

    /// Says that the followers of one process lag behind by so much, and not by so much as before.
    pub(crate) fn set_lag(&self, before: u64, lag: u64) {
        if lag > before {
            self.lag.fetch_add(lag - before, Ordering::SeqCst);
        } else if lag < before {
            self.lag.fetch_sub(before - lag, Ordering::SeqCst);
            self.poke_if_full();
        }
    }

    /// Wakes the driver if it does not read.
    fn poke_if_full(&self) {
        if self.full.load(Ordering::SeqCst) {
            self.poke();
        }
    }

    /// Tells whether the server is told what was taken of each process.
    pub(crate) fn acknowledges(&self) -> bool {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Has the server told what was taken of a process.
    pub(crate) fn say_due(&self, process: Arc<ProcessEvents>) {
        if let Some(due) = &mut *lock(&self.due) {
            due.push(process);
        }
        self.poke();
    }

    /// Takes the processes of which something is to be told.
    pub(crate) fn take_due(&self) -> Vec<Arc<ProcessEvents>> {
        lock(&self.due)
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Resolves when something here has changed.
    pub(crate) async fn poked(&self) {
        self.poke.notified().await;
    }

    /// Says that somebody waits for something to be read, until the guard is dropped.
    pub(crate) fn wait(self: &Arc<Self>) -> Waiting {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.poke_if_full();
        Waiting(Arc::clone(self))
    }

    /// Tells whether anybody waits for something to be read.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Takes room for a write until the guard is dropped, if there is any.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: usize) -> Option<Room> {
        let room = Room {
            hub: Arc::clone(self),
            bytes,
        };
        let before = self.queued.fetch_add(bytes, Ordering::Relaxed);
        // A single large write is taken when nothing is queued.
        (before == 0 || before + bytes <= QUEUED_BYTES).then_some(room)
    }

    /// Lets go of something.
    pub(crate) fn release(&self, released: Released) {
        if let Released::Process(process) | Released::Attached(process) = &released {
            process.release();
        }
        if let Some(waiting) = &mut *lock(&self.released) {
            waiting.push(released);
        }
        self.poke();
    }

    /// Takes what was let go of.
    pub(crate) fn take_released(&self) -> Vec<Released> {
        lock(&self.released)
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// The driver is gone: nobody hears any more what handles have to say.
    pub(crate) fn close(&self) {
        let (due, released) = (lock(&self.due).take(), lock(&self.released).take());
        // Behind the locks: what they held may have something to say when it is dropped.
        drop((due, released));
    }

    /// Returns a name that no connection has seen, of 32 hexadecimal digits.
    pub(crate) fn name(&self) -> String {
        format!("{:032x}", self.names.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns a name for an HTTP request that no connection has seen.
    pub(crate) fn http_request_id(&self) -> HttpRequestId {
        let number = self.names.fetch_add(1, Ordering::Relaxed) + 1;
        #[expect(clippy::expect_used, reason = "the text is short")]
        HttpRequestId::new(&format!("http-{number}")).expect("a short text is a request id")
    }

    /// Returns the last number of a watch for missing paths. Whoever takes the next one holds the
    /// lock until it is in line: the server wants them to grow.
    pub(crate) fn missing(&self) -> MutexGuard<'_, u64> {
        lock(&self.missing)
    }
}

/// Something on the server that is let go of when this is dropped.
#[derive(Debug)]
pub(crate) struct Kept {
    hub: Arc<Hub>,
    released: Option<Released>,
}

impl Kept {
    pub(crate) fn new(hub: &Arc<Hub>, released: Released) -> Self {
        Self {
            hub: Arc::clone(hub),
            released: Some(released),
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(released) = self.released.take() {
            self.hub.release(released);
        }
    }
}

/// Somebody waits.
#[derive(Debug)]
pub(crate) struct Waiting(Arc<Hub>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Room for a write that waits.
#[derive(Debug)]
pub(crate) struct Room {
    hub: Arc<Hub>,
    bytes: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.hub.queued.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Nothing panics while it holds a lock; if something did, what it guards is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
