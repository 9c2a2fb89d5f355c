//! `exec-server cp`: copies files and directories between this machine and environments, and shows
//! the progress and a summary.
//!
//! Both endpoints implement the same file system trait, so one implementation covers every
//! direction. Content goes to a hidden partial file next to its target and is renamed when it is
//! complete; a new tree is staged the same way.
//!
//! Invariant: the target name refers to the old or to the new file, never to a partial one; only
//! regular files are replaced. Not here: owners, hard links, extended attributes.

mod block_copy;
mod copier;
mod endpoint;
mod file_metadata;
mod staged_tree;
mod tree_scan;

use std::{
    cell::RefCell,
    convert::Infallible,
    ffi::OsString,
    io::{self, Write},
    process::ExitCode,
    task::Poll,
    time::{Duration, Instant},
};

use clap::Args;
use exec_client::client::ConnectionState;
use futures_util::{
    StreamExt, TryStreamExt, future,
    stream::{self, FuturesUnordered},
};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};

use crate::command::{
    connect::EnvArgs,
    cp::{
        copier::{Copier, CopyOptions, KeepTimes, ResumeMode},
        endpoint::{CopyEndpoint, CopyPair, CopyTarget, DirectoryPolicy, check_duplicates},
        file_metadata::{DeferredMetadata, LinkMode},
        tree_scan::TreeScan,
    },
    failure::{CommandFailure, FailureKind},
    operand::PathOperand,
    print::printable,
    process_session::{ConnectionNotice, print_notice},
    terminal::StandardStream,
};

/// Copies files and directories, in either direction.
#[derive(Args, Clone, Debug)]
#[command(
    override_usage = "exec-server cp [OPTIONS] SOURCE... TARGET",
    after_help = "A path in an environment starts with a colon, or with its name and a colon: \
                  `cp -E box notes.txt :/srv/`, `cp -r box:logs .`. Write `./` before a local file with a colon in its \
                  name.\n\nAn interrupted copy leaves a hidden partial file next to its target; \
                  the same command resumes it. Modes are kept, and so are times of local \
                  targets; -a keeps all times. Links in directories are copied as links; -L \
                  copies the files they point to.\n\nA directory is copied into a target that \
                  is an existing directory; `cp -r src/. :dst` updates `dst` itself instead."
)]
pub struct CpCommand {
    #[command(flatten)]
    env_args: EnvArgs,

    /// Copies directories recursively.
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,

    /// Copies directories recursively, and keeps times as well as modes and links.
    #[arg(short, long)]
    archive: bool,

    /// Copies the targets of links in directories instead of the links.
    #[arg(short = 'L', long)]
    dereference: bool,

    /// Ignores partial files of an earlier run and copies everything again.
    #[arg(long)]
    no_resume: bool,

    /// Shows neither progress nor a summary.
    #[arg(short, long)]
    quiet: bool,

    /// Prints the summary as JSON.
    #[arg(long)]
    json: bool,

    /// Sources, followed by the target. `:PATH` and `NAME:PATH` are in an environment.
    #[arg(required = true, num_args = 2.., value_name = "PATH")]
    paths: Vec<OsString>,
}

