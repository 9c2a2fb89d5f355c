//! The Tasks extension: the client fetches the result of a command later.
//!
//! Invariant: a task is a command. Its id is the command's process id, so a later server process
//! finds it in the environment and computes the same state: `working` while the command runs,
//! `cancelled` if it was terminated, else `completed` with all its output. A result is retained for
//! [`RESULT_RETENTION`] and can be read repeatedly. Elsewhere: starting and finding commands
//! ([`unified`](crate::unified)), the wire types and the capability check (rmcp).

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use exec_wire::{error::error_chain, id::ProcessId, process::ExitCause};
use rmcp::{
    ErrorData,
    model::{DetailedTask, JsonObject, Task, TaskPayload, TaskStatus},
};
use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::{sync::watch, time::timeout};

use super::{
    commands::{ExecCommandTool, command_answer},
    session::{McpContext, McpSession, ProgressSupport},
    tool::{self, ToolError},
};
use crate::unified::{
    CallId, Durability, HandleKind, OutputView, ToolOutput, UnifiedExecProcess, WaitFor, WriteStdin,
};

/// How long a result is retained after the command has ended.
const RESULT_RETENTION: Duration = Duration::from_secs(60 * 60);
/// Maximum number of tasks. Above it, the oldest results are removed early. More than the number of
/// commands that run at once.
const MAX_TASKS: usize = 256;
/// How long a request waits for the state of a task that an earlier server process started.
const RESOLVE_TIMEOUT: Duration = Duration::from_millis(500);
/// Wait of a task with `wait_for` and without `yield_time_ms`, as for a plain call.
const DEFAULT_WAIT: Duration = Duration::from_secs(10);
/// Minimum wait of a task.
const MIN_WAIT: Duration = Duration::from_millis(250);

/// The tasks of all clients.
#[derive(Debug)]
pub(super) struct CommandTasks {
    session: Arc<McpSession>,
    table: Arc<Mutex<TaskTable>>,
}

type TaskTable = BTreeMap<ProcessId, TaskRecord>;

/// A task of the table.
#[derive(Debug)]
struct TaskRecord {
    id: TaskId,
    created: SystemTime,
    /// The command, until its result is known.
    process: Option<Arc<UnifiedExecProcess>>,
    state: watch::Sender<TaskState>,
}

/// State of a task.
#[derive(Clone, Debug)]
enum TaskState {
    Working,
    /// The result is known.
    Ended {
        at: SystemTime,
        payload: TaskPayload,
        message: String,
    },
    /// The connection to the command was lost. The next request looks for it again.
    Lost,
}

/// Id of a task: the process id, and when the task ends at the latest, if it may end before the
/// command.
#[derive(Clone, Debug, Eq, PartialEq)]
struct TaskId {
    process: ProcessId,
    /// Milliseconds since the Unix epoch.
    deadline: Option<u64>,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.deadline {
            Some(deadline) => write!(f, "{}.{deadline}", self.process),
            None => self.process.fmt(f),
        }
    }
}

impl TaskId {
    /// Parses an id. `None`: the text is not a task id.
    fn parse(text: &str) -> Option<Self> {
        let (process, deadline) = match text.rsplit_once('.') {
            Some((process, deadline)) => (process, Some(deadline.parse().ok()?)),
            None => (text, None),
        };
        let process = ProcessId::new(process).ok()?;
        Some(Self { process, deadline })
    }
}

/// Returns the process id in a task id. Other ids are returned as they are.
pub(super) fn process_id(id: &str) -> Option<ProcessId> {
    match TaskId::parse(id) {
        Some(task) => Some(task.process),
        None => ProcessId::new(id).ok(),
    }
}

/// What a task waits for, and how it shows the result.
#[derive(Clone, Debug)]
struct TaskWait {
    /// Absent: the exit of the command.
    early: Option<EarlyReturn>,
    view: OutputView,
    tokens: Option<usize>,
}

