//! The process task: owns one child, reads its output, writes its stdin, enforces its deadlines,
//! and records its exit.
//!
//! Backpressure: while a follower that must not lose output lags too far behind, the task stops
//! reading. The pipe fills up and the child blocks.

mod deadlines;
mod denial_scan;
mod output_reader;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use exec_core::output_log::ExitInfo;
use exec_journal::{JournalError, JournalEvent, now_ms};
use exec_wire::{
    id::OutputSeq,
    limits,
    process::{ExitCause, ProcessLimits, ResourceUsage},
    signal_name::signal_name,
};
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep_until},
};

use self::deadlines::{DueAction, ProcessDeadlines};
use crate::{
    durable_record::FULL_RETRY,
    durable_store::lost_exit,
    local_process::SharedState,
    spawner::{ExitReport, SupervisedChild, SupervisorReport},
    stdio,
};

pub(crate) use self::{
    deadlines::usage_of_tree,
    output_reader::{OutputKind, OutputReader},
};

/// How long a supervisor may take to kill its tree before the process task does it, and the
/// interval between further attempts.
const KILL_TIMEOUT: Duration = Duration::from_millis(100);
/// After this many forced kills the supervisor itself is killed.
const MAX_FORCED_KILLS: u32 = 10;

/// Settings of a process task, for a new process and for an adopted one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskSettings {
    pub(crate) limits: ProcessLimits,
    /// Whether a sandbox policy applies to the process.
    pub(crate) sandboxed: bool,
}

/// The task that owns one child process.
#[derive(Debug)]
pub(crate) struct ProcessTask {
    shared: Arc<SharedState>,
    child: Arc<SupervisedChild>,
    sources: Vec<OutputReader>,
    started: Instant,
    deadlines: ProcessDeadlines,
    exited: bool,
    sandboxed: bool,
    /// When an ordered kill becomes overdue, and how many forced kills were made so far.
    kill_overdue: Option<(Instant, u32)>,
    /// When to look at a report again that could not be recorded.
    report_retry_at: Option<Instant>,
}

