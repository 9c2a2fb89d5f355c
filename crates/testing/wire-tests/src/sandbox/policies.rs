//! Policies for the probes.

use serde_json::{Value, json};

use super::SandboxFixture;
use crate::{client::merge, fs_fixture::uri};

/// Policy with its name in the test output.
#[derive(Clone, Debug)]
pub(crate) struct SandboxPolicy {
    pub(crate) name: String,
    pub(crate) sandbox: Value,
    pub(crate) kind: FilePolicy,
    pub(crate) network: NetworkPolicy,
}

/// File part of a policy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum FilePolicy {
    /// All files are readable, none is writable.
    ReadOnly,
    /// The workspace except `.git` is writable; all files are readable.
    Workspace,
    /// The stock client's workspace policy, with temporary directories.
    Stock,
    /// The workspace is writable; only system files exist besides it.
    Narrow,
    /// All files except `out` are writable.
    Carved,
    /// Like a workspace, but `out` and `work/*.secret` are denied.
    Denied,
}

/// Network part of a policy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NetworkPolicy {
    Restricted,
    Enabled,
}

impl FilePolicy {
    pub(crate) const ALL: [Self; 6] = [
        Self::ReadOnly,
        Self::Workspace,
        Self::Stock,
        Self::Narrow,
        Self::Carved,
        Self::Denied,
    ];

    /// Returns the error of a write where only reading is allowed.
    pub(crate) fn refusal(self, network: NetworkPolicy) -> &'static str {
        match (self, network) {
            // Landlock enforces the same with another error.
            (Self::ReadOnly, NetworkPolicy::Enabled) => "EACCES EROFS EXDEV EPERM",
            (Self::Narrow, _) => "ENOENT EROFS",
            (Self::Denied, _) => "EACCES ENOENT EROFS EXDEV",
            (Self::ReadOnly | Self::Workspace | Self::Stock | Self::Carved, _) => "EROFS EXDEV",
        }
    }
}

impl NetworkPolicy {
    pub(crate) const ALL: [Self; 2] = [Self::Restricted, Self::Enabled];

    fn word(self) -> &'static str {
        match self {
            Self::Restricted => "restricted",
            Self::Enabled => "enabled",
        }
    }
}

impl SandboxPolicy {
    /// Creates a policy for a fixture.
    pub(crate) fn new(fixture: &SandboxFixture, kind: FilePolicy, network: NetworkPolicy) -> Self {
        let root = |access| special("root", access);
        let projects = special("project_roots", "write");
        let mut git = special("project_roots", "read");
        git["path"]["value"]["subpath"] = json!(".git");
        git["missing_path_behavior"] = json!("skip");
        let entries = match kind {
            FilePolicy::ReadOnly => json!([root("read")]),
            FilePolicy::Workspace => json!([root("read"), projects, git]),
            FilePolicy::Stock => json!([
                root("read"),
                projects,
                special("slash_tmp", "write"),
                special("tmpdir", "write"),
                git
            ]),
            FilePolicy::Narrow => json!([
                special("minimal", "read"),
                path(&uri(fixture.probe()), "read"),
                path(&fixture.uri("work"), "write"),
            ]),
            FilePolicy::Carved => json!([root("write"), path(&fixture.uri("out"), "read")]),
            FilePolicy::Denied => json!([
                root("read"),
                projects,
                path(&fixture.uri("out"), "deny"),
                {"path": {"type": "glob_pattern", "pattern": "**/*.secret"}, "access": "deny"},
            ]),
        };
        let name = format!("{kind:?} {network:?}");
        let mut policy = Self::of(fixture, &name, entries, network);
        policy.kind = kind;
        policy
    }

    /// Creates a policy from entries.
    pub(crate) fn of(
        fixture: &SandboxFixture,
        name: &str,
        entries: Value,
        network: NetworkPolicy,
    ) -> Self {
        let files = json!({"type": "restricted", "entries": entries});
        let permissions =
            json!({"type": "managed", "file_system": files, "network": network.word()});
        let mut policy = Self::with(fixture, name, permissions);
        policy.network = network;
        policy
    }

    /// Creates a policy from permissions.
    pub(crate) fn with(fixture: &SandboxFixture, name: &str, permissions: Value) -> Self {
        let work = fixture.uri("work");
        let mut sandbox = json!({
            "permissions": permissions, "cwd": work, "workspaceRoots": [work],
            "windowsSandboxLevel": "disabled", "useLegacyLandlock": false,
        });
        merge(
            &mut sandbox,
            json!({"windowsSandboxProxySettingsMode": "reconcile"}),
        );
        Self {
            name: name.to_owned(),
            sandbox,
            kind: FilePolicy::Workspace,
            network: NetworkPolicy::Restricted,
        }
    }

    /// Returns every policy.
    pub(crate) fn all(fixture: &SandboxFixture) -> Vec<Self> {
        let kinds = FilePolicy::ALL.into_iter();
        kinds
            .flat_map(|kind| NetworkPolicy::ALL.map(|network| Self::new(fixture, kind, network)))
            .collect()
    }

    /// Returns the policies of every kind with one network setting.
    pub(crate) fn with_network(fixture: &SandboxFixture, network: NetworkPolicy) -> Vec<Self> {
        FilePolicy::ALL
            .map(|kind| Self::new(fixture, kind, network))
            .into()
    }

    /// Returns the error of a write where only reading is allowed.
    pub(crate) fn refusal(&self) -> &'static str {
        self.kind.refusal(self.network)
    }
}

/// Returns an entry for a special path.
pub(crate) fn special(kind: &str, access: &str) -> Value {
    json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access})
}

/// Returns an entry for a path.
pub(crate) fn path(uri: &str, access: &str) -> Value {
    json!({"path": {"type": "path", "path": uri}, "access": access})
}
