//! The embedded store: one process, one file.
//! Owners, registrations and the signing key are durable. Presence and authorizations are in
//! memory, because they are meaningless without the process that has the websockets.
//! Invariant: a single thread writes. Concurrent writes share a commit, so that a thousand
//! simultaneous registrations do not cost a thousand disk flushes.

mod database;
#[cfg(test)]
pub(crate) mod tests;
mod writer;

pub use self::database::StoreOpenError;

#[cfg(test)]
pub(crate) use self::tests::{lose_writer, on_disk};

use std::{
    collections::{BTreeMap, HashMap},
    fmt, io,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use futures_util::future::{BoxFuture, FutureExt as _, ready};
use redb::Database;
use tokio::sync::{mpsc, oneshot};

use self::writer::{WriteJob, WriteTables};
use super::{
    AttachError, Authorization, AuthorizeError, ClaimError, EnvironmentId, InviteClaim,
    NewRegistration, OwnedEnvironment, PendingAuthorizations, Presence, PresenceRecord,
    RegisterError, Registration, SigningKey, Store, StoreError, Timestamp, TokenHash,
};
use crate::principal::PrincipalName;

/// Capacity of the write queue. Further callers wait.
const QUEUE: usize = 1024;

/// A store in one file. Dropping it waits for the current write and releases the file.
pub struct RedbStore {
    shared: Arc<StoreShared>,
    key: SigningKey,
    jobs: Option<mpsc::Sender<WriteJob>>,
    writer: Option<JoinHandle<()>>,
}

/// What the writer thread shares with the callers.
struct StoreShared {
    database: Database,
    live: Mutex<LiveState>,
    /// Whether the last commit succeeded.
    last_commit_ok: AtomicBool,
}

impl RedbStore {
    /// Opens the store in `directory`, creating both if missing. Blocks.
    ///
    /// # Errors
    /// Returns an error if the file is in use, is not a hub store, or cannot be accessed.
    pub fn open(directory: &Path, now: Timestamp) -> Result<Self, StoreOpenError> {
        let (database, key) = database::open(directory)?;
        Self::start(database, key, now).map_err(|source| StoreOpenError::Io {
            path: directory.to_owned(),
            source,
        })
    }

    fn start(database: Database, key: SigningKey, now: Timestamp) -> io::Result<Self> {
        let shared = Arc::new(StoreShared {
            database,
            live: Mutex::new(LiveState::new(now)),
            last_commit_ok: AtomicBool::new(true),
        });
        let (jobs, receiver) = mpsc::channel(QUEUE);
        let of_writer = Arc::clone(&shared);
        let writer = thread::Builder::new()
            .name("hub-store".to_owned())
            .spawn(move || writer::run(&of_writer, receiver))?;
        Ok(Self {
            shared,
            key,
            jobs: Some(jobs),
            writer: Some(writer),
        })
    }

    /// Has the writer thread run a job, and waits for its result.
    async fn write<T, E>(
        &self,
        work: impl FnOnce(&mut WriteTables<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let jobs = self.jobs.as_ref().ok_or(StoreError::Closed)?;
        let sent = jobs.send(writer::job(work, reply)).await;
        sent.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    fn live(&self) -> MutexGuard<'_, LiveState> {
        writer::lock(&self.shared.live)
    }
}

impl Store for RedbStore {
    fn check(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        let writes = self.jobs.as_ref().is_some_and(|jobs| !jobs.is_closed());
        if writes && self.shared.last_commit_ok.load(Ordering::Relaxed) {
            return ready(Ok(())).boxed();
        }
        // Changes nothing, but shows whether commits succeed.
        self.write(|_| Ok(())).boxed()
    }

    fn signing_key(&self) -> BoxFuture<'_, Result<SigningKey, StoreError>> {
        ready(Ok(self.key.clone())).boxed()
    }

    fn claim<'a>(
        &'a self,
        environment: &'a EnvironmentId,
        principal: &'a PrincipalName,
    ) -> BoxFuture<'a, Result<(), ClaimError>> {
        let (environment, principal) = (environment.clone(), principal.clone());
        self.write(move |tables| tables.claim(&environment, &principal))
            .boxed()
    }

    fn owner<'a>(
        &'a self,
        environment: &'a EnvironmentId,
    ) -> BoxFuture<'a, Result<Option<PrincipalName>, StoreError>> {
        let read = database::read(&self.shared.database, environment);
        ready(read.map(|found| found.map(|record| record.owner))).boxed()
    }

    fn register(&self, new: NewRegistration) -> BoxFuture<'_, Result<Registration, RegisterError>> {
        self.write(|tables| tables.register(new)).boxed()
    }

    fn registration<'a>(
        &'a self,
        environment: &'a EnvironmentId,
    ) -> BoxFuture<'a, Result<Option<Registration>, StoreError>> {
        // Reads never wait for the writer, and the pages are cached: not worth a blocking task.
        let read = database::read(&self.shared.database, environment);
        ready(read.map(|found| found.and_then(|record| record.current))).boxed()
    }

    fn environments<'a>(
        &'a self,
        after: Option<&'a EnvironmentId>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<OwnedEnvironment>, StoreError>> {
        let (shared, after) = (Arc::clone(&self.shared), after.cloned());
        async move {
            let page = move || database::page(&shared.database, after.as_ref(), limit);
            let read = tokio::task::spawn_blocking(page).await;
            read.map_err(StoreError::unavailable)?
        }
        .boxed()
    }

    fn remove<'a>(
        &'a self,
        environment: &'a EnvironmentId,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        let environment = environment.clone();
        self.write(move |tables| tables.remove(&environment))
            .boxed()
    }

    fn attach(&self, presence: Presence) -> BoxFuture<'_, Result<(), AttachError>> {
        self.write(|tables| tables.attach(presence)).boxed()
    }

    fn detach<'a>(
        &'a self,
        presence: &'a Presence,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.live().detach(presence, now);
        ready(Ok(())).boxed()
    }

    fn presence<'a>(
        &'a self,
        environment: &'a EnvironmentId,
    ) -> BoxFuture<'a, Result<Option<Presence>, StoreError>> {
        let presence = self.live().presence(environment).cloned();
        ready(Ok(presence)).boxed()
    }

    fn authorize(
        &self,
        token: TokenHash,
        authorization: Authorization,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<(), AuthorizeError>> {
        ready(self.live().authorize(token, authorization, now)).boxed()
    }

    fn redeem(
        &self,
        token: TokenHash,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<Authorization>, StoreError>> {
        ready(Ok(self.live().redeem(token, now))).boxed()
    }

    fn redeem_invite(&self, claim: InviteClaim) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.write(move |tables| tables.redeem_invite(&claim))
            .boxed()
    }
}

