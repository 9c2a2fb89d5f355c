//! The servers under measurement: those that this program starts, and those that already run.
//!
//! Invariant: every server started here is terminated here, by its pid, also when a measure fails.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

use crate::process_usage::{is_workload, listener_pid, url_port, workload_pids};
use crate::rpc_client::RpcClient;

/// Name of our server's column, which has the goals.
pub(crate) const OURS: &str = "ours";

/// Name of the stock server's column, the reference for rows without a floor.
pub(crate) const STOCK: &str = "stock";

/// A server under measurement.
#[derive(Debug)]
pub(crate) struct BenchTarget {
    name: String,
    source: TargetSource,
    /// Instance shared by the speed measures.
    shared_instance: ServerInstance,
}

impl BenchTarget {
    /// Starts a server and keeps `launch`, to start fresh instances later.
    ///
    /// If `launch` runs a launcher script, later instances run the server's binary directly.
    pub(crate) fn launch(name: &str, mut launch: LaunchConfig) -> Result<Self> {
        let shared_instance =
            ServerInstance::launch(&launch).with_context(|| format!("cannot start {name}"))?;
        if shared_instance.is_behind_launcher()
            && let Some(binary) = shared_instance.binary_path()
        {
            eprintln!("exec-bench: {name} is started as {}", binary.display());
            launch.program = binary;
        }
        Ok(Self {
            name: name.to_owned(),
            source: TargetSource::Launch(launch),
            shared_instance,
        })
    }

    /// Attaches to a server that already runs.
    pub(crate) fn attach(name: &str, url: &str) -> Self {
        let shared_instance = ServerInstance::attach(url);
        Self {
            name: name.to_owned(),
            source: TargetSource::Url(url.to_owned()),
            shared_instance,
        }
    }

    /// Starts a fresh instance, or attaches to the running one if this server was not started here.
    pub(crate) fn start_fresh(&self) -> Result<ServerInstance> {
        match &self.source {
            TargetSource::Launch(launch) => ServerInstance::launch(launch),
            TargetSource::Url(url) => Ok(ServerInstance::attach(url)),
        }
    }

    /// Returns how to start the server, unless it was already running.
    pub(crate) const fn launch_config(&self) -> Option<&LaunchConfig> {
        match &self.source {
            TargetSource::Launch(launch) => Some(launch),
            TargetSource::Url(_) => None,
        }
    }

    /// Returns the path of the server's binary.
    pub(crate) fn binary_path(&self) -> Option<PathBuf> {
        self.shared_instance.binary_path()
    }

    /// Returns the title of the target's column.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the instance shared by the speed measures.
    pub(crate) const fn shared_instance(&self) -> &ServerInstance {
        &self.shared_instance
    }
}

#[derive(Debug)]
enum TargetSource {
    Launch(LaunchConfig),
    Url(String),
}

/// Makes a path absolute. The path must exist.
pub(crate) fn absolute_path(path: &Path) -> Result<PathBuf> {
    path.canonicalize()
        .with_context(|| format!("cannot find {}", path.display()))
}

/// Longest wait for a server to exit after SIGTERM.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// A running server. Dropping it terminates the server if it was started here.
#[derive(Debug)]
pub(crate) struct ServerInstance {
    url: String,
    pid: Option<u32>,
    owned: Option<OwnedServer>,
}

impl ServerInstance {
    /// Starts a server.
    pub(crate) fn launch(launch: &LaunchConfig) -> Result<Self> {
        let LaunchedServer {
            child,
            stdout,
            url,
            startup_time,
        } = launch.start()?;
        // A launcher script may run the server as its child, so look up the owner of the socket.
        let pid = url_port(&url)
            .and_then(listener_pid)
            .unwrap_or_else(|| child.id());
        Ok(Self {
            url,
            pid: Some(pid),
            owned: Some(OwnedServer {
                child,
                stdout,
                startup_time,
            }),
        })
    }

    /// Attaches to a server that is already running.
    pub(crate) fn attach(url: &str) -> Self {
        let pid = url_port(url).and_then(listener_pid);
        Self {
            url: url.to_owned(),
            pid,
            owned: None,
        }
    }

    /// Returns the server's address.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Connects a client.
    pub(crate) fn connect(&self) -> Result<RpcClient> {
        RpcClient::connect(&self.url, &[])
    }

    /// Connects a client that requests an extension.
    pub(crate) fn connect_with(&self, extension: &str) -> Result<RpcClient> {
        RpcClient::connect(&self.url, &[extension])
    }

    /// Kills a server that was started here, and leaves what outlives it.
    pub(crate) fn kill(mut self) {
        if let Some(mut owned) = self.owned.take()
            && owned.child.kill().is_ok()
        {
            drop(owned.child.wait());
        }
    }

    /// Returns the server's pid, if it runs on this machine.
    pub(crate) const fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Returns the time until the server printed its address, if it was started here.
    pub(crate) fn startup_time(&self) -> Option<Duration> {
        self.owned.as_ref().map(|owned| owned.startup_time)
    }

