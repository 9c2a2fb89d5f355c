//! Bulk output of one process on pipes, as JSON and as binary frames, and on a terminal.
//!
//! Every byte is counted. The kernel returns at most 4 KiB of a terminal per read, so the way a
//! server reads matters more than its handling of the bytes. The terminal's floor is a process that
//! reads a terminal and does nothing else.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio as ChildStdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

use crate::bench_plan::Plan;
use crate::bench_target::Target;
use crate::contender::{Lane, interleave, p50};
use crate::helper_process::CopyFloor;
use crate::measures::BINARY;
use crate::process_usage::Usage;
use crate::report::{Cell, Reach, Row, Unit};
use crate::rpc_client::{Client, Start, Stdio};
use crate::rpc_message::Event;

/// Measures throughput and its CPU cost.
pub(crate) fn measure_output(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let bytes = plan.output_bytes;
    let mut lanes = vec![Lane::prepare(CopyFloor::start().map(|mut copy| {
        Lane::new(move |samples: &mut Vec<Transfer>| {
            samples.push(copy.transfer(bytes)?);
            Ok(())
        })
    }))];
    lanes.extend(
        targets
            .iter()
            .map(|target| Lane::prepare(json_contender(bytes, target))),
    );
    lanes.extend(
        targets
            .iter()
            .map(|target| Lane::prepare(binary_contender(bytes, target))),
    );
    interleave(plan.rate_blocks, &mut lanes);

    let rates: Vec<_> = lanes
        .iter()
        .map(|lane| lane.cell(median_of(|t| Some(t.rate))))
        .collect();
    let costs: Vec<_> = lanes
        .iter()
        .map(|lane| lane.cell(median_of(|t| t.cpu_per_gib)))
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

fn json_contender(bytes: u64, target: &Target) -> Result<Lane<'static, Transfer>> {
    let client = target.shared().connect()?;
    transfer_contender(bytes, target.shared().pid(), client)
}

fn binary_contender(bytes: u64, target: &Target) -> Result<Lane<'static, Transfer>> {
    let client = target.shared().connect_with(BINARY)?;
    if client.granted(BINARY) {
        transfer_contender(bytes, target.shared().pid(), client)
    } else {
        Ok(Lane::skipped("binaryData not granted"))
    }
}

fn transfer_contender(
    bytes: u64,
    pid: Option<u32>,
    mut client: Client,
) -> Result<Lane<'static, Transfer>> {
    let program = std::env::current_exe()?;
    let program = program
        .to_str()
        .context("the path of this binary is not UTF-8")?;
    let argv = [program, "emit", &bytes.to_string(), "--hold"];
    let start = Start::new(&argv, Stdio::WritablePipes);
    Ok(Lane::new(move |samples| {
        samples.push(transfer_output(&mut client, &start, bytes, pid)?);
        Ok(())
    }))
}

fn transfer_output(
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

fn median_of(of: impl Fn(&Transfer) -> Option<f64>) -> impl FnOnce(&[Transfer]) -> Option<f64> {
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

/// Bytes per read: more than the kernel gives.
const TERMINAL_BLOCK: usize = 64 * 1024;

/// Measures throughput against the stock server's and a bare reader's.
pub(crate) fn measure_terminal(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let bytes = plan.output_bytes / 4;
    let mut lanes = vec![Lane::new(move |samples: &mut Vec<Transfer>| {
        samples.push(read_terminal(bytes)?);
        Ok(())
    })];
    let served = |target: &Target| terminal_contender(bytes, target);
    lanes.extend(targets.iter().map(|target| Lane::prepare(served(target))));
    interleave(plan.rate_blocks, &mut lanes);

    let rates: Vec<_> = lanes
        .iter()
        .map(|lane| lane.cell(median_of(|transfer| Some(transfer.rate))))
        .collect();
    let title = format!("{} MiB of output, terminal", bytes >> 20);
    let row = |id, title: &str| Row::new(id, title, Unit::BytesPerSecond).cells(&rates[1..]);
    vec![
        row("output-terminal", &title)
            .against_stock(targets)
            .reach(Reach::StockAtLeast(1.2)),
        row("output-terminal-floor", "  against a bare reader").floor(&rates[0]),
    ]
}

fn terminal_contender(bytes: u64, target: &Target) -> Result<Lane<'static, Transfer>> {
    let mut client = target.shared().connect()?;
    let program = std::env::current_exe()?;
    let program = program
        .to_str()
        .context("the path of this binary is not UTF-8")?;
    let script = format!("stty raw -echo; exec '{program}' emit {bytes} --hold");
    let start = Start::new(&["sh", "-c", &script], Stdio::Pty);
    let pid = target.shared().pid();
    Ok(Lane::new(move |samples| {
        samples.push(transfer_output(&mut client, &start, bytes, pid)?);
        Ok(())
    }))
}

/// Has a child write to a terminal and reads all of it.
fn read_terminal(bytes: u64) -> Result<Transfer> {
    let (ours, theirs) = open_raw_terminal()?;
    let began = Instant::now();
    let mut child = Command::new(std::env::current_exe()?)
        .args(["emit", &bytes.to_string()])
        .stdin(ChildStdio::null())
        .stdout(theirs)
        .spawn()?;
    let mut terminal = File::from(ours);
    let mut buffer = vec![0; TERMINAL_BLOCK];
    let mut left = bytes;
    while left > 0 {
        let read = terminal.read(&mut buffer)?;
        ensure!(read > 0, "the terminal ended early");
        left = left.saturating_sub(read as u64);
    }
    let took = began.elapsed();
    child.wait()?;
    Ok(Transfer::new(bytes, took, None))
}

fn open_raw_terminal() -> Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let theirs = ioctl_tiocgptpeer(&ours, flags)?;
    let mut settings = tcgetattr(&theirs)?;
    settings.make_raw();
    tcsetattr(&theirs, OptionalActions::Now, &settings)?;
    Ok((ours, theirs))
}