impl fmt::Debug for RedbStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedbStore").finish_non_exhaustive()
    }
}

impl Drop for RedbStore {
    fn drop(&mut self) {
        // The thread ends when all senders are gone.
        self.jobs = None;
        if let Some(writer) = self.writer.take() {
            // A panic of the thread was already reported.
            drop(writer.join());
        }
    }
}

/// Pending authorizations at a time. Each lives for a minute and contains a public key.
const MAX_AUTHORIZATIONS: usize = 16_384;

/// Presence and authorizations. Bounded: the former by the number of environments, the latter by
/// [`PendingAuthorizations`].
#[derive(Debug)]
struct LiveState {
    /// Start of the process, before which nothing is known.
    started: Timestamp,
    presences: BTreeMap<EnvironmentId, Presence>,
    /// When executors disconnected.
    disconnected_at: BTreeMap<EnvironmentId, Timestamp>,
    authorizations: HashMap<TokenHash, Authorization>,
    /// Counts the same authorizations.
    pending: PendingAuthorizations,
}

impl LiveState {
    fn new(started: Timestamp) -> Self {
        Self {
            started,
            presences: BTreeMap::new(),
            disconnected_at: BTreeMap::new(),
            authorizations: HashMap::new(),
            pending: PendingAuthorizations::new(MAX_AUTHORIZATIONS),
        }
    }

    fn attach(&mut self, presence: Presence) {
        self.presences
            .insert(presence.environment.clone(), presence);
    }

    fn detach(&mut self, presence: &Presence, now: Timestamp) {
        if self.presences.get(&presence.environment) == Some(presence) {
            self.presences.remove(&presence.environment);
            self.disconnected_at
                .insert(presence.environment.clone(), now);
        }
    }

    fn forget(&mut self, environment: &EnvironmentId) {
        self.presences.remove(environment);
        self.disconnected_at.remove(environment);
    }

    fn presence(&self, environment: &EnvironmentId) -> Option<&Presence> {
        self.presences.get(environment)
    }

    fn presence_record(&self, environment: &EnvironmentId) -> PresenceRecord {
        PresenceRecord {
            connected: self.presence(environment).cloned(),
            left_at: self
                .disconnected_at
                .get(environment)
                .copied()
                .unwrap_or(self.started),
        }
    }

    /// Stores an authorization. Removes those that have expired at `now`.
    fn authorize(
        &mut self,
        token: TokenHash,
        authorization: Authorization,
        now: Timestamp,
    ) -> Result<(), AuthorizeError> {
        while let Some(expired) = self.pending.expired(now) {
            self.authorizations.remove(&expired);
        }
        let (principal, expires_at) = (&authorization.principal, authorization.expires_at);
        self.pending.add(token, principal, expires_at)?;
        self.authorizations.insert(token, authorization);
        Ok(())
    }

    fn redeem(&mut self, token: TokenHash, now: Timestamp) -> Option<Authorization> {
        let authorization = self.authorizations.remove(&token)?;
        self.pending.remove(token);
        (now < authorization.expires_at).then_some(authorization)
    }
}
