//! Durable state of this machine: the state directory and keeper behind [`DurableState`].

use std::{collections::BTreeSet, io, sync::Arc, time::Duration};

use exec_core::output_log::ExitInfo;
use exec_env::{
    durable::{
        DurableOwner, DurableProcess, DurableRequest, DurableSession, DurableState, HistoryEntry,
        HistorySelection, RestoredState,
    },
    environment::{Command, ProcessIo, StdinMode},
};
use exec_journal::{JournalHead, JournalOwner, RecordId, SessionRecord, now_ms};
use exec_process::{DurableStore, LocalProcess, RecordedProcess};
use exec_wire::{id::SessionId, path_uri::PathUri};
use futures_util::future::{BoxFuture, FutureExt};
use tokio::task::spawn_blocking;

/// Version of the members of a head.
const HEAD_VERSION: u32 = 1;
/// Most ended processes that a restart loads. Older ones stay in the history.
const MAX_RESTORED: usize = 512;
/// Ended processes of sessions are loaded if they are younger than this. No client resumes later.
const RESTORED_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// Durable state of this machine.
#[derive(Clone, Debug)]
pub struct LocalDurableState {
    store: DurableStore,
}

impl LocalDurableState {
    /// Wraps a store.
    pub fn new(store: DurableStore) -> Self {
        Self { store }
    }

    /// Runs work that blocks on the disk.
    fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&DurableStore) -> io::Result<T> + Send + 'static,
    ) -> BoxFuture<'static, io::Result<T>> {
        let store = self.store.clone();
        async move {
            spawn_blocking(move || work(&store))
                .await
                .map_err(io::Error::other)?
        }
        .boxed()
    }
}

impl DurableState for LocalDurableState {
    fn restore(&self) -> BoxFuture<'_, io::Result<RestoredState>> {
        async move {
            let adopted = self.store.adopt().await.map_err(io::Error::other)?;
            let running = adopted.into_iter().filter_map(|adopted| {
                let owner = owner(&adopted.head, adopted.detached);
                let process = durable_process(adopted.process, &adopted.head, owner)?;
                let hold = Some(adopted.hold);
                Some(DurableProcess { hold, ..process })
            });
            let mut processes: Vec<_> = running.collect();
            let ended = self.blocking(|store| {
                store.enforce_limits();
                let sessions = store.state().sessions().map_err(io::Error::other)?;
                Ok((ended_processes(store, &sessions)?, sessions))
            });
            let (ended, sessions) = ended.await?;
            processes.extend(ended);
            let sessions = sessions.into_iter().map(|session| DurableSession {
                id: session.id,
                principal: session.principal,
                acknowledges: session.retention == ACKNOWLEDGED,
            });
            Ok(RestoredState {
                sessions: sessions.collect(),
                processes,
            })
        }
        .boxed()
    }

    fn save_session(&self, session: &DurableSession) -> io::Result<()> {
        let record = SessionRecord {
            id: session.id.clone(),
            principal: session.principal.clone(),
            retention: match session.acknowledges {
                true => ACKNOWLEDGED.to_owned(),
                false => "retained".to_owned(),
            },
            created_at_ms: now_ms(),
        };
        self.store
            .state()
            .save_session(&record)
            .map_err(io::Error::other)
    }

    fn remove_session(&self, id: &SessionId) {
        if let Err(error) = self.store.state().remove_session(id) {
            tracing::warn!(%error, "failed to remove a saved session");
        }
    }

    fn history(&self) -> BoxFuture<'static, io::Result<Vec<HistoryEntry>>> {
        self.blocking(|store| {
            let recorded = store.recorded()?;
            Ok(recorded.iter().filter_map(history_entry).collect())
        })
    }

    fn open_history(
        &self,
        selection: HistorySelection,
    ) -> BoxFuture<'static, io::Result<Option<DurableProcess>>> {
        self.blocking(move |store| {
            let recorded = store.recorded()?;
            let mut ended = recorded.into_iter().rev();
            let Some(newest) = ended.find(|it| !it.is_held && matches(it, &selection)) else {
                return Ok(None);
            };
            let process = store.open_ended(newest.id).map_err(io::Error::other)?;
            // The server owns it now: its session may be gone.
            Ok(durable_process(
                process,
                &newest.recovered.head,
                DurableOwner::Server,
            ))
        })
    }

    fn purge_history(&self, selection: HistorySelection) -> BoxFuture<'static, io::Result<usize>> {
        self.blocking(move |store| {
            let recorded = store.recorded()?;
            let selected = recorded.into_iter().filter(|it| matches(it, &selection));
            let ids: Vec<RecordId> = selected.map(|it| it.id).collect();
            Ok(ids.into_iter().filter(|id| store.purge(*id)).count())
        })
    }
}

/// Value of [`SessionRecord::retention`] for a client that acknowledges output.
const ACKNOWLEDGED: &str = "acknowledged";

