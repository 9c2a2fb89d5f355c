//! Files, as people copy, list, print, edit, find and watch them.

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

/// A person, a server of theirs, and a directory that stands for its machine.
struct CopyFixture {
    user: TestUser,
    server: Server,
    there: tempfile::TempDir,
}

impl CopyFixture {
    async fn new() -> Self {
        let user = TestUser::new();
        let server = user.server(&[]).await;
        let there = tempfile::tempdir().unwrap();
        Self {
            user,
            server,
            there,
        }
    }

    /// A path in the directory that programs are started in.
    fn here(&self, name: &str) -> PathBuf {
        self.user.work().join(name)
    }

    /// A path on the server.
    fn there(&self, name: &str) -> PathBuf {
        self.there.path().join(name)
    }

    /// A path on the server, as `cp` takes it.
    fn remote(&self, name: &str) -> String {
        format!(":{}", self.there(name).display())
    }

    /// The line of a command for this server.
    fn line<'a>(&'a self, command: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
        let mut line = vec![command, "-E", &self.server.url];
        line.extend(rest);
        line
    }

    /// Runs a command on this server.
    async fn run(&self, command: &str, rest: &[&str]) -> crate::test_user::CommandResult {
        self.user.run(self.line(command, rest)).await
    }

    /// Runs a command on this server, and returns the JSON that it prints.
    async fn json(&self, command: &str, rest: &[&str]) -> serde_json::Value {
        let text = self.run(command, rest).await.well();
        serde_json::from_str(&text).unwrap()
    }
}

/// Writes a file, and the directories above it.
fn write(path: &Path, content: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Names in a directory, hidden ones included.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<_> = entries.map(|entry| name(entry.unwrap())).collect();
    names.sort();
    names
}

/// Bytes of every value, in no simple pattern.
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
