//! Configuration of an MCP server, and launching it in an environment.

use std::{collections::BTreeMap, time::Duration};

use exec_env::environment::{Command, ExecBackend, ProcessIo, StartError, StdinMode};
use exec_wire::{
    id::ProcessId,
    path_uri::PathUri,
    process::{EnvInherit, EnvPolicy},
    sandbox::SandboxPolicy,
};
use rmcp::{
    RoleClient,
    service::{ClientInitializeError, RunningService, Service, serve_client},
};
use tokio::time;

use crate::transport::{McpTransport, McpTransportError, ServerWatch, stderr_suffix};

/// Default maximum length of a message, which is one line. Tool results contain whole files and
/// images.
const MAX_LINE_BYTES: usize = 16 << 20;
/// Default timeout for the response to `initialize`: package runners install first.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(30);
/// Default timeout for exiting after its stdin was closed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Default timeout for exiting after SIGTERM.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(3);

/// Variables that any program needs, added to a list of named variables.
const BASE_NAMES: [&str; 10] = [
    "HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
];

/// Configuration of an MCP server. The caller chooses the environment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct McpServerConfig {
    /// Name in logs and errors.
    pub name: String,
    /// The program.
    pub command: String,
    /// Arguments.
    pub args: Vec<String>,
    /// Variables to set.
    pub env: BTreeMap<String, String>,
    /// Variables inherited from its host.
    pub env_vars: InheritedVariables,
    /// Working directory.
    pub cwd: PathUri,
    /// Sandbox policy. Absent: no sandbox.
    pub sandbox: Option<Box<SandboxPolicy>>,
    /// Timeout for the response to `initialize`.
    pub startup_timeout: Duration,
    /// Timeout for exiting after its stdin was closed.
    pub exit_timeout: Duration,
    /// Timeout for exiting after SIGTERM.
    pub terminate_timeout: Duration,
    /// Maximum length of a line.
    pub max_line_bytes: usize,
}

/// Variables that a server inherits from its host, which is the machine where it runs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum InheritedVariables {
    /// None.
    None,
    /// A short list of harmless variables: `PATH`, `HOME`, …
    Core,
    /// The variables that any program needs, and the named ones, even if they look like secrets.
    Named(Vec<String>),
    /// The variables that a policy selects.
    Policy(EnvPolicy),
}

impl McpServerConfig {
    /// Creates a configuration without arguments and extra variables.
    pub fn new(name: impl Into<String>, command: impl Into<String>, cwd: PathUri) -> Self {
        Self {
            name: name.into(),
            command: command.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            env_vars: InheritedVariables::Core,
            cwd,
            sandbox: None,
            startup_timeout: STARTUP_TIMEOUT,
            exit_timeout: EXIT_TIMEOUT,
            terminate_timeout: TERMINATE_TIMEOUT,
            max_line_bytes: MAX_LINE_BYTES,
        }
    }

    /// Returns the command for the process `id`.
    pub fn command(&self, id: ProcessId) -> Command {
        let mut argv = vec![self.command.clone()];
        argv.extend(self.args.iter().cloned());
        Command {
            env_policy: self.env_vars.policy(),
            env: self.env.clone(),
            io: ProcessIo::Pipes {
                stdin: StdinMode::Piped,
            },
            sandbox: self.sandbox.clone(),
            ..Command::new(id, argv, self.cwd.clone())
        }
    }
}

impl InheritedVariables {
    fn policy(&self) -> Option<EnvPolicy> {
        let policy = |inherit| EnvPolicy {
            inherit,
            ignore_default_excludes: false,
            exclude: Vec::new(),
            set: BTreeMap::new(),
            include_only: Vec::new(),
        };
        match self {
            Self::None => None,
            Self::Core => Some(policy(EnvInherit::Core)),
            Self::Named(names) => {
                let base = BASE_NAMES.map(str::to_owned);
                Some(EnvPolicy {
                    ignore_default_excludes: true,
                    include_only: base.into_iter().chain(names.iter().cloned()).collect(),
                    ..policy(EnvInherit::All)
                })
            }
            Self::Policy(policy) => Some(policy.clone()),
        }
    }
}

/// A server that has responded to `initialize`.
#[derive(Debug)]
pub struct ConnectedServer<S: Service<RoleClient>> {
    /// Calls the server. Dropping it stops the server.
    pub service: RunningService<RoleClient, S>,
    /// Observes the end of the server.
    pub watch: ServerWatch,
}

impl McpServerConfig {
    /// Starts the server as the process `id`. Dropping the future leaves nothing running.
    pub async fn launch(
        &self,
        backend: &dyn ExecBackend,
        id: ProcessId,
    ) -> Result<McpTransport, LaunchError> {
        let started = backend.start(self.command(id)).await;
        let started = started.map_err(|error| LaunchError::Start {
            server: self.name.clone(),
            error,
        })?;
        Ok(McpTransport::new(started.process, self))
    }

    /// Starts the server and waits for its response to `initialize`, for at most
    /// [`startup_timeout`](Self::startup_timeout). `handler` handles requests of the server.
    /// Dropping the future leaves nothing running.
    pub async fn connect<S: Service<RoleClient>>(
        &self,
        backend: &dyn ExecBackend,
        id: ProcessId,
        handler: S,
    ) -> Result<ConnectedServer<S>, LaunchError> {
        let started_at = time::Instant::now();
        let timed_out = |stderr| LaunchError::TimedOut {
            server: self.name.clone(),
            limit: self.startup_timeout,
            stderr,
        };
        let launched = time::timeout(self.startup_timeout, self.launch(backend, id)).await;
        let transport = launched.map_err(|_| timed_out(String::new()))??;
        let watch = transport.watch();
        let remaining = self.startup_timeout.saturating_sub(started_at.elapsed());
        match time::timeout(remaining, serve_client(handler, transport)).await {
            Ok(Ok(service)) => Ok(ConnectedServer { service, watch }),
            Ok(Err(error)) => Err(match watch.ended() {
                // It was stopped because the handshake failed; that error is more informative.
                None | Some(McpTransportError::Closed(_)) => LaunchError::Initialize {
                    server: self.name.clone(),
                    error: Box::new(error),
                },
                Some(end) => end.into(),
            }),
            Err(_) => Err(timed_out(watch.last_stderr())),
        }
    }
}

/// Why a server was not launched or connected. Nothing is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The process did not start; the inner error says who must act.
    #[error("mcp server `{server}` did not start")]
    Start {
        /// Name of the server.
        server: String,
        /// Cause.
        #[source]
        error: StartError,
    },
    /// Peer: it did not respond to `initialize` in time.
    #[error("mcp server `{server}` was not ready within {limit:?}{}", stderr_suffix(.stderr))]
    TimedOut {
        /// Name of the server.
        server: String,
        /// The timeout.
        limit: Duration,
        /// Last lines of its stderr.
        stderr: String,
    },
    /// The server exited or became unreachable before it was ready; the inner error says who must
    /// act.
    #[error(transparent)]
    Transport(#[from] McpTransportError),
    /// Peer: it violated the protocol.
    #[error("mcp server `{server}` did not initialize")]
    Initialize {
        /// Name of the server.
        server: String,
        /// Cause.
        #[source]
        error: Box<ClientInitializeError>,
    },
}
