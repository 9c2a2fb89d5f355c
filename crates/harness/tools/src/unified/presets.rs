//! Policies that ask nothing.
//!
//! None of them retries: there is nobody to ask whether a command may do more.

use exec_wire::{
    path_uri::PathUri,
    sandbox::{
        Access, Entry, EntryPath, FileSystemPolicy, NetworkAccess, Permissions, Sandbox,
        SpecialPath, WindowsSandboxLevel,
    },
};
use futures_util::future::{BoxFuture, FutureExt, ready};

use super::policy::{Approval, ApprovalRequest, Denied, SandboxChoice, ToolPolicy};

/// Asks nothing, lets a command read everything and write below its workspace and where temporary files
/// are, closes the network, and never retries.
#[derive(Clone, Debug)]
pub struct AskNothing {
    /// What may be written.
    pub workspace: Vec<PathUri>,
}

/// Asks nothing, lets a command read everything and write nothing, closes the network, and never retries.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadOnly;

/// Asks nothing and encloses nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unrestricted;

impl ToolPolicy for AskNothing {
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

    fn retry(&self, _: &ApprovalRequest, _: &Denied) -> BoxFuture<'_, bool> {
        ready(false).boxed()
    }
}

impl ToolPolicy for ReadOnly {
    fn approve(&self, _: ApprovalRequest) -> BoxFuture<'_, Approval> {
        ready(Approval::Approved).boxed()
    }

    fn sandbox(&self, request: &ApprovalRequest, _: usize) -> SandboxChoice {
        enclosed(request, &[], &[])
    }

    fn retry(&self, _: &ApprovalRequest, _: &Denied) -> BoxFuture<'_, bool> {
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

    fn retry(&self, _: &ApprovalRequest, _: &Denied) -> BoxFuture<'_, bool> {
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