    /// Returns whether the started process is a launcher, the parent of the server.
    pub(crate) fn is_behind_launcher(&self) -> bool {
        self.owned
            .as_ref()
            .is_some_and(|owned| Some(owned.child.id()) != self.pid)
    }

    /// Returns the path of the server's binary.
    pub(crate) fn binary_path(&self) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{}/exe", self.pid?)).ok()
    }
}

impl Drop for ServerInstance {
    fn drop(&mut self) {
        let Some(owned) = &mut self.owned else {
            return;
        };
        let workload = self.pid.map(workload_pids).unwrap_or_default();
        owned.terminate(self.pid);
        // A server should kill its processes on exit; kill any that remain.
        for pid in workload.into_iter().filter(|&pid| is_workload(pid)) {
            send_signal(pid, Signal::KILL);
        }
    }
}

#[derive(Debug)]
struct OwnedServer {
    child: Child,
    #[expect(
        dead_code,
        reason = "kept open: a server whose stdout is closed may fail"
    )]
    stdout: ChildStdout,
    startup_time: Duration,
}

impl OwnedServer {
    /// Terminates the server: the child or, with a launcher, a child of the child.
    fn terminate(&mut self, server: Option<u32>) {
        for pid in [server, Some(self.child.id())].into_iter().flatten() {
            send_signal(pid, Signal::TERM);
        }
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(None) => thread::sleep(Duration::from_millis(2)),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        // The server did not exit in time.
        if self.child.kill().is_ok() {
            drop(self.child.wait());
        }
    }
}

/// Kills a process.
pub(crate) fn send_kill(pid: u32) {
    send_signal(pid, Signal::KILL);
}

fn send_signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // The process may already have exited.
        let _result = kill_process(pid, signal);
    }
}

/// Longest wait for the line with the address.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Program, arguments and environment to start a server with.
#[derive(Clone, Debug)]
pub(crate) struct LaunchConfig {
    /// Program to execute.
    pub(crate) program: PathBuf,
    args: Vec<String>,
    home: Option<PathBuf>,
    log: PathBuf,
}

/// A started server that has printed its address.
#[derive(Debug)]
struct LaunchedServer {
    /// The started process.
    child: Child,
    /// Kept open: a server whose stdout is closed may fail.
    stdout: ChildStdout,
    /// The server's address.
    url: String,
    /// Time from before the spawn until the line arrived.
    startup_time: Duration,
}

impl LaunchConfig {
    /// Returns the configuration of our server.
    pub(crate) fn ours(program: PathBuf, out: &Path) -> Self {
        Self {
            program,
            args: LISTEN_ARGS.map(str::to_owned).to_vec(),
            home: None,
            log: out.join("ours.log"),
        }
    }

    /// Returns the configuration of the stock server, with a `CODEX_HOME` below `out`. `out` must
    /// not be in a temporary directory.
    pub(crate) fn stock(program: PathBuf, out: &Path) -> Result<Self> {
        let home = out.join("codex-home");
        fs::create_dir_all(&home).with_context(|| format!("cannot create {}", home.display()))?;
        let args = [&["exec-server"], &LISTEN_ARGS[..]].concat();
        let args = args.into_iter().map(str::to_owned).collect();
        Ok(Self {
            program,
            args,
            home: Some(home),
            log: out.join("stock.log"),
        })
    }

    /// Adds arguments.
    pub(crate) fn with_args(&self, args: &[&str]) -> Self {
        let mut with_args = self.clone();
        let added = args.iter().map(|&arg| arg.to_owned());
        with_args.args.extend(added);
        with_args
    }

    /// Starts the server and waits for its first line. Kills the process on error.
    fn start(&self) -> Result<LaunchedServer> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        if let Some(home) = &self.home {
            command.env("CODEX_HOME", home);
        }
        let started_at = Instant::now();
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run {}", self.program.display()))?;
        match read_first_line(&mut child) {
            Ok((stdout, url)) => Ok(LaunchedServer {
                child,
                stdout,
                url,
                startup_time: started_at.elapsed(),
            }),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error.context(format!("see {}", self.log.display())))
            }
        }
    }
}

/// Arguments that both servers understand.
const LISTEN_ARGS: [&str; 2] = ["--listen", "ws://127.0.0.1:0"];

fn read_first_line(child: &mut Child) -> Result<(ChildStdout, String)> {
    let mut stdout = child.stdout.take().context("no stdout")?;
    let deadline = Instant::now() + RESPONSE_TIMEOUT;
    let mut line = Vec::new();
    let mut buffer = [0; 256];
    while !line.ends_with(b"\n") {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(&stdout, PollFlags::IN)];
        let ready = poll(&mut fds, Some(&Timespec::try_from(remaining)?))?;
        ensure!(ready > 0, "no line on stdout after {RESPONSE_TIMEOUT:?}");
        let read = stdout.read(&mut buffer)?;
        ensure!(read > 0, "stdout ended without a line");
        line.extend_from_slice(&buffer[..read]);
    }
    let line = String::from_utf8(line)?.trim_end().to_owned();
    ensure!(line.starts_with("ws://"), "the first line is `{line}`");
    Ok((stdout, line))
}
