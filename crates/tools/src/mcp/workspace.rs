//! Where an agent works, and what it may touch there.
//! Invariant: commands and file tools are under the same policy.

use exec_wire::{
    environment::EnvironmentInfo,
    path_uri::PathUri,
    sandbox::{
        Access, Entry, EntryPath, FileSystemPolicy, MissingPathBehavior, NetworkAccess,
        Permissions, Sandbox, SpecialPath, WindowsSandboxLevel,
    },
};
use futures_util::future::{self, BoxFuture, FutureExt};

use super::typed::Base;
use crate::unified::{Approval, ApprovalRequest, Denied, SandboxChoice, ToolPolicy};

/// The directories of an agent, and what encloses it.
#[derive(Clone, Debug)]
pub struct Workspace {
    root: PathUri,
    roots: Vec<PathUri>,
    enclosure: Enclosure,
    network: Network,
    temporary: Option<Vec<PathUri>>,
    home: Option<PathUri>,
}

/// What an agent may do to files.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Enclosure {
    /// Read them all, change none.
    ReadOnly,
    /// Read them all, change those of the workspace and temporary ones.
    WorkspaceWrite,
    /// Whatever the account may.
    Open,
}

/// Whether an enclosed command reaches the network.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Network {
    /// It does not.
    Closed,
    /// It does.
    Open,
}

impl Workspace {
    /// Makes the workspace of a directory. Relative paths start there.
    pub fn new(root: PathUri, enclosure: Enclosure, network: Network) -> Self {
        Self {
            roots: vec![root.clone()],
            root,
            enclosure,
            network,
            temporary: None,
            home: None,
        }
    }

    /// Adds directories that may be written, too.
    #[must_use]
    pub fn with_more(mut self, directories: impl IntoIterator<Item = PathUri>) -> Self {
        self.roots.extend(directories);
        self
    }

    /// Adds what is known of the host.
    #[must_use]
    pub fn on(mut self, info: &EnvironmentInfo) -> Self {
        self.temporary.clone_from(&info.temporary_directories);
        self.home.clone_from(&info.user_home_dir);
        self
    }

    /// What relative paths start from.
    pub fn root(&self) -> &PathUri {
        &self.root
    }

    /// What an agent may do to files.
    pub fn enclosure(&self) -> Enclosure {
        self.enclosure
    }

    /// What paths begin with, as an agent writes them.
    pub(super) fn base(&self) -> Base<'_> {
        Base {
            root: &self.root,
            home: self.home.as_ref(),
        }
    }

    /// Writes a path as an agent reads it: relative if it is below the workspace, else absolute.
    pub(super) fn show(&self, path: &PathUri) -> String {
        let (shown, root) = (native(path), native(&self.root));
        let below = shown.strip_prefix(root.trim_end_matches('/'));
        match below.and_then(|below| below.strip_prefix('/')) {
            Some(below) if !below.is_empty() => below.to_owned(),
            _ => shown,
        }
    }

    /// Tells why a file may not be changed, if it is the enclosure that forbids it.
    pub(super) fn forbids(&self, path: &PathUri) -> Option<String> {
        let contains = |directory: &PathUri| directory.contains(path);
        let is_temporary = || {
            let temporary = self.temporary.iter().flatten();
            let slash_tmp = self.root.join("/tmp").ok();
            temporary.chain(slash_tmp.as_ref()).any(contains)
        };
        match self.enclosure {
            Enclosure::Open => None,
            Enclosure::ReadOnly => Some("the sandbox lets nothing be written".to_owned()),
            Enclosure::WorkspaceWrite if self.roots.iter().any(contains) || is_temporary() => None,
            Enclosure::WorkspaceWrite => {
                let roots: Vec<String> = self.roots.iter().map(native).collect();
                Some(format!(
                    "it is outside the workspace: the sandbox lets files be written only below `{}` and in \
                     temporary directories",
                    roots.join("`, `")
                ))
            }
        }
    }

    /// What encloses commands and file operations.
    pub(super) fn sandbox(&self) -> Option<Box<Sandbox>> {
        let writable: &[SpecialPath] = match self.enclosure {
            Enclosure::Open => return None,
            Enclosure::ReadOnly => &[],
            Enclosure::WorkspaceWrite => &[
                SpecialPath::ProjectRoots { subpath: None },
                SpecialPath::Tmpdir,
                SpecialPath::SlashTmp,
            ],
        };
        let mut entries = vec![entry(SpecialPath::Root, Access::Read)];
        entries.extend(
            writable
                .iter()
                .cloned()
                .map(|path| entry(path, Access::Write)),
        );
        Some(Box::new(Sandbox {
            permissions: Permissions::Managed {
                file_system: FileSystemPolicy::Restricted {
                    entries,
                    glob_scan_max_depth: None,
                },
                network: match self.network {
                    Network::Closed => NetworkAccess::Restricted,
                    Network::Open => NetworkAccess::Enabled,
                },
            },
            cwd: Some(self.root.clone()),
            workspace_roots: self.roots.clone(),
            policy_context: None,
            user_home_dir: self.home.clone(),
            temporary_directories: self.temporary.clone(),
            windows_sandbox_level: WindowsSandboxLevel::Disabled,
            windows_sandbox_proxy_settings_mode: None,
            use_legacy_landlock: false,
            sandbox_override: None,
        }))
    }
}

