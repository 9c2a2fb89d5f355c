//! Starting processes that do nothing: latency one at a time, and rate with many in flight.
//!
//! The floors spawn and wait directly, with nothing but the standard library.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{WaitOptions, wait};

use crate::bench_plan::{BenchPlan, SampleBudget};
use crate::bench_target::BenchTarget;
use crate::contender::{Contender, interleave, p50};
use crate::report::{ReportRow, RowGoal, ValueUnit};
use crate::rpc_client::{PreparedStart, RpcClient, StdioMode};
use crate::rpc_message::ServerEvent;

/// Unmeasured runs of each contender, so that caches and pools are warm.
const WARM_UP: usize = 10;

/// Measures spawn latency on pipes and on a pty.
pub(crate) fn measure_latency(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let floor = |output| latency_contender(plan, move || spawn_and_wait(output));
    let mut contenders = vec![floor(ChildOutput::Piped), floor(ChildOutput::Null)];
    for stdio in [StdioMode::Pipes, StdioMode::Pty] {
        contenders.extend(
            targets
                .iter()
                .map(|target| Contender::from_result(start_contender(plan, target, stdio))),
        );
    }
    interleave(plan.blocks, &mut contenders);

    let cells: Vec<_> = contenders
        .iter()
        .map(|contender| contender.cell(p50))
        .collect();
    let (floors, cells) = cells.split_at(2);
    let (pipes, pty) = cells.split_at(targets.len());
    let piped = &floors[0];
    vec![
        ReportRow::new(
            "spawn-pipes",
            "start → closed, pipes, p50",
            ValueUnit::Seconds,
        )
        .floor(piped)
        .goal(RowGoal::RatioAtMost(1.35))
        .cells(pipes),
        ReportRow::new("spawn-pty", "start → closed, pty, p50", ValueUnit::Seconds)
            .floor(piped)
            .goal(RowGoal::RatioAtMost(1.8))
            .cells(pty),
        ReportRow::new(
            "spawn-plain",
            "(floor: spawn + wait, all on /dev/null)",
            ValueUnit::Seconds,
        )
        .floor(&floors[1]),
    ]
}

fn start_contender<'a>(
    plan: &'a BenchPlan,
    target: &BenchTarget,
    stdio: StdioMode,
) -> Result<Contender<'a, f64>> {
    let mut client = target.shared_instance().connect()?;
    let start = PreparedStart::new(&[PROGRAM], stdio);
    for _ in 0..WARM_UP {
        client.run_to_close(&start)?;
    }
    Ok(latency_contender(plan, move || client.run_to_close(&start)))
}

fn latency_contender<'a>(
    plan: &'a BenchPlan,
    mut operation: impl FnMut() -> Result<Duration> + 'a,
) -> Contender<'a, f64> {
    Contender::new(move |samples| {
        for _ in plan.spawns.iterations() {
            samples.push(operation()?.as_secs_f64());
        }
        Ok(())
    })
}

/// Processes in flight.
const WIDTH: usize = 32;

/// Measures process throughput.
pub(crate) fn measure_rate(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let budget = plan.in_flight;
    let floor = |output| {
        Contender::new(move |samples: &mut Vec<f64>| {
            samples.push(spawn_rate(output, WIDTH, budget)?);
            Ok(())
        })
    };
    let mut contenders = vec![floor(ChildOutput::Piped), floor(ChildOutput::Null)];
    for target in targets {
        contenders.push(Contender::from_result(
            target.shared_instance().connect().map(|mut client| {
                Contender::new(move |samples| {
                    samples.push(run_block(&mut client, budget)?);
                    Ok(())
                })
            }),
        ));
    }
    interleave(plan.rate_blocks, &mut contenders);

    let cells: Vec<_> = contenders
        .iter()
        .map(|contender| contender.cell(p50))
        .collect();
    vec![
        ReportRow::new("in-flight", "32 in flight, pipes", ValueUnit::PerSecond)
            .floor(&cells[0])
            .goal(RowGoal::RatioAtLeast(0.7))
            .cells(&cells[2..]),
        ReportRow::new(
            "in-flight-plain",
            "(floor: bare loop, all on /dev/null)",
            ValueUnit::PerSecond,
        )
        .floor(&cells[1]),
    ]
}

