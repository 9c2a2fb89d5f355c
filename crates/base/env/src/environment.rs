//! An environment: the place where commands run and files are, as a set of trait objects. Also the
//! command that its backend starts, and the network that is managed for it.
//!
//! Not here: file operations ([`filesystem`](crate::filesystem)), HTTP requests
//! ([`http`](crate::http)) and running processes ([`process`](crate::process)).

use std::{collections::BTreeMap, fmt, io, sync::Arc};

use exec_wire::{
    discovery::{
        DiscoverCapabilities, DiscoverRoots, DiscoveredCapabilities, DiscoveredRoot,
        DiscoveredRoots, DiscoveryRoot,
    },
    environment::{EnvironmentConfig, EnvironmentInfo, ReadEnvironmentConfig},
    error::RpcError,
    id::ProcessId,
    network::{ManagedNetwork, NetworkDecision, NetworkDestination, NetworkProxy, PolicyDecision},
    path_uri::{NativePathError, PathUri},
    process::{
        EnvPolicy, ExecMode, ProcessLimits, ProcessMetadata, SandboxType, ShellSnapshot,
        TerminalSize,
    },
    sandbox::SandboxPolicy,
};
use futures_util::future::{BoxFuture, FutureExt, ready};

use crate::{
    durable::DurableRequest,
    filesystem::{ExecutorFileSystem, FileError, FileFuture},
    http::HttpClient,
    process::ExecProcess,
    tunnel::EnvironmentNetwork,
};

/// An environment, local or remote. Clones share it.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Starts processes.
    pub backend: Arc<dyn ExecBackend>,
    /// Works on files.
    pub files: Arc<dyn ExecutorFileSystem>,
    /// Makes HTTP requests.
    pub http: Arc<dyn HttpClient>,
    /// Reads configuration, plugins and skills.
    pub catalog: Arc<dyn ExecutorCatalog>,
    /// Opens tunnels and lists ports.
    pub network: Arc<dyn EnvironmentNetwork>,
}

/// Starts processes, on this host or a remote one.
pub trait ExecBackend: fmt::Debug + Send + Sync {
    /// Starts `command`. Dropping the future leaves nothing running.
    fn start(&self, command: Command) -> BoxFuture<'_, Result<StartedProcess, StartError>>;

    /// Describes the host that commands run on.
    fn info(&self) -> BoxFuture<'_, Result<EnvironmentInfo, RpcError>>;
}

/// A process that runs, or has run.
#[derive(Clone, Debug)]
pub struct StartedProcess {
    /// The process. When the last clone is dropped, its tree is killed.
    pub process: Arc<dyn ExecProcess>,
    /// Sandbox that encloses the process, if known.
    pub sandbox_type: Option<SandboxType>,
}