/// When a task may end before its command.
#[derive(Clone, Debug)]
struct EarlyReturn {
    wait: WaitFor,
    limit: Duration,
}

impl CommandTasks {
    /// Creates the table for the session that all stateless requests share.
    pub(super) fn new(session: Arc<McpSession>) -> Self {
        Self {
            session,
            table: Arc::default(),
        }
    }

    /// Starts a command as a task. When this returns, the task can be found by its id, also by
    /// another server process if commands are durable.
    ///
    /// # Errors
    /// If the command does not start. Nothing is left running.
    pub(super) async fn start(&self, arguments: Option<JsonObject>) -> Result<Task, ToolError> {
        let ctx = self.context();
        let tool: ExecCommandTool = tool::parse(arguments)?;
        let returns_early = tool.returns_early();
        let command = tool.into_command(&ctx)?;
        let limit = command.yield_time.unwrap_or(DEFAULT_WAIT).max(MIN_WAIT);
        let wait = TaskWait {
            early: returns_early.then(|| EarlyReturn {
                wait: command.wait.clone(),
                limit,
            }),
            view: command.view,
            tokens: command.max_output_tokens,
        };
        let number = ctx.exec().start_task(command).await?;
        let Some(process) = ctx.exec().process(number) else {
            return Err(ToolError::new("the command was evicted by another one"));
        };
        let deadline = returns_early.then(|| since_epoch(SystemTime::now() + limit));
        let id = TaskId {
            process: process.id().clone(),
            deadline,
        };
        self.purge();
        let mut table = self.lock();
        let record = self.enter(&mut table, id, process, wait);
        Ok(record.describe().task)
    }

    /// Returns the state of a task.
    pub(super) async fn get(&self, id: &str) -> Result<DetailedTask, TaskError> {
        let id = self.resolve(id).await?;
        let table = self.lock();
        let record = table.get(&id).ok_or(TaskError::Unknown)?;
        Ok(record.describe())
    }

    /// Checks that a task exists. No task requests input, so updates are ignored.
    pub(super) async fn update(&self, id: &str) -> Result<(), TaskError> {
        self.resolve(id).await.map(drop)
    }

    /// Terminates the command of a task, unless it has ended. Returns before it has ended.
    pub(super) async fn cancel(&self, id: &str) -> Result<(), TaskError> {
        let id = self.resolve(id).await?;
        let process = self.lock().get(&id).and_then(|one| one.process.clone());
        let Some(process) = process else {
            return Ok(());
        };
        let exec = self.session.exec.clone();
        tokio::spawn(async move {
            if let Err(error) = exec.terminate(process.number()).await {
                tracing::debug!(%id, %error, "failed to terminate the command of a cancelled task");
            }
        });
        Ok(())
    }

    /// Finds a task in the table, or in the environment.
    async fn resolve(&self, text: &str) -> Result<ProcessId, TaskError> {
        let id = TaskId::parse(text).ok_or(TaskError::Unknown)?;
        if self.session.exec.scope().kind(&id.process) != Some(HandleKind::Task) {
            return Err(TaskError::Unknown);
        }
        self.purge();
        if let Some(record) = self.lock().get(&id.process) {
            return match record.id == id {
                true => Ok(id.process),
                false => Err(TaskError::Unknown),
            };
        }
        let exec = &self.session.exec;
        let found = exec.find(&id.process).await;
        let found = found.map_err(|error| TaskError::Store(error_chain(&error)))?;
        let process = found.and_then(|number| exec.process(number));
        let process = process.ok_or(TaskError::Unknown)?;
        let early = id.deadline.map(|deadline| EarlyReturn {
            wait: WaitFor::Exit,
            limit: Duration::from_millis(deadline.saturating_sub(since_epoch(SystemTime::now())))
                .max(MIN_WAIT),
        });
        let wait = TaskWait {
            early,
            view: OutputView::Plain,
            tokens: None,
        };
        let mut ended = {
            let mut table = self.lock();
            let process_id = id.process.clone();
            match table.get(&process_id) {
                // Another request has found it meanwhile.
                Some(record) => record.state.subscribe(),
                None => self
                    .enter(&mut table, id.clone(), process, wait)
                    .state
                    .subscribe(),
            }
        };
        // A command that has ended is not reported as working.
        let ended = ended.wait_for(|state| !matches!(state, TaskState::Working));
        drop(timeout(RESOLVE_TIMEOUT, ended).await);
        Ok(id.process)
    }