/// Runs one block and returns the processes per second. Waits for all responses and exits.
fn run_block(client: &mut RpcClient, budget: SampleBudget) -> Result<f64> {
    let start = PreparedStart::new(&[PROGRAM], StdioMode::Pipes);
    let mut iterations = budget.iterations();
    let (mut closed, mut responses, mut started) = (0_u32, 0_u64, 0_u64);
    let started_at = Instant::now();
    for _ in 0..WIDTH {
        client.queue_start(&start);
        started += 1;
    }
    client.flush()?;
    let rate = loop {
        let mut event = Some(client.next_event()?);
        let mut is_finished = false;
        // Handle all events that have arrived, then start the replacements with one write.
        while let Some(current) = event {
            match current {
                ServerEvent::Closed => {
                    closed += 1;
                    is_finished |= iterations.next().is_none();
                    client.queue_start(&start);
                    started += 1;
                }
                ServerEvent::Response => responses += 1,
                ServerEvent::Output(_) | ServerEvent::Other => {}
            }
            event = client.buffered_event()?;
        }
        client.flush()?;
        if is_finished {
            break f64::from(closed) / started_at.elapsed().as_secs_f64();
        }
    };
    client.await_completion(started - responses, started - u64::from(closed))?;
    Ok(rate)
}

/// Program that every spawn measure runs.
pub(crate) const PROGRAM: &str = "/bin/true";

/// Output target of a floor's children.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChildOutput {
    /// Pipes, like a server's.
    Piped,
    /// `/dev/null`, the cheapest.
    Null,
}

/// Spawns one process and waits for it.
pub(crate) fn spawn_and_wait(output: ChildOutput) -> Result<Duration> {
    let started_at = Instant::now();
    let status = spawn_child(output)?.wait()?;
    let elapsed = started_at.elapsed();
    ensure!(status.success(), "{PROGRAM} failed");
    Ok(elapsed)
}

/// Keeps `width` processes running within `budget`, and returns the exits per second.
pub(crate) fn spawn_rate(output: ChildOutput, width: usize, budget: SampleBudget) -> Result<f64> {
    let mut running = BTreeMap::new();
    let started_at = Instant::now();
    for _ in 0..width {
        insert_child(&mut running, spawn_child(output)?);
    }
    let mut ended = 0_u32;
    for _ in budget.iterations() {
        reap_child(&mut running)?;
        ended += 1;
        insert_child(&mut running, spawn_child(output)?);
    }
    let rate = f64::from(ended) / started_at.elapsed().as_secs_f64();
    while !running.is_empty() {
        reap_child(&mut running)?;
    }
    Ok(rate)
}

fn insert_child(running: &mut BTreeMap<u32, Child>, child: Child) {
    running.insert(child.id(), child);
}

/// Waits for any child. Only children of this loop may exit meanwhile; the exit of a server is an
/// error.
fn reap_child(running: &mut BTreeMap<u32, Child>) -> Result<()> {
    let (pid, status) = wait(WaitOptions::empty())?.context("nothing to wait for")?;
    ensure!(status.exit_status() == Some(0), "process {pid} failed");
    let pid = u32::try_from(pid.as_raw_nonzero().get())?;
    running
        .remove(&pid)
        .with_context(|| format!("process {pid} ended unexpectedly"))?;
    Ok(())
}

fn spawn_child(output: ChildOutput) -> Result<Child> {
    let stdio = || match output {
        ChildOutput::Piped => Stdio::piped(),
        ChildOutput::Null => Stdio::null(),
    };
    let mut command = Command::new(PROGRAM);
    command.stdin(Stdio::null()).stdout(stdio()).stderr(stdio());
    command
        .spawn()
        .with_context(|| format!("cannot run {PROGRAM}"))
}