impl ProcessTask {
    /// Creates the task of a process that started at `started`.
    pub(crate) fn new(
        settings: TaskSettings,
        shared: &Arc<SharedState>,
        child: Arc<SupervisedChild>,
        sources: Vec<OutputReader>,
        started: Instant,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            child,
            sources,
            started,
            deadlines: ProcessDeadlines::new(settings.limits, started),
            exited: false,
            sandboxed: settings.sandboxed,
            kill_overdue: None,
            report_retry_at: None,
        }
    }

    /// Continues the task of an earlier server, which may have recorded the exit.
    pub(crate) fn adopted(self, exited: bool) -> Self {
        Self { exited, ..self }
    }

    /// Runs until the process tree is gone and all output is recorded.
    pub(crate) async fn run(mut self) {
        let (mut supervised, mut was_paused) = (true, false);
        while supervised || !self.sources.is_empty() {
            let paused = !self.sources.is_empty() && self.shared.is_backpressured();
            if paused || was_paused {
                self.deadlines.handle_backpressure();
            }
            was_paused = paused;
            let (blocked, kill_at, dropped, released) = {
                let state = self.shared.lock();
                (
                    state.input.blocked(),
                    state.kill_at,
                    state.dropped,
                    state.released,
                )
            };
            if released {
                // Nothing is in memory only: the next server continues from journal and keeper.
                self.shared.task_stopped.send_replace(true);
                return;
            }
            if dropped && !supervised && !paused {
                // Another process still holds the pipes open, but no handle is left to read the
                // output.
                self.sources.clear();
                self.close_if_done();
                continue;
            }
            if supervised && self.kill_overdue.is_none() && self.child.is_kill_ordered() {
                self.kill_overdue = Some((Instant::now() + KILL_TIMEOUT, 0));
            }
            let overdue_at = self.kill_overdue.filter(|_| supervised).map(|(at, _)| at);
            let deadline = self.deadlines.next(kill_at, paused);
            tokio::select! {
                report = next_report(&self.child, self.shared.durable.is_some(), self.report_retry_at), if supervised => match report {
                    Some(report) => self.handle_report(report, paused),
                    None => {
                        supervised = false;
                        self.mark_tree_gone();
                    }
                },
                (index, data) = output_reader::read_any(&mut self.sources, &self.shared), if !paused && !self.sources.is_empty() => {
                    self.record_output(index, data);
                }
                () = writable(blocked.as_deref()), if blocked.is_some() => {
                    self.shared.lock().input.flush();
                    self.deadlines.activity();
                }
                () = self.shared.wake_task.notified() => {
                    if self.shared.lock().input.take_activity() {
                        self.deadlines.activity();
                    }
                }
                () = sleep_until(deadline.unwrap_or(self.started)), if deadline.is_some() => {
                    self.handle_deadline(kill_at, paused);
                }
                () = sleep_until(overdue_at.unwrap_or(self.started)), if overdue_at.is_some() => {
                    self.force_kill().await;
                }
            }
            self.close_if_done();
        }
        self.end_record().await;
    }

    fn handle_report(&mut self, report: SupervisorReport, paused: bool) {
        self.report_retry_at = None;
        if let SupervisorReport::Exited(exit) = report {
            self.drain(paused);
            if let Err(error) = self.record_exit(&exit) {
                tracing::warn!(%error, "failed to record an exit; trying again");
                self.report_retry_at = Some(Instant::now() + FULL_RETRY);
                return;
            }
        }
        if self.shared.durable.is_some() {
            self.child.consume_report();
        }
    }

    /// Has the keeper close the descriptors of a durable process that has ended.
    async fn end_record(&mut self) {
        if let Some(durable) = self.shared.durable.clone()
            && let Err(error) = spawn_blocking(move || durable.drop_descriptors()).await
        {
            tracing::debug!(%error, "failed to drop descriptors");
        }
        self.shared.task_stopped.send_replace(true);
    }

    fn record_output(&mut self, index: usize, data: Option<Bytes>) {
        match data {
            Some(data) => {
                self.deadlines.activity();
                let stream = self.sources[index].stream();
                self.shared.record(|log| {
                    let mut remaining = data;
                    while !remaining.is_empty() {
                        let length = remaining.len().min(limits::OUTPUT_CHUNK_BYTES);
                        log.append(stream, remaining.split_to(length));
                    }
                });
            }
            None => {
                self.sources.swap_remove(index);
            }
        }
    }

    /// Reads available output before an exit is recorded, so that output normally precedes the
    /// exit. For a sandboxed process this reads everything the pipe can hold, even under
    /// backpressure: the denial scan needs the last output.
    fn drain(&mut self, paused: bool) {
        let most = match (self.sandboxed, paused) {
            (true, _) => stdio::LARGE_BYTES,
            (false, false) => 1,
            (false, true) => 0,
        };
        let mut index = 0;
        while index < self.sources.len() {
            let (count, mut bytes) = (self.sources.len(), 0);
            while bytes < most && self.sources.len() == count {
                let Some(data) = self.sources[index].read_now(&self.shared) else {
                    break;
                };
                bytes += data.as_ref().map_or(0, Bytes::len);
                self.record_output(index, data);
            }
            // A source at its end was removed; `swap_remove` put another at this index.
            if self.sources.len() == count {
                index += 1;
            }
        }
    }

    fn record_exit(&mut self, report: &ExitReport) -> Result<(), JournalError> {
        if self.exited {
            // An earlier server recorded the exit and died before it consumed the report.
            return Ok(());
        }
        let cause = self.shared.lock().cause;
        let millis =
            |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let usage = ResourceUsage {
            wall_ms: millis(self.started.elapsed()),
            user_ms: millis(report.user),
            system_ms: millis(report.system),
            max_rss_bytes: report.max_rss_bytes,
        };
        let signal = libc::WIFSIGNALED(report.status).then(|| libc::WTERMSIG(report.status));
        self.record(ExitInfo {
            code: signal.map_or_else(|| libc::WEXITSTATUS(report.status), |signal| 128 + signal),
            signal: signal.map(signal_name),
            cause: cause.unwrap_or(if signal.is_some() {
                ExitCause::Signal
            } else {
                ExitCause::Exit
            }),
            usage: Some(usage),
            sandbox_denied: false,
        })
    }

    /// Records an exit. Fails if the journal cannot record it, without other effects.
    fn record(&mut self, mut exit: ExitInfo) -> Result<(), JournalError> {
        exit.sandbox_denied = self.sandboxed && exit.code != 0 && self.is_denial(exit.code);
        if let Some(durable) = &self.shared.durable {
            durable.record(&JournalEvent::Exited {
                seq: durable.next_seq(),
                exit: exit.clone(),
                at_ms: now_ms(),
            })?;
        }
        self.exited = true;
        let state = self.shared.lock();
        let (ended_by_us, kill_at) = (state.cause.is_some(), state.kill_at);
        drop(state);
        self.deadlines.handle_exit(ended_by_us, kill_at);
        self.shared.record(|log| log.record_exit(exit));
        Ok(())
    }

    /// Returns whether the output suggests that the sandbox denied something. Scans a snapshot,
    /// without holding the lock.
    fn is_denial(&self, code: i32) -> bool {
        let retained = self.shared.lock().log().page(OutputSeq(0), None).chunks;
        let chunks = retained.iter().map(|chunk| (chunk.stream, &chunk.data));
        denial_scan::is_denial(code, chunks)
    }

    /// Records that the supervisor is gone. The tree is gone with it, or can no longer be reached.
    fn mark_tree_gone(&mut self) {
        let mut state = self.shared.lock();
        state.child = None;
        state.kill_at = None;
        let cause = state.cause.unwrap_or(ExitCause::Lost);
        drop(state);
        if !self.exited {
            let lost = ExitInfo {
                cause,
                ..lost_exit()
            };
            if let Err(error) = self.record(lost.clone()) {
                tracing::error!(%error, "failed to record that a process is lost");
                self.exited = true;
                self.shared.record(|log| log.record_exit(lost));
            }
        }
    }

    fn close_if_done(&mut self) {
        if self.exited && self.sources.is_empty() && !self.shared.lock().log().is_closed() {
            self.shared.lock().input.discard_input();
            if let Some(durable) = &self.shared.durable {
                durable.try_record(&JournalEvent::Closed {
                    seq: durable.next_seq(),
                    at_ms: now_ms(),
                });
            }
            self.shared.record(|log| log.record_close());
            // A policy applies to one command. Descendants that closed all output are killed with
            // it.
            if self.sandboxed {
                self.child.kill_tree();
            }
        }
    }

    fn handle_deadline(&mut self, kill_at: Option<Instant>, paused: bool) {
        match self.deadlines.due(kill_at, paused) {
            Some(DueAction::Kill(cause)) => {
                self.kill(cause);
            }
            Some(DueAction::Sample(limits)) => self.check_usage(limits),
            // A process outside the tree holds the pipes open; the child's output has been read.
            Some(DueAction::Abandon) => self.sources.clear(),
            None => {}
        }
    }

    /// Kills the tree if it exceeds its limits.
    fn check_usage(&self, limits: ProcessLimits) {
        let processes = deadlines::tree_of(self.child.pid());
        let exceeds = |limit: Option<u64>, measure: &dyn Fn(&[i32]) -> u64| {
            limit.is_some_and(|limit| measure(&processes) > limit)
        };
        if exceeds(limits.processes, &deadlines::live_count) {
            self.kill(ExitCause::ProcessLimit);
        } else if exceeds(limits.memory_bytes, &deadlines::resident_bytes) {
            self.kill(ExitCause::MemoryLimit);
        }
    }

    /// Kills the tree without its supervisor, which has not carried out an order to do so. A
    /// command may have stopped the supervisor. If it is merely slow, nothing is lost: the tree was
    /// to be killed anyway.
    async fn force_kill(&mut self) {
        let count = self.kill_overdue.map_or(0, |(_, count)| count);
        let child = Arc::clone(&self.child);
        let forced = spawn_blocking(move || child.force_kill(count >= MAX_FORCED_KILLS)).await;
        if let Err(error) = forced {
            tracing::debug!(%error, "failed to force-kill process tree");
        }
        self.kill_overdue = Some((Instant::now() + KILL_TIMEOUT, count.saturating_add(1)));
    }

    fn kill(&self, cause: ExitCause) {
        let mut state = self.shared.lock();
        state.cause.get_or_insert(cause);
        state.kill_at = None;
        drop(state);
        self.child.kill_tree();
    }
}

