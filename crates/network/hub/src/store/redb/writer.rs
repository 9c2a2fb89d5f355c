//! The writer thread. It applies queued jobs in order within one transaction, and replies when that
//! is on disk.

use std::{
    sync::{Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::Duration,
};

use redb::{ReadableTable as _, Table, TableDefinition};
use tokio::sync::{mpsc, oneshot};

use super::{
    LiveState, StoreShared,
    database::{self, ENVIRONMENTS, EnvironmentTable},
};
use crate::{
    limits,
    principal::PrincipalName,
    store::{
        AttachError, ClaimError, EnvironmentId, EnvironmentRecord, InviteClaim, NewRegistration,
        Presence, RegisterError, Registration, StoreError, Timestamp,
    },
};

/// Maximum number of jobs per commit.
const BATCH: usize = 256;
/// Maximum number of environments: a few hundred megabytes of file at most.
const MAX_ENVIRONMENTS: u64 = 65_536;

/// A job that is ordered with all other writes.
pub(super) type WriteJob = Box<dyn FnOnce(&mut WriteTables<'_>) -> Answer + Send>;

/// Sends the reply once the outcome of the transaction is known.
type Answer = Box<dyn FnOnce(Result<(), StoreError>)>;

/// Creates a job that replies with the result of `work`. It does nothing if the caller has given up
/// by then.
pub(super) fn job<T, E>(
    work: impl FnOnce(&mut WriteTables<'_>) -> Result<T, E> + Send + 'static,
    reply: oneshot::Sender<Result<T, E>>,
) -> WriteJob
where
    T: Send + 'static,
    E: From<StoreError> + Send + 'static,
{
    Box::new(move |tables| {
        if reply.is_closed() {
            return Box::new(|_| {});
        }
        let result = work(tables);
        Box::new(move |committed| {
            // The caller may have gone away.
            drop(reply.send(committed.map_err(E::from).and(result)));
        })
    })
}

/// Runs until the last sender is gone.
pub(super) fn run(shared: &StoreShared, mut jobs: mpsc::Receiver<WriteJob>) {
    let mut batch = Vec::new();
    while jobs.blocking_recv_many(&mut batch, BATCH) > 0 {
        let mut answers = Vec::with_capacity(batch.len());
        let committed = write(shared, &mut batch, &mut answers);
        shared
            .last_commit_ok
            .store(committed.is_ok(), Ordering::Relaxed);
        if let Err(error) = &committed {
            tracing::error!(%error, "failed to write the hub's store");
        }
        // Jobs that were not reached fail when their sender is dropped.
        batch.clear();
        for answer in answers {
            answer(committed.clone());
        }
    }
}

/// Applies the jobs in one transaction.
fn write(
    shared: &StoreShared,
    batch: &mut Vec<WriteJob>,
    answers: &mut Vec<Answer>,
) -> Result<(), StoreError> {
    let writing = shared.database.begin_write();
    let writing = writing.map_err(StoreError::unavailable)?;
    {
        let environments = writing.open_table(ENVIRONMENTS);
        let owned = writing.open_table(OWNED);
        let invites = writing.open_table(INVITES);
        let mut tables = WriteTables {
            environments: environments.map_err(StoreError::unavailable)?,
            owned: owned.map_err(StoreError::unavailable)?,
            invites: invites.map_err(StoreError::unavailable)?,
            live: &shared.live,
        };
        answers.extend(batch.drain(..).map(|job| job(&mut tables)));
    }
    writing.commit().map_err(StoreError::unavailable)
}

/// Tables of a write transaction, and the state that is only in memory.
pub(super) struct WriteTables<'txn> {
    environments: EnvironmentTable<'txn>,
    /// Number of environments per principal, without zeros.
    owned: Table<'txn, &'static str, u64>,
    invites: Table<'txn, &'static [u8; 32], ([u8; 32], u64)>,
    live: &'txn Mutex<LiveState>,
}

impl WriteTables<'_> {
    pub(super) fn claim(
        &mut self,
        environment: &EnvironmentId,
        principal: &PrincipalName,
    ) -> Result<(), ClaimError> {
        let previous = database::get(&self.environments, environment)?;
        let Some(record) = EnvironmentRecord::claim(previous.as_ref(), principal)? else {
            return Ok(());
        };
        self.reserve_quota(principal)?;
        Ok(database::put(&mut self.environments, environment, &record)?)
    }

    /// Counts one more environment of a principal, within its quota.
    fn reserve_quota(&mut self, principal: &PrincipalName) -> Result<(), ClaimError> {
        let owned = self.owned_by(principal)?;
        if owned >= limits::ENVIRONMENTS_PER_PRINCIPAL as u64 {
            return Err(ClaimError::Limit);
        }
        if database::count(&self.environments)? >= MAX_ENVIRONMENTS {
            return Err(ClaimError::Full);
        }
        Ok(self.set_owned(principal, owned + 1)?)
    }

    pub(super) fn register(&mut self, new: NewRegistration) -> Result<Registration, RegisterError> {
        let environment = new.environment.clone();
        let previous = database::get(&self.environments, &environment)?;
        let presence = lock(self.live).presence_record(&environment);
        let (record, registration) =
            EnvironmentRecord::register(previous.as_ref(), &presence, new)?;
        if previous.is_none() {
            self.reserve_quota(&record.owner)?;
        }
        database::put(&mut self.environments, &environment, &record)?;
        Ok(registration)
    }

    pub(super) fn remove(&mut self, environment: &EnvironmentId) -> Result<bool, StoreError> {
        lock(self.live).forget(environment);
        let Some(record) = database::get(&self.environments, environment)? else {
            return Ok(false);
        };
        let removed = self.environments.remove(environment.as_str());
        removed.map(drop).map_err(StoreError::unavailable)?;
        let owned = self.owned_by(&record.owner)?;
        self.set_owned(&record.owner, owned.saturating_sub(1))?;
        Ok(true)
    }

    /// Writes nothing, but must not overtake a registration that supersedes it.
    pub(super) fn attach(&mut self, presence: Presence) -> Result<(), AttachError> {
        let record = database::get(&self.environments, &presence.environment)?;
        let current = record.and_then(|record| record.current);
        if current.is_none_or(|current| current.id != presence.registration) {
            return Err(AttachError::Superseded);
        }
        lock(self.live).attach(presence);
        Ok(())
    }

    /// Marks an invite as redeemed, unless another claimant did. Removes marks of expired invites.
    pub(super) fn redeem_invite(&mut self, claim: &InviteClaim) -> Result<bool, StoreError> {
        let found = self.invites.get(&claim.invite);
        if let Some(mark) = found.map_err(StoreError::unavailable)? {
            return Ok(mark.value().0 == claim.claimant);
        }
        let is_kept = |_: &[u8; 32], (_, millis): ([u8; 32], u64)| {
            Timestamp::from_millis(millis).plus(MARK_MARGIN) > claim.at
        };
        let kept = self.invites.retain(is_kept);
        kept.map_err(StoreError::unavailable)?;
        let mark = (claim.claimant, claim.expires_at.millis());
        let marked = self.invites.insert(&claim.invite, mark);
        marked.map(drop).map_err(StoreError::unavailable)?;
        Ok(true)
    }

    fn owned_by(&self, principal: &PrincipalName) -> Result<u64, StoreError> {
        let found = self.owned.get(principal.as_str());
        let found = found.map_err(StoreError::unavailable)?;
        Ok(found.map_or(0, |count| count.value()))
    }

    fn set_owned(&mut self, principal: &PrincipalName, count: u64) -> Result<(), StoreError> {
        let previous = match count {
            0 => self.owned.remove(principal.as_str()),
            count => self.owned.insert(principal.as_str(), count),
        };
        previous.map(drop).map_err(StoreError::unavailable)
    }
}

/// How long the mark of an invite outlives it: the clock may be set back.
const MARK_MARGIN: Duration = Duration::from_secs(24 * 60 * 60);

/// Maps hashes of redeemed invites to the hash of the claimant and to the expiry in milliseconds.
const INVITES: TableDefinition<'_, &[u8; 32], ([u8; 32], u64)> = TableDefinition::new("invites");

/// Maps principals to the number of their environments.
pub(super) const OWNED: TableDefinition<'_, &str, u64> = TableDefinition::new("owned");

/// The data is consistent between any two statements, so poisoning can be ignored.
pub(super) fn lock(live: &Mutex<LiveState>) -> MutexGuard<'_, LiveState> {
    live.lock().unwrap_or_else(PoisonError::into_inner)
}