impl CpCommand {
    /// Resolves the operands, copies, and prints the summary.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let mut operands = Vec::new();
        for typed in &self.paths {
            operands.push(PathOperand::read(typed)?);
        }
        if operands
            .iter()
            .all(|operand| matches!(operand, PathOperand::Local(_)))
        {
            return Err(CommandFailure::usage("every path is on this machine")
                .next("write `:` before a path in the environment, such as `:/srv/`"));
        }
        let mut endpoints = Vec::new();
        for operand in operands {
            let endpoint = self.endpoint(&operand, &endpoints).await?;
            endpoints.push((operand, endpoint));
        }
        let Some(((target, to), sources)) = endpoints.split_last() else {
            return Err(CommandFailure::usage("missing target"));
        };
        let target = CopyTarget::find(to.clone(), target, sources.len()).await?;
        let trees = match self.recursive || self.archive {
            true => DirectoryPolicy::Copied,
            false => DirectoryPolicy::Refused,
        };
        // Check everything before copying anything.
        let mut pairs = Vec::new();
        for (source, from) in sources {
            let pair = target.pair(from, source, trees).await?;
            pairs.push((from.clone(), pair));
        }
        check_duplicates(&pairs, &target.endpoint)?;
        let mut groups: Vec<(CopyEndpoint, Vec<_>)> = Vec::new();
        for (from, pair) in pairs {
            match groups.last_mut().filter(|(endpoint, _)| endpoint.is(&from)) {
                Some((_, pairs)) => pairs.push(pair),
                None => groups.push((from, vec![pair])),
            }
        }
        let options = CopyOptions {
            resume: match self.no_resume {
                true => ResumeMode::Nothing,
                false => ResumeMode::Parts,
            },
            links: match self.dereference {
                true => LinkMode::Follow,
                false => LinkMode::Keep,
            },
            times: match self.archive {
                true => KeepTimes::Yes,
                false => KeepTimes::No,
            },
        };
        let progress = CopyProgress::new(match self.quiet {
            true => ProgressDisplay::Nothing,
            false => ProgressDisplay::OnTerminal,
        });
        for (from, pairs) in groups {
            let copied = copy_all(&from, &target.endpoint, pairs, options, &progress).await;
            if copied.is_err() {
                progress.end();
            }
            copied?;
        }
        progress.end();
        self.print_summary(&progress)
    }

    /// Returns the endpoint of an operand. Connects to each environment once.
    async fn endpoint(
        &self,
        operand: &PathOperand,
        opened: &[(PathOperand, CopyEndpoint)],
    ) -> Result<CopyEndpoint, CommandFailure> {
        let same = |other: &PathOperand| match (operand, other) {
            (PathOperand::Local(_), PathOperand::Local(_)) => true,
            (PathOperand::Remote(name, _), PathOperand::Remote(other, _)) => name == other,
            (PathOperand::Local(_), PathOperand::Remote(..))
            | (PathOperand::Remote(..), PathOperand::Local(_)) => false,
        };
        if let Some((_, endpoint)) = opened.iter().find(|(other, _)| same(other)) {
            return Ok(endpoint.clone());
        }
        match operand {
            PathOperand::Local(_) => Ok(CopyEndpoint::local()),
            PathOperand::Remote(None, _) => CopyEndpoint::connect(self.env_args.clone()).await,
            PathOperand::Remote(Some(name), path) => {
                CopyEndpoint::connect(self.env_args.with_env(name))
                    .await
                    .map_err(|failure| {
                        let is_unknown = failure.kind == FailureKind::UnknownEnvironment;
                        let file = format!("{name}:{}", path.display());
                        match is_unknown && std::path::Path::new(&file).exists() {
                            true => failure.next(format!("write `./{file}` for the local file")),
                            false => failure,
                        }
                    })
            }
        }
    }

    fn print_summary(&self, progress: &CopyProgress) -> Result<ExitCode, CommandFailure> {
        let (summary, first) = progress.outcome();
        let text = match (self.json, self.quiet) {
            (true, _) => {
                let text = serde_json::to_string(&summary);
                text.map_err(CommandFailure::failed)? + "\n"
            }
            (false, false) if StandardStream::Error.is_terminal() => summary_line(&summary),
            (false, _) => String::new(),
        };
        let mut out: Box<dyn Write> = match self.json {
            true => Box::new(std::io::stdout().lock()),
            false => Box::new(std::io::stderr().lock()),
        };
        // The copy succeeded even if the summary cannot be printed.
        drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
        match (first, summary.failed) {
            (None, _) => Ok(ExitCode::SUCCESS),
            (Some(first), 1) if summary.files == 0 => Err(first),
            (Some(first), failed) => {
                let what = format!("{first} ({failed} not copied, {} copied)", summary.files);
                Err(CommandFailure::failed(what))
            }
        }
    }
}

/// Formats the summary as one line.
fn summary_line(summary: &CopySummary) -> String {
    let rate = match summary.seconds > 0.0 {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a rate is shown with three digits"
        )]
        true => summary.written_bytes as f64 / summary.seconds / 1e6,
        false => 0.0,
    };
    let files = match summary.files {
        1 => "1 file".to_owned(),
        files => format!("{files} files"),
    };
    let resumed = match summary.resumed_bytes {
        0 => String::new(),
        bytes => format!(
            ", {} of it from an earlier run",
            indicatif::HumanBytes(bytes)
        ),
    };
    format!(
        "copied {files}, {}{resumed}, in {:.1} s ({rate:.0} MB/s)\n",
        indicatif::HumanBytes(summary.bytes),
        summary.seconds
    )
}

