//! Starts commands on this machine: environment, shell snapshot, network, sandbox, launch.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use exec_core::output_log::RetentionLimits;
use exec_env::environment::{
    Command, ExecBackend, ProcessIo, StartError, StartedProcess, StdinMode,
};
use exec_env::process::ExecProcess;
use exec_journal::JournalHead;
use exec_process::{
    DurableStore, LaunchStdio, LocalProcess, ProcessLaunch, launch,
    spawner::{CommandSpec, SpawnError, SpawnStage, Spawner},
};
use exec_proxy::policy_gate::{Connector, SystemConnector};
use exec_sandbox::{CommandRequest, ManagedNetworkRequest, PreparedSandbox, SandboxFactory};
use exec_wire::{
    environment::{EnvironmentInfo, ServerCapabilities},
    error::RpcError,
    process::SandboxType,
    sandbox::SandboxPolicy,
};
use futures_util::future::{BoxFuture, FutureExt};

use crate::{
    durable_state,
    env_policy::child_environment,
    host::HostDescription,
    process_network::{ProcessNetwork, has_host_network},
    session_processes::{NetworkPlacement, SessionEntry, SessionProcesses},
    shell_snapshot::ShellSnapshots,
};

/// Configuration of a local environment.
#[derive(Clone)]
pub struct LocalConfig {
    /// Environment variables that policies inherit from.
    pub env: BTreeMap<OsString, OsString>,
    /// Description of the host for clients.
    pub host: HostDescription,
    /// Version of the executor for clients.
    pub version: String,
    /// Output retention of each process.
    pub retention: RetentionLimits,
    /// Sandbox settings.
    pub sandbox: exec_sandbox::SandboxSettings,
}

impl fmt::Debug for LocalConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The environment may hold secrets.
        f.debug_struct("LocalConfig")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

/// Starts commands on this machine. Clones share the spawner but neither the shell snapshots nor
/// the table of processes: each session has its own clone.
#[derive(Debug)]
pub struct LocalBackend {
    pub(crate) config: Arc<LocalConfig>,
    pub(crate) spawner: Spawner,
    pub(crate) sandboxes: SandboxFactory,
    /// Opens the outgoing connections of managed networks.
    pub(crate) connector: Arc<dyn Connector>,
    snapshots: ShellSnapshots,
    /// Processes that this backend has started.
    pub(crate) processes: SessionProcesses,
    /// Starts durable processes.
    pub(crate) durable: Option<DurableStore>,
}

impl Clone for LocalBackend {
    fn clone(&self) -> Self {
        Self {
            config: Arc::clone(&self.config),
            spawner: self.spawner.clone(),
            sandboxes: self.sandboxes.clone(),
            connector: Arc::clone(&self.connector),
            snapshots: ShellSnapshots::default(),
            processes: SessionProcesses::default(),
            durable: self.durable.clone(),
        }
    }
}

impl LocalBackend {
    /// Creates a backend. It starts nothing yet.
    pub fn new(config: LocalConfig) -> Self {
        Self::with_spawner(config, Spawner::default())
    }

    /// Creates a backend with the given spawner. It starts nothing yet.
    pub fn with_spawner(config: LocalConfig, spawner: Spawner) -> Self {
        let sandboxes = SandboxFactory::new(spawner.clone(), config.sandbox);
        Self {
            config: Arc::new(config),
            spawner,
            sandboxes,
            connector: Arc::new(SystemConnector::default()),
            snapshots: ShellSnapshots::default(),
            processes: SessionProcesses::default(),
            durable: None,
        }
    }

    /// Starts durable processes with this store.
    #[must_use]
    pub fn with_durable_store(self, store: DurableStore) -> Self {
        Self {
            durable: Some(store),
            ..self
        }
    }

    /// Protects files and directories from changes in every sandbox, even if its policy allows them
    /// ([`SandboxFactory::with_protected_paths`]).
    #[must_use]
    pub fn with_protected_paths(self, paths: Vec<PathBuf>) -> Self {
        let sandboxes = self.sandboxes.clone().with_protected_paths(paths);
        Self { sandboxes, ..self }
    }

