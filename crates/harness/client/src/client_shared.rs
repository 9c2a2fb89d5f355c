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
pub(crate) const MAX_QUEUED_WRITE_BYTES: usize = 64 << 20;

/// Shared by the driver of one client and all handles that came from it.
#[derive(Debug)]
pub(crate) struct ClientShared {
    /// The session, and whether it is lost.
    session_state: watch::Sender<SessionState>,
    connection: watch::Sender<ConnectionState>,
    /// Wakes the driver: something here has changed.
    wakeup: Notify,
    /// Wakes the driver while it waits for its next attempt to reconnect.
    retry: Notify,
    /// After how long without a connection the session is given up, if that is earlier than the server
    /// does.
    reconnect_timeout: Mutex<Option<Duration>>,
    /// The driver does not read: followers lag behind.
    reading_paused: AtomicBool,
    /// How far the followers of all processes lag behind, in bytes.
    lag: AtomicU64,
    /// Whether the server is told what was taken of each process.
    acks_enabled: AtomicBool,
    /// Processes of which enough was taken to tell so. Each is here once, and none when the driver is
    /// gone: they hold this, too, and would be kept by it.
    pending_acks: Mutex<Option<Vec<Arc<ProcessEvents>>>>,
    waiters: AtomicUsize,
    queued_bytes: AtomicUsize,
    /// Bounded by the handles there are: each is let go of once. As above when the driver is gone.
    releases: Mutex<Option<Vec<DeferredRelease>>>,
    /// Numbers the names of open files and watches.
    id_counter: AtomicU64,
    /// The last number of a watch for missing paths.
    last_missing_watch: Mutex<u64>,
}

/// What nobody holds any more, and the server is to be told of.
#[derive(Debug)]
pub(crate) enum DeferredRelease {
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
pub(crate) struct SessionState {
    /// What the server answered to `initialize`.
    pub(crate) session: Arc<InitializeResponse>,
    /// Why it is lost, if it is.
    pub(crate) lost: Option<Disconnect>,
}

impl ClientShared {
    pub(crate) fn new(session: InitializeResponse) -> Self {
        let session_state = SessionState {
            session: Arc::new(session),
            lost: None,
        };
        Self {
            session_state: watch::Sender::new(session_state),
            connection: watch::Sender::new(ConnectionState::Connected),
            wakeup: Notify::new(),
            retry: Notify::new(),
            reconnect_timeout: Mutex::default(),
            reading_paused: AtomicBool::new(false),
            lag: AtomicU64::new(0),
            acks_enabled: AtomicBool::new(false),
            pending_acks: Mutex::new(Some(Vec::new())),
            waiters: AtomicUsize::new(0),
            queued_bytes: AtomicUsize::new(0),
            releases: Mutex::new(Some(Vec::new())),
            id_counter: AtomicU64::new(0),
            last_missing_watch: Mutex::default(),
        }
    }

    /// Returns what is known of the session, and of those that follow it.
    pub(crate) fn session_state(&self) -> &watch::Sender<SessionState> {
        &self.session_state
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
    pub(crate) fn wake_driver(&self) {
        self.wakeup.notify_one();
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
    pub(crate) fn handle_session(&self, session: InitializeResponse, acks_enabled: bool) {
        self.acks_enabled.store(acks_enabled, Ordering::Relaxed);
        self.session_state.send_replace(SessionState {
            session: Arc::new(session),
            lost: None,
        });
        self.set_connection(ConnectionState::Connected);
    }

    /// The session is lost.
    pub(crate) fn handle_lost(&self, gone: &Disconnect) {
        self.session_state
            .send_modify(|session_state| session_state.lost = Some(gone.clone()));
    }

    /// Says whether the driver reads.
    pub(crate) fn set_reading_paused(&self, paused: bool) {
        // In one order with what is said of the lag: one of both sides sees the other.
        self.reading_paused.store(paused, Ordering::SeqCst);
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
            self.wake_if_paused();
        }
    }

    /// Wakes the driver if it does not read.
    fn wake_if_paused(&self) {
        if self.reading_paused.load(Ordering::SeqCst) {
            self.wake_driver();
        }
    }

    /// Returns whether the server is told what was taken of each process.
    pub(crate) fn acks_enabled(&self) -> bool {
        self.acks_enabled.load(Ordering::Relaxed)
    }

    /// Has the server told what was taken of a process.
    pub(crate) fn schedule_ack(&self, process: Arc<ProcessEvents>) {
        if let Some(pending_acks) = &mut *lock(&self.pending_acks) {
            pending_acks.push(process);
        }
        self.wake_driver();
    }

    /// Takes the processes of which something is to be told.
    pub(crate) fn take_pending_acks(&self) -> Vec<Arc<ProcessEvents>> {
        lock(&self.pending_acks)
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Resolves when something here has changed.
    pub(crate) async fn wait_for_wakeup(&self) {
        self.wakeup.notified().await;
    }

    /// Says that somebody waits for something to be read, until the guard is dropped.
    pub(crate) fn register_waiter(self: &Arc<Self>) -> WaiterGuard {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        self.wake_if_paused();
        WaiterGuard(Arc::clone(self))
    }

    /// Returns whether anybody waits for something to be read.
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::SeqCst) > 0
    }