/// Files copied concurrently.
const CONCURRENCY: usize = 16;
/// Queue length between scan and copy.
const MAX_QUEUED_JOBS: usize = 256;

/// Copies the sources of one endpoint. Ctrl-C, SIGTERM and SIGHUP cancel it and remove partial
/// files that cannot be resumed.
async fn copy_all(
    from: &CopyEndpoint,
    to: &CopyEndpoint,
    pairs: Vec<CopyPair>,
    options: CopyOptions,
    progress: &CopyProgress,
) -> Result<(), CommandFailure> {
    let failed =
        |error: io::Error| CommandFailure::failed(format!("cannot listen for signals: {error}"));
    let mut signals = CopySignals::listen().map_err(failed)?;
    let deferred = DeferredMetadata::default();
    let copier = Copier::new(from, to, options, &deferred, progress);
    let endpoints = [from, to];
    let scan = TreeScan::new(from, to, options, &deferred, progress);
    let scan = scan.excluding(&pairs).await?;
    let outcome = tokio::select! {
        biased;
        kind = signals.next() => Err(ended(kind, from, to)),
        copied = scan_and_copy(&scan, pairs, &copier) => copied,
        never = watch_connections(&endpoints, progress) => match never {},
    };
    if outcome.is_err() {
        copier.clean_up(&scan.trees()).await;
    }
    outcome
}

async fn scan_and_copy(
    scan: &TreeScan<'_>,
    pairs: Vec<CopyPair>,
    copier: &Copier<'_>,
) -> Result<(), CommandFailure> {
    let (jobs, mut found) = mpsc::channel(MAX_QUEUED_JOBS);
    let find = async {
        for pair in pairs {
            scan.run(pair, &jobs).await?;
        }
        drop(jobs);
        Ok(())
    };
    let copy = stream::poll_fn(|cx| found.poll_recv(cx))
        .map(|job| copier.copy(job))
        .buffer_unordered(CONCURRENCY)
        .try_for_each(|()| future::ready(Ok(())));
    futures_util::try_join!(find, copy)?;
    scan.finish().await
}

fn ended(kind: FailureKind, from: &CopyEndpoint, to: &CopyEndpoint) -> CommandFailure {
    let what = match kind == FailureKind::Interrupted {
        true => "interrupted",
        false => "terminated by a signal",
    };
    let next = match from.is(to) {
        // The environment copies each file itself, in one step.
        true => "run the same command again",
        false => "run the same command again to resume",
    };
    CommandFailure::new(kind, what).next(next)
}

/// Signals that cancel a copy.
struct CopySignals(Vec<(FailureKind, Signal)>);

impl CopySignals {
    fn listen() -> io::Result<Self> {
        let signals = [
            (SignalKind::interrupt(), FailureKind::Interrupted),
            (SignalKind::terminate(), FailureKind::Signalled(15)),
            (SignalKind::hangup(), FailureKind::Signalled(1)),
        ];
        let listen = |(which, kind)| Ok((kind, signal(which)?));
        signals
            .into_iter()
            .map(listen)
            .collect::<io::Result<_>>()
            .map(Self)
    }

