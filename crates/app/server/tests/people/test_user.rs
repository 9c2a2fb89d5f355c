//! Fixtures: a user with a private home, servers, and results of the program. Everything started
//! here ends with the value that started it.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        fs::{DirBuilderExt, PermissionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
        sockopt::socket_peercred,
    },
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

/// Limit for any wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(40);

/// Waits with a limit.
pub(crate) async fn within_timeout<T>(what: impl Future<Output = T>) -> T {
    timeout(TIMEOUT, what).await.unwrap()
}

/// Returns the binary under test.
pub(crate) fn product() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_exec-server"))
}

/// User with a private home, runtime directory and Codex home. Dropping it kills the local server
/// that was started for it, and its durable processes.
pub(crate) struct TestUser {
    directory: tempfile::TempDir,
    variables: Vec<(String, String)>,
}

impl TestUser {
    /// Creates the directories.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["home", "codex", "work"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        let runtime = directory.path().join("run");
        fs::DirBuilder::new().mode(0o700).create(runtime).unwrap();
        Self {
            directory,
            variables: Vec::new(),
        }
    }

    /// Sets a variable for all programs started from now on.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the home.
    pub(crate) fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    /// Returns the working directory of programs.
    pub(crate) fn work(&self) -> PathBuf {
        self.directory.path().join("work")
    }

    /// Returns the Codex home, which has `environments.toml`.
    pub(crate) fn codex(&self) -> PathBuf {
        self.directory.path().join("codex")
    }

    /// Returns our own `environments.toml`.
    pub(crate) fn environments(&self) -> PathBuf {
        self.home().join("no-settings/environments.toml")
    }

    /// Returns the socket of the local server.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("run/exec-server/server.sock")
    }

    /// Writes a private file into the home and returns its path.
    pub(crate) fn keep(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// Builds a command of the binary under test. The child is killed when dropped.
    pub(crate) fn command<I>(&self, arguments: I) -> Command
    where
        I: IntoIterator<Item: AsRef<OsStr>>,
    {
        self.program(product(), arguments)
    }

    /// Builds a command of any program in the user's environment.
    pub(crate) fn program(
        &self,
        program: &Path,
        arguments: impl IntoIterator<Item: AsRef<OsStr>>,
    ) -> Command {
        let mut command = Command::new(program);
        let own = std::env::vars_os().map(|(name, _)| name);
        for name in own.filter(|name| is_setting(&name.to_string_lossy())) {
            command.env_remove(name);
        }
        command
            .args(arguments)
            .current_dir(self.work())
            .env("HOME", self.home())
            .env("XDG_RUNTIME_DIR", self.directory.path().join("run"))
            .env("CODEX_HOME", self.codex())
            .env("EXEC_SERVER_HOME", self.home().join("no-settings"))
            .env_remove("XDG_STATE_HOME")
            // A forgotten server exits by itself.
            .env("EXEC_SERVER_IDLE_EXIT", "60")
            .envs(self.variables.iter().cloned())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs the binary to completion.
    pub(crate) async fn run(
        &self,
        arguments: impl IntoIterator<Item: AsRef<OsStr>>,
    ) -> CommandResult {
        self.command(arguments).output_soon().await
    }

    /// Runs the binary to completion with this stdin.
    pub(crate) async fn run_with(
        &self,
        arguments: impl IntoIterator<Item: AsRef<OsStr>>,
        input: &[u8],
    ) -> CommandResult {
        let mut command = self.command(arguments);
        let command = command.stdin(Stdio::piped());
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
        let write = tokio::spawn(async move {
            // A program that does not read to the end has closed stdin.
            drop(stdin.write_all(&input).await);
        });
        let ended = within_timeout(child.wait_with_output())
            .await
            .unwrap()
            .into();
        within_timeout(write).await.unwrap();
        ended
    }

    /// Starts a server on a free port.
    pub(crate) async fn server(&self, flags: &[&str]) -> Server {
        self.listening("ws://127.0.0.1:0", flags).await
    }

    /// Starts a server on a unix socket.
    pub(crate) async fn unix_server(&self, flags: &[&str]) -> Server {
        let socket = self.directory.path().join("own.sock");
        self.listening(&format!("unix://{}", socket.display()), flags)
            .await
    }

    /// Starts a server.
    pub(crate) async fn listening(&self, url: &str, flags: &[&str]) -> Server {
        let mut command = self.command(["--listen", url]);
        // It is killed with the test.
        Server::of(command.args(flags).env_remove("EXEC_SERVER_IDLE_EXIT")).await
    }

    /// Returns the process that listens on the local server's socket.
    pub(crate) fn local_server(&self) -> Option<Pid> {
        let stream = UnixStream::connect(self.socket()).ok()?;
        let listener = socket_peercred(&stream).unwrap();
        Some(listener.pid)
    }

    /// Kills the local server and waits until it is gone. Its durable processes go on.
    pub(crate) fn kill_local_server(&self) {
        let server = self.local_server().unwrap();
        let gone = pidfd_open(server, PidfdFlags::empty()).unwrap();
        kill_process(server, Signal::KILL).unwrap();
        let limit = Timespec::try_from(TIMEOUT).unwrap();
        let mut polled = [PollFd::new(&gone, PollFlags::IN)];
        assert_eq!(poll(&mut polled, Some(&limit)), Ok(1));
    }

    /// Returns the directory of the local server's durable processes.
    pub(crate) fn durable_directory(&self) -> PathBuf {
        self.home().join(".local/state/exec-server/durable")
    }

    /// Returns the keeper of the local server's durable processes.
    pub(crate) fn keeper(&self) -> Option<Pid> {
        keeper_of(&self.durable_directory())
    }
}

impl Drop for TestUser {
    fn drop(&mut self) {
        if let Some(server) = self.local_server() {
            // It may have exited meanwhile.
            let _gone = kill_process(server, Signal::KILL);
        }
        // Without server and keeper, durable processes end.
        if let Some(keeper) = self.keeper() {
            let _gone = kill_process(keeper, Signal::KILL);
        }
    }
}

/// Returns the keeper of the durable processes in a state directory.
pub(crate) fn keeper_of(state: &Path) -> Option<Pid> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
    connect(
        &socket,
        &SocketAddrUnix::new(state.join("keeper.sock")).ok()?,
    )
    .ok()?;
    Some(socket_peercred(&socket).ok()?.pid)
}

