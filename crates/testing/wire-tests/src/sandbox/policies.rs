//! The policies that probes run under.

use serde_json::{Value, json};

use super::ground::Ground;
use crate::{client::merge, scene::uri};

/// A policy, and what it is called in a test's output.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub(crate) name: String,
    pub(crate) sandbox: Value,
    pub(crate) kind: Kind,
    pub(crate) network: Network,
}

/// Which files may be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// All are read, none is written.
    ReadOnly,
    /// The workspace is written, but for `.git`; all are read.
    Workspace,
    /// The same as the stock client asks for it: with the places for temporary files.
    Stock,
    /// The workspace is written; nothing else is there, but for the system.
    Narrow,
    /// All are written, but for `out`.
    Carved,
    /// As in a workspace; `out` cannot be read, and neither can what is called `*.secret` in `work`.
    Denied,
}

/// Which network may be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Network {
    Restricted,
    Enabled,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] = [
        Self::ReadOnly,
        Self::Workspace,
        Self::Stock,
        Self::Narrow,
        Self::Carved,
        Self::Denied,
    ];

    /// How writing is refused where only reading is allowed.
    pub(crate) fn refusal(self, network: Network) -> &'static str {
        match (self, network) {
            // Landlock does as well as a view of the files, and has another error for it.
            (Self::ReadOnly, Network::Enabled) => "EACCES EROFS EXDEV EPERM",
            (Self::Narrow, _) => "ENOENT EROFS",
            (Self::Denied, _) => "EACCES ENOENT EROFS EXDEV",
            (Self::ReadOnly | Self::Workspace | Self::Stock | Self::Carved, _) => "EROFS EXDEV",
        }
    }
}

impl Network {
    pub(crate) const ALL: [Self; 2] = [Self::Restricted, Self::Enabled];

    fn word(self) -> &'static str {
        match self {
            Self::Restricted => "restricted",
            Self::Enabled => "enabled",
        }
    }
}

impl Policy {
    /// Makes a policy for a ground.
    pub(crate) fn new(ground: &Ground, kind: Kind, network: Network) -> Self {
        let root = |access| special("root", access);
        let projects = special("project_roots", "write");
        let mut git = special("project_roots", "read");
        git["path"]["value"]["subpath"] = json!(".git");
        git["missing_path_behavior"] = json!("skip");
        let entries = match kind {
            Kind::ReadOnly => json!([root("read")]),
            Kind::Workspace => json!([root("read"), projects, git]),
            Kind::Stock => json!([
                root("read"),
                projects,
                special("slash_tmp", "write"),
                special("tmpdir", "write"),
                git
            ]),
            Kind::Narrow => json!([
                special("minimal", "read"),
                path(&uri(ground.probe()), "read"),
                path(&ground.uri("work"), "write"),
            ]),
            Kind::Carved => json!([root("write"), path(&ground.uri("out"), "read")]),
            Kind::Denied => json!([
                root("read"),
                projects,
                path(&ground.uri("out"), "deny"),
                {"path": {"type": "glob_pattern", "pattern": "**/*.secret"}, "access": "deny"},
            ]),
        };
        let name = format!("{kind:?} {network:?}");
        let mut policy = Self::of(ground, &name, entries, network);
        policy.kind = kind;
        policy
    }

    /// Makes a policy of entries.
    pub(crate) fn of(ground: &Ground, name: &str, entries: Value, network: Network) -> Self {
        let files = json!({"type": "restricted", "entries": entries});
        let permissions =
            json!({"type": "managed", "file_system": files, "network": network.word()});
        let mut policy = Self::with(ground, name, permissions);
        policy.network = network;
        policy
    }

    /// Makes a policy of permissions.
    pub(crate) fn with(ground: &Ground, name: &str, permissions: Value) -> Self {
        let work = ground.uri("work");
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
            kind: Kind::Workspace,
            network: Network::Restricted,
        }
    }

    /// Makes every policy.
    pub(crate) fn all(ground: &Ground) -> Vec<Self> {
        let kinds = Kind::ALL.into_iter();
        kinds
            .flat_map(|kind| Network::ALL.map(|network| Self::new(ground, kind, network)))
            .collect()
    }

    /// Makes the policies of every kind with one network.
    pub(crate) fn with_network(ground: &Ground, network: Network) -> Vec<Self> {
        Kind::ALL
            .map(|kind| Self::new(ground, kind, network))
            .into()
    }

    /// How writing is refused where only reading is allowed.
    pub(crate) fn refusal(&self) -> &'static str {
        self.kind.refusal(self.network)
    }
}

/// An entry of a place with a name.
pub(crate) fn special(kind: &str, access: &str) -> Value {
    json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access})
}

/// An entry of a path.
pub(crate) fn path(uri: &str, access: &str) -> Value {
    json!({"path": {"type": "path", "path": uri}, "access": access})
}
