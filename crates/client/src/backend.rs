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
    environment::EnvironmentInfo,
    error::RpcError,
    process::{Limits, Metadata, StartProcess},
};
use futures_util::future::{BoxFuture, FutureExt};

use crate::{
    client::ExecServerClient, driver::Watch, error::ExecServerError, events::ProcessEvents,
    peer::check_abilities, process::RemoteProcess,
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

    async fn start_process(&self, mut command: Command) -> Result<StartedProcess, StartError> {
        match command.argv.first() {
            None => return Err(StartError::EmptyArgv),
            Some(program) if program.is_empty() => return Err(StartError::EmptyProgram),
            Some(_) => {}
        }
        self.client.peer().check_start(&command)?;
        if command.network.proxy.is_some() || command.shell_snapshot.is_some() {
            let info = self.client.info().await.map_err(start_error)?;
            check_abilities(&mut command, &info.capabilities)?;
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
        let info = self.client.info();
        info.map(|info| info.map_err(ExecServerError::into_rpc))
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

fn start_error(error: ExecServerError) -> StartError {
    match error.disconnect() {
        Ok(gone) => StartError::Disconnected(gone),
        Err(error @ ExecServerError::IdInUse(_)) => StartError::Refused {
            field: "processId",
            reason: error.to_string(),
        },
        Err(error) => StartError::Remote(error.into_rpc()),
    }
}
