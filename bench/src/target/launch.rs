//! How a server is started.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

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
pub(super) struct LaunchedServer {
    /// The process started, not yet waited for.
    pub(super) child: Child,
    /// Kept open: a server whose stdout is gone may fail.
    pub(super) stdout: ChildStdout,
    /// Its address.
    pub(super) url: String,
    /// The time from before the spawn until the line was here.
    pub(super) took: Duration,
}

impl Launch {
    /// Our server.
    pub(crate) fn ours(program: PathBuf, out: &Path) -> Self {
        Self {
            program,
            args: LISTEN.to_vec(),
            home: None,
            log: out.join("ours.log"),
        }
    }

    /// The stock server, with a `CODEX_HOME` below `out`, which must not be in a temp directory.
    pub(crate) fn stock(program: PathBuf, out: &Path) -> Result<Self> {
        let home = out.join("codex-home");
        fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
        let args = [&["exec-server"], &LISTEN[..]].concat();
        Ok(Self {
            program,
            args,
            home: Some(home),
            log: out.join("stock.log"),
        })
    }

    /// Starts the server and waits for its first line. After an error nothing is left running.
    pub(super) fn start(&self) -> Result<LaunchedServer> {
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
        match first_line(&mut child) {
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
const LISTEN: [&str; 2] = ["--listen", "ws://127.0.0.1:0"];

fn first_line(child: &mut Child) -> Result<(ChildStdout, String)> {
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
