//! Bulk output of one process, as JSON and as binary frames; every byte is counted.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::BINARY;
use crate::floors::copy::Copy;
use crate::plan::Plan;
use crate::proc_stat::Usage;
use crate::report::{Cell, Reach, Row, Unit};
use crate::rpc::{Client, Event, Start, Stdio};
use crate::stats::{Lane, interleave, p50};
use crate::target::Target;

/// Measures throughput and its CPU cost.
pub(crate) fn run(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let bytes = plan.output_bytes;
    let mut lanes = vec![Lane::prepare(Copy::start().map(|mut copy| {
        Lane::new(move |samples: &mut Vec<Transfer>| {
            samples.push(copy.transfer(bytes)?);
            Ok(())
        })
    }))];
    lanes.extend(
        targets
            .iter()
            .map(|target| Lane::prepare(json(bytes, target))),
    );
    lanes.extend(
        targets
            .iter()
            .map(|target| Lane::prepare(binary(bytes, target))),
    );
    interleave(plan.rate_blocks, &mut lanes);

    let rates: Vec<_> = lanes
        .iter()
        .map(|lane| lane.cell(median(|t| Some(t.rate))))
        .collect();
    let costs: Vec<_> = lanes
        .iter()
        .map(|lane| lane.cell(median(|t| t.cpu_per_gib)))
        .collect();
    let split = 1 + targets.len();
    let mib = bytes >> 20;
    let rate = |id, name, reach, cells: &[Cell]| {
        let row = Row::new(
            id,
            &format!("{mib} MiB of output, {name}"),
            Unit::BytesPerSecond,
        );
        row.floor(&rates[0])
            .reach(Reach::RatioAtLeast(reach))
            .cells(cells)
    };
    let cost = |id, name, reach, cells: &[Cell]| {
        let row = Row::new(
            id,
            &format!("  server CPU per GiB, {name}"),
            Unit::CpuPerGib,
        );
        row.floor(&costs[0])
            .reach(Reach::AtMost(reach))
            .cells(cells)
    };
    vec![
        rate("output-json", "JSON", 0.6, &rates[1..split]),
        cost("output-json-cpu", "JSON", 1.0, &costs[1..split]),
        rate("output-binary", BINARY, 0.9, &rates[split..]),
        cost("output-binary-cpu", BINARY, 0.6, &costs[split..]),
    ]
}

fn json(bytes: u64, target: &Target) -> Result<Lane<'static, Transfer>> {
    let client = target.shared().connect()?;
    lane(bytes, target.shared().pid(), client)
}

fn binary(bytes: u64, target: &Target) -> Result<Lane<'static, Transfer>> {
    let client = target.shared().connect_with(BINARY)?;
    if client.granted(BINARY) {
        lane(bytes, target.shared().pid(), client)
    } else {
        Ok(Lane::skipped("binaryData not granted"))
    }
}

fn lane(bytes: u64, pid: Option<u32>, mut client: Client) -> Result<Lane<'static, Transfer>> {
    let program = std::env::current_exe()?;
    let program = program
        .to_str()
        .context("the path of this binary is not UTF-8")?;
    let argv = [program, "emit", &bytes.to_string(), "--hold"];
    let start = Start::new(&argv, Stdio::WritablePipes);
    Ok(Lane::new(move |samples| {
        samples.push(transfer(&mut client, &start, bytes, pid)?);
        Ok(())
    }))
}

pub(super) fn transfer(
    client: &mut Client,
    start: &Start,
    bytes: u64,
    pid: Option<u32>,
) -> Result<Transfer> {
    let before = pid.map(Usage::sample);
    let began = Instant::now();
    let process = client.queue_start(start);
    client.flush()?;
    let (mut total, mut answered) = (0, 0);
    while total < bytes {
        match client.next_event()? {
            Event::Output(more) => total += more,
            Event::Response => answered += 1,
            Event::Closed => bail!("closed after {total} of {bytes} bytes"),
            Event::Other => {}
        }
    }
    let took = began.elapsed();
    // The child still holds on, so nothing but helpers was reaped so far.
    let cpu = pid
        .zip(before)
        .map(|(pid, before)| Usage::sample(pid).cpu_since(&before));
    client.queue_write(process);
    client.flush()?;
    let mut closed = false;
    while !closed || answered < 2 {
        match client.next_event()? {
            Event::Output(more) => total += more,
            Event::Response => answered += 1,
            Event::Closed => closed = true,
            Event::Other => {}
        }
    }
    ensure!(total == bytes, "{total} bytes of output instead of {bytes}");
    Ok(Transfer::new(bytes, took, cpu))
}

pub(super) fn median(
    of: impl Fn(&Transfer) -> Option<f64>,
) -> impl FnOnce(&[Transfer]) -> Option<f64> {
    move |transfers| p50(&transfers.iter().filter_map(of).collect::<Vec<f64>>())
}

/// How fast bytes came through and what that cost the process in between.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Transfer {
    /// Bytes per second.
    pub(crate) rate: f64,
    /// CPU seconds per GiB, if the process can be seen.
    pub(crate) cpu_per_gib: Option<f64>,
}

impl Transfer {
    /// Makes it from what was moved, how long that took, and the CPU seconds it cost.
    pub(crate) fn new(bytes: u64, took: Duration, cpu: Option<f64>) -> Self {
        let gib = bytes as f64 / f64::from(1 << 30);
        Self {
            rate: bytes as f64 / took.as_secs_f64(),
            cpu_per_gib: cpu.map(|cpu| cpu / gib),
        }
    }
}
