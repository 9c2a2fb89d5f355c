//! Starts commands on a remote host.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use exec_env::{
    backend::{ExecBackend, StartError, StartedProcess},
    command::{Command, Io, Stdin},
};
use exec_wire::{
    environment::{EnvironmentInfo, ReadEnvironmentInfo},
    error::{ErrorCode, RpcError},
    process::{Limits, Metadata, StartProcess},
};
use futures_util::future::{BoxFuture, FutureExt};

use crate::{
    client::{CallError, ExecServerClient},
    driver::Watch,
    events::ProcessEvents,
    process::RemoteProcess,
};

/// Starts commands on the host of an exec-server.
#[derive(Clone, Debug)]
pub struct RemoteBackend {
    client: ExecServerClient,
}

impl RemoteBackend {
    /// Begins with nothing started.
    pub fn new(client: ExecServerClient) -> Self {
        Self { client }
    }

    async fn start_process(&self, command: Command) -> Result<StartedProcess, StartError> {
        match command.argv.first() {
            None => return Err(StartError::EmptyArgv),
            Some(program) if program.is_empty() => return Err(StartError::EmptyProgram),
            Some(_) => {}
        }
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let now_ms = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX);
        let hub = Arc::clone(self.client.hub());
        let id = command.process_id.clone();
        let watch = Watch::new(&command.network);
        let events = Arc::new(ProcessEvents::new(id, hub, watch, now_ms));
        // Made before it runs: if this future is dropped, so is the handle, and that ends it.
        let process = Arc::new(RemoteProcess::new(self.client.clone(), &events, command.io));
        let started = self
            .client
            .start(params(command), events)
            .await
            .map_err(start_error)?;
        Ok(StartedProcess {
            process,
            sandbox_type: started.sandbox_type,
        })
    }
}

impl ExecBackend for RemoteBackend {
    fn start(&self, command: Command) -> BoxFuture<'_, Result<StartedProcess, StartError>> {
        self.start_process(command).boxed()
    }

    fn info(&self) -> BoxFuture<'_, Result<EnvironmentInfo, RpcError>> {
        self.client
            .call(ReadEnvironmentInfo)
            .map(|info| info.map_err(rpc_error))
            .boxed()
    }
}

/// What the server is asked for. It retains as much output as it is set to: the wire has no member
/// for `retained_bytes`.
fn params(command: Command) -> StartProcess {
    let (tty, size) = match command.io {
        Io::Terminal(size) => (true, Some(size)),
        Io::Pipes { .. } => (false, None),
    };
    let (metadata, limits) = (command.metadata, command.limits);
    StartProcess {
        process_id: command.process_id,
        metadata: (metadata != Metadata::default()).then_some(metadata),
        argv: command.argv,
        cwd: command.cwd,
        env_policy: command.env_policy,
        env: command.env,
        shell_snapshot: command.shell_snapshot,
        tty,
        pipe_stdin: command.io
            == Io::Pipes {
                stdin: Stdin::Piped,
            },
        arg0: command.arg0,
        sandbox: command.sandbox,
        enforce_managed_network: command.network.enforced,
        managed_network: command.network.managed,
        network_proxy: command.network.proxy,
        size,
        mode: None,
        limits: (limits != Limits::default()).then_some(limits),
        detached: false,
    }
}

fn start_error(error: CallError) -> StartError {
    match error {
        CallError::Remote(error) => StartError::Remote(error),
        CallError::Disconnected => StartError::Disconnected,
        CallError::IdInUse(_) => StartError::Refused {
            field: "processId",
            reason: error.to_string(),
        },
        CallError::TooMany(_) | CallError::NoRoom(_) | CallError::Malformed { .. } => {
            StartError::Remote(rpc_error(error))
        }
    }
}

/// The stock client's code for a connection that is gone.
const DISCONNECTED: ErrorCode = ErrorCode(-32000);

/// A failure of ours in the place of an answer.
pub(crate) fn rpc_error(error: CallError) -> RpcError {
    match error {
        CallError::Remote(error) => error,
        CallError::Disconnected => RpcError::new(DISCONNECTED, error.to_string()),
        CallError::TooMany(_)
        | CallError::NoRoom(_)
        | CallError::IdInUse(_)
        | CallError::Malformed { .. } => RpcError::internal(error.to_string()),
    }
}
