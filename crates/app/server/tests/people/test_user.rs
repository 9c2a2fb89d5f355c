//! A person with a home of their own, the servers they use, and what the program says to them.
//! Everything that is started here ends with the value that started it.

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

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

/// Longest that anything may take here.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(40);

/// Waits, but not for ever.
pub(crate) async fn within_timeout<T>(what: impl Future<Output = T>) -> T {
    timeout(TIMEOUT, what).await.unwrap()
}

/// Returns the program that this package makes.
pub(crate) fn product() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_exec-server"))
}

/// A person: a home, a runtime directory and a Codex home that nobody else has. Dropping it ends the
/// server of this machine that was started for them.
pub(crate) struct TestUser {
    directory: tempfile::TempDir,
    variables: Vec<(String, String)>,
}

impl TestUser {
    /// Moves in.
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

    /// Sets a variable for every program that is started from now on.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the home.
    pub(crate) fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    /// Returns the directory that programs are started in.
    pub(crate) fn work(&self) -> PathBuf {
        self.directory.path().join("work")
    }

    /// Returns the Codex home, with `environments.toml`.
    pub(crate) fn codex(&self) -> PathBuf {
        self.directory.path().join("codex")
    }

    /// Returns our own `environments.toml`.
    pub(crate) fn environments(&self) -> PathBuf {
        self.home().join("no-settings/environments.toml")
    }

    /// Returns the socket of this machine's server.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("run/exec-server/server.sock")
    }

    /// Writes a file into the home, for its owner alone, and returns its path.
    pub(crate) fn keep(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// Makes a command of the product, ready to be changed and started. It is killed when its child is
    /// dropped.
    pub(crate) fn command<I>(&self, arguments: I) -> Command
    where
        I: IntoIterator<Item: AsRef<OsStr>>,
    {
        self.program(product(), arguments)
    }

    /// Makes a command of any program, in the person's own surroundings.
    pub(crate) fn program(
        &self,
        program: &Path,
        arguments: impl IntoIterator<Item: AsRef<OsStr>>,
    ) -> Command {
        let mut command = Command::new(program);
        let ours = std::env::vars_os().map(|(name, _)| name);
        for name in ours.filter(|name| is_setting(&name.to_string_lossy())) {
            command.env_remove(name);
        }
        command
            .args(arguments)
            .current_dir(self.work())
            .env("HOME", self.home())
            .env("XDG_RUNTIME_DIR", self.directory.path().join("run"))
            .env("CODEX_HOME", self.codex())
            .env("EXEC_SERVER_HOME", self.home().join("no-settings"))
            // What a test forgets ends by itself.
            .env("EXEC_SERVER_IDLE_EXIT", "60")
            .envs(self.variables.iter().cloned())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs the product to its end.
    pub(crate) async fn run(
        &self,
        arguments: impl IntoIterator<Item: AsRef<OsStr>>,
    ) -> CommandResult {
        self.command(arguments).output_soon().await
    }

    /// Runs the product to its end, with this on its standard input.
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
            // Whoever does not read to the end has closed it.
            drop(stdin.write_all(&input).await);
        });
        let ended = within_timeout(child.wait_with_output())
            .await
            .unwrap()
            .into();
        within_timeout(write).await.unwrap();
        ended
    }

    /// Starts a server of their own on a free port.
    pub(crate) async fn server(&self, flags: &[&str]) -> Server {
        self.listening("ws://127.0.0.1:0", flags).await
    }

    /// Starts a server of their own on a unix socket.
    pub(crate) async fn unix_server(&self, flags: &[&str]) -> Server {
        let socket = self.directory.path().join("own.sock");
        self.listening(&format!("unix://{}", socket.display()), flags)
            .await
    }

    /// Starts a server of their own.
    pub(crate) async fn listening(&self, url: &str, flags: &[&str]) -> Server {
        let mut command = self.command(["--listen", url]);
        // It goes when the test does.
        Server::of(command.args(flags).env_remove("EXEC_SERVER_IDLE_EXIT")).await
    }

    /// Returns the process that listens on the socket of this machine's server.
    pub(crate) fn local_server(&self) -> Option<Pid> {
        let stream = UnixStream::connect(self.socket()).ok()?;
        let listener = rustix::net::sockopt::socket_peercred(&stream).unwrap();
        Some(listener.pid)
    }
}

impl Drop for TestUser {
    fn drop(&mut self) {
        if let Some(server) = self.local_server() {
            // It may have ended meanwhile.
            let _gone = kill_process(server, Signal::KILL);
        }
    }
}

/// Tells variables that configure the product, or choose an environment, or describe a terminal.
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

/// A server, or a hub. Dropping it kills it.
pub(crate) struct Server {
    /// Where it listens.
    pub(crate) url: String,
    pub(crate) child: Child,
}

impl Server {
    /// Starts a program that prints where it listens.
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

/// What the program did.
#[derive(Debug)]
pub(crate) struct CommandResult {
    /// Its status; `None` if a signal ended it.
    pub(crate) status: Option<i32>,
    /// What it printed.
    pub(crate) stdout: String,
    /// What it said besides.
    pub(crate) stderr: String,
    /// What it printed, byte by byte.
    pub(crate) bytes: Vec<u8>,
}

impl CommandResult {
    /// Returns what it printed, if it ended well and said nothing besides.
    #[track_caller]
    pub(crate) fn well(self) -> String {
        assert_eq!(
            (self.status, self.stderr.as_str()),
            (Some(0), ""),
            "{self:?}"
        );
        self.stdout
    }

    /// Asserts that it failed with this status and one line that says all of this.
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

/// Runs a command to its end, within bounds.
pub(crate) trait OutputSoon {
    /// Runs it.
    async fn output_soon(&mut self) -> CommandResult;
}

impl OutputSoon for Command {
    async fn output_soon(&mut self) -> CommandResult {
        within_timeout(self.output()).await.unwrap().into()
    }
}

/// A hub, and a token for everything on it. Dropping it kills it.
pub(crate) struct Hub {
    pub(crate) server: Server,
    /// The file with the token.
    pub(crate) token_file: PathBuf,
}

impl Hub {
    /// Starts one on a free port.
    pub(crate) async fn start(user: &TestUser) -> Self {
        let data = user.home().join("hub");
        let made = [
            "hub",
            "token",
            "create",
            "--name=me",
            "--role=executor,harness,admin",
        ];
        let mut make = user.command(made);
        let made = make.arg("--data-dir").arg(&data).output_soon().await;
        assert_eq!(made.status, Some(0), "{made:?}");
        let token_file = user.keep("hub-token", made.stdout.trim());
        let mut serve = user.command(["hub", "--listen", "127.0.0.1:0", "--data-dir"]);
        let server = Server::of(serve.arg(data)).await;
        Self { server, token_file }
    }

    /// Kills it, and starts another one in its place.
    pub(crate) async fn restart(&mut self, user: &TestUser) {
        self.server.kill().await;
        let address = self.server.url.strip_prefix("http://").unwrap();
        let mut serve = user.command(["hub", "--listen", address, "--data-dir"]);
        let data = user.home().join("hub");
        self.server = Server::of(serve.arg(data)).await;
    }

    /// Starts an executor with this name on it. Dropping it kills it.
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
