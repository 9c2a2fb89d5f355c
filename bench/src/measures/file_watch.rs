//! Watches: latency of a change, and lost changes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::bench_dir::{BenchDir, file_uri};
use crate::bench_plan::BenchPlan;
use crate::bench_target::BenchTarget;
use crate::contender::p50;
use crate::report::{ReportCell, ReportRow, RowGoal, ValueUnit};
use crate::rpc_client::{PreparedRequest, RpcClient};

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
pub(crate) fn measure_watch(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let delays: Vec<ReportCell> = targets
        .iter()
        .map(|target| match report_delay(plan, target) {
            Ok(delay) => ReportCell::Value(delay),
            Err(error) => ReportCell::from_error(&error),
        })
        .collect();
    let bursts: Vec<Result<BurstResult>> = targets
        .iter()
        .map(|target| run_burst(plan, target))
        .collect();
    let row = |id, title: &str, unit, value: fn(&BurstResult) -> f64| {
        let cells: Vec<_> = bursts
            .iter()
            .map(|burst| match burst {
                Ok(burst) => ReportCell::Value(value(burst)),
                Err(error) => ReportCell::from_error(error),
            })
            .collect();
        ReportRow::new(id, title, unit).cells(&cells)
    };
    let lost = format!("{} created at once, lost silently", plan.files.burst);
    vec![
        ReportRow::new("fs-watch", "change → fs/changed, p50", ValueUnit::Seconds)
            .goal(RowGoal::AtMost(0.060))
            .cells(&delays),
        row("fs-watch-lost", &lost, ValueUnit::Count, |burst| {
            burst.lost() as f64
        })
        .goal(RowGoal::AtMost(0.0)),
        row(
            "fs-watch-told",
            "  reported by name",
            ValueUnit::Count,
            |burst| burst.reported as f64,
        ),
        row(
            "fs-watch-late",
            "  last created → last reported",
            ValueUnit::Seconds,
            |burst| burst.delay.as_secs_f64(),
        ),
    ]
}

/// Returns the median time from a change until it is reported.
fn report_delay(plan: &BenchPlan, target: &BenchTarget) -> Result<f64> {
    let dir = BenchDir::new()?;
    // Change each file only once, so that a late report is not mistaken for the next one.
    let files: Vec<_> = (0..plan.files.changes)
        .map(|index| dir.file(&format!("file-{index}"), 16))
        .collect::<Result<_>>()?;
    let mut client = watch_directory(target, dir.path())?;
    let mut samples = Vec::new();
    for path in files {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.context("file name is not UTF-8")?;
        wait_until_quiet(&mut client)?;
        let started_at = Instant::now();
        fs::write(&path, "changed")?;
        loop {
            let remaining = RESPONSE_TIMEOUT.saturating_sub(started_at.elapsed());
            let message = client
                .message_within(remaining)?
                .context("change was not reported")?;
            let elapsed = started_at.elapsed();
            if ChangeReport::parse(message)?.names.contains(name) {
                samples.push(elapsed.as_secs_f64());
                break;
            }
        }
    }
    p50(&samples).context("no changes")
}

/// Waits until nothing has been reported for a while.
fn wait_until_quiet(client: &mut RpcClient) -> Result<()> {
    let deadline = Instant::now() + RESPONSE_TIMEOUT;
    while client.message_within(PAUSE)?.is_some() {
        ensure!(Instant::now() < deadline, "server keeps reporting changes");
    }
    Ok(())
}

/// Result of a burst of changes.
#[derive(Debug)]
struct BurstResult {
    created: usize,
    reported: usize,
    overflow: bool,
    /// Time from the last change to the last report.
    delay: Duration,
}

impl BurstResult {
    /// Returns the number of lost changes. After an overflow the client knows that it must rescan.
    const fn lost(&self) -> usize {
        if self.overflow {
            0
        } else {
            self.created - self.reported
        }
    }
}

/// Creates many files and reads the reports meanwhile and afterwards.
fn run_burst(plan: &BenchPlan, target: &BenchTarget) -> Result<BurstResult> {
    let dir = BenchDir::new()?;
    let directories: Vec<_> = (0..DIRECTORIES)
        .map(|index| dir.directory(&format!("directory-{index}")))
        .collect::<Result<_>>()?;
    let created = plan.files.burst;
    let mut client = watch_directory(target, dir.path())?;
    thread::scope(|scope| {
        let creator = scope.spawn(move || -> Result<Instant> {
            for index in 0..created {
                File::create_new(directories[index % DIRECTORIES].join(format!("file-{index}")))?;
            }
            Ok(Instant::now())
        });
        let mut reported = BTreeSet::new();
        let (mut overflow, mut last) = (false, Instant::now());
        let deadline = last + LIMIT;
        while reported.len() < created && Instant::now() < deadline {
            // A server that stays quiet after the last file was created has lost changes.
            let Some(message) = client.message_within(SILENCE)? else {
                if creator.is_finished() {
                    break;
                }
                continue;
            };
            last = Instant::now();
            let changed = ChangeReport::parse(message)?;
            overflow |= changed.overflow;
            let files = changed.names.into_iter();
            reported.extend(files.filter(|name| name.starts_with("file-")));
        }
        let end = creator
            .join()
            .ok()
            .context("the thread that creates files panicked")??;
        ensure!(
            reported.len() <= created,
            "more files reported than created"
        );
        Ok(BurstResult {
            created,
            reported: reported.len(),
            overflow,
            delay: last.saturating_duration_since(end),
        })
    })
}

fn watch_directory(target: &BenchTarget, path: &Path) -> Result<RpcClient> {
    let mut client = target.shared_instance().connect()?;
    let params = json!({"watchId": "bench", "path": file_uri(path), "recursive": true});
    client.call(&PreparedRequest::new("fs/watch", &params))?;
    Ok(client)
}

/// A `fs/changed` notification.
#[derive(Debug)]
struct ChangeReport {
    /// The last segments of the paths.
    names: BTreeSet<String>,
    overflow: bool,
}

impl ChangeReport {
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
        let changed = ChangeReport::parse(message.to_string().as_bytes()).unwrap();
        assert_eq!(changed.names, BTreeSet::from(["b".to_owned()]));
        assert!(changed.overflow);
        let other = br#"{"method":"process/exited","params":{}}"#;
        assert!(ChangeReport::parse(other).unwrap().names.is_empty());
    }

    #[test]
    fn reported_overflow_counts_as_no_loss() {
        let burst = |overflow| BurstResult {
            created: 10,
            reported: 7,
            overflow,
            delay: Duration::ZERO,
        };
        assert_eq!(burst(true).lost(), 0);
        assert_eq!(burst(false).lost(), 3);
    }
}
