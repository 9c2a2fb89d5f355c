//! State that the driver shares with all handles of a client: waiters, lag, pending acks and
//! releases.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use exec_env::environment::DisconnectReason;
use exec_wire::{
    id::{HandleId, HttpRequestId, TunnelId, WatchId},
    initialize::InitializeResponse,
};
use tokio::sync::{Notify, watch};

use crate::{
    client::ConnectionState, driver::ConnectionNumber, events::ProcessEvents,
    network::ClientTunnels,
};

/// Maximum size of writes that wait for the driver.
pub(crate) const MAX_QUEUED_WRITE_BYTES: usize = 64 << 20;

/// Shared by the driver of one client and all of its handles.
#[derive(Debug)]
pub(crate) struct ClientShared {
    /// The current session, and whether it is lost. Updated when a new one starts.
    pub(crate) session_state: watch::Sender<SessionState>,
    pub(crate) connection: watch::Sender<ConnectionState>,
    /// Wakes the driver after a change of this state.
    pub(crate) wakeup: Notify,
    /// Ends the driver's reconnect backoff.
    pub(crate) retry: Notify,
    /// Time without a connection after which the client abandons the session, if the server does
    /// not end it earlier.
    reconnect_timeout: Mutex<Option<Duration>>,
    /// The driver has paused reading, because followers lag.
    reading_paused: AtomicBool,
    /// Total lag of the followers of all processes, in bytes.
    lag: AtomicU64,
    /// The server expects acknowledgements of output.
    acks_enabled: AtomicBool,
    /// Processes with an ack to send, each at most once. `None` after the driver has ended:
    /// processes reference this state, and a cycle would leak them.
    pending_acks: Mutex<Option<Vec<Arc<ProcessEvents>>>>,
    waiters: AtomicUsize,
    queued_bytes: AtomicUsize,
    /// Bounded by the number of handles, because each is released once. `None` after the driver has
    /// ended.
    releases: Mutex<Option<Vec<DeferredRelease>>>,
    /// Counter for the ids of open files, watches and HTTP requests.
    id_counter: AtomicU64,
    /// The last id of a missing-path watch.
    last_missing_watch: Mutex<u64>,
    /// The tunnels of the session.
    pub(crate) tunnels: ClientTunnels,
    /// Distinguishes tunnel ids from those of another client that had the session.
    tunnel_prefix: u64,
}

/// A server resource without handles that the driver must release.
#[derive(Debug)]
pub(crate) enum DeferredRelease {
    /// A process to terminate.
    Process(Arc<ProcessEvents>),
    /// A server-owned process to detach from.
    Attached(Arc<ProcessEvents>),
    /// A file of this connection to close.
    File(HandleId, ConnectionNumber),
    /// A watch to end.
    Watch(WatchId),
    /// A missing-path watch to end.
    MissingWatch(u64),
    /// A streamed body to cancel.
    Body(HttpRequestId),
    /// A tunnel or listener to close.
    Tunnel(TunnelId),
}

