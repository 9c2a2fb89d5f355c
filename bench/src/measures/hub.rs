//! Remote environments: cost of the path through a hub, and capacity of a hub.

mod crowd;
mod frames;
mod nodes;
mod relay;

pub(crate) use crowd::run as crowd;
pub(crate) use frames::run as frames;
pub(crate) use nodes::run as nodes;
pub(crate) use relay::run as relay;

use std::path::PathBuf;

use anyhow::Result;

use crate::report::Cell;
use crate::target::{OURS, Target};

/// Measures ours; others have no hub. Returns a cell for each target.
fn ours<T>(
    targets: &[Target],
    measure: impl FnOnce(PathBuf) -> Result<T>,
    cells: impl Fn(&T) -> Vec<Cell>,
    count: usize,
) -> Vec<Vec<Cell>> {
    let program = targets
        .iter()
        .find(|target| target.name() == OURS)
        .and_then(Target::binary);
    let measured = match program.map(measure) {
        Some(Ok(measured)) => cells(&measured),
        Some(Err(error)) => vec![Cell::without(&error); count],
        None => vec![Cell::Skipped("our program is not there".to_owned()); count],
    };
    let of = |cell: &Cell| {
        let other = Cell::Skipped("has no hub".to_owned());
        let pick = |target: &Target| match target.name() {
            OURS => cell.clone(),
            _ => other.clone(),
        };
        targets.iter().map(pick).collect()
    };
    measured.iter().map(of).collect()
}