/// Waits for the next report. Reports about a durable process stay in the socket until they are
/// recorded. Cancel safe.
async fn next_report(
    child: &SupervisedChild,
    is_durable: bool,
    not_before: Option<Instant>,
) -> Option<SupervisorReport> {
    if let Some(at) = not_before {
        sleep_until(at).await;
    }
    match is_durable {
        false => child.report().await,
        true => child.peek_report().await,
    }
}

async fn writable(fd: Option<&tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>>) {
    if let Some(fd) = fd
        && let Ok(mut ready) = fd.writable().await
    {
        // The next write finds out whether the pipe has room; otherwise wait for the next event.
        ready.clear_ready();
    }
}

#[cfg(test)]
mod tests {
    use exec_core::output_log::{ExitInfo, RetentionLimits};
    use exec_env::process::ExecProcess;
    use exec_wire::{
        id::ProcessId,
        process::{ProcessLimits, TerminalSize, WaitUntil},
    };

    use crate::{
        launch::{LaunchStdio, ProcessLaunch, launch},
        spawner::{CommandSpec, Spawner},
    };

    async fn exit(spawner: &Spawner, sandboxed: bool, io: LaunchStdio, script: &str) -> ExitInfo {
        let command = CommandSpec {
            program: "/bin/sh".into(),
            argv: ["sh", "-c", script].map(Into::into).to_vec(),
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            cwd: "/".into(),
            ..CommandSpec::default()
        };
        let id = ProcessId::new("p").unwrap();
        let mut command = ProcessLaunch::new(id, command, io, ProcessLimits::default());
        command.sandboxed = sandboxed;
        let process = launch(spawner, command, RetentionLimits::default())
            .await
            .unwrap();
        let status = process.wait(WaitUntil::Exited, None).await.unwrap();
        status.exit.unwrap()
    }

    #[tokio::test]
    async fn denial_text_in_sandboxed_output_marks_exit_as_denied() {
        let spawner = Spawner::default();
        let terminal = LaunchStdio::Terminal(TerminalSize::default());
        for io in [LaunchStdio::Pipes, LaunchStdio::PipesWithStdin, terminal] {
            for (script, denied) in [
                ("echo Permission Denied >&2; exit 3", true),
                ("kill -SYS $$", true),
                ("echo Permission Denied >&2", false),
                ("echo no such thing >&2; exit 3", false),
                ("kill -KILL $$", false),
                // The denial comes after more output than one read returns.
                ("head -c 200000 /dev/zero; echo sandbox; exit 1", true),
            ] {
                let sandboxed = exit(&spawner, true, io, script).await;
                assert_eq!(sandboxed.sandbox_denied, denied, "{script}");
                let unsandboxed = exit(&spawner, false, io, script).await;
                assert!(!unsandboxed.sandbox_denied, "{script}");
            }
        }
    }
}
