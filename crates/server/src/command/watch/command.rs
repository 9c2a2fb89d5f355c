//! The loop: run, wait for changes, run.

use std::{ffi::OsString, process::ExitCode, time::Duration};

use clap::Args;
use exec_env::filesystem::{Changes, ExecutorFileSystem, WatchDepth, WatchPath};
use exec_wire::{fs::Change, path_uri::PathUri};
use futures_util::{
    StreamExt,
    stream::{BoxStream, SelectAll, select_all},
};
use tokio::time::{Instant, timeout};

use super::{
    ignored::Ignored,
    leaving::Leaving,
    trigger::{Lost, Next, Trigger},
};
use crate::command::{
    amount::Span,
    failure::Failure,
    files::{file_failure, persist, shown},
    launch::{self, Launch, Outcome, Surroundings},
    place::{Place, Where},
    stream::{Terminal, complain, say, telling},
    terminal::Standard,
};

/// How long changes are waited for that a command made just before it ended.
const AFTERMATH: Duration = Duration::from_millis(150);
/// How long changes are gathered if they do not pause.
const MAX_GATHERING: Duration = Duration::from_secs(2);
/// Changes of one batch that are looked at; more count as lost ones.
const MAX_CHANGES: usize = 16_384;

/// Runs a command again whenever files change.
///
/// It runs at once, and again after each change below the watched paths; never twice at the same time.
/// What changes while it runs leads to one more run; what changes in three runs in a row is taken for
/// the command's own, and does not count while it runs.
/// Changes in .git, and of what a .gitignore or .ignore in a watched directory names, do not count. It
/// ends with Ctrl-C, or another signal.
#[derive(Args, Clone, Debug)]
pub struct Watch {
    #[command(flatten)]
    #[doc(hidden)]
    pub place: Where,

    #[command(flatten)]
    #[doc(hidden)]
    pub surroundings: Surroundings,

    /// Watches this file or directory, repeatable [default: the directory that the command runs in].
    #[arg(short, long = "path", value_name = "PATH")]
    pub paths: Vec<OsString>,

    /// Clears the terminal before each run.
    #[arg(long)]
    pub clear: bool,

    /// Waits for changes to pause for this time, such as 300ms.
    #[arg(long, value_name = "SPAN", default_value = "100ms")]
    pub debounce: Span,

    /// The command and its arguments; what follows its name is its own.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<String>,
}

impl Watch {
    /// Runs a command again whenever files change.
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let place = Place::open(&self.place).await?;
        let mut leaving = Leaving::listen()?;
        let files = place.environment().files;
        let begin = async {
            let roots = self.roots(&place).await?;
            // Watched before the first run: no change in between is missed.
            let watched = Watched::begin(&*files, &roots).await?;
            Ok::<_, Failure>((roots, watched))
        };
        let (roots, mut watched) = tokio::select! {
            biased;
            status = leaving.asked() => return Ok(status),
            begun = begin => begun?,
        };
        let mut trigger = Trigger::default();
        loop {
            let outcome = self.run_once(&place).await?;
            if outcome.is_unread {
                return Ok(outcome.status);
            }
            if let Some(status) = leaving.was_asked() {
                return Ok(status);
            }
            let (changed, lost) = tokio::select! {
                biased;
                status = leaving.asked() => return Ok(status),
                gathered = watched.gather(AFTERMATH.max(self.debounce.0)) => gathered,
            };
            let mut next = trigger.handle_run(&changed, lost);
            if next == Next::Stop {
                complain("each run changes other files; waiting for a change after this one");
            }
            while next != Next::Run {
                let first = tokio::select! {
                    biased;
                    status = leaving.asked() => return Ok(status),
                    first = telling(&place.client, watched.next()) => first,
                };
                let Some(first) = first else {
                    // Somebody removed what was watched, or the session is gone: it is watched anew.
                    watched = tokio::select! {
                        biased;
                        status = leaving.asked() => return Ok(status),
                        watched = Watched::begin(&*files, &roots) => watched?,
                    };
                    next = trigger.handle_idle(&[], Lost::Some);
                    continue;
                };
                watched.take(first);
                let (changed, lost) = tokio::select! {
                    biased;
                    status = leaving.asked() => return Ok(status),
                    gathered = watched.gather(self.debounce.0) => gathered,
                };
                next = trigger.handle_idle(&changed, lost);
            }
        }
    }

    async fn roots(&self, place: &Place) -> Result<Vec<PathUri>, Failure> {
        if self.paths.is_empty() {
            return Ok(vec![self.surroundings.directory(place).await?]);
        }
        let mut roots = Vec::new();
        for path in &self.paths {
            roots.push(place.path(path).await?);
        }
        Ok(roots)
    }

    async fn run_once(&self, place: &Place) -> Result<Outcome, Failure> {
        if self.clear && Standard::Output.is_terminal() {
            say("\x1b[H\x1b[2J\x1b[3J")?;
        }
        let launch = Launch {
            place,
            surroundings: &self.surroundings,
            id: launch::new_id(),
            argv: self.command.clone(),
            terminal: Terminal::None,
            limit: None,
        };
        let outcome = launch::run_without_input(launch).await?;
        let failed = outcome.status != ExitCode::SUCCESS && !outcome.is_unread;
        if failed && Standard::Error.is_terminal() {
            complain("the command failed; waiting for changes");
        }
        Ok(outcome)
    }
}

/// Everything that is watched.
struct Watched {
    changes: SelectAll<BoxStream<'static, (usize, Changes)>>,
    ignored: Vec<Ignored>,
    gathered: Vec<Change>,
    lost: Lost,
}

impl Watched {
    async fn begin(files: &dyn ExecutorFileSystem, roots: &[PathUri]) -> Result<Self, Failure> {
        let (mut streams, mut ignored) = (Vec::new(), Vec::new());
        for (number, root) in roots.iter().enumerate() {
            let watch = WatchPath {
                path: root.clone(),
                depth: WatchDepth::Tree,
                sandbox: None,
            };
            let watcher = persist(|| files.watch(watch.clone())).await;
            let watcher = watcher.map_err(|error| {
                let failure = file_failure(&error);
                let what = format!("cannot watch `{}`: {}", shown(root), failure.what);
                Failure { what, ..failure }
            })?;
            ignored.push(Ignored::read(files, &watcher.path).await);
            let changes = watcher.changes;
            streams.push(changes.map(move |changes| (number, changes)).boxed());
        }
        Ok(Self {
            changes: select_all(streams),
            ignored,
            gathered: Vec::new(),
            lost: Lost::None,
        })
    }

    /// Waits for changes that count; `None` if a watch is over. Cancelling loses none.
    async fn next(&mut self) -> Option<(usize, Changes)> {
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

    fn take(&mut self, (_, changes): (usize, Changes)) {
        self.gathered.extend(changes.changes);
        if changes.overflow || self.gathered.len() > MAX_CHANGES {
            self.lost = Lost::Some;
            self.gathered.truncate(MAX_CHANGES);
        }
    }

    /// Gathers what changes until nothing does for this long, or for long enough.
    async fn gather(&mut self, pause: Duration) -> (Vec<Change>, Lost) {
        let until = Instant::now() + MAX_GATHERING.max(pause);
        while let Ok(Some(changes)) = timeout(pause, self.next()).await {
            self.take(changes);
            if Instant::now() >= until {
                break;
            }
        }
        let lost = std::mem::replace(&mut self.lost, Lost::None);
        (std::mem::take(&mut self.gathered), lost)
    }
}
