//! The state directory and the keeper of a server, and the durable processes that they hold.
//!
//! Starting order: the journal exists and the keeper holds every descriptor before the spawner
//! learns of the command. A server that is killed at any point leaves either nothing running or a
//! record that the next server adopts.

use std::{io, os::fd::BorrowedFd, path::Path, sync::Arc, time::Duration};

use exec_core::output_log::{ArchivedState, ExitInfo, OutputLog, RetentionLimits};
use exec_env::process::OutputHold;
use exec_journal::{
    JournalError, JournalEvent, JournalHead, JournalReader, ProcessJournal, RecordId,
    RecoveredProcess, StateDir,
};
use exec_spawn::keeper::{HeldRecord, KeeperError, KeeperHandle, KeeperSlot};
use exec_wire::{id::OutputSeq, process::ExitCause};
use tokio::{
    task::spawn_blocking,
    time::{Instant, timeout},
};

use crate::{
    durable_record::DurableRecord,
    keeper_connection::KeeperConnection,
    launch::ProcessLaunch,
    local_process::{LocalProcess, OutputLogHold, SharedState, since_boot_ms},
    process_archive::ProcessArchive,
    process_task::{ProcessTask, TaskSettings},
    spawner::{
        CommandSpec, CommandStdio, SpawnError, SpawnStage, Spawner, SupervisedChild,
        SupervisorReport,
    },
    stdin_queue::StdinQueue,
    stdio::{DurableEnds, StdioEnds},
};

/// Output that a durable process keeps in memory. The journal has the rest.
const MEMORY_RETENTION: RetentionLimits = RetentionLimits {
    bytes: 64 << 10,
    chunks: 1024,
};
/// Chunks at the end of a journal that adoption loads into memory.
const TAIL_CHUNKS: u64 = 64;
/// How long a command with an unrecorded start may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// State directory and keeper of a server. Clones share them.
#[derive(Clone, Debug)]
pub struct DurableStore {
    state: Arc<StateDir>,
    keeper: Arc<KeeperConnection>,
    spawner: Spawner,
}

/// A durable process of an earlier server.
#[derive(Debug)]
pub struct AdoptedProcess {
    /// Facts that were recorded at its start.
    pub head: JournalHead,
    /// Whether the server owns it.
    pub detached: bool,
    /// The process.
    pub process: Arc<LocalProcess>,
    /// Keeps all output: the process has gone on before anyone could hold some of it.
    pub hold: Box<dyn OutputHold>,
}

/// A recorded process, running or ended.
#[derive(Debug)]
pub struct RecordedProcess {
    /// Record of the process.
    pub id: RecordId,
    /// What the journal says. A process that is neither held nor ended is lost.
    pub recovered: RecoveredProcess,
    /// Whether the keeper of this server holds it.
    pub is_held: bool,
}

impl DurableStore {
    /// Creates the store. `program` becomes keeper and spawner; both start with the first durable
    /// process.
    pub fn new(state: StateDir, program: &Path) -> Self {
        let keeper = Arc::new(KeeperConnection::new(state.keeper_socket(), program));
        let handle: Arc<dyn KeeperHandle> = Arc::<KeeperConnection>::clone(&keeper);
        Self {
            state: Arc::new(state),
            keeper,
            spawner: Spawner::durable_with_program(program, handle),
        }
    }

    /// Returns the state directory.
    pub fn state(&self) -> &Arc<StateDir> {
        &self.state
    }

    /// Starts keeper and spawner ahead of the first durable process.
    pub async fn warm_up(&self) {
        if let Err(error) = self.spawner.warm_up().await {
            tracing::warn!(%error, "failed to start the keeper; the first durable process will retry");
        }
    }

