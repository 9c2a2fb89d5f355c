//! The walk of a large tree: from the request until all of the answer is here.

use std::fs::File;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::plan::Plan;
use crate::report::{Cell, Reach, Row, Unit};
use crate::rpc::Request;
use crate::scratch::{Scratch, uri};
use crate::stats::{Lane, interleave, p50};
use crate::target::Target;

/// Files in each directory.
const FILES: usize = 100;

/// Measures the walk.
pub(crate) fn run(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let cells = Scratch::new().and_then(|scratch| {
        grow(&scratch, plan.files.directories)?;
        Ok(measure(plan, targets, &scratch))
    });
    let cells = cells.unwrap_or_else(|error| vec![Cell::without(&error); targets.len()]);
    let title = format!("fs/walk of {} files, p50", plan.files.directories * FILES);
    vec![
        Row::new("fs-walk", &title, Unit::Seconds)
            .against_stock(targets)
            .reach(Reach::StockAtMost(0.3))
            .cells(&cells),
    ]
}

/// Makes the tree.
fn grow(scratch: &Scratch, directories: usize) -> Result<()> {
    for directory in 0..directories {
        let path = scratch.directory(&format!("directory-{directory:03}"))?;
        for file in 0..FILES {
            File::create(path.join(format!("file-{file:02}.txt")))?;
        }
    }
    Ok(())
}

fn measure(plan: &Plan, targets: &[Target], scratch: &Scratch) -> Vec<Cell> {
    let options = json!({
        "maxDepth": 8,
        "maxDirectories": 10_000,
        "maxEntries": 50_000,
        "followDirectorySymlinks": false,
    });
    let params = json!({"path": uri(scratch.path()), "options": options});
    let walk = Request::new("fs/walk", &params);
    let mut lanes: Vec<_> = targets
        .iter()
        .map(|target| Lane::prepare(lane(plan, target, &walk)))
        .collect();
    interleave(plan.rate_blocks, &mut lanes);
    lanes.iter().map(|lane| lane.cell(p50)).collect()
}

fn lane<'a>(plan: &'a Plan, target: &Target, walk: &'a Request) -> Result<Lane<'a, f64>> {
    let mut client = target.shared().connect()?;
    let answer: Value = serde_json::from_slice(client.call(walk)?.json)?;
    let entries = answer["result"]["entries"]
        .as_array()
        .context("a walk without entries")?;
    let expected = plan.files.directories * (FILES + 1);
    ensure!(
        entries.len() == expected && answer["result"]["truncated"] == false,
        "{} entries instead of {expected}",
        entries.len()
    );
    // Later answers differ in their ids at most, which do not grow by more than a few digits.
    let size = client.call(walk)?.json.len();
    Ok(Lane::new(move |samples| {
        for _ in plan.files.walks.laps() {
            let began = Instant::now();
            let answer = client.call(walk)?;
            samples.push(began.elapsed().as_secs_f64());
            let differs = answer.json.len().abs_diff(size);
            ensure!(differs < 8, "a walk that differs by {differs} bytes");
        }
        Ok(())
    }))
}
