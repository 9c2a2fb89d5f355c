//! Footprint of a server: memory, size of its binary, and time to start.
//!
//! Memory is measured idle with one connection, with many idle processes, while a client does not
//! read, and while a large file is read by blocks. A server that already runs is measured as it is,
//! including its earlier work.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::bench_dir::{BenchDir, file_uri};
use crate::bench_plan::BenchPlan;
use crate::bench_target::{BenchTarget, ServerInstance};
use crate::contender::{Contender, interleave, p50};
use crate::measures::file_transfer::read_blocks;
use crate::process_usage::{ProcessUsage, private_memory, reset_peak};
use crate::report::{ReportCell, ReportRow, RowGoal, ValueUnit};
use crate::rpc_client::{PreparedStart, RpcClient, StdioMode};

/// Time that memory must stay stable, and longest wait for it.
const STABLE_TIME: Duration = Duration::from_millis(400);
const SETTLE_LIMIT: Duration = Duration::from_secs(3);

/// Memory of a server with one connection.
struct IdleMemory {
    /// Usage without processes.
    idle: ProcessUsage,
    /// Private memory without processes.
    idle_private: u64,
    /// Usage with the idle processes.
    many: ProcessUsage,
}

/// Measures idle memory.
pub(crate) fn measure_idle_memory(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let all: Vec<Result<IdleMemory>> = targets
        .iter()
        .map(|target| idle_memory(plan, target))
        .collect();
    let count = plan.idle_processes;
    let row = |id, title: &str, value: fn(&IdleMemory) -> u64| {
        let cells: Vec<_> = all
            .iter()
            .map(|memory| memory_cell(memory, value))
            .collect();
        ReportRow::new(id, title, ValueUnit::Bytes).cells(&cells)
    };
    let limit = RowGoal::AtMost(f64::from(8 << 20));
    let private_limit = RowGoal::AtMost(2.3 * f64::from(1 << 20));
    let many_title = format!("more with {count} idle processes");
    vec![
        row("idle", "idle memory, one connection", |memory| {
            memory.idle.rss()
        })
        .goal(limit),
        row("idle-server", "  server process", |memory| {
            memory.idle.server_rss
        }),
        row("idle-helper", "  helper processes", |memory| {
            memory.idle.helper_rss
        }),
        row("idle-private", "private memory, one connection", |memory| {
            memory.idle_private
        })
        .goal(private_limit),
        row("idle-many", &many_title, |memory| {
            memory.many.rss().saturating_sub(memory.idle.rss())
        })
        .goal(limit),
        row("idle-many-server", "  server process", |memory| {
            memory
                .many
                .server_rss
                .saturating_sub(memory.idle.server_rss)
        }),
        row("idle-many-helper", "  helper processes", |memory| {
            memory
                .many
                .helper_rss
                .saturating_sub(memory.idle.helper_rss)
        }),
    ]
}

fn memory_cell(memory: &Result<IdleMemory>, value: fn(&IdleMemory) -> u64) -> ReportCell {
    match memory {
        Ok(memory) => ReportCell::Value(value(memory) as f64),
        Err(error) => ReportCell::Failed(format!("{error:#}")),
    }
}

/// Returns the memory without processes and with the idle processes.
fn idle_memory(plan: &BenchPlan, target: &BenchTarget) -> Result<IdleMemory> {
    let instance = target.start_fresh()?;
    let pid = instance
        .pid()
        .context("server process not found on this machine")?;
    let mut client = instance.connect()?;
    let (idle, _) = ProcessUsage::sample_when_stable(pid, STABLE_TIME, SETTLE_LIMIT);
    let idle_private = private_memory(pid);
    let start = PreparedStart::new(&["sleep", "1000"], StdioMode::Pipes);
    let processes: Vec<u64> = (0..plan.idle_processes)
        .map(|_| client.queue_start(&start))
        .collect();
    client.flush()?;
    client.await_completion(plan.idle_processes, 0)?;
    // A response means that the child was forked. Until it executes the program, it looks like a
    // helper.
    let deadline = Instant::now() + SETTLE_LIMIT;
    let mut many = ProcessUsage::sample(pid);
    while many.workload < processes.len() && Instant::now() < deadline {
        (many, _) = ProcessUsage::sample_when_stable(pid, STABLE_TIME, SETTLE_LIMIT);
    }
    ensure!(
        many.workload >= processes.len(),
        "only {} processes are running",
        many.workload
    );
    (many, _) = ProcessUsage::sample_when_stable(pid, STABLE_TIME, SETTLE_LIMIT);
    if target.launch_config().is_none()
        && let Err(error) = terminate_all(&mut client, &processes)
    {
        eprintln!(
            "exec-bench: {} still runs `sleep 1000`: {error:#}",
            target.name()
        );
    }
    Ok(IdleMemory {
        idle,
        idle_private,
        many,
    })
}

/// Terminates the processes of a server that keeps running. A server started here kills them
/// itself.
///
/// Sends one request at a time: the stock server (0.166.0) stalls on hundreds of concurrent ones.
fn terminate_all(client: &mut RpcClient, processes: &[u64]) -> Result<()> {
    for &process in processes {
        client.queue_terminate(process);
        client.flush()?;
        client.await_completion(1, 1)?;
    }
    Ok(())
}

/// Time that memory must stay stable while a client does not read.
const STALLED_STABLE_TIME: Duration = Duration::from_secs(1);

