//! The workspace of an agent, its sandbox policy, and paths as agents type them: relative,
//! absolute, `~/x`, or a `file:` URI.
//!
//! Invariant: commands and file tools have the same policy.

use exec_wire::{
    environment::EnvironmentInfo,
    network::NetworkProxy,
    path_uri::{PathJoinError, PathUri, PathUriError},
    sandbox::{
        EntryAccess, EntryPath, FileSystemPolicy, MissingPathBehavior, NetworkAccess, SandboxEntry,
        SandboxPermissions, SandboxPolicy, SpecialPath, WindowsSandboxLevel,
    },
};
use futures_util::future::{self, BoxFuture, FutureExt};

use sha2::{Digest, Sha256};

use crate::unified::{ApprovalDecision, ApprovalRequest, HandleScope, ToolPolicy};

/// The directories of an agent, with their sandbox policy.
#[derive(Clone, Debug)]
pub struct AgentWorkspace {
    root: PathUri,
    roots: Vec<PathUri>,
    access: WorkspaceAccess,
    network: NetworkMode,
    git: GitAccess,
    temporary: Option<Vec<PathUri>>,
    home: Option<PathUri>,
}

/// Access of an agent to files.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WorkspaceAccess {
    /// Reads all files, writes none.
    ReadOnly,
    /// Reads all files, writes those of the workspace and temporary ones.
    WorkspaceWrite,
    /// Everything that the account may do.
    Open,
}

/// Network access of a sandboxed command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NetworkMode {
    /// No network.
    Closed,
    /// Servers on the host's loopback, through a proxy.
    Loopback,
    /// The network of the host.
    Open,
}

/// Whether `.git` in the workspace is writable.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum GitAccess {
    /// Read-only: git hooks and settings run commands outside the sandbox.
    #[default]
    Protected,
    /// Writable.
    Writable,
}

impl AgentWorkspace {
    /// Creates the workspace of a directory, which is the base of relative paths.
    pub fn new(root: PathUri, access: WorkspaceAccess, network: NetworkMode) -> Self {
        Self {
            roots: vec![root.clone()],
            root,
            access,
            network,
            git: GitAccess::default(),
            temporary: None,
            home: None,
        }
    }

    /// Adds writable directories.
    #[must_use]
    pub fn with_more(mut self, directories: impl IntoIterator<Item = PathUri>) -> Self {
        self.roots.extend(directories);
        self
    }

    /// Sets whether `.git` is writable.
    #[must_use]
    pub fn with_git(mut self, git: GitAccess) -> Self {
        self.git = git;
        self
    }

    /// Adds facts about the host.
    #[must_use]
    pub fn on(mut self, info: &EnvironmentInfo) -> Self {
        self.temporary.clone_from(&info.temporary_directories);
        self.home.clone_from(&info.user_home_dir);
        self
    }

    /// Returns the base of relative paths.
    pub fn root(&self) -> &PathUri {
        &self.root
    }

    /// Returns the access to files.
    pub fn access(&self) -> WorkspaceAccess {
        self.access
    }

    /// Formats a path for an agent: relative if it is below the workspace, else absolute.
    pub(super) fn display_path(&self, path: &PathUri) -> String {
        let (native, root) = (native_path(path), native_path(&self.root));
        let below = native.strip_prefix(root.trim_end_matches('/'));
        match below.and_then(|below| below.strip_prefix('/')) {
            Some(below) if !below.is_empty() => below.to_owned(),
            _ => native,
        }
    }

    /// Returns why the sandbox denies writing a file, if it does.
    pub(super) fn denial_reason(&self, path: &PathUri) -> Option<String> {
        let contains = |directory: &PathUri| directory.contains(path);
        let is_temporary = || {
            let temporary = self.temporary.iter().flatten();
            let slash_tmp = self.root.join("/tmp").ok();
            temporary.chain(slash_tmp.as_ref()).any(contains)
        };
        match self.access {
            WorkspaceAccess::Open => None,
            WorkspaceAccess::ReadOnly => Some("the sandbox does not allow writes".to_owned()),
            WorkspaceAccess::WorkspaceWrite if self.is_protected(path) => Some(format!(
                "the sandbox protects {} in the workspace",
                self.protected_names()
            )),
            WorkspaceAccess::WorkspaceWrite
                if self.roots.iter().any(contains) || is_temporary() =>
            {
                None
            }
            WorkspaceAccess::WorkspaceWrite => {
                let roots: Vec<String> = self.roots.iter().map(native_path).collect();
                Some(format!(
                    "it is outside the workspace: the sandbox allows writes only below `{}` and in \
                     temporary directories; `exec-server mcp --writable DIR` adds another",
                    roots.join("`, `")
                ))
            }
        }
    }

