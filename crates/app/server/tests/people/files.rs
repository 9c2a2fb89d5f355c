//! Tests of file commands: copy, list, print, edit, find and watch.

mod changes;
mod copy;
mod copy_links;
mod copy_resume;
mod copy_trees;
mod edit;
mod listing;
mod watch;

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::test_user::{Server, TestUser};

/// A user, a server, and a directory that stands for the server's machine.
struct CopyFixture {
    user: TestUser,
    server: Server,
    remote_dir: tempfile::TempDir,
}

impl CopyFixture {
    async fn new() -> Self {
        let user = TestUser::new();
        let server = user.server(&[]).await;
        let remote_dir = tempfile::tempdir().unwrap();
        Self {
            user,
            server,
            remote_dir,
        }
    }

    /// Returns a path in the local working directory.
    fn local_path(&self, name: &str) -> PathBuf {
        self.user.work().join(name)
    }

    /// Returns a path on the server.
    fn remote_path(&self, name: &str) -> PathBuf {
        self.remote_dir.path().join(name)
    }

    /// Returns a path on the server as a `cp` operand.
    fn remote(&self, name: &str) -> String {
        format!(":{}", self.remote_path(name).display())
    }

    /// Returns a command line for this server.
    fn line<'a>(&'a self, command: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
        let mut line = vec![command, "-E", &self.server.url];
        line.extend(arguments);
        line
    }

    /// Runs a command on this server.
    async fn run(&self, command: &str, arguments: &[&str]) -> crate::test_user::CommandResult {
        self.user.run(self.line(command, arguments)).await
    }

    /// Runs a command on this server and parses its JSON output.
    async fn json(&self, command: &str, arguments: &[&str]) -> serde_json::Value {
        let text = self.run(command, arguments).await.expect_success();
        serde_json::from_str(&text).unwrap()
    }
}

/// Writes a file and creates its parent directories.
fn write(path: &Path, content: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Lists the names in a directory, including hidden ones.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<_> = entries.map(|entry| name(entry.unwrap())).collect();
    names.sort();
    names
}

/// Returns pseudo-random bytes of every value.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 7_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
