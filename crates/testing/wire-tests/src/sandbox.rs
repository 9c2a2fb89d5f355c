//! Hostile programs in a sandbox: each tries one operation, which must be refused, while its twin
//! outside or in an allowed place must work.
//!
//! The programs are the probes of `exec-hostile`. A twin that needs missing privileges is skipped;
//! the refusal is asserted regardless. The same policies for `fs/*` are in `fs_sandbox`, except for
//! races.
//!
//! The fixture here is a server, a workspace, and a directory outside of it.

mod bad_policies;
mod command_environment;
mod devices;
mod files;
mod fs_requests;
mod hidden_paths;
mod kernel;
mod launch;
mod lifetime;
mod mechanisms;
mod metadata;
mod network;
mod other_processes;
mod policies;
mod races;
mod server_socket;

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink},
    path::{Path, PathBuf},
};

use exec_test_support::workspace_program::workspace_program;
use rustix::process::geteuid;
use serde_json::{Value, json};
use tempfile::TempDir;

use policies::SandboxPolicy;

use crate::{
    client::{Client, Events, argv_params, merge},
    fs_fixture::uri,
    server::{Server, TIMEOUT, Transport, until},
};

/// User that the server runs as.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ServerUser {
    /// The current user, possibly root.
    Same,
    /// An unprivileged user.
    Ordinary,
}

/// User id without privileges on every host.
const NOBODY: u32 = 65534;

/// Server and files of a sandbox test.
///
/// `work` is the workspace: `file` holds `inside`, `dir` holds `inner`, and `.git` holds `config`.
/// `out` is outside: `file` holds `outside`, `dir` holds `inner`, and `empty` is an empty
/// directory. `aside` is empty. In `work`, `to-file` and `to-out` are symlinks to the file and the
/// directory outside.
#[derive(Debug)]
pub(crate) struct SandboxFixture {
    pub(crate) server: Server,
    pub(crate) client: Client,
    /// Root of all directories. Not below the directory that policies call `slash_tmp`.
    temp_dir: TempDir,
    user: Option<u32>,
    probe: PathBuf,
    runs: u32,
    faults: Vec<String>,
}

impl SandboxFixture {
    /// Starts a server.
    pub(crate) async fn new(user: ServerUser) -> Self {
        Self::with_flags(user, &[]).await
    }

    /// Starts a server with flags.
    pub(crate) async fn with_flags(user: ServerUser, flags: &[&str]) -> Self {
        let user = (user == ServerUser::Ordinary && geteuid().is_root()).then_some(NOBODY);
        let mut server = match user {
            Some(user) => Server::start_as(user, Transport::WebSocket, flags).await,
            None => Server::start(Transport::WebSocket, flags).await,
        };
        let client = server.ready().await;
        let temp_dir = TempDir::new_in("/var/tmp").unwrap();
        let fixture = Self {
            server,
            client,
            temp_dir,
            user,
            probe: workspace_program("exec-hostile"),
            runs: 0,
            faults: Vec::new(),
        };
        fs::set_permissions(fixture.temp_dir.path(), Permissions::from_mode(0o755)).unwrap();
        fixture.reset();
        fixture.give(fixture.temp_dir.path());
        fixture
    }

