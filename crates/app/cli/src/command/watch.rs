//! `exec-server watch`: reruns a command whenever files change.
//!
//! A change never interrupts the command unless `--restart` is given: changes during a run lead to
//! one more run. [`trigger`] distinguishes the command's own writes from edits. Not here: ignore
//! files below the watched directories; only those directly in them are read.

mod ignore_rules;
mod trigger;

use std::{ffi::OsString, process::ExitCode, time::Duration};

use clap::Args;
use exec_client::backend::ProcessDurability;
use exec_env::filesystem::{ChangeBatch, ExecutorFileSystem, WatchDepth, WatchPathRequest};
use exec_wire::{
    fs::PathChange,
    id::ProcessId,
    path_uri::PathUri,
    process::{TerminateMode, TerminateProcess},
};
use futures_util::{
    StreamExt,
    stream::{BoxStream, SelectAll, select_all},
};
use tokio::time::{Instant, timeout};

use crate::command::{
    connect::{ConnectedEnv, EnvArgs},
    failure::{CommandFailure, FailureKind},
    files::{display_path, retry_disconnected},
    process_session::{
        GRACE, SignalListener, TerminalUse, print_notice, show_outages, write_result,
    },
    quantity::DurationArg,
    run::{self, ExecArgs, RunOutcome, StartRequest},
    terminal::StandardStream,
    watch::{
        ignore_rules::{ChangeFilter, IgnoreRules},
        trigger::{EventLoss, RerunTrigger, TriggerDecision},
    },
};

/// How long to wait for changes made just before a command exited.
const SETTLE_TIME: Duration = Duration::from_millis(150);
/// Limit for collecting changes that do not pause.
const MAX_SETTLE_TIME: Duration = Duration::from_secs(2);
/// Maximum changes of one batch; more count as lost events.
const MAX_CHANGES: usize = 16_384;

/// Restarts within this time after a start are counted.
const QUICK_RESTART: Duration = Duration::from_secs(2);
/// This many quick restarts in a row mean that the command changes files itself.
const MAX_QUICK_RESTARTS: u32 = 10;
/// Interval between requests to terminate.
const TERMINATE_INTERVAL: Duration = Duration::from_secs(1);

/// Reruns a command whenever files change.
///
/// Runs it at once, and again after each change below the watched paths, never twice at the same
/// time. Changes during a run lead to one more run; files that change in three runs in a row are
/// attributed to the command and ignored while it runs. With --restart a change terminates the
/// command (SIGTERM, SIGKILL five seconds later) and runs it again; exclude its own output with
/// --ignore. Changes in .git, and of files that a .gitignore or .ignore in a watched directory
/// excludes, do not count. Ctrl-C or another signal ends it.
#[derive(Args, Clone, Debug)]
pub struct WatchCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    #[command(flatten)]
    #[doc(hidden)]
    pub exec_args: ExecArgs,

    /// File or directory to watch, repeatable [default: the command's working directory].
    #[arg(short, long = "path", value_name = "PATH")]
    pub paths: Vec<OsString>,

    /// Terminates a running command when files change, and runs it again.
    #[arg(short, long)]
    pub restart: bool,

    /// Counts only changes of paths that match a glob, repeatable, such as '*.rs' or 'src/**'.
    #[arg(short, long = "glob", value_name = "GLOB")]
    pub globs: Vec<String>,

    /// Ignores changes of paths that match a glob, repeatable.
    #[arg(short, long = "ignore", value_name = "GLOB")]
    pub ignored: Vec<String>,

    /// Clears the terminal before each run.
    #[arg(long)]
    pub clear: bool,

    /// Waits until changes pause for this time, such as 300ms.
    #[arg(long, value_name = "SPAN", default_value = "100ms")]
    pub debounce: DurationArg,

    /// Command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<String>,
}

