//! Starts commands on a remote host, and attaches to the processes of its server.
//!
//! [`RemoteBackend`] starts processes of the session. Server-owned processes, which any client of
//! the server can start, attach to and list, are methods of [`ExecServerClient`].

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use exec_env::{
    environment::{Command, ExecBackend, ProcessIo, StartError, StartedProcess, StdinMode},
    process::ExecProcess,
};
use exec_wire::{
    environment::EnvironmentInfo,
    error::{ErrorCode, RpcError},
    id::{OutputSeq, ProcessId},
    method::Method,
    process::{
        AttachProcess, ListProcesses, ProcessLimits, ProcessMetadata, ProcessSummary, StartProcess,
    },
};
use futures_util::future::{BoxFuture, FutureExt};

use crate::{
    client::ExecServerClient,
    driver::NetworkHook,
    error::ExecServerError,
    events::{AttachmentOrigin, LaunchRequest, ProcessEvents, ProcessOwner, ReplayRange},
    handshake::check_capabilities,
    process::{RemoteProcess, TerminalPresence},
};

/// Starts commands on the host of an exec-server.
#[derive(Clone, Debug)]
pub struct RemoteBackend {
    client: ExecServerClient,
    durability: ProcessDurability,
}

/// Whether a process outlives its server.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ProcessDurability {
    /// As the server is configured.
    #[default]
    ServerDefault,
    /// It does. The start fails if it cannot.
    Durable,
    /// It does not.
    NotDurable,
}

impl RemoteBackend {
    /// Creates a backend over a connection.
    pub fn new(client: ExecServerClient) -> Self {
        Self {
            client,
            durability: ProcessDurability::default(),
        }
    }

    /// Chooses whether processes outlive their server. A [`Command`] that asks for durability wins.
    #[must_use]
    pub fn with_durability(self, durability: ProcessDurability) -> Self {
        Self { durability, ..self }
    }

    /// Starts a server-owned process, like [`ExecServerClient::start_detached`].
    ///
    /// # Errors
    /// Fails if the process cannot be started.
    pub async fn start_detached(&self, command: Command) -> Result<StartedProcess, StartError> {
        self.start_process(command, ProcessOwner::Server).await
    }

    pub(crate) async fn start_process(
        &self,
        mut command: Command,
        owner: ProcessOwner,
    ) -> Result<StartedProcess, StartError> {
        match command.argv.first() {
            None => return Err(StartError::EmptyArgv),
            Some(program) if program.is_empty() => return Err(StartError::EmptyProgram),
            Some(_) => {}
        }
        let server_kind = self.client.server_kind();
        if owner == ProcessOwner::Server {
            server_kind.check_detached()?;
        }
        server_kind.check_start(&command)?;
        let durable = server_kind.resolve_durability(self.durability)?;
        if command.network.proxy.is_some() || command.shell_snapshot.is_some() {
            let info = self.client.info().await.map_err(start_error)?;
            check_capabilities(&mut command, &info.capabilities)?;
        }
        let shared = Arc::clone(self.client.shared());
        let id = command.process_id.clone();
        let network_hook = NetworkHook::new(&command.network);
        let mut params = params(command);
        params.durable = params.durable.or(durable);
        // Create the handle before the start: dropping this future drops the handle, which
        // terminates the process.
        params.detached = owner == ProcessOwner::Server;
        let launch = || AttachmentOrigin::Started(LaunchRequest::of(&params, now_ms()));
        let origin = params.detached.then(launch);
        let events = Arc::new(ProcessEvents::new(id, shared, network_hook, origin));
        let terminal = TerminalPresence::of(params.tty);
        let process = RemoteProcess::new(self.client.clone(), &events, terminal);
        let started = self.client.start(params, events).await;
        let started = started.map_err(start_error)?;
        Ok(StartedProcess {
            process: Arc::new(process),
            sandbox_type: started.sandbox_type,
        })
    }
}

impl ExecBackend for RemoteBackend {
    fn start(&self, command: Command) -> BoxFuture<'_, Result<StartedProcess, StartError>> {
        self.start_process(command, ProcessOwner::Session).boxed()
    }

    fn info(&self) -> BoxFuture<'_, Result<EnvironmentInfo, RpcError>> {
        let info = self.client.info();
        info.map(|info| info.map_err(ExecServerError::into_rpc))
            .boxed()
    }
}

/// Returns the time of this host's clock, used until the server reports its own.
pub(crate) fn now_ms() -> u64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

/// Builds the parameters of `process/start`. The wire has no member for `retained_bytes`, so the
/// server applies its own setting.
fn params(command: Command) -> StartProcess {
    let (tty, size) = match command.io {
        ProcessIo::Terminal(size) => (true, Some(size)),
        ProcessIo::Pipes { .. } => (false, None),
    };
    let (metadata, limits) = (command.metadata, command.limits);
    StartProcess {
        process_id: command.process_id,
        metadata: (metadata != ProcessMetadata::default()).then_some(metadata),
        argv: command.argv,
        cwd: command.cwd,
        env_policy: command.env_policy,
        env: command.env,
        shell_snapshot: command.shell_snapshot,
        tty,
        pipe_stdin: command.io
            == ProcessIo::Pipes {
                stdin: StdinMode::Piped,
            },
        arg0: command.arg0,
        sandbox: command.sandbox,
        enforce_managed_network: command.network.enforced,
        managed_network: command.network.managed,
        network_proxy: command.network.proxy,
        size,
        mode: command.mode,
        limits: (limits != ProcessLimits::default()).then_some(limits),
        detached: false,
        durable: command.durable.map(|_| true),
    }
}