    /// Launches a durable command. If the future is dropped, the command is killed.
    ///
    /// # Errors
    /// Fails if the journal, the keeper or the command cannot be started. Nothing is left running.
    pub async fn launch(
        &self,
        launch: ProcessLaunch,
        mut head: JournalHead,
    ) -> Result<Arc<LocalProcess>, SpawnError> {
        let StdioEnds { parent, child } = StdioEnds::open(launch.io).map_err(setup)?;
        let ends = DurableEnds::new(parent).map_err(setup)?;
        let settings = TaskSettings {
            limits: launch.limits,
            sandboxed: launch.sandboxed,
        };
        let process_id = launch.id;
        let started = Instant::now();
        head.started_at_boot_ms = since_boot_ms();
        self.state.boot_id().clone_into(&mut head.boot_id);
        let started_at_ms = head.started_at_ms;
        let mut journal = self.state.create(&head).map_err(journal_failed)?;
        let mut pending = PendingRecord::new(self, journal.id());
        let child = self
            .spawn(launch.command, child, &ends, &mut journal)
            .await?;
        self.keeper.ensure_watched();
        let record = DurableRecord::new(journal, Arc::clone(&self.keeper), OutputSeq(1));
        let event = JournalEvent::Started {
            os_pid: child.pid(),
            supervisor_pid: child.supervisor().unsigned_abs(),
            spawner_pid: 0,
        };
        record.record(&event).map_err(journal_failed)?;
        child.consume_report();
        let record = Arc::new(record);
        let (input, sources, terminal) =
            ends.register(&record, Vec::new(), false).map_err(setup)?;
        pending.is_complete = true;
        let child = Arc::new(child);
        let pid = child.pid();
        let shared = Arc::new(SharedState::new(
            OutputLog::with_archive(MEMORY_RETENTION),
            input,
            Some(Arc::clone(&child)),
            Some(ProcessArchive::live(record)),
        ));
        tokio::spawn(ProcessTask::new(settings, &shared, child, sources, started).run());
        Ok(Arc::new(LocalProcess::new(
            process_id,
            shared,
            terminal,
            pid,
            started_at_ms,
        )))
    }

    /// Starts a command after the keeper holds its descriptors.
    async fn spawn(
        &self,
        command: CommandSpec,
        stdio: CommandStdio,
        ends: &DurableEnds,
        journal: &mut ProcessJournal,
    ) -> Result<SupervisedChild, SpawnError> {
        let duplicate = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(setup);
        let mut descriptors = Vec::new();
        for (slot, fd) in ends.slots() {
            descriptors.push((slot, duplicate(fd)?));
        }
        let input = journal.input_file().map_err(journal_failed)?;
        descriptors.push((KeeperSlot::InputFile, duplicate(input)?));
        let (keeper, id) = (Arc::clone(&self.keeper), journal.id());
        let hand_over = |control, spawner_pid| async move {
            descriptors.push((KeeperSlot::Control, control));
            descriptors.push((KeeperSlot::SpawnerPid, spawner_pid));
            let held = spawn_blocking(move || keeper.hold(id, descriptors)).await;
            held.map_err(|error| setup(io::Error::other(error)))?
                .map_err(|error| setup(io::Error::other(error)))
        };
        let spawned = self.spawner.spawn_with_control(command, stdio, hand_over);
        spawned.await
    }

    /// Adopts every process that the keeper holds. Records that cannot be adopted are dropped,
    /// which kills their trees, and logged.
    ///
    /// # Errors
    /// Fails if a keeper runs but cannot be used.
    pub async fn adopt(&self) -> Result<Vec<AdoptedProcess>, KeeperError> {
        let keeper = Arc::clone(&self.keeper);
        let held = spawn_blocking(move || keeper.list()).await;
        let held = held.map_err(|error| KeeperError::Start(io::Error::other(error)))??;
        let mut adopted = Vec::new();
        for record in held {
            let id = RecordId::from_bytes(record.record);
            match self.adopt_record(id, record).await {
                Ok(Some(process)) => adopted.push(process),
                Ok(None) => self.keeper.drop_record(id),
                Err(error) => {
                    tracing::error!(record = %id, %error, "failed to adopt a durable process; its processes are killed");
                    self.keeper.drop_record(id);
                }
            }
        }
        if !adopted.is_empty() {
            self.keeper.ensure_watched();
        }
        Ok(adopted)
    }

