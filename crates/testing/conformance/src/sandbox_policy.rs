//! Sandbox policies in their JSON form, and file operations under such a policy.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use exec_env::{
    environment::Command,
    filesystem::{FileFuture, OpenFile, OpenFileRequest},
};
use exec_wire::{
    fs::{
        CanonicalizePath, CopyPath, CreateDirectory, DirectoryListing, FileMetadata, FindPaths,
        FoundPaths, GetMetadata, OpenMode, ReadDirectory, ReadFile, RemovePath, RenamePath,
        SearchResult, SearchText, WalkResult, WalkTree, WriteFile,
    },
    path_uri::PathUri,
    sandbox::SandboxPolicy,
};
use serde_json::{Value, json};

use crate::{
    request,
    subject::{Subject, uri},
};

/// Builder of a sandbox policy. The network is disabled by default.
#[derive(Clone, Debug)]
pub(crate) struct PolicyBuilder(Value);

impl PolicyBuilder {
    /// Creates a policy with these permissions.
    pub(crate) fn of(permissions: &Value) -> Self {
        Self(json!({"permissions": permissions, "windowsSandboxLevel": "disabled"}))
    }

    /// Creates a policy that allows nothing.
    pub(crate) fn nothing() -> Self {
        let files = json!({"type": "restricted", "entries": []});
        Self::of(&json!({"type": "managed", "file_system": files, "network": "restricted"}))
    }

    /// Creates a policy that allows reading everything.
    pub(crate) fn read_only() -> Self {
        Self::nothing().entry(special("root"), "read")
    }

    /// Creates a policy that allows reading what nearly every program needs.
    pub(crate) fn minimal() -> Self {
        Self::nothing().entry(special("minimal"), "read")
    }

    /// Creates a policy that allows reading everything and writing to the workspace.
    pub(crate) fn workspace(root: &Path) -> Self {
        Self::read_only()
            .entry(special("project_roots"), "write")
            .rooted(root)
    }

    /// Adds an entry.
    pub(crate) fn entry(mut self, path: Value, access: &str) -> Self {
        let entries = self.0["permissions"]["file_system"]["entries"].as_array_mut();
        let entry = json!({"path": path, "access": access});
        entries.expect("policy does not restrict files").push(entry);
        self
    }

    /// Sets the project root.
    pub(crate) fn rooted(self, root: &Path) -> Self {
        let root = uri(root).to_string();
        self.with("workspaceRoots", json!([root]))
            .with("cwd", json!(root))
    }

    /// Enables the network.
    pub(crate) fn with_network(mut self) -> Self {
        self.0["permissions"]["network"] = json!("enabled");
        self
    }

    /// Sets a field.
    pub(crate) fn with(mut self, member: &str, value: Value) -> Self {
        self.0[member] = value;
        self
    }

    /// Returns the policy as a request field.
    pub(crate) fn sandbox(&self) -> Option<Box<SandboxPolicy>> {
        let sandbox = serde_json::from_value(self.0.clone());
        Some(Box::new(sandbox.expect("failed to decode the policy")))
    }

    /// Returns the command with this policy.
    pub(crate) fn sandboxed_command(&self, command: Command) -> Command {
        Command {
            sandbox: self.sandbox(),
            ..command
        }
    }
}

/// Returns an entry's path of a special kind, which depends on the host.
pub(crate) fn special(kind: &str) -> Value {
    json!({"type": "special", "value": {"kind": kind}})
}

/// Returns an entry's literal path.
pub(crate) fn path(path: &Path) -> Value {
    json!({"type": "path", "path": uri(path).to_string()})
}

/// Returns an entry's glob pattern.
pub(crate) fn glob(pattern: &str) -> Value {
    json!({"type": "glob_pattern", "pattern": pattern})
}

/// File operations of a subject under a policy, with default options.
#[derive(Debug)]
pub(crate) struct SandboxedFiles<'a> {
    pub(crate) subject: &'a Subject,
    pub(crate) policy: PolicyBuilder,
}

impl SandboxedFiles<'_> {
    pub(crate) fn read(&self, path: &Path) -> FileFuture<Bytes> {
        self.subject.files.read_file(ReadFile {
            sandbox: self.policy.sandbox(),
            ..request::read(path)
        })
    }

    pub(crate) fn write(&self, path: &Path, data: impl Into<Bytes>) -> FileFuture<()> {
        let write = WriteFile {
            sandbox: self.policy.sandbox(),
            ..request::write(path)
        };
        self.subject.files.write_file(write, data.into())
    }

    pub(crate) fn create(&self, path: &Path) -> FileFuture<()> {
        self.subject.files.create_directory(CreateDirectory {
            sandbox: self.policy.sandbox(),
            ..request::create(path)
        })
    }

    pub(crate) fn metadata(&self, path: &Path) -> FileFuture<FileMetadata> {
        self.subject.files.metadata(GetMetadata {
            sandbox: self.policy.sandbox(),
            ..request::metadata(path)
        })
    }

    pub(crate) fn canonicalize(&self, path: &Path) -> FileFuture<PathUri> {
        self.subject.files.canonicalize(CanonicalizePath {
            sandbox: self.policy.sandbox(),
            ..request::canonicalize(path)
        })
    }

    pub(crate) fn list(&self, path: &Path) -> FileFuture<DirectoryListing> {
        self.subject.files.read_directory(ReadDirectory {
            sandbox: self.policy.sandbox(),
            ..request::list(path)
        })
    }

    pub(crate) fn walk(&self, path: &Path) -> FileFuture<WalkResult> {
        self.subject.files.walk(WalkTree {
            sandbox: self.policy.sandbox(),
            ..request::walk(path, request::UNLIMITED_WALK)
        })
    }

    pub(crate) fn remove(&self, path: &Path) -> FileFuture<()> {
        self.subject.files.remove(RemovePath {
            sandbox: self.policy.sandbox(),
            force: Some(false),
            ..request::remove(path)
        })
    }

    pub(crate) fn copy(&self, source: &Path, destination: &Path) -> FileFuture<()> {
        self.subject.files.copy(CopyPath {
            sandbox: self.policy.sandbox(),
            ..request::copy_tree(source, destination)
        })
    }

    pub(crate) fn rename(&self, source: &Path, destination: &Path) -> FileFuture<()> {
        self.subject.files.rename(RenamePath {
            sandbox: self.policy.sandbox(),
            ..request::rename(source, destination)
        })
    }

    pub(crate) fn search(&self, path: &Path, text: &str) -> FileFuture<SearchResult> {
        self.subject.files.search(SearchText {
            sandbox: self.policy.sandbox(),
            ..request::search(path, text)
        })
    }

    pub(crate) fn find(&self, path: &Path, glob: &str) -> FileFuture<FoundPaths> {
        self.subject.files.find(FindPaths {
            sandbox: self.policy.sandbox(),
            ..request::find(path, glob)
        })
    }

    pub(crate) fn open(&self, path: &Path, mode: OpenMode) -> FileFuture<Arc<dyn OpenFile>> {
        self.subject.files.open(OpenFileRequest {
            sandbox: self.policy.sandbox(),
            ..request::open(path, mode)
        })
    }
}