    /// Describes the restrictions of the sandbox, and the flags of `exec-server mcp` that change
    /// them.
    pub(super) fn restrictions(&self) -> String {
        let files = match self.access {
            WorkspaceAccess::Open => {
                return "There is no sandbox: commands and tools have the rights of the account."
                    .to_owned();
            }
            WorkspaceAccess::ReadOnly => {
                "The sandbox is read-only: nothing can be written.".to_owned()
            }
            WorkspaceAccess::WorkspaceWrite => format!(
                "Files can be written below the workspace and in temporary directories; a sandbox keeps \
                 commands and tools from writing anywhere else, and from changing {} (so {}). Only the person \
                 who starts this server can change that, with --writable DIR{}.",
                self.protected_names(),
                match self.git {
                    GitAccess::Protected =>
                        "`git status` and `git diff` work, `git add` and `git commit` fail",
                    GitAccess::Writable => "git works",
                },
                match self.git {
                    GitAccess::Protected => " or --allow-git",
                    GitAccess::Writable => "",
                },
            ),
        };
        let network = match self.network {
            NetworkMode::Closed => {
                "Commands have no network, not even localhost; a server that one command starts can be \
                 reached from that command only. --network loopback opens localhost, --network everything."
            }
            NetworkMode::Loopback => {
                "Commands reach servers on localhost through the proxy in HTTP_PROXY and ALL_PROXY, which \
                 curl and most tools use, and no other host. A server that one command starts can be reached \
                 from that command only (curl --noproxy '*'). --network opens everything."
            }
            NetworkMode::Open => "Commands have the network of the host.",
        };
        format!("{files} {network}")
    }

    /// Explains what the sandbox probably denied to a failed command.
    pub(super) fn explain_denial(&self, output: &str, is_denied: bool) -> Option<String> {
        if self.access == WorkspaceAccess::Open {
            return None;
        }
        let contains_any = |texts: &[&str]| texts.iter().any(|text| output.contains(text));
        let mut causes = Vec::new();
        if is_denied && self.git == GitAccess::Protected && contains_any(&[".git/", ".git'"]) {
            causes.push(
                "`.git` is protected from writing (start `exec-server mcp` with --allow-git to open it)",
            );
        }
        if self.network != NetworkMode::Open && contains_any(NETWORK_FAILURES) {
            causes.push(match self.network {
                NetworkMode::Loopback => {
                    "only localhost can be reached, through the proxy in HTTP_PROXY (start `exec-server mcp` \
                     with --network for more)"
                }
                NetworkMode::Closed | NetworkMode::Open => {
                    "the network is closed, localhost included (start `exec-server mcp` with --network \
                     loopback or --network to open it)"
                }
            });
        }
        match (causes.is_empty(), is_denied) {
            (false, _) => Some(format!("The sandbox: {}.", causes.join("; "))),
            (true, true) => Some(format!(
                "The sandbox refused something. {}",
                self.restrictions()
            )),
            (true, false) => None,
        }
    }

    /// Returns the scope of the commands: servers with the same workspace and the same policy find
    /// each other's. With another policy, a client could write to a command that may do more than
    /// its own commands.
    pub(super) fn scope(&self) -> HandleScope {
        let policy = serde_json::to_vec(&self.sandbox()).unwrap_or_default();
        let terms = [
            self.root.as_str().as_bytes(),
            format!("{:?} {:?} {:?}", self.access, self.network, self.git).as_bytes(),
            &policy,
        ]
        .concat();
        let digest = Sha256::digest(terms);
        let tag = u64::from_be_bytes(digest.first_chunk().copied().unwrap_or_default());
        HandleScope::new(format!("mcp-{tag:016x}"))
    }