    async fn next(&mut self) -> FailureKind {
        future::poll_fn(|context| {
            for (kind, signal) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(*kind);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Reports disconnects and reconnects in the progress bar, or as lines without one.
async fn watch_connections(endpoints: &[&CopyEndpoint], progress: &CopyProgress) -> Infallible {
    let envs = endpoints
        .iter()
        .filter_map(|endpoint| endpoint.env.as_ref());
    let watches: FuturesUnordered<_> = envs
        .map(|env| async {
            let (mut connection, mut notice) = (env.client.connection(), ConnectionNotice::new());
            while connection.changed().await.is_ok() {
                let state = *connection.borrow_and_update();
                if !progress.connection(state) {
                    notice.show(state);
                }
            }
        })
        .collect();
    watches.for_each(|()| future::ready(())).await;
    future::pending().await
}

/// Maximum number of failures shown; the rest is only counted.
const MAX_SHOWN_FAILURES: u64 = 20;

/// Summary of a copy.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct CopySummary {
    /// Files that exist at the target.
    files: u64,
    /// Directories that exist at the target.
    directories: u64,
    /// Total size of those files.
    bytes: u64,
    /// Bytes written by this run.
    written_bytes: u64,
    /// Bytes reused from an earlier run.
    resumed_bytes: u64,
    /// Skipped entries: special files and dangling links.
    skipped: u64,
    /// Entries that could not be copied.
    failed: u64,
    /// Duration.
    seconds: f64,
}

/// Whether a progress bar is shown.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ProgressDisplay {
    /// If stderr is a terminal.
    OnTerminal,
    /// Only failures.
    Nothing,
}

/// Counts progress, and shows a bar on stderr.
#[derive(Debug)]
struct CopyProgress {
    bar: ProgressBar,
    started: Instant,
    counts: RefCell<CopySummary>,
    first: RefCell<Option<CommandFailure>>,
}

impl CopyProgress {
    /// Starts counting.
    fn new(show: ProgressDisplay) -> Self {
        let draw = match show {
            ProgressDisplay::OnTerminal => ProgressDrawTarget::stderr(),
            ProgressDisplay::Nothing => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(0), draw);
        if let Ok(style) = ProgressStyle::with_template(LINE) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self {
            bar,
            started: Instant::now(),
            counts: RefCell::default(),
            first: RefCell::default(),
        }
    }

    /// Adds to the expected total.
    fn expect(&self, bytes: u64) {
        self.bar.inc_length(bytes);
    }

    /// Shows the name of a file that is now copied.
    fn begin(&self, name: &str) {
        self.bar.set_prefix(printable(name));
    }

    /// Counts written bytes.
    fn written(&self, bytes: u64) {
        self.counts.borrow_mut().written_bytes += bytes;
        self.bar.inc(bytes);
    }

    /// Counts reused bytes.
    fn resumed(&self, bytes: u64) {
        self.counts.borrow_mut().resumed_bytes += bytes;
        self.bar.inc(bytes);
        // Reused bytes say nothing about the transfer rate.
        self.bar.reset_eta();
    }

    /// Counts a complete file.
    fn file(&self, bytes: u64) {
        let mut counts = self.counts.borrow_mut();
        counts.files += 1;
        counts.bytes += bytes;
    }

    /// Counts a directory.
    fn directory(&self) {
        self.counts.borrow_mut().directories += 1;
    }

    /// Counts an entry that cannot be copied by design.
    fn skip(&self, why: &str) {
        let skipped = {
            let mut counts = self.counts.borrow_mut();
            counts.skipped += 1;
            counts.skipped
        };
        if skipped <= MAX_SHOWN_FAILURES {
            self.bar.suspend(|| print_notice(why));
        }
    }

    /// Counts a failure. The caller reports the first one at the end.
    fn fail(&self, failure: CommandFailure) {
        let failed = {
            let mut counts = self.counts.borrow_mut();
            counts.failed += 1;
            counts.failed
        };
        let mut first = self.first.borrow_mut();
        if first.is_none() {
            *first = Some(failure);
        } else if failed <= MAX_SHOWN_FAILURES {
            self.bar.suspend(|| print_notice(&failure.to_string()));
        }
    }

    /// Shows the connection state in the bar. Returns whether the bar is visible.
    fn connection(&self, state: ConnectionState) -> bool {
        let text = match state {
            ConnectionState::Connected => "",
            ConnectionState::Reconnecting => "reconnecting…",
            ConnectionState::Lost => "lost",
        };
        self.bar.set_message(text);
        !self.bar.is_hidden()
    }

    /// Removes the bar.
    fn end(&self) {
        self.bar.finish_and_clear();
    }

    /// Returns the summary and the first failure.
    fn outcome(&self) -> (CopySummary, Option<CommandFailure>) {
        let mut summary = self.counts.borrow().clone();
        let took: Duration = self.started.elapsed();
        summary.seconds = (took.as_secs_f64() * 1000.0).round() / 1000.0;
        (summary, self.first.borrow_mut().take())
    }
}

/// Name, bar, bytes, rate, remaining time, and connection state.
const LINE: &str =
    "{prefix:.bold} [{bar:24}] {bytes}/{total_bytes} {bytes_per_sec} eta {eta} {msg}";