    /// Returns the sandbox factory for files and commands.
    pub fn sandboxes(&self) -> &SandboxFactory {
        &self.sandboxes
    }

    /// Starts the spawner ahead of the first command, and probes the sandbox features.
    pub async fn warm_up(&self) {
        if let Err(error) = self.spawner.warm_up().await {
            tracing::warn!(%error, "failed to start the spawner; the first command will retry");
        }
        if let Some(durable) = &self.durable {
            durable.warm_up().await;
        }
        // Probe the sandbox features now: `initialize` returns them and should not wait.
        let sandboxes = self.sandboxes.clone();
        tokio::spawn(async move {
            drop(sandboxes.abilities().await);
        });
    }

    async fn start_process(&self, command: Command) -> Result<StartedProcess, StartError> {
        let program = match command.argv.first() {
            None => return Err(StartError::EmptyArgv),
            Some(program) if program.is_empty() => return Err(StartError::EmptyProgram),
            Some(program) => program.clone(),
        };
        let cwd = command.cwd.to_native().map_err(StartError::Cwd)?;
        let (mut argv, mut env, inherited_fds) =
            match self.snapshots.replay(self, &command, &cwd).await? {
                Some(replay) => (replay.argv, replay.env, vec![replay.state]),
                None => {
                    let host = &self.config.env;
                    let policy = command.env_policy.as_ref();
                    let env = child_environment(host, policy, &command.env, &command.metadata);
                    (command.argv.clone(), env, Vec::new())
                }
            };
        let durable = command.durable.as_ref().map(|request| DurableLaunch {
            head: durable_state::journal_head(&command, request),
            required: request.required,
        });
        if let Some(arg0) = command.arg0 {
            argv[0] = arg0;
        }
        let io = match command.io {
            ProcessIo::Pipes {
                stdin: StdinMode::Null,
            } => LaunchStdio::Pipes,
            ProcessIo::Pipes {
                stdin: StdinMode::Piped,
            } => LaunchStdio::PipesWithStdin,
            ProcessIo::Terminal(size) => {
                let shell = || OsString::from(&self.config.host.shell.path);
                env.entry("SHELL".into()).or_insert_with(shell);
                LaunchStdio::Terminal(size)
            }
        };
        let sandbox = command.sandbox.as_deref();
        let sandboxed = sandbox.is_some();
        let network = ProcessNetwork::new(
            command.network,
            sandbox,
            &command.process_id,
            &self.connector,
            &mut env,
        )?;
        let durable = self.admit_durable(durable, network.is_managed())?;
        let env: Vec<(OsString, OsString)> = env.into_iter().collect();
        let mut retention = self.config.retention;
        retention.bytes = command
            .retained_bytes
            .map_or(retention.bytes, |bytes| bytes.min(retention.bytes));
        let spec = CommandSpec {
            program: program.clone().into(),
            argv: argv.into_iter().map(OsString::from).collect(),
            env,
            cwd: cwd.clone(),
            inherited_fds,
            ..CommandSpec::default()
        };
        let mut command = ProcessLaunch::new(command.process_id, spec, io, command.limits);
        command.sandboxed = sandboxed;
        let to_start_error = |error| start_error(error, &program, &cwd, sandboxed);
        let (process, placement, rules) = match sandbox {
            None => {
                let process = self.launch(command, retention, durable).await;
                let process = process.map_err(to_start_error)?;
                let rules = network.run(None, &process)?;
                (process, NetworkPlacement::Command, rules)
            }
            Some(sandbox) => {
                let launched =
                    self.launch_sandboxed(command, sandbox, &network, retention, durable);
                let launched = launched.await.map_err(|failure| match failure {
                    LaunchFailure::Refused(error) => error,
                    LaunchFailure::Spawn(error) => to_start_error(error),
                })?;
                let placement = match launched.is_wrapped && !has_host_network(sandbox) {
                    true => NetworkPlacement::BelowWrapper,
                    false => NetworkPlacement::Command,
                };
                let rules = network.run(launched.listener_socket, &launched.process)?;
                (launched.process, placement, rules)
            }
        };
        let process: Arc<dyn ExecProcess> = process;
        let entry = SessionEntry {
            process: Arc::downgrade(&process),
            placement,
            rules,
        };
        self.processes.insert(process.id().clone(), entry);
        Ok(StartedProcess {
            process,
            sandbox_type: Some(if sandboxed {
                SandboxType::LinuxSeccomp
            } else {
                SandboxType::None
            }),
        })
    }
}

