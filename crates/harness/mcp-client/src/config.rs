//! How an MCP server is launched.

use std::{collections::BTreeMap, time::Duration};

use exec_env::{
    backend::ExecBackend,
    command::{Command, Io, Stdin},
};
use exec_wire::{
    id::ProcessId,
    path_uri::PathUri,
    process::{EnvInherit, EnvPolicy},
    sandbox::Sandbox,
};
use rmcp::{
    RoleClient,
    service::{RunningService, Service, serve_client},
};
use tokio::time;

use crate::{
    error::{LaunchError, McpTransportError},
    transport::{McpTransport, Watch},
};

/// Longest message of a server, as one line. Tool results carry whole files and images.
const MAX_LINE_BYTES: usize = 16 << 20;
/// How long a server may take to answer `initialize`: package runners install first.
const STARTUP: Duration = Duration::from_secs(30);
/// How long a server may take to end by itself when its input has ended.
const EXIT: Duration = Duration::from_secs(2);
/// How long a server may take to end when it was asked to by a signal.
const TERMINATE: Duration = Duration::from_secs(3);

/// What a server needs of its host to run at all, where it is given variables by name.
const BASE_NAMES: [&str; 10] = [
    "HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
];

/// How an MCP server is launched. In which environment is the caller's choice.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct McpServerConfig {
    /// What logs and errors call it.
    pub name: String,
    /// The program.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables to set.
    pub env: BTreeMap<String, String>,
    /// Which variables of its host it gets beside them.
    pub env_vars: EnvVars,
    /// Where it runs.
    pub cwd: PathUri,
    /// Which files and which network it may use. Absent: all.
    pub sandbox: Option<Box<Sandbox>>,
    /// How long it may take until it has answered `initialize`.
    pub startup_timeout: Duration,
    /// How long it may go on when its input has ended.
    pub exit_timeout: Duration,
    /// How long it may go on when it was told to terminate.
    pub terminate_timeout: Duration,
    /// Longest line that it may write.
    pub max_line_bytes: usize,
}

/// Which variables of its host a server gets. The host is where it runs, not where the caller is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum EnvVars {
    /// None.
    None,
    /// A short list of harmless ones: `PATH`, `HOME`, …
    Core,
    /// What a program needs to run at all, and these, also if they look like secrets.
    Named(Vec<String>),
    /// What a policy lets through.
    Policy(EnvPolicy),
}

impl McpServerConfig {
    /// Builds a configuration without arguments and without variables of its own.
    pub fn new(name: impl Into<String>, command: impl Into<String>, cwd: PathUri) -> Self {
        Self {
            name: name.into(),
            command: command.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            env_vars: EnvVars::Core,
            cwd,
            sandbox: None,
            startup_timeout: STARTUP,
            exit_timeout: EXIT,
            terminate_timeout: TERMINATE,
            max_line_bytes: MAX_LINE_BYTES,
        }
    }

    /// Returns the command of the process `id`.
    pub fn command(&self, id: ProcessId) -> Command {
        let mut argv = vec![self.command.clone()];
        argv.extend(self.args.iter().cloned());
        Command {
            env_policy: self.env_vars.policy(),
            env: self.env.clone(),
            io: Io::Pipes {
                stdin: Stdin::Piped,
            },
            sandbox: self.sandbox.clone(),
            ..Command::new(id, argv, self.cwd.clone())
        }
    }
}

impl EnvVars {
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

/// A server that has answered `initialize`.
#[derive(Debug)]
pub struct Connected<S: Service<RoleClient>> {
    /// Calls the server. When it is dropped, the server is ended.
    pub service: RunningService<RoleClient, S>,
    /// Learns of the server's fate.
    pub watch: Watch,
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

    /// Starts the server and waits until it has answered `initialize`, for at most
    /// [`startup_timeout`](Self::startup_timeout). `handler` answers what the server asks. Dropping
    /// the future leaves nothing running.
    pub async fn connect<S: Service<RoleClient>>(
        &self,
        backend: &dyn ExecBackend,
        id: ProcessId,
        handler: S,
    ) -> Result<Connected<S>, LaunchError> {
        let begun = time::Instant::now();
        let timed_out = |stderr| LaunchError::TimedOut {
            server: self.name.clone(),
            limit: self.startup_timeout,
            stderr,
        };
        let launched = time::timeout(self.startup_timeout, self.launch(backend, id)).await;
        let transport = launched.map_err(|_| timed_out(String::new()))??;
        let watch = transport.watch();
        let left = self.startup_timeout.saturating_sub(begun.elapsed());
        match time::timeout(left, serve_client(handler, transport)).await {
            Ok(Ok(service)) => Ok(Connected { service, watch }),
            Ok(Err(error)) => Err(match watch.ended() {
                // It ended because the handshake failed, and that says more.
                None | Some(McpTransportError::Closed(_)) => LaunchError::Initialize {
                    server: self.name.clone(),
                    error: Box::new(error),
                },
                Some(end) => end.into(),
            }),
            Err(_) => Err(timed_out(watch.last_words())),
        }
    }
}