impl WatchCommand {
    /// Watches and reruns until a signal arrives.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let filter = ChangeFilter::new(&self.globs, &self.ignored)?;
        let env = ConnectedEnv::open(&self.env_args).await?;
        let mut stop = SignalListener::listen().map_err(|error| {
            CommandFailure::failed(format!("cannot listen for signals: {error}"))
        })?;
        let files = env.environment().files;
        let begin = async {
            let roots = self.roots(&env).await?;
            // Watch before the first run, so that no change is missed.
            let watched = FileWatch::begin(&*files, &roots, &filter).await?;
            Ok::<_, CommandFailure>((roots, watched))
        };
        let (roots, mut watched) = tokio::select! {
            biased;
            status = stop.exit_requested() => return Ok(status),
            watching = begin => watching?,
        };
        let mut trigger = RerunTrigger::default();
        let mut quick_restarts = 0;
        loop {
            let started = Instant::now();
            let outcome = match self
                .run_or_restart(&env, &mut watched, quick_restarts)
                .await?
            {
                RunEnd::Finished(outcome) => outcome,
                RunEnd::Overtaken => {
                    if let Some(status) = stop.missed_exit_request() {
                        return Ok(status);
                    }
                    quick_restarts = match started.elapsed() < QUICK_RESTART {
                        true => quick_restarts + 1,
                        false => 0,
                    };
                    continue;
                }
            };
            quick_restarts = 0;
            if outcome.is_unread {
                return Ok(outcome.status);
            }
            if let Some(status) = stop.missed_exit_request() {
                return Ok(status);
            }
            let (changed, lost) = tokio::select! {
                biased;
                status = stop.exit_requested() => return Ok(status),
                pending = watched.collect_changes(SETTLE_TIME.max(self.debounce.0)) => pending,
            };
            let mut next = trigger.handle_run(&changed, lost);
            if next == TriggerDecision::Stop {
                print_notice("every run changes more files; waiting for a change after this one");
            }
            while next != TriggerDecision::Run {
                let first = tokio::select! {
                    biased;
                    status = stop.exit_requested() => return Ok(status),
                    first = show_outages(&env.client, watched.next()) => first,
                };
                let Some(first) = first else {
                    // The watched path was removed, or the session is gone: watch again.
                    watched = tokio::select! {
                        biased;
                        status = stop.exit_requested() => return Ok(status),
                        watched = FileWatch::begin(&*files, &roots, &filter) => watched?,
                    };
                    next = trigger.handle_idle(&[], EventLoss::Some);
                    continue;
                };
                watched.take(first);
                let (changed, lost) = tokio::select! {
                    biased;
                    status = stop.exit_requested() => return Ok(status),
                    pending = watched.collect_changes(self.debounce.0) => pending,
                };
                next = trigger.handle_idle(&changed, lost);
            }
        }
    }

    async fn roots(&self, env: &ConnectedEnv) -> Result<Vec<PathUri>, CommandFailure> {
        if self.paths.is_empty() {
            return Ok(vec![self.exec_args.directory(env).await?]);
        }
        let mut roots = Vec::new();
        for path in &self.paths {
            roots.push(env.path(path).await?);
        }
        Ok(roots)
    }

    /// Runs the command to its end, or with --restart until the next change.
    async fn run_or_restart(
        &self,
        env: &ConnectedEnv,
        watched: &mut FileWatch,
        quick_restarts: u32,
    ) -> Result<RunEnd, CommandFailure> {
        let id = run::new_id();
        let mut run = std::pin::pin!(self.run_once(env, id.clone()));
        let mut restarts = self.restart && quick_restarts < MAX_QUICK_RESTARTS;
        if self.restart && !restarts {
            print_notice("the command seems to change files itself; waiting for it to exit");
        }
        while restarts {
            tokio::select! {
                biased;
                outcome = &mut run => return self.finished(outcome?),
                first = watched.next() => match first {
                    Some(first) => {
                        watched.take(first);
                        break;
                    }
                    // The watch ended; it is renewed after the command.
                    None => restarts = false,
                },
            }
        }
        if !restarts {
            return self.finished(run.await?);
        }
        let ended = tokio::select! {
            biased;
            // Changes arrived before the exit: run again.
            outcome = &mut run => Some(outcome?),
            _ = watched.collect_changes(self.debounce.0) => None,
        };
        if let Some(outcome) = ended {
            return match outcome.is_unread {
                true => Ok(RunEnd::Finished(outcome)),
                false => Ok(RunEnd::Overtaken),
            };
        }
        loop {
            // Repeated, because the start may have been in flight the first time.
            let terminated = env.client.call(TerminateProcess {
                process_id: id.clone(),
                mode: Some(TerminateMode::Graceful {
                    timeout_ms: DurationArg(GRACE).millis(),
                }),
            });
            terminated.await.map_err(CommandFailure::from)?;
            match timeout(TERMINATE_INTERVAL, &mut run).await {
                Ok(Ok(outcome)) if outcome.is_unread => return Ok(RunEnd::Finished(outcome)),
                Ok(Err(failure)) if failure.kind == FailureKind::Lost => return Err(failure),
                // The status of a terminated command does not matter.
                Ok(_) => return Ok(RunEnd::Overtaken),
                Err(_) => {}
            }
        }
    }

    fn finished(&self, outcome: RunOutcome) -> Result<RunEnd, CommandFailure> {
        let failed = outcome.status != ExitCode::SUCCESS && !outcome.is_unread;
        if failed && StandardStream::Error.is_terminal() {
            print_notice("the command failed; waiting for changes");
        }
        Ok(RunEnd::Finished(outcome))
    }

    async fn run_once(
        &self,
        env: &ConnectedEnv,
        id: ProcessId,
    ) -> Result<RunOutcome, CommandFailure> {
        if self.clear && StandardStream::Output.is_terminal() {
            write_result("\x1b[H\x1b[2J\x1b[3J")?;
        }
        let request = StartRequest {
            env,
            exec_args: &self.exec_args,
            id,
            argv: self.command.clone(),
            terminal: TerminalUse::None,
            limit: None,
            keys: None,
            durability: ProcessDurability::ServerDefault,
            tunnels: &[],
        };
        run::run_session(request, None).await
    }
}

