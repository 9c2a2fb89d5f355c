//! The measures: one file per topic. Each takes all targets and returns finished rows.
//!
//! Invariant: a target that fails affects only its own cells.

mod cli_commands;
mod client_overhead;
mod durable_processes;
mod echo_latency;
mod file_calls;
mod file_transfer;
mod file_watch;
mod hub_capacity;
mod hub_relay;
mod node_failover;
mod output_transfer;
mod port_forward;
mod process_start;
mod sandbox_cost;
mod sdk_clients;
mod server_footprint;
mod ssh_places;
mod tunnel_transfer;

use std::path::PathBuf;

use anyhow::Result;

pub(crate) use output_transfer::OutputTransfer;

use crate::bench_plan::BenchPlan;
use crate::bench_target::{BenchTarget, OURS};
use crate::report::{ReportCell, ReportRow};

/// A group of rows that are measured together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasureGroup {
    /// Name on the command line.
    pub(crate) name: &'static str,
    /// Runs the measures of the group.
    pub(crate) run: fn(&BenchPlan, &[BenchTarget]) -> Vec<ReportRow>,
}

impl MeasureGroup {
    const fn new(
        name: &'static str,
        run: fn(&BenchPlan, &[BenchTarget]) -> Vec<ReportRow>,
    ) -> Self {
        Self { name, run }
    }
}

/// The extension that sends raw bytes in binary messages.
const BINARY: &str = "binaryData";

/// All groups, in the order of the table.
pub(crate) const GROUPS: [MeasureGroup; 26] = [
    MeasureGroup::new("spawn", process_start::measure_latency),
    MeasureGroup::new("inflight", process_start::measure_rate),
    MeasureGroup::new("echo", echo_latency::measure_echo),
    MeasureGroup::new("output", output_transfer::measure_output),
    MeasureGroup::new("terminal", output_transfer::measure_terminal),
    MeasureGroup::new("memory", server_footprint::measure_idle_memory),
    MeasureGroup::new("stalled", server_footprint::measure_stalled_client),
    MeasureGroup::new("flood", echo_latency::measure_flood),
    MeasureGroup::new("startup", server_footprint::measure_startup),
    MeasureGroup::new("fs-calls", file_calls::measure_calls),
    MeasureGroup::new("fs-bulk", file_transfer::measure_transfer),
    MeasureGroup::new("fs-walk", file_calls::measure_walk),
    MeasureGroup::new("fs-peak", server_footprint::measure_block_read_growth),
    MeasureGroup::new("fs-watch", file_watch::measure_watch),
    MeasureGroup::new("durable", durable_processes::measure_durable),
    MeasureGroup::new("sandbox", sandbox_cost::measure_sandbox),
    MeasureGroup::new("client", client_overhead::measure_client),
    MeasureGroup::new("tools", client_overhead::measure_tools),
    MeasureGroup::new("people", cli_commands::measure_commands),
    MeasureGroup::new("ssh", ssh_places::measure_ssh),
    MeasureGroup::new("sdk", sdk_clients::measure_sdks),
    MeasureGroup::new("relay", hub_relay::measure_relay),
    MeasureGroup::new("tunnel", tunnel_transfer::measure_tunnels),
    MeasureGroup::new("hub-frames", hub_capacity::measure_frames),
    MeasureGroup::new("hub-crowd", hub_capacity::measure_many_connections),
    MeasureGroup::new("hub-nodes", node_failover::measure_failover),
];

/// Returns the difference between two cells, at least zero.
fn difference((value, baseline): (&ReportCell, &ReportCell)) -> ReportCell {
    match (value.value(), baseline.value()) {
        (Some(with), Some(without)) => ReportCell::Value((with - without).max(0.0)),
        (None, _) => value.clone(),
        (_, None) => baseline.clone(),
    }
}

/// Measures our server only, since others have no hub, tunnels or clients of their own. Returns
/// `count` columns with a cell per target.
fn measure_ours<T>(
    targets: &[BenchTarget],
    measure: impl FnOnce(PathBuf) -> Result<T>,
    to_cells: impl Fn(&T) -> Vec<ReportCell>,
    count: usize,
) -> Vec<Vec<ReportCell>> {
    let program = targets
        .iter()
        .find(|target| target.name() == OURS)
        .and_then(BenchTarget::binary_path);
    let cells = match program.map(measure) {
        Some(Ok(measured)) => to_cells(&measured),
        Some(Err(error)) => vec![ReportCell::from_error(&error); count],
        None => vec![ReportCell::Skipped("our server was not started".to_owned()); count],
    };
    let column = |cell: &ReportCell| {
        let other = ReportCell::Skipped("only measured for ours".to_owned());
        let select = |target: &BenchTarget| match target.name() {
            OURS => cell.clone(),
            _ => other.clone(),
        };
        targets.iter().map(select).collect()
    };
    cells.iter().map(column).collect()
}
