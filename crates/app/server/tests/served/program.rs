//! Programs that are started for one test and killed with it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use exec_server::{
    Command as ExecCommand, CommunicateOptions, CommunicateOutput, Environment, PathUri, ProcessId,
    protocol::process::{EnvInherit, EnvPolicy},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

/// Limit for any wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Waits with a limit.
pub(crate) async fn within_timeout<T>(what: impl Future<Output = T>) -> T {
    timeout(TIMEOUT, what).await.unwrap()
}

/// Server. Dropping it kills it.
pub(crate) struct Server {
    pub(crate) url: String,
    child: Child,
}

impl Server {
    /// Starts the binary under test on a free port.
    pub(crate) async fn start(flags: &[&str]) -> Self {
        let mut command = Command::new(product());
        command.args(["--listen", "ws://127.0.0.1:0"]).args(flags);
        Self::of(command).await
    }

    /// Starts a program that prints its URL.
    pub(crate) async fn of(mut command: Command) -> Self {
        let child = clean(&mut command)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let mut child = child.unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = within_timeout(lines.next_line()).await.unwrap().unwrap();
        Self { url, child }
    }

    /// Returns host and port.
    pub(crate) fn authority(&self) -> &str {
        self.url.split_once("://").unwrap().1
    }

    /// Returns its resident memory.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let path = format!("/proc/{}/statm", self.child.id().unwrap());
        let sizes = std::fs::read_to_string(path).unwrap();
        let pages: u64 = sizes.split(' ').nth(1).unwrap().parse().unwrap();
        pages * rustix::param::page_size() as u64
    }

    /// Stops it and returns its exit status.
    pub(crate) async fn stop(mut self) -> Option<i32> {
        stop(&mut self.child).await
    }

    /// Kills it.
    pub(crate) async fn kill(&mut self) {
        within_timeout(self.child.kill()).await.unwrap();
    }
}

/// Stops a program and returns its exit status.
pub(crate) async fn stop(child: &mut Child) -> Option<i32> {
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    within_timeout(child.wait()).await.unwrap().code()
}

/// Returns the binary under test.
pub(crate) fn product() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_exec-server"))
}

/// Returns an example of this package, which is built with its tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let path = product().with_file_name("examples").join(name);
    assert!(
        path.exists(),
        "{} is missing: `cargo test` builds it, `--test` alone does not",
        path.display()
    );
    path
}

/// Runs an example to completion.
pub(crate) async fn run_example(name: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(example(name));
    within_timeout(clean(&mut command).args(arguments).output())
        .await
        .unwrap()
}

/// Removes variables that could configure a server or select an environment.
pub(crate) fn clean(command: &mut Command) -> &mut Command {
    let own = std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        name.starts_with("EXEC_SERVER_") || name.starts_with("CODEX_")
    });
    for (name, _) in own {
        command.env_remove(name);
    }
    command
        .env("EXEC_SERVER_HOME", "/nonexistent")
        .kill_on_drop(true)
}

/// Runs a script in an environment, with the variables of its host.
pub(crate) async fn run(environment: &Environment, script: &str) -> CommunicateOutput {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    static SCRIPTS: AtomicU64 = AtomicU64::new(0);
    let number = SCRIPTS.fetch_add(1, Ordering::Relaxed);
    let id = ProcessId::new(&number.to_string()).unwrap();
    let command = ExecCommand {
        env_policy: Some(EnvPolicy {
            inherit: EnvInherit::All,
            ignore_default_excludes: false,
            exclude: Vec::new(),
            set: BTreeMap::new(),
            include_only: Vec::new(),
        }),
        ..ExecCommand::new(id, argv, PathUri::parse("file:///").unwrap())
    };
    let communicate = async {
        let started = environment.backend.start(command).await.unwrap();
        let input = Default::default();
        let output = started
            .process
            .communicate(input, CommunicateOptions::default());
        output.await.unwrap()
    };
    within_timeout(communicate).await
}

/// Returns bytes as text.
pub(crate) fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}
