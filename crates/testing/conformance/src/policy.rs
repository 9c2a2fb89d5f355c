//! Policies, written as a client writes them.

use std::path::Path;

use exec_env::command::Command;
use exec_wire::sandbox::Sandbox;
use serde_json::{Value, json};

use crate::subject::uri;

/// A policy in the making. The network is closed unless it is enabled.
#[derive(Clone, Debug)]
pub(crate) struct Policy(Value);

impl Policy {
    /// A policy of these permissions.
    pub(crate) fn of(permissions: &Value) -> Self {
        Self(json!({"permissions": permissions, "windowsSandboxLevel": "disabled"}))
    }

    /// A policy that allows nothing yet.
    pub(crate) fn nothing() -> Self {
        let files = json!({"type": "restricted", "entries": []});
        Self::of(&json!({"type": "managed", "file_system": files, "network": "restricted"}))
    }

    /// Everything may be read.
    pub(crate) fn read_only() -> Self {
        Self::nothing().entry(special("root"), "read")
    }

    /// What nearly every program needs may be read.
    pub(crate) fn minimal() -> Self {
        Self::nothing().entry(special("minimal"), "read")
    }

    /// Everything may be read, and the workspace may be written.
    pub(crate) fn workspace(root: &Path) -> Self {
        Self::read_only()
            .entry(special("project_roots"), "write")
            .rooted(root)
    }

    /// Adds an entry.
    pub(crate) fn entry(mut self, path: Value, access: &str) -> Self {
        let entries = self.0["permissions"]["file_system"]["entries"].as_array_mut();
        let entry = json!({"path": path, "access": access});
        entries.expect("files are restricted").push(entry);
        self
    }

    /// Says where the project is.
    pub(crate) fn rooted(self, root: &Path) -> Self {
        let root = uri(root).to_string();
        self.with("workspaceRoots", json!([root]))
            .with("cwd", json!(root))
    }

    /// Opens the network.
    pub(crate) fn with_network(mut self) -> Self {
        self.0["permissions"]["network"] = json!("enabled");
        self
    }

    /// Sets a member.
    pub(crate) fn with(mut self, member: &str, value: Value) -> Self {
        self.0[member] = value;
        self
    }

    /// What a request carries.
    pub(crate) fn sandbox(&self) -> Option<Box<Sandbox>> {
        let sandbox = serde_json::from_value(self.0.clone());
        Some(Box::new(sandbox.expect("the policy decodes")))
    }

    /// The command under the policy.
    pub(crate) fn around(&self, command: Command) -> Command {
        Command {
            sandbox: self.sandbox(),
            ..command
        }
    }
}

/// An entry's path that differs from host to host.
pub(crate) fn special(kind: &str) -> Value {
    json!({"type": "special", "value": {"kind": kind}})
}

/// An entry's path by itself.
pub(crate) fn path(path: &Path) -> Value {
    json!({"type": "path", "path": uri(path).to_string()})
}

/// An entry's path by a pattern.
pub(crate) fn glob(pattern: &str) -> Value {
    json!({"type": "glob_pattern", "pattern": pattern})
}