/// Asks nobody: what encloses a command was decided when the server was started.
impl ToolPolicy for Workspace {
    fn approve(&self, _request: ApprovalRequest) -> BoxFuture<'_, Approval> {
        future::ready(Approval::Approved).boxed()
    }

    fn sandbox(&self, _request: &ApprovalRequest, _attempt: usize) -> SandboxChoice {
        match Self::sandbox(self) {
            Some(sandbox) => SandboxChoice::Policy(sandbox),
            None => SandboxChoice::None,
        }
    }

    fn retry(&self, _request: &ApprovalRequest, _denied: &Denied) -> BoxFuture<'_, bool> {
        future::ready(false).boxed()
    }
}

fn entry(value: SpecialPath, access: Access) -> Entry {
    Entry {
        path: EntryPath::Special { value },
        access,
        missing_path_behavior: Some(MissingPathBehavior::Skip),
    }
}

/// The path as its host writes it. A path that is not UTF-8, or of another convention, stays a URI.
pub(super) fn native(path: &PathUri) -> String {
    let native = path.to_native().ok();
    let text = native.and_then(|native| native.into_os_string().into_string().ok());
    text.unwrap_or_else(|| path.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(enclosure: Enclosure) -> Workspace {
        let root = PathUri::parse("file:///work/a%20b").unwrap();
        Workspace::new(root, enclosure, Network::Closed)
    }

    #[test]
    fn paths_are_relative_to_the_workspace_in_and_out() {
        let workspace = workspace(Enclosure::Open);
        for (typed, uri, shown) in [
            ("src/x.rs", "file:///work/a%20b/src/x.rs", "src/x.rs"),
            ("/work/a b/x", "file:///work/a%20b/x", "x"),
            ("../c", "file:///work/c", "/work/c"),
            ("/work/a bc", "file:///work/a%20bc", "/work/a bc"),
            (".", "file:///work/a%20b", "/work/a b"),
        ] {
            let path = workspace.base().path(typed).unwrap();
            assert_eq!(path.as_str(), uri);
            assert_eq!(workspace.show(&path), shown);
        }
    }

    #[test]
    fn what_the_enclosure_forbids_is_said_to_be_its_doing() {
        let forbidden = |enclosure, uri: &str| {
            let more = PathUri::parse("file:///more").unwrap();
            let workspace = workspace(enclosure).with_more([more]);
            workspace.forbids(&PathUri::parse(uri).unwrap())
        };
        for inside in ["file:///work/a%20b/x", "file:///more/x", "file:///tmp/x"] {
            assert_eq!(forbidden(Enclosure::WorkspaceWrite, inside), None);
            assert!(forbidden(Enclosure::ReadOnly, inside).is_some());
        }
        let outside = forbidden(Enclosure::WorkspaceWrite, "file:///work/c").unwrap();
        assert!(outside.contains("sandbox") && outside.contains("`/work/a b`, `/more`"));
        assert_eq!(forbidden(Enclosure::Open, "file:///work/c"), None);
    }

    #[test]
    fn only_an_open_workspace_has_no_policy() {
        assert!(workspace(Enclosure::Open).sandbox().is_none());
        let writable = |enclosure| {
            let sandbox = workspace(enclosure).sandbox().unwrap();
            let Permissions::Managed {
                file_system,
                network,
            } = sandbox.permissions
            else {
                panic!("not managed");
            };
            assert_eq!(network, NetworkAccess::Restricted);
            let FileSystemPolicy::Restricted { entries, .. } = file_system else {
                panic!("not restricted");
            };
            let written = |entry: &&Entry| entry.access == Access::Write;
            entries.iter().filter(written).count()
        };
        assert_eq!(writable(Enclosure::ReadOnly), 0);
        assert_eq!(writable(Enclosure::WorkspaceWrite), 3);
    }
}
