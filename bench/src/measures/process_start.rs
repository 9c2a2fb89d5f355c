//! Starting processes that do nothing: latency one at a time, and rate with many in flight.
//!
//! The floors spawn and wait directly, with nothing but the standard library.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio as ChildStdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{WaitOptions, wait};

use crate::bench_plan::{Budget, Plan};
use crate::bench_target::Target;
use crate::contender::{Lane, interleave, p50};
use crate::report::{Reach, Row, Unit};
use crate::rpc_client::{Client, Start, Stdio};
use crate::rpc_message::Event;

/// Unmeasured runs of each lane, so that caches and pools are warm.
const WARM_UP: usize = 10;

/// Measures spawn latency on pipes and on a pty.
pub(crate) fn measure_latency(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let floor = |output| latency_contender(plan, move || spawn_and_wait(output));
    let mut lanes = vec![floor(ChildOutput::Piped), floor(ChildOutput::Null)];
    for stdio in [Stdio::Pipes, Stdio::Pty] {
        lanes.extend(
            targets
                .iter()
                .map(|target| Lane::prepare(start_contender(plan, target, stdio))),
        );
    }
    interleave(plan.blocks, &mut lanes);

    let cells: Vec<_> = lanes.iter().map(|lane| lane.cell(p50)).collect();
    let (floors, cells) = cells.split_at(2);
    let (pipes, pty) = cells.split_at(targets.len());
    let piped = &floors[0];
    vec![
        Row::new("spawn-pipes", "start → closed, pipes, p50", Unit::Seconds)
            .floor(piped)
            .reach(Reach::RatioAtMost(1.35))
            .cells(pipes),
        Row::new("spawn-pty", "start → closed, pty, p50", Unit::Seconds)
            .floor(piped)
            .reach(Reach::RatioAtMost(1.8))
            .cells(pty),
        Row::new(
            "spawn-plain",
            "(floor: spawn + wait, all on /dev/null)",
            Unit::Seconds,
        )
        .floor(&floors[1]),
    ]
}

fn start_contender<'a>(plan: &'a Plan, target: &Target, stdio: Stdio) -> Result<Lane<'a, f64>> {
    let mut client = target.shared().connect()?;
    let start = Start::new(&[PROGRAM], stdio);
    for _ in 0..WARM_UP {
        client.run_to_close(&start)?;
    }
    Ok(latency_contender(plan, move || client.run_to_close(&start)))
}

fn latency_contender<'a>(
    plan: &'a Plan,
    mut once: impl FnMut() -> Result<Duration> + 'a,
) -> Lane<'a, f64> {
    Lane::new(move |samples| {
        for _ in plan.spawns.laps() {
            samples.push(once()?.as_secs_f64());
        }
        Ok(())
    })
}

/// Processes between start and closed.
const WIDTH: usize = 32;

/// Measures process throughput.
pub(crate) fn measure_rate(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let budget = plan.in_flight;
    let floor = |output| {
        Lane::new(move |samples: &mut Vec<f64>| {
            samples.push(spawn_rate(output, WIDTH, budget)?);
            Ok(())
        })
    };
    let mut lanes = vec![floor(ChildOutput::Piped), floor(ChildOutput::Null)];
    for target in targets {
        lanes.push(Lane::prepare(target.shared().connect().map(
            |mut client| {
                Lane::new(move |samples| {
                    samples.push(run_block(&mut client, budget)?);
                    Ok(())
                })
            },
        )));
    }
    interleave(plan.rate_blocks, &mut lanes);

    let cells: Vec<_> = lanes.iter().map(|lane| lane.cell(p50)).collect();
    vec![
        Row::new("in-flight", "32 in flight, pipes", Unit::PerSecond)
            .floor(&cells[0])
            .reach(Reach::RatioAtLeast(0.7))
            .cells(&cells[2..]),
        Row::new(
            "in-flight-plain",
            "(floor: bare loop, all on /dev/null)",
            Unit::PerSecond,
        )
        .floor(&cells[1]),
    ]
}

/// Runs one block and returns processes per second. Every start is answered and closed after it.
fn run_block(client: &mut Client, budget: Budget) -> Result<f64> {
    let start = Start::new(&[PROGRAM], Stdio::Pipes);
    let mut laps = budget.laps();
    let (mut closed, mut answered, mut started) = (0_u32, 0_u64, 0_u64);
    let began = Instant::now();
    for _ in 0..WIDTH {
        client.queue_start(&start);
        started += 1;
    }
    client.flush()?;
    let rate = loop {
        let mut event = Some(client.next_event()?);
        let mut done = false;
        // All that is here already, before one write that replaces all that closed.
        while let Some(known) = event {
            match known {
                Event::Closed => {
                    closed += 1;
                    done |= laps.next().is_none();
                    client.queue_start(&start);
                    started += 1;
                }
                Event::Response => answered += 1,
                Event::Output(_) | Event::Other => {}
            }
            event = client.buffered_event()?;
        }
        client.flush()?;
        if done {
            break f64::from(closed) / began.elapsed().as_secs_f64();
        }
    };
    client.settle(started - answered, started - u64::from(closed))?;
    Ok(rate)
}

/// The program that every spawn measure runs.
pub(crate) const PROGRAM: &str = "/bin/true";

/// Output target of a floor's children.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChildOutput {
    /// Pipes, as every server must use them.
    Piped,
    /// `/dev/null`: the least there is.
    Null,
}

/// Spawns one process and waits for it.
pub(crate) fn spawn_and_wait(output: ChildOutput) -> Result<Duration> {
    let began = Instant::now();
    let status = spawn_child(output)?.wait()?;
    let took = began.elapsed();
    ensure!(status.success(), "{PROGRAM} failed");
    Ok(took)
}

/// Keeps `width` processes running within `budget`, and returns how many ended per second.
pub(crate) fn spawn_rate(output: ChildOutput, width: usize, budget: Budget) -> Result<f64> {
    let mut running = BTreeMap::new();
    let began = Instant::now();
    for _ in 0..width {
        insert_child(&mut running, spawn_child(output)?);
    }
    let mut ended = 0_u32;
    for _ in budget.laps() {
        reap_child(&mut running)?;
        ended += 1;
        insert_child(&mut running, spawn_child(output)?);
    }
    let rate = f64::from(ended) / began.elapsed().as_secs_f64();
    while !running.is_empty() {
        reap_child(&mut running)?;
    }
    Ok(rate)
}

fn insert_child(running: &mut BTreeMap<u32, Child>, child: Child) {
    running.insert(child.id(), child);
}

/// Waits for any child. Only those of this loop may end meanwhile; a server that does is an error.
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
        ChildOutput::Piped => ChildStdio::piped(),
        ChildOutput::Null => ChildStdio::null(),
    };
    let mut command = Command::new(PROGRAM);
    command
        .stdin(ChildStdio::null())
        .stdout(stdio())
        .stderr(stdio());
    command
        .spawn()
        .with_context(|| format!("cannot run {PROGRAM}"))
}
