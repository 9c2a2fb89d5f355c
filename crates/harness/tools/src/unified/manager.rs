//! Unified exec itself: the commands that an agent has going.
//!
//! Each command is in the table from its start to the moment its end was shown, and so is bounded in
//! number. A call holds its command meanwhile (`held`). Not here: the two calls (`exec`, `write`).

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use exec_env::{
    environment::Environment,
    process::{OpenError, ProcessNumber, ProcessTable, WhenFull},
};
use exec_wire::{environment::EnvironmentInfo, error::RpcError, process::TerminateMode};
use futures_util::future::join_all;
use tokio::{
    sync::OnceCell,
    time::{Instant, timeout},
};
use uuid::Uuid;

use super::{
    buffer::PutBack,
    call::{CallId, View},
    departed::Departed,
    event::EventSink,
    held::Held,
    output::{ToolOutput, Transcript},
    policy::ToolPolicy,
    process::{ProcessSummary, UnifiedExecProcess},
    settings::Settings,
    show::Show,
    write::WriteStdinError,
};

/// How long the end of a command that was killed may take to be told.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// Runs an agent's commands in one environment. Clones share them; when the last one is dropped, the
/// commands end.
#[derive(Clone, Debug)]
pub struct UnifiedExec {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) environment: Environment,
    pub(super) settings: Arc<Settings>,
    pub(super) policy: Arc<dyn ToolPolicy>,
    pub(super) events: Arc<dyn EventSink>,
    pub(super) table: ProcessTable,
    running: Mutex<BTreeMap<ProcessNumber, Arc<UnifiedExecProcess>>>,
    pub(super) departed: Departed,
    info: OnceCell<EnvironmentInfo>,
    is_shut_down: AtomicBool,
}