    fn protected_names(&self) -> &'static str {
        match self.git {
            GitAccess::Protected => "`.git`, `.agents`, `.codex` and `.aws`",
            GitAccess::Writable => "`.agents`, `.codex` and `.aws`",
        }
    }

    /// Returns whether a path is protected metadata of a root.
    fn is_protected(&self, path: &PathUri) -> bool {
        let names: &[&str] = match self.git {
            GitAccess::Protected => &[".git", ".agents", ".codex", ".aws"],
            GitAccess::Writable => &[".agents", ".codex", ".aws"],
        };
        self.roots.iter().any(|root| {
            let mut protected = names.iter().filter_map(|name| root.join(name).ok());
            protected.any(|protected| protected.contains(path))
        })
    }

    /// Returns the sandbox policy for commands and file operations.
    pub(super) fn sandbox(&self) -> Option<Box<SandboxPolicy>> {
        let mut writable = match self.access {
            WorkspaceAccess::Open => return None,
            WorkspaceAccess::ReadOnly => vec![],
            WorkspaceAccess::WorkspaceWrite => vec![
                SpecialPath::ProjectRoots { subpath: None },
                SpecialPath::Tmpdir,
                SpecialPath::SlashTmp,
            ],
        };
        if self.access == WorkspaceAccess::WorkspaceWrite && self.git == GitAccess::Writable {
            let subpath = Some(".git".to_owned());
            writable.push(SpecialPath::ProjectRoots { subpath });
        }
        let mut entries = vec![special_entry(SpecialPath::Root, EntryAccess::Read)];
        let writable = writable.into_iter();
        entries.extend(writable.map(|path| special_entry(path, EntryAccess::Write)));
        Some(Box::new(SandboxPolicy {
            permissions: SandboxPermissions::Managed {
                file_system: FileSystemPolicy::Restricted {
                    entries,
                    glob_scan_max_depth: None,
                },
                network: match self.network {
                    NetworkMode::Closed | NetworkMode::Loopback => NetworkAccess::Restricted,
                    NetworkMode::Open => NetworkAccess::Enabled,
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

/// Approves everything: the sandbox was chosen when the server was started.
impl ToolPolicy for AgentWorkspace {
    fn approve(&self, _request: ApprovalRequest) -> BoxFuture<'_, ApprovalDecision> {
        future::ready(ApprovalDecision::Approved).boxed()
    }

    fn sandbox(&self, _request: &ApprovalRequest, _attempt: usize) -> Option<Box<SandboxPolicy>> {
        Self::sandbox(self)
    }

    fn network(
        &self,
        _request: &ApprovalRequest,
        _attempt: usize,
    ) -> exec_env::environment::CommandNetwork {
        let is_proxied =
            self.network == NetworkMode::Loopback && self.access != WorkspaceAccess::Open;
        exec_env::environment::CommandNetwork {
            proxy: is_proxied.then(NetworkProxy::for_loopback),
            ..exec_env::environment::CommandNetwork::default()
        }
    }
}

/// Messages of programs without network access, or with a host refused by the proxy.
const NETWORK_FAILURES: &[&str] = &[
    "Could not connect",
    "Couldn't connect",
    "Failed to connect",
    "failed to open socket",
    "Failed to open socket",
    "Connection refused",
    "connection refused",
    "Network is unreachable",
    "ENETUNREACH",
    "EAI_AGAIN",
    "Could not resolve host",
    "Temporary failure in name resolution",
    "from proxy after CONNECT",
    "blocked-by-",
];

fn special_entry(value: SpecialPath, access: EntryAccess) -> SandboxEntry {
    SandboxEntry {
        path: EntryPath::Special { value },
        access,
        missing_path_behavior: Some(MissingPathBehavior::Skip),
    }
}

/// Formats a path in the host's form. A path that is not UTF-8, or of another convention, stays a
/// URI.
pub(super) fn native_path(path: &PathUri) -> String {
    let native = path.to_native().ok();
    let text = native.and_then(|native| native.into_os_string().into_string().ok());
    text.unwrap_or_else(|| path.as_str().to_owned())
}

/// Caller: the path cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum TypedPathError {
    #[error("path: {0}")]
    Join(#[from] PathJoinError),
    #[error("path `{0}`: {1}")]
    Uri(String, PathUriError),
    #[error("`{0}` is an address, not a path")]
    Address(String),
    #[error("`{0}`: the home directory is not known here: write an absolute path")]
    NoHome(String),
    #[error(
        "`{0}` stands for the home of another account: write an absolute path, or `./{0}` for a name"
    )]
    OtherHome(String),
    #[error("`{0}` names a directory, not a file")]
    Directory(String),
}

impl AgentWorkspace {
    /// Parses a path.
    pub(super) fn path(&self, typed: &str) -> Result<PathUri, TypedPathError> {
        if let Some((scheme, _)) = typed.split_once("://")
            && is_scheme(scheme)
        {
            if !scheme.eq_ignore_ascii_case("file") {
                return Err(TypedPathError::Address(typed.to_owned()));
            }
            return PathUri::parse(typed)
                .map_err(|error| TypedPathError::Uri(typed.to_owned(), error));
        }
        let Some(suffix) = typed.strip_prefix('~') else {
            return Ok(self.root.join(typed)?);
        };
        if !suffix.is_empty() && !suffix.starts_with('/') {
            let first = typed.split('/').next().unwrap_or(typed);
            return Err(TypedPathError::OtherHome(first.to_owned()));
        }
        let home = self.home.as_ref();
        let home = home.ok_or_else(|| TypedPathError::NoHome(typed.to_owned()))?;
        Ok(home.join(suffix.trim_start_matches('/'))?)
    }

    /// Parses the path of a file. Rejects paths that can only be directories.
    pub(super) fn file(&self, typed: &str) -> Result<PathUri, TypedPathError> {
        let path = self.path(typed)?;
        let is_windows = path
            .convention()
            .is_some_and(|convention| convention.is_windows());
        let separator = |character| character == '/' || (is_windows && character == '\\');
        let last = typed.rsplit(separator).next().unwrap_or(typed);
        if matches!(last, "" | "." | ".." | "~") || path.file_name().is_none() {
            return Err(TypedPathError::Directory(typed.to_owned()));
        }
        Ok(path)
    }
}

/// Returns whether text is a URI scheme. A single letter is a drive.
fn is_scheme(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    text.len() > 1
        && text.bytes().all(is_part)
        && text.starts_with(|first: char| first.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(access: WorkspaceAccess) -> AgentWorkspace {
        let root = PathUri::parse("file:///work/a%20b").unwrap();
        AgentWorkspace::new(root, access, NetworkMode::Closed)
    }

    #[test]
    fn paths_are_resolved_and_shown_relative_to_the_workspace() {
        let workspace = workspace(WorkspaceAccess::Open);
        for (typed, uri, display) in [
            ("src/x.rs", "file:///work/a%20b/src/x.rs", "src/x.rs"),
            ("/work/a b/x", "file:///work/a%20b/x", "x"),
            ("../c", "file:///work/c", "/work/c"),
            ("/work/a bc", "file:///work/a%20bc", "/work/a bc"),
            (".", "file:///work/a%20b", "/work/a b"),
        ] {
            let path = workspace.path(typed).unwrap();
            assert_eq!(path.as_str(), uri);
            assert_eq!(workspace.display_path(&path), display);
        }
    }

    #[test]
    fn denial_reason_names_the_sandbox() {
        let forbidden = |access, uri: &str| {
            let more = PathUri::parse("file:///more").unwrap();
            let workspace = workspace(access).with_more([more]);
            workspace.denial_reason(&PathUri::parse(uri).unwrap())
        };
        for writable in ["file:///work/a%20b/x", "file:///more/x", "file:///tmp/x"] {
            assert_eq!(forbidden(WorkspaceAccess::WorkspaceWrite, writable), None);
            assert!(forbidden(WorkspaceAccess::ReadOnly, writable).is_some());
        }
        let outside = forbidden(WorkspaceAccess::WorkspaceWrite, "file:///work/c").unwrap();
        assert!(outside.contains("sandbox") && outside.contains("`/work/a b`, `/more`"));
        assert_eq!(forbidden(WorkspaceAccess::Open, "file:///work/c"), None);
    }

    #[test]
    fn every_difference_of_the_policy_makes_another_scope() {
        let closed = workspace(WorkspaceAccess::WorkspaceWrite);
        assert_eq!(
            closed.scope(),
            workspace(WorkspaceAccess::WorkspaceWrite).scope()
        );
        let root = closed.root().clone();
        let network =
            |network| AgentWorkspace::new(root.clone(), WorkspaceAccess::WorkspaceWrite, network);
        let others = [
            workspace(WorkspaceAccess::ReadOnly),
            workspace(WorkspaceAccess::Open),
            network(NetworkMode::Loopback),
            network(NetworkMode::Open),
            closed.clone().with_git(GitAccess::Writable),
            closed.clone().with_more([uri("file:///more")]),
            AgentWorkspace::new(
                uri("file:///work"),
                WorkspaceAccess::WorkspaceWrite,
                NetworkMode::Closed,
            ),
        ];
        let mut scopes: Vec<_> = others.iter().map(AgentWorkspace::scope).collect();
        scopes.push(closed.scope());
        for (index, scope) in scopes.iter().enumerate() {
            assert!(!scopes[..index].contains(scope), "{index}");
        }
    }

    #[test]
    fn only_an_open_workspace_has_no_sandbox_policy() {
        assert!(workspace(WorkspaceAccess::Open).sandbox().is_none());
        let writable = |access| {
            let sandbox = workspace(access).sandbox().unwrap();
            let SandboxPermissions::Managed {
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
            let written = |entry: &&SandboxEntry| entry.access == EntryAccess::Write;
            entries.iter().filter(written).count()
        };
        assert_eq!(writable(WorkspaceAccess::ReadOnly), 0);
        assert_eq!(writable(WorkspaceAccess::WorkspaceWrite), 3);
    }

    #[test]
    fn denial_explanation_names_the_relevant_flag() {
        let closed = workspace(WorkspaceAccess::WorkspaceWrite);
        let git = "fatal: Unable to create '/w/.git/index.lock': Read-only file system";
        let explained = closed.explain_denial(git, true).unwrap();
        assert!(explained.contains("--allow-git"), "{explained}");
        let curl = "curl: (7) Failed to connect to localhost port 80: Could not connect to server";
        let explained = closed.explain_denial(curl, false).unwrap();
        assert!(explained.contains("--network loopback"), "{explained}");
        let other = closed.explain_denial("Permission denied", true).unwrap();
        assert!(other.contains("--writable DIR"), "{other}");
        assert_eq!(closed.explain_denial("no such file", false), None);
        let with_git = closed.with_git(GitAccess::Writable);
        assert!(!with_git.restrictions().contains("--allow-git"));
        assert_eq!(
            workspace(WorkspaceAccess::Open).explain_denial("Permission denied", true),
            None
        );
    }

    #[test]
    fn protected_metadata_is_named() {
        let workspace = workspace(WorkspaceAccess::WorkspaceWrite);
        let config = PathUri::parse("file:///work/a%20b/.git/config").unwrap();
        let reason = workspace.denial_reason(&config).unwrap();
        assert!(reason.contains("`.git`"), "{reason}");
        let workspace = workspace.with_git(GitAccess::Writable);
        assert_eq!(workspace.denial_reason(&config), None);
    }

    fn uri(text: &str) -> PathUri {
        PathUri::parse(text).unwrap()
    }

    #[test]
    fn relative_absolute_home_and_uri_paths_resolve() {
        let base = AgentWorkspace {
            root: uri("file:///srv"),
            home: Some(uri("file:///home/me")),
            ..workspace(WorkspaceAccess::Open)
        };
        for (typed, expected) in [
            ("a b", "file:///srv/a%20b"),
            ("/a%20b", "file:///a%2520b"),
            ("~", "file:///home/me"),
            ("~/x", "file:///home/me/x"),
            ("~//x", "file:///home/me/x"),
            ("./~", "file:///srv/~"),
            ("a/~/b", "file:///srv/a/~/b"),
            ("file:///a%20b", "file:///a%20b"),
            ("FILE:///a", "file:///a"),
        ] {
            assert_eq!(base.path(typed).unwrap(), uri(expected), "{typed}");
        }
        let unknown = AgentWorkspace {
            home: None,
            ..base.clone()
        };
        assert_eq!(
            unknown.path("~/x"),
            Err(TypedPathError::NoHome("~/x".to_owned()))
        );
        for typed in [
            "~/",
            "~",
            "/",
            "a/",
            "a/..",
            ".",
            "",
            "file:///",
            "file:///a/",
        ] {
            let refused = Err(TypedPathError::Directory(typed.to_owned()));
            assert_eq!(base.file(typed), refused, "{typed}");
        }
    }
}