/// Measures the growth of a server whose client does not read.
pub(crate) fn measure_stalled_client(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let cells: Vec<_> = targets
        .iter()
        .map(|target| match growth_with_stalled_client(plan, target) {
            Ok(growth) => ReportCell::Value(growth as f64),
            Err(error) => ReportCell::Failed(format!("{error:#}")),
        })
        .collect();
    let mib = plan.stalled_bytes >> 20;
    let title = format!("growth, client does not read {mib} MiB");
    let goal = RowGoal::AtMost(f64::from(4 << 20));
    vec![
        ReportRow::new("stalled", &title, ValueUnit::Bytes)
            .goal(goal)
            .cells(&cells),
    ]
}

/// Returns the peak growth of server and helpers together.
fn growth_with_stalled_client(plan: &BenchPlan, target: &BenchTarget) -> Result<u64> {
    let instance = target.start_fresh()?;
    let pid = instance
        .pid()
        .context("server process not found on this machine")?;
    let mut client = instance.connect()?;
    let (idle, _) = ProcessUsage::sample_when_stable(pid, STALLED_STABLE_TIME, plan.stalled_time);
    let program = std::env::current_exe()?;
    let program = program
        .to_str()
        .context("the path of this binary is not UTF-8")?;
    let argv = [program, "emit", &plan.stalled_bytes.to_string()];
    let process = client.queue_start(&PreparedStart::new(&argv, StdioMode::Pipes));
    client.flush()?;
    let (last, mut peak) =
        ProcessUsage::sample_when_stable(pid, STALLED_STABLE_TIME, plan.stalled_time);
    if last.server_peak > idle.server_peak {
        // Only the kernel's record shows a peak between two samples.
        peak = peak.max(last.server_peak + last.helper_rss);
    }
    client.queue_terminate(process);
    client.flush()?;
    client.await_completion(2, 1)?;
    Ok(peak.saturating_sub(idle.rss()))
}

/// Measures the growth of a server while a large file is read.
pub(crate) fn measure_block_read_growth(
    plan: &BenchPlan,
    targets: &[BenchTarget],
) -> Vec<ReportRow> {
    let bytes = plan.files.peak_bytes;
    let cells = BenchDir::new().and_then(|dir| {
        let path = file_uri(&dir.file("large", bytes)?);
        let growths = targets
            .iter()
            .map(|target| growth_while_reading(target, &path, bytes));
        Ok(growths
            .map(|growth| match growth {
                Ok(growth) => ReportCell::Value(growth as f64),
                Err(error) => ReportCell::from_error(&error),
            })
            .collect())
    });
    let cells = cells.unwrap_or_else(|error| vec![ReportCell::from_error(&error); targets.len()]);
    let title = format!("growth, {} MiB read by blocks", bytes >> 20);
    vec![
        ReportRow::new("fs-peak", &title, ValueUnit::Bytes)
            .goal(RowGoal::AtMost(f64::from(8 << 20)))
            .cells(&cells),
    ]
}

/// Returns the peak growth of server and helpers together.
fn growth_while_reading(target: &BenchTarget, path: &str, bytes: u64) -> Result<u64> {
    let instance = target.start_fresh()?;
    let pid = instance
        .pid()
        .context("server process not found on this machine")?;
    let mut client = instance.connect()?;
    let (idle, _) = ProcessUsage::sample_when_stable(pid, STABLE_TIME, SETTLE_LIMIT);
    reset_peak(pid);
    read_blocks(&mut client, path, bytes)?;
    let after = ProcessUsage::sample(pid);
    Ok((after.server_peak + after.helper_rss).saturating_sub(idle.rss()))
}

/// Measures the size of the binary and the time to start.
pub(crate) fn measure_startup(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let mut contenders: Vec<Contender<'_, f64>> = targets
        .iter()
        .map(|target| startup_contender(plan, target))
        .collect();
    interleave(plan.blocks, &mut contenders);
    let starts: Vec<_> = contenders
        .iter()
        .map(|contender| contender.cell(p50))
        .collect();
    let sizes: Vec<_> = targets.iter().map(binary_size).collect();
    vec![
        ReportRow::new("binary", "release binary", ValueUnit::Bytes)
            .goal(RowGoal::AtMost(f64::from(15 << 20)))
            .cells(&sizes),
        ReportRow::new("startup", "start to first line, p50", ValueUnit::Seconds)
            .goal(RowGoal::AtMost(0.015))
            .cells(&starts),
    ]
}

fn startup_contender<'a>(plan: &'a BenchPlan, target: &'a BenchTarget) -> Contender<'a, f64> {
    let Some(launch) = target.launch_config() else {
        return Contender::skipped("not started here");
    };
    Contender::new(move |samples| {
        for _ in plan.startups.iterations() {
            samples.extend(
                ServerInstance::launch(launch)?
                    .startup_time()
                    .map(|startup_time| startup_time.as_secs_f64()),
            );
        }
        Ok(())
    })
}

fn binary_size(target: &BenchTarget) -> ReportCell {
    let metadata = target
        .binary_path()
        .and_then(|path| fs::metadata(path).ok());
    metadata.map_or_else(
        || ReportCell::Skipped("its binary cannot be found on this machine".to_owned()),
        |metadata| ReportCell::Value(metadata.len() as f64),
    )
}
