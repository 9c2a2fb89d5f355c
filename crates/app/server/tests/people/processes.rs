//! Tests of processes: run, detach, list and kill.

mod command_tunnels;
pub(crate) mod cuttable_link;
mod detach;
mod detached;
mod disconnects;
mod durable;
mod run;
mod stock_server;
pub(crate) mod terminal_window;
mod terminals;
mod tunnels;

use std::{
    fs,
    path::Path,
    process::{ExitStatus, Stdio},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

use crate::test_user::{TIMEOUT, within_timeout};

/// A running program and its output by line.
pub(crate) struct RunningCommand {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl RunningCommand {
    pub(crate) fn start(command: &mut Command) -> Self {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Waits for the next line, which must equal `line`.
    pub(crate) async fn says(&mut self, line: &str) {
        let output = within_timeout(self.lines.next_line()).await.unwrap();
        assert_eq!(output.as_deref(), Some(line));
    }

    /// Waits for the next line on stderr. Later ones that arrive with it are lost.
    async fn told(&mut self) -> String {
        let mut lines = BufReader::new(self.child.stderr.take().unwrap()).lines();
        let line = within_timeout(lines.next_line()).await.unwrap();
        self.child.stderr = Some(lines.into_inner().into_inner());
        line.unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(pid(&self.child), signal).unwrap();
    }

    /// Waits for the exit, and returns status and stderr.
    pub(crate) async fn end(&mut self) -> (ExitStatus, String) {
        let mut output = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        within_timeout(stderr.read_to_string(&mut output))
            .await
            .unwrap();
        (within_timeout(self.child.wait()).await.unwrap(), output)
    }
}

pub(crate) fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap()
}

/// Waits until the process whose pid a command wrote into a file is gone.
pub(crate) fn wait_until_gone(file: &Path) {
    let number = fs::read_to_string(file).unwrap();
    let pid = Pid::from_raw(number.trim().parse().unwrap()).unwrap();
    // An exited process has no pidfd.
    if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        let limit = Timespec::try_from(TIMEOUT).unwrap();
        assert_eq!(
            retry_on_intr(|| poll(&mut ended, Some(&limit))).unwrap(),
            1,
            "{pid:?} is alive"
        );
    }
}

/// Returns pseudo-random bytes of every value.
pub(crate) fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        u8::try_from(state >> 56).unwrap()
    };
    (0..length).map(|_| next()).collect()
}