/// Returns whether a variable configures the program, selects an environment, or describes a
/// terminal.
fn is_setting(name: &str) -> bool {
    [
        "EXEC_SERVER_",
        "CODEX_",
        "TERM",
        "COLORTERM",
        "TMUX",
        "SSH_",
        "SSL_CERT",
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix))
}

/// Server or hub. Dropping it kills it.
pub(crate) struct Server {
    /// URL it listens on.
    pub(crate) url: String,
    pub(crate) child: Child,
}

impl Server {
    /// Starts a program that prints its URL.
    pub(crate) async fn of(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = within_timeout(lines.next_line()).await.unwrap().unwrap();
        Self { url, child }
    }

    /// Kills it.
    pub(crate) async fn kill(&mut self) {
        within_timeout(self.child.kill()).await.unwrap();
    }
}

/// Result of a program.
#[derive(Debug)]
pub(crate) struct CommandResult {
    /// Exit status; `None` if a signal killed it.
    pub(crate) status: Option<i32>,
    /// Stdout.
    pub(crate) stdout: String,
    /// Stderr.
    pub(crate) stderr: String,
    /// Stdout as bytes.
    pub(crate) bytes: Vec<u8>,
}

impl CommandResult {
    /// Returns stdout if the status is 0 and stderr is empty.
    #[track_caller]
    pub(crate) fn expect_success(self) -> String {
        assert_eq!(
            (self.status, self.stderr.as_str()),
            (Some(0), ""),
            "{self:?}"
        );
        self.stdout
    }

    /// Asserts the status, and one line on stderr that contains all of `says`.
    #[track_caller]
    pub(crate) fn failed(&self, status: i32, says: &[&str]) {
        assert_eq!(self.status, Some(status), "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        assert!(self.stderr.starts_with("error: "), "{self:?}");
        for text in says {
            assert!(self.stderr.contains(text), "{text:?} in {self:?}");
        }
    }
}

impl From<Output> for CommandResult {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            bytes: output.stdout,
        }
    }
}

/// Runs a command to completion with a limit.
pub(crate) trait OutputSoon {
    /// Runs it.
    async fn output_soon(&mut self) -> CommandResult;
}

impl OutputSoon for Command {
    async fn output_soon(&mut self) -> CommandResult {
        within_timeout(self.output()).await.unwrap().into()
    }
}

/// Hub with a token for everything. Dropping it kills it.
pub(crate) struct Hub {
    pub(crate) server: Server,
    /// Token file.
    pub(crate) token_file: PathBuf,
}

impl Hub {
    /// Starts a hub on a free port.
    pub(crate) async fn start(user: &TestUser) -> Self {
        let data = user.home().join("hub");
        let created = [
            "hub",
            "token",
            "create",
            "--name=me",
            "--role=executor,harness,admin",
        ];
        let mut make = user.command(created);
        let created = make.arg("--data-dir").arg(&data).output_soon().await;
        assert_eq!(created.status, Some(0), "{created:?}");
        let token_file = user.keep("hub-token", created.stdout.trim());
        let mut serve = user.command(["hub", "--listen", "127.0.0.1:0", "--data-dir"]);
        let server = Server::of(serve.arg(data)).await;
        Self { server, token_file }
    }

    /// Kills the hub and starts another one in its place.
    pub(crate) async fn restart(&mut self, user: &TestUser) {
        self.server.kill().await;
        let address = self.server.url.strip_prefix("http://").unwrap();
        let mut serve = user.command(["hub", "--listen", address, "--data-dir"]);
        let data = user.home().join("hub");
        self.server = Server::of(serve.arg(data)).await;
    }

    /// Starts an executor with this name. Dropping it kills it.
    pub(crate) fn executor(&self, user: &TestUser, environment: &str) -> Child {
        let flags = [
            "--remote",
            &self.server.url,
            "--environment-id",
            environment,
        ];
        let mut command = user.command(flags);
        command.arg("--remote-token-file").arg(&self.token_file);
        command.env_remove("EXEC_SERVER_IDLE_EXIT");
        command.spawn().unwrap()
    }
}