/// A command that shall outlive its server.
struct DurableLaunch {
    head: JournalHead,
    /// The start fails if it cannot.
    required: bool,
}

/// Maximum attempts to start a command while files of its policy appear and disappear.
const MAX_LAUNCH_ATTEMPTS: usize = 4;

/// A sandboxed command that was started.
struct SandboxedLaunch {
    process: Arc<LocalProcess>,
    listener_socket: Option<OwnedFd>,
    /// Whether a program is run that applies the sandbox to its child.
    is_wrapped: bool,
}

/// Why a sandboxed command did not start.
enum LaunchFailure {
    Refused(StartError),
    Spawn(SpawnError),
}

impl LocalBackend {
    /// Launches a command, as a durable process if it has a head.
    async fn launch(
        &self,
        command: ProcessLaunch,
        retention: RetentionLimits,
        durable: Option<JournalHead>,
    ) -> Result<Arc<LocalProcess>, SpawnError> {
        match (&self.durable, durable) {
            (Some(store), Some(head)) => store.launch(command, head).await,
            _ => launch(&self.spawner, command, retention).await,
        }
    }

    /// Returns the journal record of a durable command. `None`: it becomes an ordinary one.
    fn admit_durable(
        &self,
        durable: Option<DurableLaunch>,
        is_managed: bool,
    ) -> Result<Option<JournalHead>, StartError> {
        let Some(DurableLaunch { head, required }) = durable else {
            return Ok(None);
        };
        let obstacle = match &self.durable {
            None => "this host keeps no state (start the server with --state-dir)",
            Some(_) if is_managed => {
                "the proxy of a managed network runs in the server, so the process cannot outlive it"
            }
            Some(_) => return Ok(Some(head)),
        };
        match required {
            true => Err(StartError::Refused {
                field: "durable",
                reason: obstacle.to_owned(),
            }),
            false => Ok(None),
        }
    }

    /// Launches a sandboxed command. A path of the plan may disappear before the plan is applied,
    /// which fails the whole launch. The plan is then rebuilt.
    async fn launch_sandboxed(
        &self,
        mut command: ProcessLaunch,
        sandbox: &SandboxPolicy,
        network: &ProcessNetwork,
        retention: RetentionLimits,
        durable: Option<JournalHead>,
    ) -> Result<SandboxedLaunch, LaunchFailure> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let CommandSpec { cwd, env, .. } = &command.command;
            let managed = network.sandbox_request();
            let prepared = prepare_sandbox(&self.sandboxes, sandbox, cwd, env, managed).await;
            let mut prepared = prepared.map_err(LaunchFailure::Refused)?;
            let listener_socket = prepared.listener_socket.take();
            let is_wrapped = prepared.wrapper.is_some();
            let retry = command
                .without_sandbox_setup()
                .ok()
                .filter(|_| attempts < MAX_LAUNCH_ATTEMPTS);
            command.command = apply_sandbox(prepared, command.command);
            let launched = self.launch(command, retention, durable.clone());
            match launched.await {
                Ok(process) => {
                    return Ok(SandboxedLaunch {
                        process,
                        listener_socket,
                        is_wrapped,
                    });
                }
                Err(error) => match retry {
                    Some(retry) if error.is_missing_path() => command = retry,
                    Some(_) | None => return Err(LaunchFailure::Spawn(error)),
                },
            }
        }
    }
}

