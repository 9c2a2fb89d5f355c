//! Resident memory of an idle server with one connection, and with many idle processes.
//! A server that runs already is measured as it is, with whatever it did before.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::plan::Plan;
use crate::proc_stat::Usage;
use crate::report::{Cell, Reach, Row, Unit};
use crate::rpc::{Client, Start, Stdio};
use crate::target::Target;

/// How long memory must stay level, and for how long that is awaited.
const CALM: Duration = Duration::from_millis(400);
const LIMIT: Duration = Duration::from_secs(3);

/// Measures idle memory.
pub(crate) fn run(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let all: Vec<Result<(Usage, Usage)>> =
        targets.iter().map(|target| measure(plan, target)).collect();
    let count = plan.idle_processes;
    let row = |id, title: &str, of: fn(&Usage, &Usage) -> u64| {
        let cells: Vec<_> = all.iter().map(|usages| cell(usages, of)).collect();
        Row::new(id, title, Unit::Bytes).cells(&cells)
    };
    let limit = Reach::AtMost(f64::from(8 << 20));
    let more = format!("more with {count} idle processes");
    vec![
        row("idle", "idle memory, one connection", |idle, _| idle.rss()).reach(limit),
        row("idle-server", "  server process", |idle, _| idle.server_rss),
        row("idle-helper", "  helper processes", |idle, _| {
            idle.helper_rss
        }),
        row("idle-many", &more, |idle, many| {
            many.rss().saturating_sub(idle.rss())
        })
        .reach(limit),
        row("idle-many-server", "  server process", |idle, many| {
            many.server_rss.saturating_sub(idle.server_rss)
        }),
        row("idle-many-helper", "  helper processes", |idle, many| {
            many.helper_rss.saturating_sub(idle.helper_rss)
        }),
    ]
}

fn cell(usages: &Result<(Usage, Usage)>, of: fn(&Usage, &Usage) -> u64) -> Cell {
    match usages {
        Ok((idle, many)) => Cell::Value(of(idle, many) as f64),
        Err(error) => Cell::Failed(format!("{error:#}")),
    }
}

/// Returns the usage when idle and with the idle processes.
fn measure(plan: &Plan, target: &Target) -> Result<(Usage, Usage)> {
    let instance = target.fresh()?;
    let pid = instance
        .pid()
        .context("server process not found on this machine")?;
    let mut client = instance.connect()?;
    let (idle, _) = Usage::settle(pid, CALM, LIMIT);
    let start = Start::new(&["sleep", "1000"], Stdio::Pipes);
    let processes: Vec<u64> = (0..plan.idle_processes)
        .map(|_| client.queue_start(&start))
        .collect();
    client.flush()?;
    client.settle(plan.idle_processes, 0)?;
    // Answered is forked; until it has executed, a child looks like a helper.
    let deadline = Instant::now() + LIMIT;
    let mut many = Usage::sample(pid);
    while many.workload < processes.len() && Instant::now() < deadline {
        (many, _) = Usage::settle(pid, CALM, LIMIT);
    }
    ensure!(
        many.workload >= processes.len(),
        "only {} processes are there",
        many.workload
    );
    (many, _) = Usage::settle(pid, CALM, LIMIT);
    if target.recipe().is_none()
        && let Err(error) = end(&mut client, &processes)
    {
        eprintln!(
            "exec-bench: {} still runs `sleep 1000`: {error:#}",
            target.name()
        );
    }
    Ok((idle, many))
}

/// Terminates the processes of a server that keeps running; a server started here kills them
/// itself.
///
/// One by one: the stock server (0.166.0) stalls when it gets hundreds of these requests
/// concurrently.
fn end(client: &mut Client, processes: &[u64]) -> Result<()> {
    for &process in processes {
        client.queue_terminate(process);
        client.flush()?;
        client.settle(1, 1)?;
    }
    Ok(())
}