    /// Enters a task into the table and follows its command.
    fn enter<'a>(
        &self,
        table: &'a mut TaskTable,
        id: TaskId,
        process: Arc<UnifiedExecProcess>,
        wait: TaskWait,
    ) -> &'a TaskRecord {
        let record = TaskRecord {
            created: process.started(),
            id: id.clone(),
            process: Some(process.clone()),
            state: watch::Sender::new(TaskState::Working),
        };
        let (ctx, tasks) = (self.context(), Arc::clone(&self.table));
        let process_id = id.process.clone();
        tokio::spawn(async move {
            let state = follow(&ctx, process, wait).await;
            let mut table = lock(&tasks);
            if matches!(state, TaskState::Lost) {
                table.remove(&id.process);
            } else if let Some(record) = table.get_mut(&id.process) {
                record.process = None;
                record.state.send_replace(state);
            }
        });
        table.entry(process_id).or_insert(record)
    }

    /// Removes expired results, and the oldest ones above the limit.
    fn purge(&self) {
        let now = SystemTime::now();
        let mut table = self.lock();
        let mut ended: Vec<_> = table
            .iter()
            .filter_map(|(id, record)| Some((record.ended()?, id.clone())))
            .collect();
        ended.sort();
        let excess = table.len().saturating_sub(MAX_TASKS - 1);
        let is_expired = |at: &SystemTime| now > *at + RESULT_RETENTION;
        let expired = ended
            .into_iter()
            .enumerate()
            .filter(|(index, (at, _))| *index < excess || is_expired(at));
        for (_, (_, id)) in expired {
            table.remove(&id);
            let exec = self.session.exec.clone();
            tokio::spawn(async move { exec.forget_task(&id).await });
        }
    }

    /// Returns the context of a call without a waiting client: its wait is not limited.
    fn context(&self) -> McpContext {
        McpContext::new(Arc::clone(&self.session), ProgressSupport::Supported)
    }

    fn lock(&self) -> MutexGuard<'_, TaskTable> {
        lock(&self.table)
    }
}

fn lock(table: &Mutex<TaskTable>) -> MutexGuard<'_, TaskTable> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Follows a command until its task ends.
async fn follow(ctx: &McpContext, process: Arc<UnifiedExecProcess>, wait: TaskWait) -> TaskState {
    let exec = ctx.exec();
    let shown_early = match wait.early {
        None => None,
        Some(early) => {
            let poll = WriteStdin {
                call_id: CallId(process.id().to_string()),
                number: process.number(),
                chars: String::new(),
                close: false,
                yield_time: Some(early.limit),
                wait: early.wait,
                max_output_tokens: wait.tokens,
                view: wait.view,
            };
            // On an error, another call has shown the output, or it waits for the command.
            let output = exec.write_stdin(poll).await.inspect_err(|error| {
                tracing::debug!(id = %process.id(), %error, "failed to wait for a task");
            });
            output.ok()
        }
    };
    let output = match shown_early {
        Some(output) => output,
        None => {
            process.wait_for_end().await;
            process.report(wait.view, exec.output_tokens(wait.tokens))
        }
    };
    if output.failure.is_some() && exec.durability() == Durability::Durable {
        exec.lose_task(&process);
        return TaskState::Lost;
    }
    if output.running.is_none() {
        exec.end_task(&process);
    }
    ended(output, process.ended(), ctx)
}

