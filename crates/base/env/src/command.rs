//! The command that a backend starts, and the network that is managed for it.

use std::{collections::BTreeMap, fmt, sync::Arc};

use exec_wire::{
    id::ProcessId,
    network::{ManagedNetwork, NetworkDecision, NetworkDestination, NetworkProxy, PolicyDecision},
    path_uri::PathUri,
    process::{EnvPolicy, ExecMode, ProcessLimits, ProcessMetadata, ShellSnapshot, TerminalSize},
    sandbox::SandboxPolicy,
};
use futures_util::future::BoxFuture;

/// A command that an [`ExecBackend`](crate::environment::ExecBackend) starts.
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