    async fn adopt_record(
        &self,
        id: RecordId,
        held: HeldRecord,
    ) -> Result<Option<AdoptedProcess>, AdoptError> {
        let mut slots = held.descriptors;
        self.keeper.remember(id, &slots)?;
        let mut take = |slot| slots.remove(&slot).ok_or(AdoptError::Missing(slot));
        let (control, spawner_pid) = (take(KeeperSlot::Control)?, take(KeeperSlot::SpawnerPid)?);
        let input = take(KeeperSlot::InputFile)?;
        let ends =
            DurableEnds::from_slots(&mut slots).ok_or(AdoptError::Missing(KeeperSlot::HoldRead))?;
        let (mut journal, recovered) = self.state.reopen_with_input(id, input)?;
        let child = match recovered.started {
            Some(pids) => SupervisedChild::adopt(
                control,
                pids.os_pid,
                pids.supervisor_pid.cast_signed(),
                spawner_pid,
            )?,
            None => {
                // The earlier server died while it started the command.
                let starting = SupervisedChild::adopt_starting(control, spawner_pid);
                let Ok(Ok(child)) = timeout(START_TIMEOUT, starting).await else {
                    drop(journal);
                    self.state.remove(id)?;
                    return Ok(None);
                };
                journal.record(&JournalEvent::Started {
                    os_pid: child.pid(),
                    supervisor_pid: child.supervisor().unsigned_abs(),
                    spawner_pid: 0,
                })?;
                child
            }
        };
        // Recorded by now, whichever server did it.
        if let Ok(Some(SupervisorReport::Started { .. })) =
            timeout(Duration::ZERO, child.peek_report()).await
        {
            child.consume_report();
        }
        let archive = journal.reader();
        let record = Arc::new(DurableRecord::new(
            journal,
            Arc::clone(&self.keeper),
            recovered.next_seq,
        ));
        let head = recovered.head.clone();
        let settings = TaskSettings {
            limits: head.limits,
            sandboxed: head.sandboxed,
        };
        let log = restored_log(&recovered, &archive)?;
        let exited = log.exit().is_some();
        let writes = recovered.write_ids.clone();
        let (input, sources, terminal) = ends.register(&record, writes, recovered.input_end)?;
        let (pid, child) = (child.pid(), Arc::new(child));
        let shared = Arc::new(SharedState::new(
            log,
            input,
            Some(Arc::clone(&child)),
            Some(ProcessArchive::live(record)),
        ));
        if let Some(termination) = &recovered.terminating {
            let mut state = shared.lock();
            state.cause = Some(termination.cause);
            state.kill_at = termination.kill_at_boot_ms.map(instant_at_boot_ms);
        }
        let hold = Box::new(OutputLogHold::new(&shared, OutputSeq(0)));
        let started = instant_at_boot_ms(head.started_at_boot_ms);
        let task = ProcessTask::new(settings, &shared, child, sources, started);
        tokio::spawn(task.adopted(exited).run());
        let process = LocalProcess::new(
            head.process_id.clone(),
            shared,
            terminal,
            pid,
            head.started_at_ms,
        );
        Ok(Some(AdoptedProcess {
            detached: recovered.detached || head.owner == exec_journal::JournalOwner::Server,
            head,
            process: Arc::new(process),
            hold,
        }))
    }

    /// Lists every recorded process, oldest first. Blocks on the disk.
    ///
    /// # Errors
    /// Fails if the directory cannot be read.
    pub fn recorded(&self) -> io::Result<Vec<RecordedProcess>> {
        let ids = self.state.records()?;
        let recorded = ids.into_iter().filter_map(|id| {
            // Another call may remove it meanwhile.
            let (_, recovered) = self.state.reader(id).ok()?;
            let is_held = self.keeper.holds(id);
            Some(RecordedProcess {
                id,
                recovered,
                is_held,
            })
        });
        Ok(recorded.collect())
    }

