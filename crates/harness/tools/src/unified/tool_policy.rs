//! Policy for commands: approval, sandbox and network. The caller decides.

use std::fmt;

use exec_env::environment::CommandNetwork;
use exec_wire::{
    path_uri::PathUri,
    sandbox::{
        EntryAccess, EntryPath, FileSystemPolicy, NetworkAccess, SandboxEntry, SandboxPermissions,
        SandboxPolicy, SpecialPath, WindowsSandboxLevel,
    },
};
use futures_util::future::{BoxFuture, FutureExt, ready};

use super::call::CallId;

/// Decides about commands before they start.
pub trait ToolPolicy: fmt::Debug + Send + Sync {
    /// Approves or refuses a command. Called before anything is sent, and again before a retry
    /// after a sandbox denial.
    fn approve(&self, request: ApprovalRequest) -> BoxFuture<'_, ApprovalDecision>;

    /// Returns the sandbox of an attempt. The first attempt is number 0. `None`: no sandbox.
    fn sandbox(&self, request: &ApprovalRequest, attempt: usize) -> Option<Box<SandboxPolicy>>;

    /// Returns the network access of an attempt despite a closed network. Default: none.
    fn network(&self, _request: &ApprovalRequest, _attempt: usize) -> CommandNetwork {
        CommandNetwork::default()
    }

    /// Returns whether to retry after a sandbox denial. A retry is approved again and gets the
    /// sandbox of the next attempt. Default: no retry.
    fn retry(&self, _request: &ApprovalRequest, _denied: &SandboxDenial) -> BoxFuture<'_, bool> {
        ready(false).boxed()
    }
}

/// A command to approve.
#[derive(Clone, Debug)]
pub struct ApprovalRequest {
    /// The call.
    pub call_id: CallId,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Working directory.
    pub cwd: PathUri,
    /// Reason given by the agent.
    pub justification: Option<String>,
    /// Denial of an earlier attempt.
    pub denied: Option<SandboxDenial>,
}

/// Decision about a command.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ApprovalDecision {
    /// The command may run.
    Approved,
    /// The command is refused, for this reason, which is shown to the agent.
    Refused(String),
}

/// A sandbox denial.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SandboxDenial {
    /// Exit code of the command.
    pub exit_code: i32,
    /// Its output, truncated.
    pub output: String,
}

/// Approves everything, with read access to all files and write access to the workspace and
/// temporary directories, without network and retries.
#[derive(Clone, Debug)]
pub struct WorkspaceWritePolicy {
    /// Writable directories.
    pub workspace: Vec<PathUri>,
}

/// Approves everything, with read access to all files and without write access, network and
/// retries.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadOnlyPolicy;

/// Approves everything without a sandbox.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnrestrictedPolicy;

impl ToolPolicy for WorkspaceWritePolicy {
    fn approve(&self, _: ApprovalRequest) -> BoxFuture<'_, ApprovalDecision> {
        ready(ApprovalDecision::Approved).boxed()
    }

    fn sandbox(&self, request: &ApprovalRequest, _: usize) -> Option<Box<SandboxPolicy>> {
        let writable = [
            SpecialPath::ProjectRoots { subpath: None },
            SpecialPath::Tmpdir,
            SpecialPath::SlashTmp,
        ];
        Some(restricted_sandbox(request, &writable, &self.workspace))
    }
}

impl ToolPolicy for ReadOnlyPolicy {
    fn approve(&self, _: ApprovalRequest) -> BoxFuture<'_, ApprovalDecision> {
        ready(ApprovalDecision::Approved).boxed()
    }

    fn sandbox(&self, request: &ApprovalRequest, _: usize) -> Option<Box<SandboxPolicy>> {
        Some(restricted_sandbox(request, &[], &[]))
    }
}

impl ToolPolicy for UnrestrictedPolicy {
    fn approve(&self, _: ApprovalRequest) -> BoxFuture<'_, ApprovalDecision> {
        ready(ApprovalDecision::Approved).boxed()
    }

    fn sandbox(&self, _: &ApprovalRequest, _: usize) -> Option<Box<SandboxPolicy>> {
        None
    }
}

/// Builds a sandbox that reads everything and writes the given paths.
fn restricted_sandbox(
    request: &ApprovalRequest,
    writable: &[SpecialPath],
    workspace: &[PathUri],
) -> Box<SandboxPolicy> {
    let writable = writable.iter().map(|path| (path, EntryAccess::Write));
    let entries = [(&SpecialPath::Root, EntryAccess::Read)]
        .into_iter()
        .chain(writable)
        .map(|(path, access)| SandboxEntry {
            path: EntryPath::Special {
                value: path.clone(),
            },
            access,
            missing_path_behavior: None,
        });
    Box::new(SandboxPolicy {
        permissions: SandboxPermissions::Managed {
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
    })
}
