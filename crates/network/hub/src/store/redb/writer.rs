//! The writer thread. It applies queued jobs in order within one transaction, and replies when that
//! is on disk.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redb::{Database, ReadableTable as _, Table, TableDefinition};
use tokio::sync::{mpsc, oneshot};

use super::{
    LiveState,
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
#[derive(Debug)]
pub(super) enum WriteJob {
    Claim(EnvironmentId, PrincipalName, Reply<(), ClaimError>),
    Register(NewRegistration, Reply<Registration, RegisterError>),
    Remove(EnvironmentId, Reply<bool, StoreError>),
    /// Writes nothing, but must not overtake a registration that supersedes it.
    Attach(Presence, Reply<(), AttachError>),
    RedeemInvite(InviteClaim, Reply<bool, StoreError>),
    /// Changes nothing, but shows whether commits succeed.
    Check(Reply<(), StoreError>),
}

pub(super) type Reply<T, E> = oneshot::Sender<Result<T, E>>;

/// Runs until the last sender is gone.
pub(super) fn run(
    database: &Database,
    live: &Mutex<LiveState>,
    last_commit_ok: &AtomicBool,
    mut jobs: mpsc::Receiver<WriteJob>,
) {
    let mut batch = Vec::new();
    while let Some(job) = jobs.blocking_recv() {
        batch.push(job);
        while batch.len() < BATCH
            && let Ok(job) = jobs.try_recv()
        {
            batch.push(job);
        }
        write(database, live, last_commit_ok, &mut batch);
    }
}

fn write(
    database: &Database,
    live: &Mutex<LiveState>,
    last_commit_ok: &AtomicBool,
    batch: &mut Vec<WriteJob>,
) {
    let mut answers = Vec::with_capacity(batch.len());
    let committed = (|| {
        let writing = database.begin_write().map_err(StoreError::unavailable)?;
        {
            let environments = writing.open_table(ENVIRONMENTS);
            let owned = writing.open_table(OWNED);
            let invites = writing.open_table(INVITES);
            let mut tables = WriteTables {
                environments: environments.map_err(StoreError::unavailable)?,
                owned: owned.map_err(StoreError::unavailable)?,
                invites: invites.map_err(StoreError::unavailable)?,
            };
            for job in batch.drain(..) {
                answers.push(apply(&mut tables, live, job));
            }
        }
        writing.commit().map_err(StoreError::unavailable)
    })();
    last_commit_ok.store(committed.is_ok(), Ordering::Relaxed);
    if let Err(error) = &committed {
        tracing::error!(%error, "failed to write the hub's store");
    }
    // Jobs that were not reached fail when their sender is dropped.
    batch.clear();
    for answer in answers {
        answer(committed.clone());
    }
}

/// Tables of a write transaction.
struct WriteTables<'txn> {
    environments: EnvironmentTable<'txn>,
    owned: QuotaTable<'txn>,
    invites: InviteTable<'txn>,
}

/// Sends the reply once the outcome of the transaction is known.
type Answer = Box<dyn FnOnce(Result<(), StoreError>)>;

fn answer<T: 'static, E: From<StoreError> + 'static>(
    reply: Reply<T, E>,
    result: Result<T, E>,
) -> Answer {
    Box::new(move |committed| {
        let result = match committed {
            Ok(()) => result,
            Err(error) => Err(error.into()),
        };
        // The caller may have gone away.
        drop(reply.send(result));
    })
}

fn apply(tables: &mut WriteTables<'_>, live: &Mutex<LiveState>, job: WriteJob) -> Answer {
    match job {
        WriteJob::Claim(environment, principal, reply) => {
            let result = claim(tables, &environment, &principal);
            answer(reply, result)
        }
        WriteJob::Register(new, reply) => {
            let result = register(tables, live, new);
            answer(reply, result)
        }
        WriteJob::Remove(environment, reply) => {
            let result = remove(tables, live, &environment);
            answer(reply, result)
        }
        WriteJob::RedeemInvite(claim, reply) => {
            let result = redeem_invite(&mut tables.invites, &claim);
            answer(reply, result)
        }
        WriteJob::Check(reply) => answer(reply, Ok(())),
        // A caller that gave up has closed the websocket.
        WriteJob::Attach(_, reply) if reply.is_closed() => Box::new(|_| {}),
        WriteJob::Attach(presence, reply) => {
            let result = attach(&tables.environments, live, presence);
            answer(reply, result)
        }
    }
}

fn claim(
    tables: &mut WriteTables<'_>,
    environment: &EnvironmentId,
    principal: &PrincipalName,
) -> Result<(), ClaimError> {
    let previous = database::get(&tables.environments, environment)?;
    let Some(record) = EnvironmentRecord::claim(previous.as_ref(), principal)? else {
        return Ok(());
    };
    reserve_quota(tables, principal)?;
    Ok(database::put(
        &mut tables.environments,
        environment,
        &record,
    )?)
}

