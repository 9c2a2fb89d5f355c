//! Memory of a server whose client does not read while a child writes.

use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::plan::Plan;
use crate::proc_stat::Usage;
use crate::report::{Cell, Reach, Row, Unit};
use crate::rpc::{Start, Stdio};
use crate::target::Target;

/// How long memory must stay level.
const CALM: Duration = Duration::from_secs(1);

/// Measures the growth of a server whose client does not read.
pub(crate) fn run(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let cells: Vec<_> = targets
        .iter()
        .map(|target| match measure(plan, target) {
            Ok(growth) => Cell::Value(growth as f64),
            Err(error) => Cell::Failed(format!("{error:#}")),
        })
        .collect();
    let mib = plan.stalled_bytes >> 20;
    let title = format!("growth, client does not read {mib} MiB");
    let reach = Reach::AtMost(f64::from(4 << 20));
    vec![
        Row::new("stalled", &title, Unit::Bytes)
            .reach(reach)
            .cells(&cells),
    ]
}

/// Returns the highest growth of server and helpers together.
fn measure(plan: &Plan, target: &Target) -> Result<u64> {
    let instance = target.fresh()?;
    let pid = instance
        .pid()
        .context("server process not found on this machine")?;
    let mut client = instance.connect()?;
    let (idle, _) = Usage::settle(pid, CALM, plan.stalled_time);
    let program = std::env::current_exe()?;
    let program = program
        .to_str()
        .context("the path of this binary is not UTF-8")?;
    let argv = [program, "emit", &plan.stalled_bytes.to_string()];
    let process = client.queue_start(&Start::new(&argv, Stdio::Pipes));
    client.flush()?;
    let (last, mut highest) = Usage::settle(pid, CALM, plan.stalled_time);
    if last.server_peak > idle.server_peak {
        // A peak between two samples shows only in what the kernel keeps.
        highest = highest.max(last.server_peak + last.helper_rss);
    }
    client.queue_terminate(process);
    client.flush()?;
    client.settle(2, 1)?;
    Ok(highest.saturating_sub(idle.rss()))
}
