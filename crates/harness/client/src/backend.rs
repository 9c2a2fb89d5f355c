//! Starts commands on a remote host.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use exec_env::{
    command::{Command, ProcessIo, StdinMode},
    environment::{ExecBackend, StartError, StartedProcess},
};
use exec_wire::{
    environment::EnvironmentInfo,
    error::RpcError,
    process::{ProcessLimits, ProcessMetadata, StartProcess},
};
use futures_util::future::{BoxFuture, FutureExt};

use crate::{
    client::ExecServerClient,
    driver::NetworkHook,
    error::ExecServerError,
    events::{AttachmentOrigin, LaunchRequest, ProcessEvents, ProcessOwner},
    process::{RemoteProcess, TerminalPresence},
    server_kind::check_capabilities,
};

/// Starts commands on the host of an exec-server.
#[derive(Clone, Debug)]
pub struct RemoteBackend {
    client: ExecServerClient,
}

impl RemoteBackend {
    /// Creates a backend over a connection.
    pub fn new(client: ExecServerClient) -> Self {
        Self { client }
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
        if command.network.proxy.is_some() || command.shell_snapshot.is_some() {
            let info = self.client.info().await.map_err(start_error)?;
            check_capabilities(&mut command, &info.capabilities)?;
        }
        let shared = Arc::clone(self.client.shared());
        let id = command.process_id.clone();
        let network_hook = NetworkHook::new(&command.network);
        let io = command.io;
        let mut params = params(command);
        // Create the handle before the start: dropping this future drops the handle, which
        // terminates the process.
        let client = self.client.clone();
        let (events, process) = match owner {
            ProcessOwner::Session => {
                let events = Arc::new(ProcessEvents::new(id, shared, network_hook, now_ms()));
                let process = RemoteProcess::new(client, &events, io);
                (events, process)
            }
            ProcessOwner::Server => {
                params.detached = true;
                let origin = AttachmentOrigin::Started(LaunchRequest::of(&params, now_ms()));
                let events =
                    ProcessEvents::new_attached(id, shared, network_hook, now_ms(), origin);
                let events = Arc::new(events);
                let terminal = TerminalPresence::of(params.tty);
                let process = RemoteProcess::attached(client, &events, terminal);
                (events, process)
            }
        };
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
