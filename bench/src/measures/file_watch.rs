//! Watches: latency of a change, and lost changes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::bench_dir::{Scratch, file_uri};
use crate::bench_plan::Plan;
use crate::bench_target::Target;
use crate::contender::p50;
use crate::report::{Cell, Reach, Row, Unit};
use crate::rpc_client::{Client, Request};

/// Pause before each change, so that changes are not reported together.
const PAUSE: Duration = Duration::from_millis(50);

/// Timeout for a change to be reported.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Quiet time after which unreported changes count as lost.
const SILENCE: Duration = Duration::from_secs(1);

/// Timeout for a burst to be reported.
const LIMIT: Duration = Duration::from_secs(20);

/// Directories that the files of a burst are spread over.
const DIRECTORIES: usize = 10;

/// Measures watches.
pub(crate) fn measure_watch(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let delays: Vec<Cell> = targets
        .iter()
        .map(|target| match report_delay(plan, target) {
            Ok(delay) => Cell::Value(delay),
            Err(error) => Cell::without(&error),
        })
        .collect();
    let bursts: Vec<Result<Burst>> = targets
        .iter()
        .map(|target| run_burst(plan, target))
        .collect();
    let row = |id, title: &str, unit, of: fn(&Burst) -> f64| {
        let cells: Vec<_> = bursts
            .iter()
            .map(|burst| match burst {
                Ok(burst) => Cell::Value(of(burst)),
                Err(error) => Cell::without(error),
            })
            .collect();
        Row::new(id, title, unit).cells(&cells)
    };
    let lost = format!("{} created at once, lost silently", plan.files.burst);
    vec![
        Row::new("fs-watch", "change → fs/changed, p50", Unit::Seconds)
            .reach(Reach::AtMost(0.060))
            .cells(&delays),
        row("fs-watch-lost", &lost, Unit::Count, |burst| {
            burst.lost() as f64
        })
        .reach(Reach::AtMost(0.0)),
        row(
            "fs-watch-told",
            "  reported by name",
            Unit::Count,
            |burst| burst.told as f64,
        ),
        row(
            "fs-watch-late",
            "  last created → last reported",
            Unit::Seconds,
            |burst| burst.late.as_secs_f64(),
        ),
    ]
}

/// Returns the median time from a change until it is reported.
fn report_delay(plan: &Plan, target: &Target) -> Result<f64> {
    let scratch = Scratch::new()?;
    // Each file is changed once, so that a late report is not taken for the next one.
    let files: Vec<_> = (0..plan.files.changes)
        .map(|at| scratch.file(&format!("file-{at}"), 16))
        .collect::<Result<_>>()?;
    let mut client = watch_directory(target, scratch.path())?;
    let mut samples = Vec::new();
    for path in files {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.context("a name that is not UTF-8")?;
        wait_until_quiet(&mut client)?;
        let began = Instant::now();
        fs::write(&path, "changed")?;
        loop {
            let left = RESPONSE_TIMEOUT.saturating_sub(began.elapsed());
            let message = client
                .message_within(left)?
                .context("change was not reported")?;
            let took = began.elapsed();
            if Changed::parse(message)?.names.contains(name) {
                samples.push(took.as_secs_f64());
                break;
            }
        }
    }
    p50(&samples).context("no changes")
}

/// Waits until nothing has been reported for a while.
fn wait_until_quiet(client: &mut Client) -> Result<()> {
    let deadline = Instant::now() + RESPONSE_TIMEOUT;
    while client.message_within(PAUSE)?.is_some() {
        ensure!(Instant::now() < deadline, "server keeps reporting changes");
    }
    Ok(())
}

/// Result of a burst of changes.
#[derive(Debug)]
struct Burst {
    made: usize,
    told: usize,
    overflow: bool,
    /// Time from the last change to the last report.
    late: Duration,
}

impl Burst {
    /// Returns the number of lost changes. After an overflow the client knows that it must rescan.
    const fn lost(&self) -> usize {
        if self.overflow {
            0
        } else {
            self.made - self.told
        }
    }
}

/// Creates many files and reads the reports during and after that.
fn run_burst(plan: &Plan, target: &Target) -> Result<Burst> {
    let scratch = Scratch::new()?;
    let directories: Vec<_> = (0..DIRECTORIES)
        .map(|at| scratch.directory(&format!("directory-{at}")))
        .collect::<Result<_>>()?;
    let made = plan.files.burst;
    let mut client = watch_directory(target, scratch.path())?;
    thread::scope(|scope| {
        let maker = scope.spawn(move || -> Result<Instant> {
            for at in 0..made {
                File::create_new(directories[at % DIRECTORIES].join(format!("file-{at}")))?;
            }
            Ok(Instant::now())
        });
        let mut told = BTreeSet::new();
        let (mut overflow, mut last) = (false, Instant::now());
        let deadline = last + LIMIT;
        while told.len() < made && Instant::now() < deadline {
            // Also while files are created: a server that is quiet for long has lost changes.
            let Some(message) = client.message_within(SILENCE)? else {
                if maker.is_finished() {
                    break;
                }
                continue;
            };
            last = Instant::now();
            let changed = Changed::parse(message)?;
            overflow |= changed.overflow;
            let files = changed.names.into_iter();
            told.extend(files.filter(|name| name.starts_with("file-")));
        }
        let end = maker.join().ok().context("the maker of files panicked")??;
        ensure!(told.len() <= made, "files were told that were not made");
        Ok(Burst {
            made,
            told: told.len(),
            overflow,
            late: last.saturating_duration_since(end),
        })
    })
}

fn watch_directory(target: &Target, path: &Path) -> Result<Client> {
    let mut client = target.shared().connect()?;
    let params = json!({"watchId": "bench", "path": file_uri(path), "recursive": true});
    client.call(&Request::new("fs/watch", &params))?;
    Ok(client)
}

/// A `fs/changed` notification.
#[derive(Debug)]
struct Changed {
    /// The last segments of the paths.
    names: BTreeSet<String>,
    overflow: bool,
}

impl Changed {
    /// Parses a message; other messages contain no changes.
    fn parse(message: &[u8]) -> Result<Self> {
        let message: Value = serde_json::from_slice(message)?;
        let changes = match message["method"].as_str() {
            Some("fs/changed") => message["params"]["changes"].as_array(),
            Some(_) | None => None,
        };
        let paths = changes.into_iter().flatten();
        Ok(Self {
            names: paths
                .filter_map(|change| change["path"].as_str()?.rsplit('/').next())
                .map(str::to_owned)
                .collect(),
            overflow: message["params"]["overflow"] == true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_identified_by_their_last_path_segment() {
        let message = json!({"method": "fs/changed", "params": {
            "watchId": "bench",
            "changes": [{"path": "file:///a/b", "kind": "created"}],
            "overflow": true,
        }});
        let changed = Changed::parse(message.to_string().as_bytes()).unwrap();
        assert_eq!(changed.names, BTreeSet::from(["b".to_owned()]));
        assert!(changed.overflow);
        let other = br#"{"method":"process/exited","params":{}}"#;
        assert!(Changed::parse(other).unwrap().names.is_empty());
    }

    #[test]
    fn reported_overflow_counts_as_no_loss() {
        let burst = |overflow| Burst {
            made: 10,
            told: 7,
            overflow,
            late: Duration::ZERO,
        };
        assert_eq!(burst(true).lost(), 0);
        assert_eq!(burst(false).lost(), 3);
    }
}