/// Counts one more environment of a principal, within its quota.
fn reserve_quota(
    tables: &mut WriteTables<'_>,
    principal: &PrincipalName,
) -> Result<(), ClaimError> {
    if count(&tables.owned, principal)? >= limits::ENVIRONMENTS_PER_PRINCIPAL as u64 {
        return Err(ClaimError::Limit);
    }
    if database::count(&tables.environments)? >= MAX_ENVIRONMENTS {
        return Err(ClaimError::Full);
    }
    Ok(add(&mut tables.owned, principal)?)
}

fn register(
    tables: &mut WriteTables<'_>,
    live: &Mutex<LiveState>,
    new: NewRegistration,
) -> Result<Registration, RegisterError> {
    let environment = new.environment.clone();
    let previous = database::get(&tables.environments, &environment)?;
    let presence = lock(live).presence_record(&environment);
    let (record, registration) = EnvironmentRecord::register(previous.as_ref(), &presence, new)?;
    if previous.is_none() {
        reserve_quota(tables, &record.owner)?;
    }
    database::put(&mut tables.environments, &environment, &record)?;
    Ok(registration)
}

fn remove(
    tables: &mut WriteTables<'_>,
    live: &Mutex<LiveState>,
    environment: &EnvironmentId,
) -> Result<bool, StoreError> {
    lock(live).forget(environment);
    let Some(record) = database::get(&tables.environments, environment)? else {
        return Ok(false);
    };
    let removed = tables.environments.remove(environment.as_str());
    drop(removed.map_err(StoreError::unavailable)?);
    subtract(&mut tables.owned, &record.owner)?;
    Ok(true)
}

fn attach(
    table: &EnvironmentTable<'_>,
    live: &Mutex<LiveState>,
    presence: Presence,
) -> Result<(), AttachError> {
    let record = database::get(table, &presence.environment)?;
    let current = record.and_then(|record| record.current);
    if current.is_none_or(|current| current.id != presence.registration) {
        return Err(AttachError::Superseded);
    }
    lock(live).attach(presence);
    Ok(())
}

/// Marks an invite as redeemed, unless another claimant did. Removes marks of expired invites.
fn redeem_invite(table: &mut InviteTable<'_>, claim: &InviteClaim) -> Result<bool, StoreError> {
    let found = table.get(&claim.invite).map_err(StoreError::unavailable)?;
    if let Some(mark) = found {
        return Ok(mark.value().0 == claim.claimant);
    }
    drop(found);
    let is_kept = |_: &[u8; 32], (_, millis): ([u8; 32], u64)| {
        Timestamp::from_millis(millis).plus(MARK_MARGIN) > claim.at
    };
    table.retain(is_kept).map_err(StoreError::unavailable)?;
    let mark = (claim.claimant, claim.expires_at.millis());
    let marked = table.insert(&claim.invite, mark);
    drop(marked.map_err(StoreError::unavailable)?);
    Ok(true)
}

/// How long the mark of an invite outlives it: the clock may be set back.
const MARK_MARGIN: Duration = Duration::from_secs(24 * 60 * 60);

/// Maps hashes of redeemed invites to the hash of the claimant and to the expiry in milliseconds.
const INVITES: TableDefinition<'_, &[u8; 32], ([u8; 32], u64)> = TableDefinition::new("invites");

/// The table of redeemed invites within a write transaction.
type InviteTable<'txn> = Table<'txn, &'static [u8; 32], ([u8; 32], u64)>;

/// The data is consistent between any two statements, so poisoning can be ignored.
pub(super) fn lock(live: &Mutex<LiveState>) -> std::sync::MutexGuard<'_, LiveState> {
    live.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the thread. `last_commit_ok` is whether its last commit succeeded.
pub(super) fn spawn(
    database: Arc<Database>,
    live: Arc<Mutex<LiveState>>,
    last_commit_ok: Arc<AtomicBool>,
    jobs: mpsc::Receiver<WriteJob>,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new()
        .name("hub-store".to_owned())
        .spawn(move || run(&database, &live, &last_commit_ok, jobs))
}

/// Maps principals to the number of their environments, without zeros.
pub(super) const OWNED: TableDefinition<'_, &str, u64> = TableDefinition::new("owned");

/// The quota table within a write transaction.
pub(super) type QuotaTable<'txn> = Table<'txn, &'static str, u64>;

pub(super) fn count(table: &QuotaTable<'_>, principal: &PrincipalName) -> Result<u64, StoreError> {
    let found = table.get(principal.as_str());
    let found = found.map_err(StoreError::unavailable)?;
    Ok(found.map_or(0, |count| count.value()))
}

pub(super) fn add(table: &mut QuotaTable<'_>, principal: &PrincipalName) -> Result<(), StoreError> {
    let count = count(table, principal)?.saturating_add(1);
    let added = table.insert(principal.as_str(), count);
    added.map_err(StoreError::unavailable)?;
    Ok(())
}

pub(super) fn subtract(
    table: &mut QuotaTable<'_>,
    principal: &PrincipalName,
) -> Result<(), StoreError> {
    let remaining = count(table, principal)?.saturating_sub(1);
    if remaining == 0 {
        table.remove(principal.as_str())
    } else {
        table.insert(principal.as_str(), remaining)
    }
    .map_err(StoreError::unavailable)?;
    Ok(())
}