    /// Takes room for a write until the guard is dropped, if there is any.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: usize) -> Option<SendPermit> {
        let permit = SendPermit {
            shared: Arc::clone(self),
            bytes,
        };
        let before = self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        // A single large write is taken when nothing is queued.
        (before == 0 || before + bytes <= MAX_QUEUED_WRITE_BYTES).then_some(permit)
    }

    /// Lets go of something.
    pub(crate) fn release(&self, released: DeferredRelease) {
        if let DeferredRelease::Process(process) | DeferredRelease::Attached(process) = &released {
            process.release();
        }
        if let Some(releases) = &mut *lock(&self.releases) {
            releases.push(released);
        }
        self.wake_driver();
    }

    /// Takes what was let go of.
    pub(crate) fn take_releases(&self) -> Vec<DeferredRelease> {
        lock(&self.releases)
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// The driver is gone: nobody hears any more what handles have to say.
    pub(crate) fn close(&self) {
        let (pending_acks, released) =
            (lock(&self.pending_acks).take(), lock(&self.releases).take());
        // Behind the locks: what they held may have something to say when it is dropped.
        drop((pending_acks, released));
    }

    /// Returns a name that no connection has seen, of 32 hexadecimal digits.
    pub(crate) fn next_id(&self) -> String {
        format!("{:032x}", self.id_counter.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns a name for an HTTP request that no connection has seen.
    pub(crate) fn next_http_request_id(&self) -> HttpRequestId {
        let number = self.id_counter.fetch_add(1, Ordering::Relaxed) + 1;
        #[expect(clippy::expect_used, reason = "the text is short")]
        HttpRequestId::new(&format!("http-{number}")).expect("a short text is a request id")
    }

    /// Returns the last number of a watch for missing paths. Whoever takes the next one holds the
    /// lock until it is in line: the server wants them to grow.
    pub(crate) fn last_missing_watch(&self) -> MutexGuard<'_, u64> {
        lock(&self.last_missing_watch)
    }
}

/// Something on the server that is let go of when this is dropped.
#[derive(Debug)]
pub(crate) struct ReleaseGuard {
    shared: Arc<ClientShared>,
    release: Option<DeferredRelease>,
}

impl ReleaseGuard {
    pub(crate) fn new(shared: &Arc<ClientShared>, release: DeferredRelease) -> Self {
        Self {
            shared: Arc::clone(shared),
            release: Some(release),
        }
    }
}

impl Drop for ReleaseGuard {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            self.shared.release(release);
        }
    }
}

/// Somebody waits.
#[derive(Debug)]
pub(crate) struct WaiterGuard(Arc<ClientShared>);

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Room for a write that waits.
#[derive(Debug)]
pub(crate) struct SendPermit {
    shared: Arc<ClientShared>,
    bytes: usize,
}

impl Drop for SendPermit {
    fn drop(&mut self) {
        self.shared
            .queued_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Nothing panics while it holds a lock; if something did, what it guards is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
