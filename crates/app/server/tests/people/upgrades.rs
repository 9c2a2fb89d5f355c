//! Tests of live upgrades: another program takes over from a running server.

mod continuity;
mod failures;
mod listeners;
mod local_server;
mod service_manager;

use std::{
    fs,
    os::fd::OwnedFd,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use exec_server::{
    Command as ExecCommand, ExecServerClient, ExecServerClientConnectOptions, OutputSeq, PathUri,
    ProcessId, ProcessIo, RemoteExecServerConnectArgs, StartedProcess, StdinMode,
    protocol::server::{ReadServerStatus, ServerStatus},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use tokio::{process::Command, task::spawn_blocking};

use crate::test_user::{
    CommandResult, OutputSoon, Server, TIMEOUT, TestUser, keeper_of, product, within_timeout,
};

/// A server with a state directory, and every server that took over from it. Dropping it kills the
/// current one, and every durable process.
struct UpgradableServer {
    url: String,
    state: PathBuf,
    pid: Pid,
    _first: Server,
}

impl UpgradableServer {
    /// Starts the binary under test on a free port. Every process is durable.
    async fn start(user: &TestUser) -> Self {
        Self::listening(user, "ws://127.0.0.1:0", &["--durable", "all"]).await
    }

    async fn listening(user: &TestUser, url: &str, flags: &[&str]) -> Self {
        let mut command = user.command(["--listen", url]);
        Self::of(user, command.args(flags)).await
    }

    /// Starts a server with a state directory.
    async fn of(user: &TestUser, command: &mut Command) -> Self {
        let state = user.home().join("state");
        command.arg("--state-dir").arg(&state);
        let first = Server::of(command.env_remove("EXEC_SERVER_IDLE_EXIT")).await;
        Self {
            url: first.url.clone(),
            state,
            pid: crate::processes::pid(&first.child),
            _first: first,
        }
    }

    /// Runs `exec-server upgrade` with these arguments.
    async fn try_upgrade(&self, user: &TestUser, arguments: &[&str]) -> CommandResult {
        let mut command = user.command(["upgrade", "-E", &self.url]);
        command.args(arguments).output_soon().await
    }

    /// Upgrades to a program and waits until the earlier server has ended.
    async fn upgrade_to(&mut self, user: &TestUser, program: &Path) {
        let earlier = pidfd_open(self.pid, PidfdFlags::empty()).unwrap();
        let program = program.to_str().unwrap();
        let upgraded = self.try_upgrade(user, &["--to", program]).await;
        self.pid = upgraded_pid(&upgraded.expect_success());
        ended(earlier).await;
    }

    async fn connect(&self) -> ExecServerClient {
        connect(&self.url).await
    }

    async fn status(&self) -> ServerStatus {
        let client = self.connect().await;
        within_timeout(client.call(ReadServerStatus {}))
            .await
            .unwrap()
    }

    /// Waits until the current server has only the children that it needs: a keeper, and a spawner.
    async fn has_no_other_child(&self) {
        let pid = self.pid.as_raw_nonzero();
        let path = format!("/proc/{pid}/task/{pid}/children");
        let only_helpers = || {
            let children = fs::read_to_string(&path).unwrap();
            let name = |pid: &str| fs::read_to_string(format!("/proc/{pid}/comm"));
            let names = children.split_whitespace().map(name);
            let mut names: Vec<_> = names.map(Result::unwrap_or_default).collect();
            names.sort();
            names.dedup_by(|one, other| one == other && one != "exec-spawner\n");
            let allowed = ["exec-keeper\n", "exec-spawner\n"];
            names.len() <= 2 && names.iter().all(|name| allowed.contains(&&**name))
        };
        let waiting = async {
            while !only_helpers() {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(TIMEOUT, waiting).await;
        let children = fs::read_to_string(&path).unwrap();
        waited.unwrap_or_else(|_| panic!("server {pid} has the children {children}"));
    }
}

impl Drop for UpgradableServer {
    fn drop(&mut self) {
        let keeper = keeper_of(&self.state);
        for pid in [Some(self.pid), keeper].into_iter().flatten() {
            // It may have ended meanwhile.
            let _gone = kill_process(pid, Signal::KILL);
        }
    }
}

/// Returns the pid that `exec-server upgrade` printed.
fn upgraded_pid(output: &str) -> Pid {
    let number = output
        .split_once("(process ")
        .and_then(|(_, rest)| rest.split_once(')'));
    Pid::from_raw(
        number
            .unwrap_or_else(|| panic!("{output}"))
            .0
            .parse()
            .unwrap(),
    )
    .unwrap()
}

/// Waits until a process has ended.
async fn ended(process: OwnedFd) {
    let limit = Timespec::try_from(TIMEOUT).unwrap();
    let polled = spawn_blocking(move || {
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        retry_on_intr(|| poll(&mut ended, Some(&limit))).unwrap()
    });
    assert_eq!(polled.await.unwrap(), 1, "it goes on");
}

async fn connect(url: &str) -> ExecServerClient {
    let connecting = async {
        match url.strip_prefix("unix://") {
            Some(path) => {
                let options = ExecServerClientConnectOptions::default();
                ExecServerClient::connect_unix(path, options).await
            }
            None => {
                let arguments = RemoteExecServerConnectArgs::new(url, "test");
                ExecServerClient::connect_websocket(arguments).await
            }
        }
    };
    within_timeout(connecting).await.unwrap()
}

/// Starts a command on pipes with stdin.
async fn start(client: &ExecServerClient, id: &str, argv: &[&str]) -> StartedProcess {
    let piped = ProcessIo::Pipes {
        stdin: StdinMode::Piped,
    };
    start_with(client, id, argv, piped).await
}

async fn start_with(
    client: &ExecServerClient,
    id: &str,
    argv: &[&str],
    io: ProcessIo,
) -> StartedProcess {
    let argv = argv.iter().map(|&word| word.to_owned()).collect();
    let command = ExecCommand {
        io,
        env: [("PATH", "/usr/bin:/bin")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        ..ExecCommand::new(
            ProcessId::new(id).unwrap(),
            argv,
            PathUri::parse("file:///").unwrap(),
        )
    };
    let backend = client.environment().backend;
    within_timeout(backend.start(command)).await.unwrap()
}

/// Writes an executable script.
fn script(user: &TestUser, name: &str, text: &str) -> PathBuf {
    let path = user.keep(name, text);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    path
}

/// Copies the binary under test.
fn copy_of_product(user: &TestUser, name: &str) -> PathBuf {
    let path = user.home().join(name);
    // A hard link costs nothing, but a busy file cannot be replaced by one.
    if fs::hard_link(product(), &path).is_err() {
        fs::copy(product(), &path).unwrap();
    }
    path
}

/// Sequence number before the first event.
const BEFORE_FIRST: OutputSeq = OutputSeq(0);