impl UnifiedExec {
    /// Begins with nothing running.
    pub fn new(
        environment: Environment,
        settings: Settings,
        policy: Arc<dyn ToolPolicy>,
        events: Arc<dyn EventSink>,
    ) -> Self {
        let when_full = WhenFull::GiveUpLeastRecentlyUsed;
        let suffix = || Uuid::new_v4().simple().to_string();
        // Were all protected, a full table would take nothing any more.
        let protected = settings.protected_processes;
        let protected = protected.min(settings.max_processes.get() / 2);
        let table = ProcessTable::new(settings.max_processes, when_full, suffix);
        let inner = Inner {
            environment,
            settings: Arc::new(settings),
            policy,
            events,
            table: table.protecting(protected),
            running: Mutex::default(),
            departed: Departed::default(),
            info: OnceCell::new(),
            is_shut_down: AtomicBool::new(false),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Ends a command and its tree: by a warning first, and by force when some time has passed. Returns
    /// what it wrote since the last call, and how it ended. A call that waits for it returns, too, and is
    /// then the one that shows the output.
    pub async fn terminate(
        &self,
        call: &CallId,
        number: ProcessNumber,
    ) -> Result<ToolOutput, WriteStdinError> {
        let began = Instant::now();
        let show = Show {
            call,
            began,
            view: View::Plain,
            tokens: self.inner.settings.tokens(None),
        };
        let (process, held) = match Held::open(&self.inner, number) {
            Ok(held) => (Arc::clone(held.process()), Some(held)),
            Err(OpenError::Busy(_)) => {
                let process = self.inner.lock().get(&number).cloned();
                (process.ok_or(OpenError::Unknown(number))?, None)
            }
            Err(error) => {
                let shown = self.inner.show_again(number, &show);
                return shown.ok_or_else(|| self.inner.refusal(error));
            }
        };
        self.inner.end(&process).await?;
        Ok(match held {
            Some(held) => held.show(&show),
            None => {
                let gathered = process.shared.lock();
                ToolOutput {
                    wall_time: began.elapsed(),
                    transcript: Transcript::default(),
                    running: None,
                    exit: gathered.exit.clone(),
                    failure: gathered.failure.clone(),
                }
            }
        })
    }

    /// Ends all commands and takes no more. Their ends are told as events.
    pub async fn shut_down(&self) {
        self.inner.is_shut_down.store(true, Ordering::SeqCst);
        let running = std::mem::take(&mut *self.inner.lock());
        let mode = self.inner.terminate_mode();
        // What cannot be ended is out of reach, and its watcher tells that.
        drop(self.inner.table.terminate_all(mode).await);
        join_all(running.into_values().map(give_up)).await;
    }

    /// Takes note that what this call answered was not received: the next call for its command shows it
    /// again, and a command whose end it had shown is known again. Of no effect if another call for the
    /// command was answered since, or if it was one of the first of many that have ended since.
    pub fn was_not_received(&self, call: &CallId) {
        let running: Vec<_> = self.inner.lock().values().cloned().collect();
        let put_back = |process: &Arc<UnifiedExecProcess>| {
            process.shared.lock().put_back(call) == PutBack::Done
        };
        if !running.iter().any(put_back) {
            self.inner.departed.put_back(call);
        }
    }

    /// Returns the commands that are kept, by their numbers, and those whose end was not received.
    pub fn processes(&self) -> Vec<ProcessSummary> {
        let mut processes = self.inner.departed.not_received();
        let running = self.inner.lock();
        processes.extend(running.values().map(|process| process.summary()));
        processes.sort_by_key(|process| process.number);
        processes
    }

    /// Returns a command that is kept. Whoever holds the handle keeps what is left of it alive.
    pub fn process(&self, number: ProcessNumber) -> Option<Arc<UnifiedExecProcess>> {
        self.inner.lock().get(&number).cloned()
    }
}

impl Inner {
    /// Returns the host, which is asked once.
    pub(super) async fn info(&self) -> Result<&EnvironmentInfo, RpcError> {
        let backend = &self.environment.backend;
        self.info.get_or_try_init(|| backend.info()).await
    }

    /// Shows the end of a command that was shown before, and not received.
    pub(super) fn show_again(&self, number: ProcessNumber, show: &Show<'_>) -> Option<ToolOutput> {
        let (about, shared) = self.departed.take(number)?;
        let output = show.output(&about, &shared);
        self.departed.add(about, shared);
        Some(output)
    }

    /// Tells why a command cannot be looked at.
    pub(super) fn refusal(&self, error: OpenError) -> WriteStdinError {
        if let OpenError::Unknown(number) = error
            && self.departed.made_room(number)
        {
            return WriteStdinError::MadeRoom(number, self.settings.max_processes);
        }
        error.into()
    }

    /// Ends a command, and waits until that is told.
    async fn end(&self, process: &UnifiedExecProcess) -> Result<(), WriteStdinError> {
        let granted = self.settings.terminate_grace;
        process.process.terminate(self.terminate_mode()).await?;
        let told = timeout(granted + TOLD_WITHIN, process.over()).await;
        told.map_err(|_| WriteStdinError::NotEnding(process.about.number))
    }

    fn terminate_mode(&self) -> TerminateMode {
        let granted = self.settings.terminate_grace.as_millis();
        TerminateMode::Graceful {
            timeout_ms: u64::try_from(granted).unwrap_or(u64::MAX),
        }
    }

    /// Tells whether everything was ended for good.
    pub(super) fn is_shut_down(&self) -> bool {
        self.is_shut_down.load(Ordering::SeqCst)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<ProcessNumber, Arc<UnifiedExecProcess>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Kills a command that nobody will ask for, and keeps it until its end was told.
pub(super) async fn give_up(process: Arc<UnifiedExecProcess>) {
    if let Err(error) = process.process.terminate(TerminateMode::Force).await {
        tracing::debug!(number = %process.about.number, %error, "command was not terminated");
    }
    if timeout(TOLD_WITHIN, process.over()).await.is_err() {
        tracing::warn!(number = %process.about.number, "command was killed, and its end is not told");
    }
}
