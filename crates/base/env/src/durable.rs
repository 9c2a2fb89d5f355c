//! Durable state: sessions and processes that outlive their server, and the history of processes.
//!
//! An environment that can keep state implements [`DurableState`]. A server without it starts
//! ordinary processes only.

use std::{fmt, io, sync::Arc};

use exec_core::output_log::ExitInfo;
use exec_wire::{
    id::{ProcessId, SessionId},
    path_uri::PathUri,
    process::TerminalSize,
};
use futures_util::future::BoxFuture;

use crate::process::{ExecProcess, OutputHold};

/// Asks for a durable process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DurableRequest {
    /// Owner of the process.
    pub owner: DurableOwner,
    /// Authenticated client that starts it.
    pub principal: Option<String>,
    /// The start fails if the process cannot be durable. Otherwise it is then an ordinary one.
    pub required: bool,
}

/// Owner of a durable process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum DurableOwner {
    /// The server: the process is detached.
    Server,
    /// A session. The process ends with it.
    Session(SessionId),
}

/// A session that a later server restores.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DurableSession {
    /// Id of the session.
    pub id: SessionId,
    /// Authenticated client that may resume it.
    pub principal: Option<String>,
    /// The client acknowledges output.
    pub acknowledges: bool,
}

/// A process of an earlier server, running or ended.
#[derive(Debug)]
pub struct DurableProcess {
    /// The process. When the last clone is dropped, its tree is killed.
    pub process: Arc<dyn ExecProcess>,
    /// Keeps all output of a process that runs until its owner holds what a client must not lose.
    pub hold: Option<Box<dyn OutputHold>>,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Working directory.
    pub cwd: PathUri,
    /// Runs on a terminal.
    pub tty: bool,
    /// Its owner.
    pub owner: DurableOwner,
}

/// What an earlier server has left.
#[derive(Debug, Default)]
pub struct RestoredState {
    /// Sessions that clients may resume.
    pub sessions: Vec<DurableSession>,
    /// Processes that run, and recent ones that have ended.
    pub processes: Vec<DurableProcess>,
}

/// A recorded process.
#[derive(Clone, Debug)]
pub struct HistoryEntry {
    /// Process id that the client chose.
    pub process_id: ProcessId,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Working directory.
    pub cwd: PathUri,
    /// Runs on a terminal.
    pub tty: bool,
    /// Start time in milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// End time, if it is known.
    pub ended_at_ms: Option<u64>,
    /// Exit. Absent while the process runs. A lost process has the cause `lost`.
    pub exit: Option<ExitInfo>,
    /// OS pid of the child.
    pub os_pid: Option<u32>,
    /// Output bytes ever written.
    pub output_bytes: u64,
    /// Whether the server owned it.
    pub detached: bool,
    /// Authenticated client that started it.
    pub principal: Option<String>,
    /// Terminal size at the start, if it was recorded.
    pub size: Option<TerminalSize>,
}

/// Selects recorded processes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HistorySelection {
    /// Only processes of the server, and those that this authenticated client started.
    pub visible_to: Option<String>,
    /// Only processes with this id.
    pub process_id: Option<ProcessId>,
    /// Only the process that started at this time.
    pub started_at_ms: Option<u64>,
}

/// State that outlives the server.
pub trait DurableState: fmt::Debug + Send + Sync {
    /// Restores sessions and adopts processes. Called once, before the first session.
    fn restore(&self) -> BoxFuture<'_, io::Result<RestoredState>>;

    /// Saves a session. It must exist before its first durable process.
    ///
    /// # Errors
    /// Fails if the state cannot be written.
    fn save_session(&self, session: &DurableSession) -> io::Result<()>;

    /// Removes a saved session.
    fn remove_session(&self, id: &SessionId);

    /// Lists recorded processes, oldest first.
    fn history(&self) -> BoxFuture<'static, io::Result<Vec<HistoryEntry>>>;

    /// Opens the newest recorded process that has ended and matches.
    fn open_history(
        &self,
        selection: HistorySelection,
    ) -> BoxFuture<'static, io::Result<Option<DurableProcess>>>;

    /// Removes recorded processes that have ended and match. Resolves to their number.
    fn purge_history(&self, selection: HistorySelection) -> BoxFuture<'static, io::Result<usize>>;
}
