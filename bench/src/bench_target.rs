//! The servers under measurement: those that this program starts, and those that already run.
//!
//! Invariant: every server started here is ended here, by its pid, also when a measure fails.

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

/// The name of the column that reaches are judged by.
pub(crate) const OURS: &str = "ours";

/// The name of the column that ratios are taken to where there is no floor.
pub(crate) const STOCK: &str = "stock";

/// A server under measurement.
#[derive(Debug)]
pub(crate) struct BenchTarget {
    name: String,
    source: TargetSource,
    /// The instance that the speed measures share.
    shared_instance: ServerInstance,
}

impl BenchTarget {
    /// Starts a server and keeps the recipe, to start fresh ones later.
    ///
    /// If `launch` is a mere launcher, later instances are owned from the binary behind it.
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

    /// Joins a server that runs already.
    pub(crate) fn attach(name: &str, url: &str) -> Self {
        let shared_instance = ServerInstance::attach(url);
        Self {
            name: name.to_owned(),
            source: TargetSource::Url(url.to_owned()),
            shared_instance,
        }
    }

    /// Returns a fresh instance if this server can be started here, else the running one.
    pub(crate) fn start_fresh(&self) -> Result<ServerInstance> {
        match &self.source {
            TargetSource::Launch(launch) => ServerInstance::launch(launch),
            TargetSource::Url(url) => Ok(ServerInstance::attach(url)),
        }
    }

    /// Returns the launch recipe, unless the server was already running.
    pub(crate) const fn launch_config(&self) -> Option<&LaunchConfig> {
        match &self.source {
            TargetSource::Launch(launch) => Some(launch),
            TargetSource::Url(_) => None,
        }
    }

    /// Returns the file that the server runs from.
    pub(crate) fn binary_path(&self) -> Option<PathBuf> {
        self.shared_instance.binary_path()
    }

    /// Returns the title of its column.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the instance that the speed measures share.
    pub(crate) const fn shared_instance(&self) -> &ServerInstance {
        &self.shared_instance
    }
}

#[derive(Debug)]
enum TargetSource {
    Launch(LaunchConfig),
    Url(String),
}

/// Makes a path absolute; it must exist.
pub(crate) fn absolute_path(path: &Path) -> Result<PathBuf> {
    path.canonicalize()
        .with_context(|| format!("cannot find {}", path.display()))
}

/// How long a server may take to end after SIGTERM.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// A running server; ended on drop if it was started here.
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
        // A launcher script may run the server as its child, so the socket decides.
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

    /// Connects to a server that is already running.
    pub(crate) fn attach(url: &str) -> Self {
        let pid = url_port(url).and_then(listener_pid);
        Self {
            url: url.to_owned(),
            pid,
            owned: None,
        }
    }

    /// Returns where it listens.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Connects a client.
    pub(crate) fn connect(&self) -> Result<RpcClient> {
        RpcClient::connect(&self.url, &[])
    }

    /// Connects a client that asks for an extension.
    pub(crate) fn connect_with(&self, extension: &str) -> Result<RpcClient> {
        RpcClient::connect(&self.url, &[extension])
    }

    /// Returns the server's process, if it runs on this machine.
    pub(crate) const fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Returns how long the server startup_time to tell its address, if it was started here.
    pub(crate) fn startup_time(&self) -> Option<Duration> {
        self.owned.as_ref().map(|owned| owned.startup_time)
    }

    /// Returns whether what was owned is not the server but its parent.
    pub(crate) fn is_behind_launcher(&self) -> bool {
        self.owned
            .as_ref()
            .is_some_and(|owned| Some(owned.child.id()) != self.pid)
    }

    /// Returns the file that the server runs from.
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
        // A server should kill its own processes; kill any that it left behind.
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
        reason = "held open, for a server whose stdout is gone may fail"
    )]
    stdout: ChildStdout,
    startup_time: Duration,
}

impl OwnedServer {
    /// Ends the server, which is the child or, behind a launcher, a child of the child.
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
        // The grace period is over; kill it.
        if self.child.kill().is_ok() {
            drop(self.child.wait());
        }
    }
}

fn send_signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have exited already.
        let _result = kill_process(pid, signal);
    }
}

/// Longest wait for the line that names the address.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// A recipe to start a server.
#[derive(Debug)]
pub(crate) struct LaunchConfig {
    /// What to execute.
    pub(crate) program: PathBuf,
    args: Vec<&'static str>,
    home: Option<PathBuf>,
    log: PathBuf,
}

/// Server that has printed its address.
#[derive(Debug)]
struct LaunchedServer {
    /// The process owned, not yet waited for.
    child: Child,
    /// Kept open: a server whose stdout is gone may fail.
    stdout: ChildStdout,
    /// Its address.
    url: String,
    /// The time from before the spawn until the line was here.
    startup_time: Duration,
}

impl LaunchConfig {
    /// Our server.
    pub(crate) fn ours(program: PathBuf, out: &Path) -> Self {
        Self {
            program,
            args: LISTEN_ARGS.to_vec(),
            home: None,
            log: out.join("ours.log"),
        }
    }

    /// The stock server, with a `CODEX_HOME` below `out`, which must not be in a temp directory.
    pub(crate) fn stock(program: PathBuf, out: &Path) -> Result<Self> {
        let home = out.join("codex-home");
        fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
        let args = [&["exec-server"], &LISTEN_ARGS[..]].concat();
        Ok(Self {
            program,
            args,
            home: Some(home),
            log: out.join("stock.log"),
        })
    }

    /// Starts the server and waits for its first line. After an error nothing is left running.
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

/// The arguments that both servers understand.
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