impl ExecBackend for LocalBackend {
    fn start(&self, command: Command) -> BoxFuture<'_, Result<StartedProcess, StartError>> {
        self.start_process(command).boxed()
    }

    fn info(&self) -> BoxFuture<'_, Result<EnvironmentInfo, RpcError>> {
        async {
            let LocalConfig { host, version, .. } = &*self.config;
            let managed = self.sandboxes.can_manage_networks().await;
            let capabilities = ServerCapabilities {
                network_proxy_launch: managed,
                network_proxy_review_domains: managed,
                ..CAPABILITIES
            };
            Ok(host.environment_info(version, capabilities))
        }
        .boxed()
    }
}

/// Capabilities that do not depend on the host. The others are probed.
const CAPABILITIES: ServerCapabilities = ServerCapabilities {
    shell_snapshot_v2: true,
    network_proxy_launch: false,
    network_proxy_review_domains: false,
    credential_masking: false,
    credential_masking_custom_providers: false,
    capability_discovery_sandbox: true,
    fs_watch_missing: true,
    capability_discovery_v2: true,
    environment_config_read: true,
    http_header_env_vars: true,
    sandboxed_file_streaming: true,
    file_write_streaming: true,
    // Always true, because unenforceable policies are rejected.
    linux_approved_root_write_preserves_restrictions: cfg!(target_os = "linux"),
};

fn start_error(error: SpawnError, program: &str, cwd: &Path, sandboxed: bool) -> StartError {
    match error {
        SpawnError::Host { stage, source } => StartError::Spawn {
            context: match stage {
                SpawnStage::Chdir if sandboxed => format!(
                    "cannot enter directory `{}` under the sandbox policy",
                    cwd.display()
                ),
                SpawnStage::Chdir => format!("cannot enter directory `{}`", cwd.display()),
                SpawnStage::Exec => format!("cannot run `{program}`"),
                SpawnStage::Limit => "cannot set a resource limit".to_owned(),
                SpawnStage::Setup | SpawnStage::Clone | SpawnStage::SandboxSetup => {
                    "cannot create a process".to_owned()
                }
            },
            source,
        },
        SpawnError::SandboxSetup { part, source } => StartError::Refused {
            field: "sandbox",
            reason: format!("cannot {part}: {source}"),
        },
        SpawnError::Nul(_) => StartError::Spawn {
            context: format!("cannot run `{program}`"),
            source: std::io::Error::new(std::io::ErrorKind::InvalidInput, error),
        },
        SpawnError::Lost | _ => StartError::Spawn {
            context: "cannot create a process".to_owned(),
            source: std::io::Error::other(error),
        },
    }
}

/// Prepares the sandbox of a command.
pub(crate) async fn prepare_sandbox(
    sandboxes: &SandboxFactory,
    sandbox: &SandboxPolicy,
    cwd: &Path,
    env: &[(OsString, OsString)],
    managed: Option<ManagedNetworkRequest>,
) -> Result<PreparedSandbox, StartError> {
    let request = CommandRequest {
        sandbox,
        cwd,
        env,
        managed,
    };
    let rejected = |error: exec_sandbox::SandboxError| StartError::Refused {
        field: "sandbox",
        reason: error.to_string(),
    };
    sandboxes.prepare(request).await.map_err(rejected)
}

/// Adds the prepared sandbox to a command.
pub(crate) fn apply_sandbox(prepared: PreparedSandbox, command: CommandSpec) -> CommandSpec {
    let Some(wrapper) = prepared.wrapper else {
        return CommandSpec {
            sandbox_setup: prepared.sandbox_setup,
            ..command
        };
    };
    let mut argv = vec![wrapper.program.clone().into_os_string()];
    argv.extend(wrapper.arguments);
    argv.push(command.program);
    argv.extend(command.argv.into_iter().skip(1));
    let mut inherited_fds = command.inherited_fds;
    inherited_fds.extend(wrapper.extra);
    CommandSpec {
        program: wrapper.program.into_os_string(),
        argv,
        // The wrapper sets the environment of the command and needs none itself.
        env: Vec::new(),
        cwd: "/".into(),
        inherited_fds,
        ..command
    }
}