/// Why a process did not start. Nothing is left running in any of these cases.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Caller: `argv` is empty.
    #[error("argv must not be empty")]
    EmptyArgv,
    /// Caller: the program's name is empty.
    #[error("missing program: argv[0] must not be empty")]
    EmptyProgram,
    /// Caller: the working directory is not a valid path on this host.
    #[error("cwd is not valid on this exec-server host")]
    Cwd(#[source] NativePathError),
    /// Caller: a member of the request is invalid or not supported.
    #[error("{field}: {reason}")]
    Refused {
        /// The member.
        field: &'static str,
        /// The problem, and the expected form.
        reason: String,
    },
    /// Host: the operating system failed to start the process.
    #[error("{context}")]
    Spawn {
        /// The failed step and its object.
        context: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Caller: the process was terminated before it ran.
    #[error("process was terminated while starting")]
    Cancelled,
    /// Peer: the server returned an error.
    #[error(transparent)]
    Remote(RpcError),
    /// Transport: the session is lost.
    #[error(transparent)]
    Disconnected(#[from] DisconnectReason),
}

/// Reads configuration, plugins and skills, on this host or a remote one. Everything is read from
/// files, so errors are file errors.
pub trait ExecutorCatalog: fmt::Debug + Send + Sync {
    /// Reads selected keys of the configuration.
    fn read_config(&self, read: ReadEnvironmentConfig) -> FileFuture<EnvironmentConfig>;

    /// Reads the capability files below each root.
    fn discover_roots(&self, discover: DiscoverRoots) -> FileFuture<DiscoveredRoots>;

    /// Lists the plugins and skills that are installed for the account.
    fn discover(&self, discover: DiscoverCapabilities) -> FileFuture<DiscoveredCapabilities>;
}

/// An empty catalog, for environments without one.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCatalog;

impl ExecutorCatalog for NoCatalog {
    fn read_config(&self, _: ReadEnvironmentConfig) -> FileFuture<EnvironmentConfig> {
        let error = FileError::Refused("this environment has no configuration".to_owned());
        ready(Err(error)).boxed()
    }

    fn discover_roots(&self, discover: DiscoverRoots) -> FileFuture<DiscoveredRoots> {
        let nothing = |root: DiscoveryRoot| DiscoveredRoot {
            id: root.id,
            path: root.path,
            plugin: None,
            skills: Vec::new(),
            namespace_manifests: Vec::new(),
            warnings: Vec::new(),
            error: Some("this environment does not support capability discovery".to_owned()),
        };
        let roots = discover.roots.into_iter().map(nothing).collect();
        ready(Ok(DiscoveredRoots { roots })).boxed()
    }

    fn discover(&self, _: DiscoverCapabilities) -> FileFuture<DiscoveredCapabilities> {
        ready(Ok(DiscoveredCapabilities::default())).boxed()
    }
}

/// Why a remote host is permanently out of reach. Recovery has been attempted and has failed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// Transport: the connection broke, and no other could be opened in time.
    #[error("connection to the exec-server was lost: {0}")]
    Transport(String),
    /// Session: the server has dropped the session and everything that belonged to it.
    #[error("session on the exec-server is lost: {0}")]
    Session(String),
    /// Peer: the server violated the protocol. The text says how.
    #[error("exec-server violated the protocol: {0}")]
    Protocol(String),
}

/// A command that an [`ExecBackend`] starts.
#[derive(Clone, Debug)]
pub struct Command {
    /// Process id that the caller chose.
    pub process_id: ProcessId,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Value of `argv[0]` in the child, if it differs from the program's name.
    pub arg0: Option<String>,
    /// Working directory.
    pub cwd: PathUri,
    /// Selects which of the host's environment variables the child inherits. Absent: none.
    pub env_policy: Option<EnvPolicy>,
    /// Environment variables, added to those that the policy selects.
    pub env: BTreeMap<String, String>,
    /// Replays a login shell's state.
    pub shell_snapshot: Option<ShellSnapshot>,
    /// Origin of the command, exported to the child as variables.
    pub metadata: ProcessMetadata,
    /// Standard descriptors of the child.
    pub io: ProcessIo,
    /// Resource limits.
    pub limits: ProcessLimits,
    /// Bytes of output to retain. Absent: the environment's default.
    pub retained_bytes: Option<usize>,
    /// Sandbox policy for files and network. Absent: no sandbox.
    pub sandbox: Option<Box<SandboxPolicy>>,
    /// Managed network.
    pub network: CommandNetwork,
    /// Returns whether the caller has already approved and sandboxed the command. A server may
    /// accept only such commands, or none of them. Absent: not approved.
    pub mode: Option<ExecMode>,
    /// Asks for a process that outlives its server. Absent: an ordinary process.
    pub durable: Option<DurableRequest>,
}

impl Command {
    /// Builds a command on pipes, without stdin, environment or limits.
    pub fn new(process_id: ProcessId, argv: Vec<String>, cwd: PathUri) -> Self {
        Self {
            process_id,
            argv,
            arg0: None,
            cwd,
            env_policy: None,
            env: BTreeMap::new(),
            shell_snapshot: None,
            metadata: ProcessMetadata::default(),
            io: ProcessIo::Pipes {
                stdin: StdinMode::Null,
            },
            limits: ProcessLimits::default(),
            retained_bytes: None,
            sandbox: None,
            network: CommandNetwork::default(),
            mode: None,
            durable: None,
        }
    }
}

/// Standard descriptors of a child.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ProcessIo {
    /// Separate pipes.
    Pipes {
        /// Standard input of the child.
        stdin: StdinMode,
    },
    /// One pseudo-terminal.
    Terminal(TerminalSize),
}

/// Standard input of a child on pipes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StdinMode {
    /// `/dev/null`.
    Null,
    /// A pipe that the caller writes to.
    Piped,
}

/// Managed network of one command.
#[derive(Clone, Debug, Default)]
pub struct CommandNetwork {
    /// Restricts the command to the managed network. Has no effect without a sandbox.
    pub enforced: bool,
    /// Destinations that stay reachable from a sandbox without network.
    pub managed: Option<ManagedNetwork>,
    /// Proxy that is started for this command.
    pub proxy: Option<NetworkProxy>,
    /// Decides about and records the proxy's connections. Absent: undecided destinations are
    /// denied.
    pub policy_hook: Option<Arc<dyn NetworkPolicyHook>>,
}

/// Decides about the connections of one process, and receives the decisions.
pub trait NetworkPolicyHook: fmt::Debug + Send + Sync {
    /// Decides about a destination that the static policy leaves open. The caller applies a timeout
    /// and then denies the connection.
    fn decide(&self, destination: NetworkDestination) -> BoxFuture<'static, NetworkDecision>;

    /// Records a decision. Never blocks; a record may be lost.
    fn record(&self, decision: PolicyDecision);
}
