//! Footprint of a server: memory, size of its binary, and time to start.
//!
//! Memory is measured idle with one connection, with many idle processes, while a client does not
//! read, and while a large file is read by blocks. A server that already runs is measured as it is,
//! including its earlier work.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::bench_dir::{Scratch, file_uri};
use crate::bench_plan::Plan;
use crate::bench_target::{Instance, Target};
use crate::contender::{Lane, interleave, p50};
use crate::measures::file_transfer::read_blocks;
use crate::process_usage::{Usage, reset_peak};
use crate::report::{Cell, Reach, Row, Unit};
use crate::rpc_client::{Client, Start, Stdio};

/// How long memory must stay level, and for how long that is awaited.
const CALM: Duration = Duration::from_millis(400);
const SETTLE_LIMIT: Duration = Duration::from_secs(3);

/// Measures idle memory.
pub(crate) fn measure_idle_memory(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let all: Vec<Result<(Usage, Usage)>> = targets
        .iter()
        .map(|target| idle_memory(plan, target))
        .collect();
    let count = plan.idle_processes;
    let row = |id, title: &str, of: fn(&Usage, &Usage) -> u64| {
        let cells: Vec<_> = all.iter().map(|usages| usage_cell(usages, of)).collect();
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

fn usage_cell(usages: &Result<(Usage, Usage)>, of: fn(&Usage, &Usage) -> u64) -> Cell {
    match usages {
        Ok((idle, many)) => Cell::Value(of(idle, many) as f64),
        Err(error) => Cell::Failed(format!("{error:#}")),
    }
}

/// Returns the usage when idle and with the idle processes.
fn idle_memory(plan: &Plan, target: &Target) -> Result<(Usage, Usage)> {
    let instance = target.fresh()?;
    let pid = instance
        .pid()
        .context("server process not found on this machine")?;
    let mut client = instance.connect()?;
    let (idle, _) = Usage::settle(pid, CALM, SETTLE_LIMIT);
    let start = Start::new(&["sleep", "1000"], Stdio::Pipes);
    let processes: Vec<u64> = (0..plan.idle_processes)
        .map(|_| client.queue_start(&start))
        .collect();
    client.flush()?;
    client.settle(plan.idle_processes, 0)?;
    // Answered is forked; until it has executed, a child looks like a helper.
    let deadline = Instant::now() + SETTLE_LIMIT;
    let mut many = Usage::sample(pid);
    while many.workload < processes.len() && Instant::now() < deadline {
        (many, _) = Usage::settle(pid, CALM, SETTLE_LIMIT);
    }
    ensure!(
        many.workload >= processes.len(),
        "only {} processes are there",
        many.workload
    );
    (many, _) = Usage::settle(pid, CALM, SETTLE_LIMIT);
    if target.recipe().is_none()
        && let Err(error) = terminate_all(&mut client, &processes)
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
fn terminate_all(client: &mut Client, processes: &[u64]) -> Result<()> {
    for &process in processes {
        client.queue_terminate(process);
        client.flush()?;
        client.settle(1, 1)?;
    }
    Ok(())
}

/// How long memory must stay level.
const STALLED_CALM: Duration = Duration::from_secs(1);

/// Measures the growth of a server whose client does not read.
pub(crate) fn measure_stalled_client(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let cells: Vec<_> = targets
        .iter()
        .map(|target| match growth_with_stalled_client(plan, target) {
            Ok(growth) => Cell::Value(growth as f64),
            Err(error) => Cell::Failed(format!("{error:#}")),
        })
        .collect();
    let mib = plan.stalled_bytes >> 20;
    let title = format!("growth, client does not read {mib} MiB");
    let reach = Reach::AtMost(f64::from(4 << 20));
    vec![
        Row::new("stalled", &title, Unit::Bytes)
            .reach(reach)
            .cells(&cells),
    ]
}

/// Returns the highest growth of server and helpers together.
fn growth_with_stalled_client(plan: &Plan, target: &Target) -> Result<u64> {
    let instance = target.fresh()?;
    let pid = instance
        .pid()
        .context("server process not found on this machine")?;
    let mut client = instance.connect()?;
    let (idle, _) = Usage::settle(pid, STALLED_CALM, plan.stalled_time);
    let program = std::env::current_exe()?;
    let program = program
        .to_str()
        .context("the path of this binary is not UTF-8")?;
    let argv = [program, "emit", &plan.stalled_bytes.to_string()];
    let process = client.queue_start(&Start::new(&argv, Stdio::Pipes));
    client.flush()?;
    let (last, mut highest) = Usage::settle(pid, STALLED_CALM, plan.stalled_time);
    if last.server_peak > idle.server_peak {
        // A peak between two samples shows only in what the kernel keeps.
        highest = highest.max(last.server_peak + last.helper_rss);
    }
    client.queue_terminate(process);
    client.flush()?;
    client.settle(2, 1)?;
    Ok(highest.saturating_sub(idle.rss()))
}

/// Measures the growth of a server while a large file is read.
pub(crate) fn measure_block_read_growth(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let bytes = plan.files.peak_bytes;
    let cells = Scratch::new().and_then(|scratch| {
        let path = file_uri(&scratch.file("large", bytes)?);
        let growths = targets
            .iter()
            .map(|target| growth_while_reading(target, &path, bytes));
        Ok(growths
            .map(|growth| match growth {
                Ok(growth) => Cell::Value(growth as f64),
                Err(error) => Cell::without(&error),
            })
            .collect())
    });
    let cells = cells.unwrap_or_else(|error| vec![Cell::without(&error); targets.len()]);
    let title = format!("growth, {} MiB read by blocks", bytes >> 20);
    vec![
        Row::new("fs-peak", &title, Unit::Bytes)
            .reach(Reach::AtMost(f64::from(8 << 20)))
            .cells(&cells),
    ]
}

/// Returns the highest growth of server and helpers together.
fn growth_while_reading(target: &Target, path: &str, bytes: u64) -> Result<u64> {
    let instance = target.fresh()?;
    let pid = instance
        .pid()
        .context("server process not found on this machine")?;
    let mut client = instance.connect()?;
    let (idle, _) = Usage::settle(pid, CALM, SETTLE_LIMIT);
    reset_peak(pid);
    read_blocks(&mut client, path, bytes)?;
    let after = Usage::sample(pid);
    Ok((after.server_peak + after.helper_rss).saturating_sub(idle.rss()))
}

/// Measures size and start.
pub(crate) fn measure_startup(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let mut lanes: Vec<Lane<'_, f64>> = targets
        .iter()
        .map(|target| startup_contender(plan, target))
        .collect();
    interleave(plan.blocks, &mut lanes);
    let starts: Vec<_> = lanes.iter().map(|lane| lane.cell(p50)).collect();
    let sizes: Vec<_> = targets.iter().map(binary_size).collect();
    vec![
        Row::new("binary", "release binary", Unit::Bytes)
            .reach(Reach::AtMost(f64::from(15 << 20)))
            .cells(&sizes),
        Row::new("startup", "start to first line, p50", Unit::Seconds)
            .reach(Reach::AtMost(0.015))
            .cells(&starts),
    ]
}

fn startup_contender<'a>(plan: &'a Plan, target: &'a Target) -> Lane<'a, f64> {
    let Some(launch) = target.recipe() else {
        return Lane::skipped("not started here");
    };
    Lane::new(move |samples| {
        for _ in plan.startups.laps() {
            samples.extend(
                Instance::launch(launch)?
                    .took()
                    .map(|took| took.as_secs_f64()),
            );
        }
        Ok(())
    })
}

fn binary_size(target: &Target) -> Cell {
    let metadata = target.binary().and_then(|path| fs::metadata(path).ok());
    metadata.map_or_else(
        || Cell::Skipped("its binary cannot be found on this machine".to_owned()),
        |metadata| Cell::Value(metadata.len() as f64),
    )
}
