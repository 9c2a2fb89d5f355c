//! The command that a backend starts, and the network that is managed for it.

use std::{collections::BTreeMap, fmt, sync::Arc};

use exec_wire::{
    id::ProcessId,
    network::{Decision, Destination, ManagedNetwork, NetworkProxy, PolicyDecision},
    path_uri::PathUri,
    process::{EnvPolicy, ExecMode, Limits, Metadata, ShellSnapshot, TerminalSize},
    sandbox::Sandbox,
};
use futures_util::future::BoxFuture;

/// A command that an [`ExecBackend`](crate::environment::ExecBackend) starts.
#[derive(Clone, Debug)]
pub struct Command {
    /// The caller's name for the process.
    pub process_id: ProcessId,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// What the program sees as `argv[0]`, if not the program's own name.
    pub arg0: Option<String>,
    /// Working directory.
    pub cwd: PathUri,
    /// How the host's environment enters. Absent: not at all.
    pub env_policy: Option<EnvPolicy>,
    /// The environment, or what is laid over the policy's.
    pub env: BTreeMap<String, String>,
    /// Replays a login shell's state.
    pub shell_snapshot: Option<ShellSnapshot>,
    /// Who asked, exported to the child.
    pub metadata: Metadata,
    /// What the child's descriptors are.
    pub io: Io,
    /// What it may use.
    pub limits: Limits,
    /// Bytes of output to retain, if not the environment's own setting.
    pub retained_bytes: Option<usize>,
    /// Which files and which network it may use. Absent: all.
    pub sandbox: Option<Box<Sandbox>>,
    /// What is managed of its network.
    pub network: Network,
    /// Whether the caller has approved and enclosed it already. A server may take only such commands, or
    /// none of them. Absent: it has not.
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
            metadata: Metadata::default(),
            io: Io::Pipes { stdin: Stdin::Null },
            limits: Limits::default(),
            retained_bytes: None,
            sandbox: None,
            network: Network::default(),
            mode: None,
        }
    }
}

/// What a child's standard descriptors are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Io {
    /// Separate pipes.
    Pipes {
        /// What the child reads.
        stdin: Stdin,
    },
    /// One pseudo-terminal.
    Terminal(TerminalSize),
}

/// What a child on pipes reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stdin {
    /// Nothing.
    Null,
    /// What is written to it.
    Piped,
}

/// What is managed of a command's network.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// Only what is managed may be reached. Without a sandbox it has no effect.
    pub enforced: bool,
    /// What stays reachable in a sandbox without network.
    pub managed: Option<ManagedNetwork>,
    /// A proxy of the command's own.
    pub proxy: Option<NetworkProxy>,
    /// Who is asked, and told, about the proxy's connections. Absent: nobody, and what nothing
    /// decides is denied.
    pub watcher: Option<Arc<dyn NetworkWatcher>>,
}

/// Is asked and told about the connections of one process.
pub trait NetworkWatcher: fmt::Debug + Send + Sync {
    /// Decides about a destination that the static policy leaves open. The caller waits only so
    /// long, and takes silence for a denial.
    fn decide(&self, destination: Destination) -> BoxFuture<'static, Decision>;

    /// Takes note of what was decided. Never waits; a record may be lost.
    fn record(&self, decision: PolicyDecision);
}