    /// Opens the journal of a process that has ended or is lost. Blocks on the disk.
    ///
    /// # Errors
    /// Fails if the record does not exist or cannot be read.
    pub fn open_ended(&self, id: RecordId) -> Result<Arc<LocalProcess>, JournalError> {
        let (archive, recovered) = self.state.reader(id)?;
        let head = recovered.head.clone();
        let mut log = restored_log(&recovered, &archive)?;
        if log.exit().is_none() {
            log.record_exit(lost_exit());
        }
        if !log.is_closed() {
            log.record_close();
        }
        let shared = Arc::new(SharedState::new(
            log,
            Box::new(StdinQueue::none()),
            None,
            Some(ProcessArchive::ended(id, archive)),
        ));
        let pid = recovered.started.map_or(0, |pids| pids.os_pid);
        Ok(Arc::new(LocalProcess::new(
            head.process_id,
            shared,
            None,
            pid,
            head.started_at_ms,
        )))
    }

    /// Removes records of ended processes beyond the limits of age and size. Blocks on the disk.
    pub fn enforce_limits(&self) {
        let outcome = self.state.enforce_limits(|id| self.keeper.holds(id));
        tracing::debug!(?outcome, "cleaned up the state directory");
    }

    /// Removes the record of a process that has ended. Returns whether it did. Blocks on the disk.
    pub fn purge(&self, id: RecordId) -> bool {
        !self.keeper.holds(id) && self.state.remove(id).is_ok()
    }

    /// Returns the pid of the keeper, if one runs.
    pub fn keeper_pid(&self) -> Option<u32> {
        self.keeper.pid()
    }
}

/// Returns the exit of a process after its supervisor died without a report.
pub fn lost_exit() -> ExitInfo {
    ExitInfo {
        code: -1,
        signal: None,
        cause: ExitCause::Lost,
        usage: None,
        sandbox_denied: false,
    }
}

/// Rebuilds the output log from a journal. The end of the output is in memory.
fn restored_log(
    recovered: &RecoveredProcess,
    archive: &JournalReader,
) -> Result<OutputLog, JournalError> {
    let after = OutputSeq(recovered.next_seq.0.saturating_sub(1 + TAIL_CHUNKS));
    let chunks = archive.page(after, usize::MAX)?;
    let tail = chunks.into_iter().map(|timed| timed.chunk).collect();
    let state = ArchivedState {
        next_seq: recovered.next_seq,
        stream_bytes: recovered.stream_bytes,
        tail,
        exit: recovered.exit.clone().map(|(seq, exit, _)| (seq, exit)),
        closed: recovered.closed,
    };
    Ok(OutputLog::restored(MEMORY_RETENTION, state))
}

/// Returns the instant of a time since boot.
fn instant_at_boot_ms(at: u64) -> Instant {
    let (now, millis) = (Instant::now(), Duration::from_millis);
    let since_boot = since_boot_ms();
    match at.checked_sub(since_boot) {
        Some(ahead) => now.checked_add(millis(ahead)).unwrap_or(now),
        None => now.checked_sub(millis(since_boot - at)).unwrap_or(now),
    }
}

fn setup(error: io::Error) -> SpawnError {
    SpawnError::host(SpawnStage::Setup, error)
}

fn journal_failed(error: JournalError) -> SpawnError {
    setup(io::Error::other(error))
}

/// The record of a process that has not started yet. Dropping it removes the record.
struct PendingRecord<'a> {
    store: &'a DurableStore,
    id: RecordId,
    is_complete: bool,
}

impl<'a> PendingRecord<'a> {
    fn new(store: &'a DurableStore, id: RecordId) -> Self {
        Self {
            store,
            id,
            is_complete: false,
        }
    }
}

impl Drop for PendingRecord<'_> {
    fn drop(&mut self) {
        if !self.is_complete {
            self.store.keeper.drop_record(self.id);
            if let Err(error) = self.store.state.remove(self.id) {
                tracing::debug!(%error, "failed to remove the record of a failed start");
            }
        }
    }
}

/// Why a process was not adopted.
#[derive(Debug, thiserror::Error)]
enum AdoptError {
    /// Us: the keeper holds no such descriptor.
    #[error("keeper does not hold the descriptor {0:?}")]
    Missing(KeeperSlot),
    /// Host: the journal cannot be used.
    #[error("journal cannot be used: {0}")]
    Journal(#[from] JournalError),
    /// Host: a descriptor cannot be used.
    #[error("descriptor cannot be used: {0}")]
    Descriptor(#[from] io::Error),
}
