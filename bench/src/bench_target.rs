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
use crate::rpc_client::Client;

/// The name of the column that reaches are judged by.
pub(crate) const OURS: &str = "ours";

/// The name of the column that ratios are taken to where there is no floor.
pub(crate) const STOCK: &str = "stock";

/// A server under measurement.
#[derive(Debug)]
pub(crate) struct Target {
    name: String,
    source: Source,
    /// The instance that the speed measures share.
    shared: Instance,
}

impl Target {
    /// Starts a server and keeps the recipe, to start fresh ones later.
    ///
    /// If `launch` is a mere launcher, later instances are started from the binary behind it.
    pub(crate) fn launched(name: &str, mut launch: Launch) -> Result<Self> {
        let shared = Instance::launch(&launch).with_context(|| format!("cannot start {name}"))?;
        if shared.is_behind_launcher()
            && let Some(binary) = shared.binary()
        {
            eprintln!("exec-bench: {name} is started as {}", binary.display());
            launch.program = binary;
        }
        Ok(Self {
            name: name.to_owned(),
            source: Source::Launch(launch),
            shared,
        })
    }

    /// Joins a server that runs already.
    pub(crate) fn running(name: &str, url: &str) -> Self {
        let shared = Instance::join(url);
        Self {
            name: name.to_owned(),
            source: Source::Url(url.to_owned()),
            shared,
        }
    }

    /// Returns a fresh instance if this server can be started here, else the running one.
    pub(crate) fn fresh(&self) -> Result<Instance> {
        match &self.source {
            Source::Launch(launch) => Instance::launch(launch),
            Source::Url(url) => Ok(Instance::join(url)),
        }
    }

    /// Returns the launch recipe, unless the server was already running.
    pub(crate) const fn recipe(&self) -> Option<&Launch> {
        match &self.source {
            Source::Launch(launch) => Some(launch),
            Source::Url(_) => None,
        }
    }

    /// Returns the file that the server runs from.
    pub(crate) fn binary(&self) -> Option<PathBuf> {
        self.shared.binary()
    }

    /// Returns the title of its column.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the instance that the speed measures share.
    pub(crate) const fn shared(&self) -> &Instance {
        &self.shared
    }
}

#[derive(Debug)]
enum Source {
    Launch(Launch),
    Url(String),
}

/// Makes a path absolute; it must exist.
pub(crate) fn absolute_path(path: &Path) -> Result<PathBuf> {
    path.canonicalize()
        .with_context(|| format!("cannot find {}", path.display()))
}

/// How long a server may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(3);

/// A running server; ended on drop if it was started here.
#[derive(Debug)]
pub(crate) struct Instance {
    url: String,
    pid: Option<u32>,
    started: Option<StartedServer>,
}

impl Instance {
    /// Starts a server.
    pub(crate) fn launch(launch: &Launch) -> Result<Self> {
        let LaunchedServer {
            child,
            stdout,
            url,
            took,
        } = launch.start()?;
        // A launcher script may run the server as its child, so the socket decides.
        let pid = url_port(&url)
            .and_then(listener_pid)
            .unwrap_or_else(|| child.id());
        Ok(Self {
            url,
            pid: Some(pid),
            started: Some(StartedServer {
                child,
                stdout,
                took,
            }),
        })
    }

    /// Connects to a server that is already running.
    pub(crate) fn join(url: &str) -> Self {
        let pid = url_port(url).and_then(listener_pid);
        Self {
            url: url.to_owned(),
            pid,
            started: None,
        }
    }

    /// Returns where it listens.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Connects a client.
    pub(crate) fn connect(&self) -> Result<Client> {
        Client::connect(&self.url, &[])
    }

    /// Connects a client that asks for an extension.
    pub(crate) fn connect_with(&self, extension: &str) -> Result<Client> {
        Client::connect(&self.url, &[extension])
    }

    /// Returns the server's process, if it runs on this machine.
    pub(crate) const fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Returns how long the server took to tell its address, if it was started here.
    pub(crate) fn took(&self) -> Option<Duration> {
        self.started.as_ref().map(|started| started.took)
    }

    /// Returns whether what was started is not the server but its parent.
    pub(crate) fn is_behind_launcher(&self) -> bool {
        self.started
            .as_ref()
            .is_some_and(|started| Some(started.child.id()) != self.pid)
    }

    /// Returns the file that the server runs from.
    pub(crate) fn binary(&self) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{}/exe", self.pid?)).ok()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let Some(started) = &mut self.started else {
            return;
        };
        let running = self.pid.map(workload_pids).unwrap_or_default();
        started.end(self.pid);
        // A server should kill its own processes; kill any that it left behind.
        for pid in running.into_iter().filter(|&pid| is_workload(pid)) {
            send_signal(pid, Signal::KILL);
        }
    }
}

#[derive(Debug)]
struct StartedServer {
    child: Child,
    #[expect(
        dead_code,
        reason = "held open, for a server whose stdout is gone may fail"
    )]
    stdout: ChildStdout,
    took: Duration,
}

impl StartedServer {
    /// Ends the server, which is the child or, behind a launcher, a child of the child.
    fn end(&mut self, server: Option<u32>) {
        for pid in [server, Some(self.child.id())].into_iter().flatten() {
            send_signal(pid, Signal::TERM);
        }
        let deadline = Instant::now() + GRACE;
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
        let _gone = kill_process(pid, signal);
    }
}

/// Longest wait for the line that names the address.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// A recipe to start a server.
#[derive(Debug)]
pub(crate) struct Launch {
    /// What to execute.
    pub(crate) program: PathBuf,
    args: Vec<&'static str>,
    home: Option<PathBuf>,
    log: PathBuf,
}

/// Server that has printed its address.
#[derive(Debug)]
struct LaunchedServer {
    /// The process started, not yet waited for.
    child: Child,
    /// Kept open: a server whose stdout is gone may fail.
    stdout: ChildStdout,
    /// Its address.
    url: String,
    /// The time from before the spawn until the line was here.
    took: Duration,
}

impl Launch {
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
        let began = Instant::now();
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run {}", self.program.display()))?;
        match read_first_line(&mut child) {
            Ok((stdout, url)) => Ok(LaunchedServer {
                child,
                stdout,
                url,
                took: began.elapsed(),
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
    let mut piece = [0; 256];
    while !line.ends_with(b"\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(&stdout, PollFlags::IN)];
        let ready = poll(&mut fds, Some(&Timespec::try_from(left)?))?;
        ensure!(ready > 0, "no line on stdout after {RESPONSE_TIMEOUT:?}");
        let read = stdout.read(&mut piece)?;
        ensure!(read > 0, "stdout ended without a line");
        line.extend_from_slice(&piece[..read]);
    }
    let line = String::from_utf8(line)?.trim_end().to_owned();
    ensure!(line.starts_with("ws://"), "the first line is `{line}`");
    Ok((stdout, line))
}
