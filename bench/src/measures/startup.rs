//! The binary's size, and the time from start to the line that names the address.

use std::fs;

use crate::plan::Plan;
use crate::report::{Cell, Reach, Row, Unit};
use crate::stats::{Lane, interleave, p50};
use crate::target::{Instance, Target};

/// Measures size and start.
pub(crate) fn run(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let mut lanes: Vec<Lane<'_, f64>> = targets.iter().map(|target| lane(plan, target)).collect();
    interleave(plan.blocks, &mut lanes);
    let starts: Vec<_> = lanes.iter().map(|lane| lane.cell(p50)).collect();
    let sizes: Vec<_> = targets.iter().map(size).collect();
    vec![
        Row::new("binary", "release binary", Unit::Bytes)
            .reach(Reach::AtMost(f64::from(15 << 20)))
            .cells(&sizes),
        Row::new("startup", "start to first line, p50", Unit::Seconds)
            .reach(Reach::AtMost(0.015))
            .cells(&starts),
    ]
}

fn lane<'a>(plan: &'a Plan, target: &'a Target) -> Lane<'a, f64> {
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

fn size(target: &Target) -> Cell {
    let metadata = target.binary().and_then(|path| fs::metadata(path).ok());
    metadata.map_or_else(
        || Cell::Skipped("its binary cannot be found on this machine".to_owned()),
        |metadata| Cell::Value(metadata.len() as f64),
    )
}