    /// Restores the initial state.
    pub(crate) fn reset(&self) {
        for entry in fs::read_dir(self.temp_dir.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                fs::remove_dir_all(&path).unwrap();
            } else {
                fs::remove_file(&path).unwrap();
            }
        }
        for directory in ["work/dir", "work/.git", "out/dir", "out/empty", "aside"] {
            fs::create_dir_all(self.path(directory)).unwrap();
        }
        for (file, text) in [
            ("work/file", "inside"),
            ("work/dir/inner", "x"),
            ("work/.git/config", "git"),
            ("out/file", "outside"),
            ("out/dir/inner", "x"),
        ] {
            fs::write(self.path(file), text).unwrap();
        }
        symlink("../out/file", self.path("work/to-file")).unwrap();
        symlink("../out", self.path("work/to-out")).unwrap();
        for directory in ["work", "out", "aside"] {
            self.give(&self.path(directory));
        }
    }

    /// Changes the owner of a tree to the server's user.
    pub(crate) fn give(&self, path: &Path) {
        lchown(path, self.user, self.user).unwrap();
        if fs::symlink_metadata(path).unwrap().is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                self.give(&entry.unwrap().path());
            }
        }
    }

    /// Returns the native path of a name.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.temp_dir.path().join(name)
    }

    /// Returns the native path of a name, as text.
    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).into_os_string().into_string().unwrap()
    }

    /// Returns the URI of a name.
    pub(crate) fn uri(&self, name: &str) -> String {
        uri(&self.path(name))
    }

    /// Returns the probe program.
    pub(crate) fn probe(&self) -> &Path {
        &self.probe
    }

    /// Returns the user that the server runs as.
    pub(crate) fn uid(&self) -> u32 {
        self.user.unwrap_or_else(|| geteuid().as_raw())
    }

    /// Records a fault. The test continues and fails at its end.
    pub(crate) fn record_fault(&mut self, text: impl Into<String>) {
        self.faults.push(text.into());
    }

    /// Panics if any fault was recorded.
    pub(crate) fn assert_no_faults(self) {
        let count = self.faults.len();
        assert!(count == 0, "{count} faults:\n{}", self.faults.join("\n"));
    }

    /// Builds params that run a probe in the workspace. An argument that starts with `@` is a name
    /// of the fixture.
    pub(crate) fn params(&mut self, policy: Option<&SandboxPolicy>, args: &[&str]) -> Value {
        self.runs += 1;
        let id = format!("probe-{}", self.runs);
        let mut argv = vec![self.probe.to_str().unwrap().to_owned()];
        argv.extend(args.iter().map(|arg| match arg.strip_prefix('@') {
            Some(name) => self.text(name),
            None => (*arg).to_owned(),
        }));
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        let mut params = argv_params(&id, &argv);
        merge(&mut params, json!({"cwd": self.uri("work")}));
        if let Some(policy) = policy {
            merge(&mut params, json!({"sandbox": policy.sandbox}));
        }
        params
    }

    /// Starts a process and returns its id.
    pub(crate) async fn start(&mut self, params: Value) -> String {
        let kind = if params["sandbox"].is_null() {
            "none"
        } else {
            "linuxSeccomp"
        };
        let id = params["processId"].as_str().unwrap().to_owned();
        let result = self.client.call("process/start", params).await;
        assert_eq!(result, json!({"processId": id, "sandboxType": kind}));
        id
    }

    /// Runs a process until its close.
    pub(crate) async fn finish(&mut self, params: Value) -> Events {
        let id = self.start(params).await;
        self.client.finish(&id).await
    }

    /// Runs a probe and returns its output.
    pub(crate) async fn run(&mut self, policy: Option<&SandboxPolicy>, args: &[&str]) -> String {
        let params = self.params(policy, args);
        let events = self.finish(params).await;
        let (out, err) = (events.stdout(), events.stream("stderr"));
        if events.code() != 0 || !err.is_empty() {
            return format!("exit {} {out}{err}", events.code());
        }
        out.trim_end().to_owned()
    }

    /// Expects a probe in a sandbox to succeed.
    pub(crate) async fn allowed(&mut self, policy: &SandboxPolicy, args: &[&str]) {
        self.says(Some(policy), "ok", args).await;
    }

    /// Expects a probe to print a line.
    pub(crate) async fn says(
        &mut self,
        policy: Option<&SandboxPolicy>,
        expected: &str,
        args: &[&str],
    ) {
        let line = self.run(policy, args).await;
        if line != expected {
            let name = policy.map_or("outside", |policy| policy.name.as_str());
            self.record_fault(format!("{name}: {args:?}: {line}, and not {expected}"));
        }
    }

    /// Expects a probe in a sandbox to be refused with one of the errors, separated by spaces.
    pub(crate) async fn refused(&mut self, policy: &SandboxPolicy, errors: &str, args: &[&str]) {
        let line = self.run(Some(policy), args).await;
        let error = line.strip_prefix("refused ");
        if !error.is_some_and(|error| errors.split(' ').any(|known| known == error)) {
            let name = &policy.name;
            self.record_fault(format!("{name}: {args:?}: {line}, and not {errors}"));
        }
    }

    /// Returns names, types, modes and contents of a tree, for later comparison.
    pub(crate) fn snapshot(&self, name: &str) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        collect(&self.path(name), &mut found);
        found
    }

    /// Records a fault if a tree differs from its snapshot.
    pub(crate) fn unchanged(&mut self, name: &str, was: &BTreeMap<PathBuf, String>, after: &str) {
        let is = self.snapshot(name);
        if is != *was {
            self.record_fault(format!("{name} is changed after {after}: {was:?}, {is:?}"));
        }
    }

    /// Waits for the close of a process and returns its events.
    pub(crate) async fn end(&mut self, id: &str) -> Value {
        let mut exited = Value::Null;
        for kind in ["process/exited", "process/closed"] {
            loop {
                let note = self.client.note(kind).await;
                if note["processId"] == id {
                    if kind == "process/exited" {
                        exited = note;
                    }
                    break;
                }
            }
        }
        exited
    }

    /// Waits for a process whose command line ends in a word and returns its host pid.
    pub(crate) async fn find(&self, marker: &str) -> u32 {
        let mut found = Vec::new();
        until(
            &format!("a process with {marker} within {TIMEOUT:?}"),
            || {
                found = processes(marker);
                !found.is_empty()
            },
        )
        .await;
        found[0]
    }
}

/// Returns the processes whose command line ends in a word.
pub(crate) fn processes(marker: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let end = format!("\0{marker}\0");
    pids.filter(|pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.ends_with(end.as_bytes())
    })
    .collect()
}

fn collect(path: &Path, found: &mut BTreeMap<PathBuf, String>) {
    let metadata = fs::symlink_metadata(path).unwrap();
    let kind = metadata.file_type();
    let content = if kind.is_file() {
        fs::read_to_string(path).unwrap()
    } else if kind.is_symlink() {
        fs::read_link(path).unwrap().display().to_string()
    } else {
        String::new()
    };
    let (mode, owner, links) = (metadata.mode(), metadata.uid(), metadata.nlink());
    let text = format!("{mode:o} {owner} {links} {content}");
    found.insert(path.to_owned(), text);
    if kind.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            collect(&entry.unwrap().path(), found);
        }
    }
}

/// Makes each case a named test as the current user and as an unprivileged user.
macro_rules! as_every_user {
    ($($case:ident),+ $(,)?) => {
        $crate::sandbox::as_user!(same, Same; $($case),+);
        $crate::sandbox::as_user!(ordinary, Ordinary; $($case),+);
    };
}

macro_rules! as_user {
    ($module:ident, $user:ident; $($case:ident),+) => {
        mod $module {
            use $crate::sandbox::{SandboxFixture, ServerUser};
            $(
                #[tokio::test]
                async fn $case() {
                    let mut fixture = SandboxFixture::new(ServerUser::$user).await;
                    super::$case(&mut fixture).await;
                    fixture.assert_no_faults();
                }
            )+
        }
    };
}

pub(crate) use {as_every_user, as_user};
