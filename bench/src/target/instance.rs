//! One running server.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, ChildStdout};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process};

use super::launch::{Launch, LaunchedServer};
use crate::proc_stat;
use crate::rpc::Client;

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
        let pid = proc_stat::port(&url)
            .and_then(proc_stat::owner)
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
        let pid = proc_stat::port(url).and_then(proc_stat::owner);
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
        let running = self.pid.map(proc_stat::workload).unwrap_or_default();
        started.end(self.pid);
        // A server should kill its own processes; kill any that it left behind.
        for pid in running
            .into_iter()
            .filter(|&pid| proc_stat::is_workload(pid))
        {
            signal(pid, Signal::KILL);
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
            signal(pid, Signal::TERM);
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

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have exited already.
        let _gone = kill_process(pid, signal);
    }
}
