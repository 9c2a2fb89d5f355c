//! The measures: one file per topic. Each takes all targets and returns finished rows.
//!
//! Invariant: a target that fails affects only its own cells.

mod cli_commands;
mod client_overhead;
mod echo_latency;
mod file_calls;
mod file_transfer;
mod file_watch;
mod hub_capacity;
mod hub_relay;
mod node_failover;
mod output_transfer;
mod process_start;
mod sandbox_cost;
mod server_footprint;

use std::path::PathBuf;

use anyhow::Result;

pub(crate) use output_transfer::Transfer;

use crate::bench_plan::Plan;
use crate::bench_target::{OURS, Target};
use crate::report::{Cell, Row};

/// A group of rows that are measured together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// Measures it.
    pub(crate) run: fn(&Plan, &[Target]) -> Vec<Row>,
}

impl Group {
    const fn new(name: &'static str, run: fn(&Plan, &[Target]) -> Vec<Row>) -> Self {
        Self { name, run }
    }
}

/// The extension that sends bytes as they are, in binary messages.
const BINARY: &str = "binaryData";

/// All groups, in the order of the table.
pub(crate) const GROUPS: [Group; 22] = [
    Group::new("spawn", process_start::measure_latency),
    Group::new("inflight", process_start::measure_rate),
    Group::new("echo", echo_latency::measure_echo),
    Group::new("output", output_transfer::measure_output),
    Group::new("terminal", output_transfer::measure_terminal),
    Group::new("memory", server_footprint::measure_idle_memory),
    Group::new("stalled", server_footprint::measure_stalled_client),
    Group::new("flood", echo_latency::measure_flood),
    Group::new("startup", server_footprint::measure_startup),
    Group::new("fs-calls", file_calls::measure_calls),
    Group::new("fs-bulk", file_transfer::measure_transfer),
    Group::new("fs-walk", file_calls::measure_walk),
    Group::new("fs-peak", server_footprint::measure_block_read_growth),
    Group::new("fs-watch", file_watch::measure_watch),
    Group::new("sandbox", sandbox_cost::measure_sandbox),
    Group::new("client", client_overhead::measure_client),
    Group::new("tools", client_overhead::measure_tools),
    Group::new("people", cli_commands::measure_commands),
    Group::new("relay", hub_relay::measure_relay),
    Group::new("hub-frames", hub_capacity::measure_frames),
    Group::new("hub-crowd", hub_capacity::measure_many_connections),
    Group::new("hub-nodes", node_failover::measure_failover),
];

/// Returns the difference between two measures.
fn difference((more, less): (&Cell, &Cell)) -> Cell {
    match (more.value(), less.value()) {
        (Some(more), Some(less)) => Cell::Value((more - less).max(0.0)),
        (None, _) => more.clone(),
        (_, None) => less.clone(),
    }
}

/// Measures ours; others have no hub. Returns a cell for each target.
fn measure_ours<T>(
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