/// State of a client's session.
#[derive(Clone, Debug)]
pub(crate) struct SessionState {
    /// The server's response to `initialize`.
    pub(crate) session: Arc<InitializeResponse>,
    /// Why the session is lost, if it is.
    pub(crate) lost: Option<DisconnectReason>,
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
            tunnels: ClientTunnels::default(),
            tunnel_prefix: RandomState::new().build_hasher().finish(),
        }
    }

    /// Sets the connection state and notifies watchers if it has changed.
    pub(crate) fn set_connection(&self, state: ConnectionState) {
        self.connection
            .send_if_modified(|before| std::mem::replace(before, state) != state);
    }

    /// Requests an immediate reconnect attempt while disconnected.
    pub(crate) fn request_retry(&self) {
        if *self.connection.borrow() == ConnectionState::Reconnecting {
            self.retry.notify_one();
        }
    }

    /// Sets the time without a connection after which the client abandons the session.
    pub(crate) fn set_reconnect_timeout(&self, limit: Duration) {
        *lock(&self.reconnect_timeout) = Some(limit);
    }

    /// Returns the time without a connection after which the client abandons the session, if set.
    pub(crate) fn reconnect_timeout(&self) -> Option<Duration> {
        *lock(&self.reconnect_timeout)
    }

    /// Records a new connection.
    pub(crate) fn handle_session(&self, session: InitializeResponse, acks_enabled: bool) {
        self.acks_enabled.store(acks_enabled, Ordering::Relaxed);
        self.session_state.send_replace(SessionState {
            session: Arc::new(session),
            lost: None,
        });
        self.set_connection(ConnectionState::Connected);
    }

    /// Records the loss of the session.
    pub(crate) fn handle_lost(&self, reason: &DisconnectReason) {
        self.session_state
            .send_modify(|session_state| session_state.lost = Some(reason.clone()));
        self.tunnels.fail_all(&reason.to_string());
    }

    /// Records whether the driver has paused reading.
    pub(crate) fn set_reading_paused(&self, paused: bool) {
        // Sequentially consistent with `lag`, so that one of the two sides sees the other's update.
        self.reading_paused.store(paused, Ordering::SeqCst);
    }

    /// Returns the total lag of all followers, in bytes.
    pub(crate) fn lag(&self) -> u64 {
        self.lag.load(Ordering::SeqCst)
    }

    /// Updates the lag of the followers of one process.
    pub(crate) fn set_lag(&self, before: u64, lag: u64) {
        if lag > before {
            self.lag.fetch_add(lag - before, Ordering::SeqCst);
        } else if lag < before {
            self.lag.fetch_sub(before - lag, Ordering::SeqCst);
            self.wake_if_paused();
        }
    }

    /// Wakes the driver if it has paused reading.
    fn wake_if_paused(&self) {
        if self.reading_paused.load(Ordering::SeqCst) {
            self.wakeup.notify_one();
        }
    }

    /// Returns whether the server expects acknowledgements of output.
    pub(crate) fn acks_enabled(&self) -> bool {
        self.acks_enabled.load(Ordering::Relaxed)
    }

    /// Schedules an ack for a process.
    pub(crate) fn schedule_ack(&self, process: Arc<ProcessEvents>) {
        if let Some(pending_acks) = &mut *lock(&self.pending_acks) {
            pending_acks.push(process);
        }
        self.wakeup.notify_one();
    }

    /// Takes the processes with a pending ack.
    pub(crate) fn take_pending_acks(&self) -> Vec<Arc<ProcessEvents>> {
        lock(&self.pending_acks)
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Registers a caller that waits for incoming messages, until the guard is dropped.
    pub(crate) fn register_waiter(self: &Arc<Self>) -> WaiterGuard {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        self.wake_if_paused();
        WaiterGuard(Arc::clone(self))
    }

    /// Returns whether a caller waits for incoming messages.
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::SeqCst) > 0
    }

    /// Reserves send-buffer space for a write until the permit is dropped. `None` if the buffer is
    /// full.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: usize) -> Option<SendPermit> {
        let permit = SendPermit {
            shared: Arc::clone(self),
            bytes,
        };
        let before = self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        // Accept a single large write when nothing is queued.
        (before == 0 || before + bytes <= MAX_QUEUED_WRITE_BYTES).then_some(permit)
    }

    /// Queues a release.
    pub(crate) fn release(&self, released: DeferredRelease) {
        if let DeferredRelease::Process(process) | DeferredRelease::Attached(process) = &released {
            process.release();
        }
        if let Some(releases) = &mut *lock(&self.releases) {
            releases.push(released);
        }
        self.wakeup.notify_one();
    }

    /// Takes the queued releases.
    pub(crate) fn take_releases(&self) -> Vec<DeferredRelease> {
        lock(&self.releases)
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Drops queued acks and releases after the driver has ended.
    pub(crate) fn close(&self) {
        let (pending_acks, released) =
            (lock(&self.pending_acks).take(), lock(&self.releases).take());
        // After the locks are released, because dropping a process may call back.
        drop((pending_acks, released));
    }

    /// Returns a new id of 32 hexadecimal digits, unique for this client.
    pub(crate) fn next_id(&self) -> String {
        format!("{:032x}", self.id_counter.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns a new id for a tunnel or a listener.
    pub(crate) fn next_tunnel_id(&self) -> TunnelId {
        let (prefix, number) = (self.tunnel_prefix, self.next_id());
        #[expect(clippy::expect_used, reason = "the text is short")]
        TunnelId::new(&format!("{prefix:x}-{number}")).expect("short id")
    }

    /// Returns a new HTTP request id, unique for this client.
    pub(crate) fn next_http_request_id(&self) -> HttpRequestId {
        let number = self.id_counter.fetch_add(1, Ordering::Relaxed) + 1;
        #[expect(clippy::expect_used, reason = "the text is short")]
        HttpRequestId::new(&format!("http-{number}")).expect("a short text is a valid request id")
    }

    /// Locks the last id of a missing-path watch. Callers hold the lock until their request is
    /// queued, because the server requires increasing ids.
    pub(crate) fn last_missing_watch(&self) -> MutexGuard<'_, u64> {
        lock(&self.last_missing_watch)
    }
}

/// Releases a server resource when dropped.
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

impl ReleaseGuard {
    /// Leaves the release to its owner.
    pub(crate) fn disarm(mut self) {
        self.release = None;
    }
}

impl Drop for ReleaseGuard {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            self.shared.release(release);
        }
    }
}

/// Registers a waiting caller until dropped.
#[derive(Debug)]
pub(crate) struct WaiterGuard(Arc<ClientShared>);

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Reserved send-buffer space for a queued write.
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

/// Ignores poisoning: no code panics under a lock, and the guarded state would still be consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