fn start_error(error: ExecServerError) -> StartError {
    match error.into_disconnect() {
        Ok(reason) => StartError::Disconnected(reason),
        Err(error @ ExecServerError::IdInUse(_)) => StartError::Refused {
            field: "processId",
            reason: error.to_string(),
        },
        Err(error) => StartError::Remote(error.into_rpc()),
    }
}

impl ExecServerClient {
    /// Starts a server-owned process, which outlives its handle, this client and its session. Its
    /// id must be unique on the server. Dropping the future before the response terminates the
    /// process, unless the connection broke.
    pub async fn start_detached(&self, command: Command) -> Result<StartedProcess, StartError> {
        let backend = RemoteBackend::new(self.clone());
        backend.start_process(command, ProcessOwner::Server).await
    }

    /// Attaches to a server-owned process: replays its retained output after `after`, then follows
    /// it. Output beyond the retained range is skipped in the sequence, and so is output that a
    /// slow reader misses: such a process is never paused.
    ///
    /// The client attaches again after every reconnect and in every new session. Dropping the
    /// handle and its event streams, or the future, detaches from the process, which keeps running.
    ///
    /// # Errors
    /// [`ExecServerError::UnknownProcess`] if the process does not exist,
    /// [`ExecServerError::NoSuchEvent`] if it has not reached `after`,
    /// [`ExecServerError::IdInUse`] while this client has another handle for it.
    pub async fn attach(
        &self,
        process_id: ProcessId,
        after: Option<OutputSeq>,
    ) -> Result<Arc<dyn ExecProcess>, ExecServerError> {
        self.check(AttachProcess::NAME)?;
        // A list that is too long for a response must not prevent attaching.
        let summary = match self.processes().await {
            Ok(list) => list.into_iter().find(|one| one.process_id == process_id),
            Err(ExecServerError::Remote(_) | ExecServerError::Malformed { .. }) => None,
            Err(error) => return Err(error),
        };
        self.attach_summary(process_id, after, summary, None).await
    }

    /// Attaches to a process from [`all_processes`](Self::all_processes), like
    /// [`attach`](Self::attach). A process of another session becomes server-owned and outlives
    /// that session.
    ///
    /// # Errors
    /// As [`attach`](Self::attach); also if the id now names another process.
    pub async fn attach_listed(
        &self,
        process: &ProcessSummary,
        after: Option<OutputSeq>,
    ) -> Result<Arc<dyn ExecProcess>, ExecServerError> {
        self.check(AttachProcess::NAME)?;
        let started = Some(process.started_at_ms);
        let summary = Some(process.clone());
        self.attach_summary(process.process_id.clone(), after, summary, started)
            .await
    }

    async fn attach_summary(
        &self,
        process_id: ProcessId,
        after: Option<OutputSeq>,
        summary: Option<ProcessSummary>,
        started_at_ms: Option<u64>,
    ) -> Result<Arc<dyn ExecProcess>, ExecServerError> {
        let after = after.unwrap_or_default();
        let begin = match &summary {
            // The exit is after the events that the caller has seen.
            Some(summary) if summary.running => after,
            Some(_) | None => OutputSeq(0),
        };
        let origin = AttachmentOrigin::Attached(ReplayRange { after, begin });
        let shared = Arc::clone(self.shared());
        let events = ProcessEvents::new(process_id.clone(), shared, None, Some(origin));
        let events = Arc::new(events);
        let terminal = match &summary {
            None => TerminalPresence::Unknown,
            Some(summary) => {
                events.handle_start_time(summary.started_at_ms, summary.os_pid);
                TerminalPresence::of(summary.tty)
            }
        };
        // Create the handle before attaching: dropping this future drops the handle, which
        // detaches.
        let process = RemoteProcess::new(self.clone(), &events, terminal);
        let params = AttachProcess {
            process_id: process_id.clone(),
            after_seq: Some(begin),
            started_at_ms,
        };
        match self.attach_process(params, events).await {
            Ok(attached) if after >= attached.next_seq => Err(ExecServerError::NoSuchEvent {
                process: process_id,
                after,
                last: OutputSeq(attached.next_seq.0.saturating_sub(1)),
            }),
            Ok(_) => Ok(Arc::new(process)),
            Err(ExecServerError::Remote(error))
                if error.code == ErrorCode::INVALID_REQUEST && summary.is_none() =>
            {
                Err(ExecServerError::UnknownProcess(process_id))
            }
            Err(error) => Err(error),
        }
    }

    /// Lists the processes of this session and the server-owned ones, running or retained.
    pub async fn processes(&self) -> Result<Vec<ProcessSummary>, ExecServerError> {
        self.check(ListProcesses::NAME)?;
        let list = self.call(ListProcesses::default()).await?;
        Ok(list.processes)
    }

    /// Lists the processes of all sessions that this client may attach to.
    pub async fn all_processes(&self) -> Result<Vec<ProcessSummary>, ExecServerError> {
        self.check(ListProcesses::NAME)?;
        let list = self.call(ListProcesses { all: true }).await?;
        Ok(list.processes)
    }
}
