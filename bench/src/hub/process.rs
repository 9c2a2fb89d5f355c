//! The hub and the executors behind it, as child processes.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::proc_stat::Usage;
use crate::scratch::Scratch;

/// A hub on a free port; killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Hub {
    program: PathBuf,
    url: String,
    token: String,
    child: ChildProcess,
}

impl Hub {
    /// Starts a hub of its own, with its data in `scratch`.
    pub(crate) fn start(program: &Path, scratch: &Scratch) -> Result<Self> {
        let data = scratch.directory("hub")?;
        let token = token(program, &data)?;
        Self::node(program, &data, &token, &[])
    }

    /// Starts three nodes on a NATS server.
    pub(crate) fn nodes(program: &Path, scratch: &Scratch, nats: &str) -> Result<Vec<Self>> {
        let data = scratch.directory("hub")?;
        let token = token(program, &data)?;
        let node = |name| {
            Self::node(
                program,
                &data,
                &token,
                &["--nats", nats, "--node-name", name],
            )
        };
        ["one", "two", "three"].into_iter().map(node).collect()
    }

    fn node(program: &Path, data: &Path, token: &str, flags: &[&str]) -> Result<Self> {
        let mut command = clean(program);
        command.args(["hub", "--listen", "127.0.0.1:0"]).args(flags);
        let (child, url) = ChildProcess::start(command.arg("--data-dir").arg(data))?;
        ensure!(url.starts_with("http://"), "the hub says `{url}`");
        Ok(Self {
            program: program.to_owned(),
            url,
            token: token.to_owned(),
            child,
        })
    }

    /// Starts an executor behind it, by way of `registry`, and waits until it is there.
    pub(crate) fn executor(&self, registry: &str, environment: &str) -> Result<Executor> {
        let mut command = clean(&self.program);
        command
            .args(["--remote", registry, "--environment-id", environment])
            .env("EXEC_SERVER_REMOTE_TOKEN", &self.token);
        let (child, _) = ChildProcess::start(&mut command)?;
        Ok(Executor { _child: child })
    }

    /// Returns its registry.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns where it listens.
    pub(crate) fn authority(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// Returns the token of all endpoints.
    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// Returns its resident memory.
    pub(crate) fn memory(&self) -> u64 {
        Usage::sample(self.child.child.id()).server_rss
    }
}

/// An executor behind a hub; killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Executor {
    _child: ChildProcess,
}

/// A process that has printed its first line.
#[derive(Debug)]
struct ChildProcess {
    child: Child,
    /// Held open: a process whose stdout is gone may fail.
    stdout: BufReader<ChildStdout>,
}

impl ChildProcess {
    fn start(command: &mut Command) -> Result<(Self, String)> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("no stdout")?;
        let mut running = Self {
            child,
            stdout: BufReader::new(stdout),
        };
        let mut line = String::new();
        // A process that cannot start ends, which ends the line as well.
        running.stdout.read_line(&mut line)?;
        ensure!(
            !line.is_empty(),
            "{:?} printed nothing",
            command.get_program()
        );
        Ok((running, line.trim_end().to_owned()))
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // It may have exited already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn clean(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null());
    command
}

fn token(program: &Path, data: &Path) -> Result<String> {
    let made = clean(program)
        .args(["hub", "token", "create", "--name", "bench"])
        .args(["--role", "executor", "--role", "harness", "--role", "admin"])
        .arg("--data-dir")
        .arg(data)
        .output()?;
    let text = String::from_utf8(made.stdout)?;
    ensure!(made.status.success(), "no token is made: {text}");
    let token = text.lines().last().context("no token was printed")?;
    Ok(token.trim().to_owned())
}