/// How a run ended.
enum RunEnd {
    /// The command exited.
    Finished(RunOutcome),
    /// Files changed: run again.
    Overtaken,
}

/// All watches.
struct FileWatch {
    changes: SelectAll<BoxStream<'static, (usize, ChangeBatch)>>,
    ignored: Vec<IgnoreRules>,
    pending: Vec<PathChange>,
    lost: EventLoss,
}

impl FileWatch {
    async fn begin(
        files: &dyn ExecutorFileSystem,
        roots: &[PathUri],
        filter: &ChangeFilter,
    ) -> Result<Self, CommandFailure> {
        let (mut streams, mut ignored) = (Vec::new(), Vec::new());
        for (number, root) in roots.iter().enumerate() {
            let watch = WatchPathRequest {
                path: root.clone(),
                depth: WatchDepth::Tree,
                sandbox: None,
            };
            let watcher = retry_disconnected(|| files.watch(watch.clone())).await;
            let watcher = watcher.map_err(|error| {
                let failure = CommandFailure::from(error);
                let what = format!("cannot watch `{}`: {}", display_path(root), failure.what);
                CommandFailure { what, ..failure }
            })?;
            ignored.push(IgnoreRules::read(files, &watcher.path, filter.clone()).await);
            let changes = watcher.changes;
            streams.push(changes.map(move |changes| (number, changes)).boxed());
        }
        Ok(Self {
            changes: select_all(streams),
            ignored,
            pending: Vec::new(),
            lost: EventLoss::None,
        })
    }

    /// Waits for relevant changes; `None` if a watch ended. Cancel-safe.
    async fn next(&mut self) -> Option<(usize, ChangeBatch)> {
        loop {
            let (number, mut changes) = self.changes.next().await?;
            if let Some(ignored) = self.ignored.get(number) {
                changes
                    .changes
                    .retain(|change| !ignored.is_ignored(&change.path));
            }
            if !changes.changes.is_empty() || changes.overflow {
                return Some((number, changes));
            }
        }
    }

    fn take(&mut self, (_, changes): (usize, ChangeBatch)) {
        self.pending.extend(changes.changes);
        if changes.overflow || self.pending.len() > MAX_CHANGES {
            self.lost = EventLoss::Some;
            self.pending.truncate(MAX_CHANGES);
        }
    }

    /// Collects changes until they pause for `pause`, up to a limit.
    async fn collect_changes(&mut self, pause: Duration) -> (Vec<PathChange>, EventLoss) {
        let until = Instant::now() + MAX_SETTLE_TIME.max(pause);
        while let Ok(Some(changes)) = timeout(pause, self.next()).await {
            self.take(changes);
            if Instant::now() >= until {
                break;
            }
        }
        let lost = std::mem::replace(&mut self.lost, EventLoss::None);
        (std::mem::take(&mut self.pending), lost)
    }
}
