//! Memory that a server needs for a large file that is read by blocks.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::bulk::read_blocks;
use crate::plan::Plan;
use crate::proc_stat::{Usage, reset_peak};
use crate::report::{Cell, Reach, Row, Unit};
use crate::scratch::{Scratch, uri};
use crate::target::Target;

/// How long memory must stay level before, and for how long that is awaited.
const CALM: Duration = Duration::from_millis(400);
const LIMIT: Duration = Duration::from_secs(3);

/// Measures the growth of a server while a large file is read.
pub(crate) fn run(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let bytes = plan.files.peak_bytes;
    let cells = Scratch::new().and_then(|scratch| {
        let path = uri(&scratch.file("large", bytes)?);
        let growths = targets.iter().map(|target| measure(target, &path, bytes));
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
fn measure(target: &Target, path: &str, bytes: u64) -> Result<u64> {
    let instance = target.fresh()?;
    let pid = instance
        .pid()
        .context("server process not found on this machine")?;
    let mut client = instance.connect()?;
    let (idle, _) = Usage::settle(pid, CALM, LIMIT);
    reset_peak(pid);
    read_blocks(&mut client, path, bytes)?;
    let after = Usage::sample(pid);
    Ok((after.server_peak + after.helper_rss).saturating_sub(idle.rss()))
}