/// Returns the head of a command's journal, written before the command starts. The store adds what
/// it knows about this boot.
pub(crate) fn journal_head(command: &Command, request: &DurableRequest) -> JournalHead {
    JournalHead {
        version: HEAD_VERSION,
        process_id: command.process_id.clone(),
        argv: command.argv.clone(),
        cwd: command.cwd.to_string(),
        tty: matches!(command.io, ProcessIo::Terminal(_)),
        size: match command.io {
            ProcessIo::Terminal(size) => Some(size),
            ProcessIo::Pipes { .. } => None,
        },
        pipe_stdin: matches!(
            command.io,
            ProcessIo::Pipes {
                stdin: StdinMode::Piped
            }
        ),
        family: "process".to_owned(),
        owner: match &request.owner {
            DurableOwner::Server => JournalOwner::Server,
            DurableOwner::Session(id) => JournalOwner::Session(id.clone()),
        },
        principal: request.principal.clone(),
        started_at_ms: now_ms(),
        started_at_boot_ms: 0,
        boot_id: String::new(),
        sandboxed: command.sandbox.is_some(),
        limits: command.limits,
    }
}

/// Opens the recently ended processes of these sessions and of the server.
fn ended_processes(
    store: &DurableStore,
    sessions: &[SessionRecord],
) -> io::Result<Vec<DurableProcess>> {
    let sessions: BTreeSet<_> = sessions.iter().map(|session| &session.id).collect();
    let since = now_ms().saturating_sub(u64::try_from(RESTORED_AGE.as_millis()).unwrap_or(0));
    let recorded = store.recorded()?;
    let mut ended = Vec::new();
    for recorded in recorded.into_iter().rev().filter(|it| !it.is_held) {
        let (head, started) = (&recorded.recovered.head, &recorded.recovered.started);
        if started.is_none() && store.keeper_pid().is_some() {
            // The keeper holds a process before its command is started: this one never was.
            store.purge(recorded.id);
            continue;
        }
        let owner = owner(head, recorded.recovered.detached);
        let is_wanted = match &owner {
            DurableOwner::Server => true,
            DurableOwner::Session(id) => sessions.contains(id),
        };
        let ended_at = recorded.recovered.exit.as_ref().map(|(.., at_ms)| *at_ms);
        if !is_wanted || ended_at.unwrap_or(head.started_at_ms) < since {
            continue;
        }
        match store.open_ended(recorded.id) {
            Ok(process) => ended.extend(durable_process(process, head, owner)),
            Err(error) => tracing::warn!(record = %recorded.id, %error, "failed to open a journal"),
        }
        if ended.len() == MAX_RESTORED {
            break;
        }
    }
    Ok(ended)
}

fn owner(head: &JournalHead, detached: bool) -> DurableOwner {
    match &head.owner {
        JournalOwner::Session(id) if !detached => DurableOwner::Session(id.clone()),
        JournalOwner::Session(_) | JournalOwner::Server => DurableOwner::Server,
    }
}

fn durable_process(
    process: Arc<LocalProcess>,
    head: &JournalHead,
    owner: DurableOwner,
) -> Option<DurableProcess> {
    Some(DurableProcess {
        process,
        hold: None,
        argv: head.argv.clone(),
        cwd: PathUri::parse(&head.cwd).ok()?,
        tty: head.tty,
        owner,
    })
}

fn history_entry(recorded: &RecordedProcess) -> Option<HistoryEntry> {
    let recovered = &recorded.recovered;
    let head = &recovered.head;
    let exit: Option<ExitInfo> = match &recovered.exit {
        Some((_, exit, _)) => Some(exit.clone()),
        None if recorded.is_held => None,
        None => Some(exec_process::lost_exit()),
    };
    Some(HistoryEntry {
        process_id: head.process_id.clone(),
        argv: head.argv.clone(),
        cwd: PathUri::parse(&head.cwd).ok()?,
        tty: head.tty,
        started_at_ms: head.started_at_ms,
        ended_at_ms: recovered.exit.as_ref().map(|(.., at_ms)| *at_ms),
        exit,
        os_pid: recovered.started.as_ref().map(|pids| pids.os_pid),
        output_bytes: recovered.bytes_total,
        detached: owner(head, recovered.detached) == DurableOwner::Server,
        principal: head.principal.clone(),
        size: head.size,
    })
}

fn matches(recorded: &RecordedProcess, selection: &HistorySelection) -> bool {
    let head = &recorded.recovered.head;
    let id = selection.process_id.as_ref();
    let started = selection.started_at_ms;
    let is_visible = owner(head, recorded.recovered.detached) == DurableOwner::Server
        || head.principal == selection.visible_to;
    is_visible
        && id.is_none_or(|id| *id == head.process_id)
        && started.is_none_or(|started| started == head.started_at_ms)
}
