//! From `process/start` to `process/closed` of a process that does nothing, one at a time.

use std::time::Duration;

use anyhow::Result;

use crate::floors::spawn::{Output, PROGRAM, spawn_and_wait};
use crate::plan::Plan;
use crate::report::{Reach, Row, Unit};
use crate::rpc::{Start, Stdio};
use crate::stats::{Lane, interleave, p50};
use crate::target::Target;

/// Unmeasured runs of each lane, so that caches and pools are warm.
const WARM_UP: usize = 10;

/// Measures spawn latency on pipes and on a pty.
pub(crate) fn run(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let floor = |output| lane(plan, move || spawn_and_wait(output));
    let mut lanes = vec![floor(Output::Piped), floor(Output::Null)];
    for stdio in [Stdio::Pipes, Stdio::Pty] {
        lanes.extend(
            targets
                .iter()
                .map(|target| Lane::prepare(process(plan, target, stdio))),
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

fn process<'a>(plan: &'a Plan, target: &Target, stdio: Stdio) -> Result<Lane<'a, f64>> {
    let mut client = target.shared().connect()?;
    let start = Start::new(&[PROGRAM], stdio);
    for _ in 0..WARM_UP {
        client.run_to_close(&start)?;
    }
    Ok(lane(plan, move || client.run_to_close(&start)))
}

fn lane<'a>(plan: &'a Plan, mut once: impl FnMut() -> Result<Duration> + 'a) -> Lane<'a, f64> {
    Lane::new(move |samples| {
        for _ in plan.spawns.laps() {
            samples.push(once()?.as_secs_f64());
        }
        Ok(())
    })
}