/// Returns the final state of a task.
fn ended(output: ToolOutput, at: Option<SystemTime>, ctx: &McpContext) -> TaskState {
    let at = at.unwrap_or_else(SystemTime::now);
    let exit = output.exit.as_ref();
    let message = match exit {
        Some(exit) => format!("exited with code {}", exit.code),
        None => "still running".to_owned(),
    };
    if exit.is_some_and(|exit| exit.cause == ExitCause::Terminated) {
        return TaskState::Ended {
            at,
            payload: TaskPayload::Cancelled,
            message: "the command was terminated".to_owned(),
        };
    }
    let result = command_answer(output, ctx).into_result();
    let result = match serde_json::to_value(result) {
        Ok(Value::Object(result)) => result,
        Ok(_) | Err(_) => JsonObject::new(),
    };
    TaskState::Ended {
        at,
        payload: TaskPayload::Completed { result },
        message,
    }
}

impl TaskRecord {
    fn ended(&self) -> Option<SystemTime> {
        match &*self.state.borrow() {
            TaskState::Ended { at, .. } => Some(*at),
            TaskState::Working | TaskState::Lost => None,
        }
    }

    /// Describes the task to a client.
    fn describe(&self) -> DetailedTask {
        let now = SystemTime::now();
        let age = now.duration_since(self.created).unwrap_or_default();
        let state = self.state.borrow();
        let (payload, updated, message, expires) = match &*state {
            TaskState::Ended {
                at,
                payload,
                message,
            } => {
                let expires = at.duration_since(self.created).unwrap_or_default();
                (
                    payload.clone(),
                    *at,
                    Some(message.clone()),
                    Some(expires + RESULT_RETENTION),
                )
            }
            TaskState::Working | TaskState::Lost => {
                let line = self.process.as_ref().and_then(|one| one.last_line());
                // A command runs as long as it likes.
                (TaskPayload::Working, now, line, None)
            }
        };
        let task = Task::new(
            self.id.to_string(),
            TaskStatus::Working,
            timestamp(self.created),
            timestamp(updated),
        );
        let mut task = task.with_poll_interval_ms(millis(poll_interval(age)));
        task.status_message = message;
        task.ttl_ms = expires.map(millis);
        DetailedTask::new(task, payload)
    }
}

/// Returns how often a client should ask: often for commands that end soon, rarely for long ones.
fn poll_interval(age: Duration) -> Duration {
    (age / 10).clamp(Duration::from_millis(500), Duration::from_secs(5))
}

fn timestamp(time: SystemTime) -> String {
    let text = OffsetDateTime::from(time).format(&Rfc3339);
    // Years beyond 9999 have no such format.
    text.unwrap_or_default()
}

fn since_epoch(time: SystemTime) -> u64 {
    millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Why a request for a task failed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum TaskError {
    /// Caller: the task does not exist, or its result has expired.
    #[error("task not found: it does not exist, or its result has expired")]
    Unknown,
    /// Host: the environment cannot be asked.
    #[error("{0}")]
    Store(String),
}

impl From<TaskError> for ErrorData {
    fn from(error: TaskError) -> Self {
        let text = error.to_string();
        match error {
            TaskError::Unknown => Self::invalid_params(text, None),
            TaskError::Store(_) => Self::internal_error(text, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_id_is_the_process_id_with_an_optional_deadline() {
        for text in ["mcp-1-tabc", "mcp-1-tabc.1790000000000"] {
            let id = TaskId::parse(text).unwrap();
            assert_eq!(id.process.as_str(), "mcp-1-tabc");
            assert_eq!(id.to_string(), text);
            assert_eq!(process_id(text), Some(id.process));
        }
        assert_eq!(TaskId::parse("mcp-1-tabc.soon"), None);
    }

    #[test]
    fn poll_interval_grows_with_the_age() {
        let interval = |seconds| poll_interval(Duration::from_secs(seconds)).as_millis();
        assert_eq!(
            (interval(0), interval(20), interval(3600)),
            (500, 2000, 5000)
        );
    }
}
