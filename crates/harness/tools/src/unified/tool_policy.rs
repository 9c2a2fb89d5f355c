//! What may run, and how enclosed. The caller decides; nothing here has an opinion but the default.

use std::fmt;

use exec_env::network::Network;
use exec_wire::{
    path_uri::PathUri,
    sandbox::{
        Access, Entry, EntryPath, FileSystemPolicy, NetworkAccess, Permissions, Sandbox,
        SpecialPath, WindowsSandboxLevel,
    },
};
use futures_util::future::{BoxFuture, FutureExt, ready};

use super::call::CallId;

/// Decides about commands before they start.
pub trait ToolPolicy: fmt::Debug + Send + Sync {
    /// Says whether a command may run. Asked before anything is sent, and again before a command that a
    /// sandbox denied something is run once more.
    fn approve(&self, request: ApprovalRequest) -> BoxFuture<'_, Approval>;

    /// Chooses what encloses an attempt. The first attempt is number 0.
    fn sandbox(&self, request: &ApprovalRequest, attempt: usize) -> SandboxChoice;

    /// Chooses what an attempt may reach although its sandbox closes the network. Nothing, if it is not
    /// implemented.
    fn network(&self, _request: &ApprovalRequest, _attempt: usize) -> Network {
        Network::default()
    }

    /// Says whether to run a command once more after a sandbox denied it something. It is approved
    /// again, and gets the sandbox of the next attempt. The answer that is expected of most is no.
    fn retry(&self, request: &ApprovalRequest, denied: &SandboxDenial) -> BoxFuture<'_, bool>;
}

/// What is to run.
#[derive(Clone, Debug)]
pub struct ApprovalRequest {
    /// The call.
    pub call_id: CallId,
    /// Program and arguments, as they will be run.
    pub argv: Vec<String>,
    /// Where.
    pub cwd: PathUri,
    /// Why, as the agent says.
    pub justification: Option<String>,
    /// What an earlier attempt was denied.
    pub denied: Option<SandboxDenial>,
}

/// Whether something may run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Approval {
    /// It may.
    Approved,
    /// It may not, for this reason, which the agent is told.
    Refused(String),
}

/// What encloses a command.
#[derive(Clone, Debug)]
pub enum SandboxChoice {
    /// Nothing.
    None,
    /// This.
    Policy(Box<Sandbox>),
}

/// A sandbox denied a command something.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SandboxDenial {
    /// The code it ended with.
    pub exit_code: i32,
    /// What it said, bounded.
    pub output: String,
}

/// Asks nothing, lets a command read everything and write below its workspace and where temporary files
/// are, closes the network, and never retries.
#[derive(Clone, Debug)]
pub struct WorkspaceWritePolicy {
    /// What may be written.
    pub workspace: Vec<PathUri>,
}

/// Asks nothing, lets a command read everything and write nothing, closes the network, and never retries.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadOnlyPolicy;

/// Asks nothing and encloses nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unrestricted;

impl ToolPolicy for WorkspaceWritePolicy {
    fn approve(&self, _: ApprovalRequest) -> BoxFuture<'_, Approval> {
        ready(Approval::Approved).boxed()
    }

    fn sandbox(&self, request: &ApprovalRequest, _: usize) -> SandboxChoice {
        let writable = [
            SpecialPath::ProjectRoots { subpath: None },
            SpecialPath::Tmpdir,
            SpecialPath::SlashTmp,
        ];
        enclosed(request, &writable, &self.workspace)
    }

    fn retry(&self, _: &ApprovalRequest, _: &SandboxDenial) -> BoxFuture<'_, bool> {
        ready(false).boxed()
    }
}

impl ToolPolicy for ReadOnlyPolicy {
    fn approve(&self, _: ApprovalRequest) -> BoxFuture<'_, Approval> {
        ready(Approval::Approved).boxed()
    }

    fn sandbox(&self, request: &ApprovalRequest, _: usize) -> SandboxChoice {
        enclosed(request, &[], &[])
    }

    fn retry(&self, _: &ApprovalRequest, _: &SandboxDenial) -> BoxFuture<'_, bool> {
        ready(false).boxed()
    }
}

impl ToolPolicy for Unrestricted {
    fn approve(&self, _: ApprovalRequest) -> BoxFuture<'_, Approval> {
        ready(Approval::Approved).boxed()
    }

    fn sandbox(&self, _: &ApprovalRequest, _: usize) -> SandboxChoice {
        SandboxChoice::None
    }

    fn retry(&self, _: &ApprovalRequest, _: &SandboxDenial) -> BoxFuture<'_, bool> {
        ready(false).boxed()
    }
}

/// Everything may be read, and this written.
fn enclosed(
    request: &ApprovalRequest,
    writable: &[SpecialPath],
    workspace: &[PathUri],
) -> SandboxChoice {
    let writable = writable.iter().map(|path| (path, Access::Write));
    let entries = [(&SpecialPath::Root, Access::Read)]
        .into_iter()
        .chain(writable)
        .map(|(path, access)| Entry {
            path: EntryPath::Special {
                value: path.clone(),
            },
            access,
            missing_path_behavior: None,
        });
    let sandbox = Sandbox {
        permissions: Permissions::Managed {
            file_system: FileSystemPolicy::Restricted {
                entries: entries.collect(),
                glob_scan_max_depth: None,
            },
            network: NetworkAccess::Restricted,
        },
        cwd: Some(request.cwd.clone()),
        workspace_roots: workspace.to_vec(),
        policy_context: None,
        user_home_dir: None,
        temporary_directories: None,
        windows_sandbox_level: WindowsSandboxLevel::RestrictedToken,
        windows_sandbox_proxy_settings_mode: None,
        use_legacy_landlock: false,
        sandbox_override: None,
    };
    SandboxChoice::Policy(Box::new(sandbox))
}
