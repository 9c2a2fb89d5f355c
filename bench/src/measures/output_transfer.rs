//! Bulk output of one process on pipes, as JSON and as binary frames, and on a terminal.
//!
//! Every byte is counted. The kernel returns at most 4 KiB of a terminal per read, so the way a
//! server reads matters more than its handling of the bytes. The terminal's floor is a process that
//! reads a terminal and does nothing else.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

use crate::bench_plan::BenchPlan;
use crate::bench_target::BenchTarget;
use crate::contender::{Contender, interleave, p50};
use crate::helper_process::CopyFloor;
use crate::measures::BINARY;
use crate::process_usage::ProcessUsage;
use crate::report::{ReportCell, ReportRow, RowGoal, ValueUnit};
use crate::rpc_client::{PreparedStart, RpcClient, StdioMode};
use crate::rpc_message::ServerEvent;

/// Measures throughput and its CPU cost.
pub(crate) fn measure_output(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let bytes = plan.output_bytes;
    let mut contenders = vec![Contender::from_result(CopyFloor::start().map(
        |mut copy| {
            Contender::new(move |samples: &mut Vec<OutputTransfer>| {
                samples.push(copy.transfer(bytes)?);
                Ok(())
            })
        },
    ))];
    contenders.extend(
        targets
            .iter()
            .map(|target| Contender::from_result(json_contender(bytes, target))),
    );
    contenders.extend(
        targets
            .iter()
            .map(|target| Contender::from_result(binary_contender(bytes, target))),
    );
    interleave(plan.rate_blocks, &mut contenders);

    let rates: Vec<_> = contenders
        .iter()
        .map(|contender| contender.cell(median_of(|t| Some(t.rate))))
        .collect();
    let costs: Vec<_> = contenders
        .iter()
        .map(|contender| contender.cell(median_of(|t| t.cpu_per_gib)))
        .collect();
    let split = 1 + targets.len();
    let mib = bytes >> 20;
    let rate = |id, name, goal, cells: &[ReportCell]| {
        let row = ReportRow::new(
            id,
            &format!("{mib} MiB of output, {name}"),
            ValueUnit::BytesPerSecond,
        );
        row.floor(&rates[0])
            .goal(RowGoal::RatioAtLeast(goal))
            .cells(cells)
    };
    let cost = |id, name, goal, cells: &[ReportCell]| {
        let row = ReportRow::new(
            id,
            &format!("  server CPU per GiB, {name}"),
            ValueUnit::CpuPerGib,
        );
        row.floor(&costs[0])
            .goal(RowGoal::AtMost(goal))
            .cells(cells)
    };
    vec![
        rate("output-json", "JSON", 0.6, &rates[1..split]),
        cost("output-json-cpu", "JSON", 1.0, &costs[1..split]),
        rate("output-binary", BINARY, 0.9, &rates[split..]),
        cost("output-binary-cpu", BINARY, 0.6, &costs[split..]),
    ]
}

fn json_contender(bytes: u64, target: &BenchTarget) -> Result<Contender<'static, OutputTransfer>> {
    let client = target.shared_instance().connect()?;
    transfer_contender(bytes, target.shared_instance().pid(), client)
}

fn binary_contender(
    bytes: u64,
    target: &BenchTarget,
) -> Result<Contender<'static, OutputTransfer>> {
    let client = target.shared_instance().connect_with(BINARY)?;
    if client.granted(BINARY) {
        transfer_contender(bytes, target.shared_instance().pid(), client)
    } else {
        Ok(Contender::skipped("binaryData not granted"))
    }
}

fn transfer_contender(
    bytes: u64,
    pid: Option<u32>,
    mut client: RpcClient,
) -> Result<Contender<'static, OutputTransfer>> {
    let program = std::env::current_exe()?;
    let program = program
        .to_str()
        .context("the path of this binary is not UTF-8")?;
    let argv = [program, "emit", &bytes.to_string(), "--hold"];
    let start = PreparedStart::new(&argv, StdioMode::WritablePipes);
    Ok(Contender::new(move |samples| {
        samples.push(transfer_output(&mut client, &start, bytes, pid)?);
        Ok(())
    }))
}

fn transfer_output(
    client: &mut RpcClient,
    start: &PreparedStart,
    bytes: u64,
    pid: Option<u32>,
) -> Result<OutputTransfer> {
    let before = pid.map(ProcessUsage::sample);
    let started_at = Instant::now();
    let process = client.queue_start(start);
    client.flush()?;
    let (mut total, mut responses) = (0, 0);
    while total < bytes {
        match client.next_event()? {
            ServerEvent::Output(more) => total += more,
            ServerEvent::Response => responses += 1,
            ServerEvent::Closed => bail!("closed after {total} of {bytes} bytes"),
            ServerEvent::Other => {}
        }
    }
    let elapsed = started_at.elapsed();
    // The child still runs, so the server has reaped only helpers so far.
    let cpu = pid
        .zip(before)
        .map(|(pid, before)| ProcessUsage::sample(pid).cpu_since(&before));
    client.queue_write(process);
    client.flush()?;
    let mut closed = false;
    while !closed || responses < 2 {
        match client.next_event()? {
            ServerEvent::Output(more) => total += more,
            ServerEvent::Response => responses += 1,
            ServerEvent::Closed => closed = true,
            ServerEvent::Other => {}
        }
    }
    ensure!(total == bytes, "{total} bytes of output instead of {bytes}");
    Ok(OutputTransfer::new(bytes, elapsed, cpu))
}

fn median_of(
    value: impl Fn(&OutputTransfer) -> Option<f64>,
) -> impl FnOnce(&[OutputTransfer]) -> Option<f64> {
    move |transfers| p50(&transfers.iter().filter_map(value).collect::<Vec<f64>>())
}

/// Rate of a transfer, and its CPU cost in the forwarding process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OutputTransfer {
    /// Bytes per second.
    pub(crate) rate: f64,
    /// CPU seconds per GiB, if the process is visible to us.
    pub(crate) cpu_per_gib: Option<f64>,
}

impl OutputTransfer {
    /// Computes rate and cost from the bytes, the time and the CPU seconds.
    pub(crate) fn new(bytes: u64, elapsed: Duration, cpu: Option<f64>) -> Self {
        let gib = bytes as f64 / f64::from(1 << 30);
        Self {
            rate: bytes as f64 / elapsed.as_secs_f64(),
            cpu_per_gib: cpu.map(|cpu| cpu / gib),
        }
    }
}

/// Bytes per read: more than the kernel returns.
const TERMINAL_BLOCK: usize = 64 * 1024;

/// Measures terminal throughput, compared with the stock server and with a bare reader.
pub(crate) fn measure_terminal(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let bytes = plan.output_bytes / 4;
    let mut contenders = vec![Contender::new(move |samples: &mut Vec<OutputTransfer>| {
        samples.push(read_terminal(bytes)?);
        Ok(())
    })];
    contenders.extend(
        targets
            .iter()
            .map(|target| Contender::from_result(terminal_contender(bytes, target))),
    );
    interleave(plan.rate_blocks, &mut contenders);

    let rates: Vec<_> = contenders
        .iter()
        .map(|contender| contender.cell(median_of(|transfer| Some(transfer.rate))))
        .collect();
    let title = format!("{} MiB of output, terminal", bytes >> 20);
    let row =
        |id, title: &str| ReportRow::new(id, title, ValueUnit::BytesPerSecond).cells(&rates[1..]);
    vec![
        row("output-terminal", &title)
            .relative_to_stock(targets)
            .goal(RowGoal::StockAtLeast(1.2)),
        row("output-terminal-floor", "  against a bare reader").floor(&rates[0]),
    ]
}

fn terminal_contender(
    bytes: u64,
    target: &BenchTarget,
) -> Result<Contender<'static, OutputTransfer>> {
    let mut client = target.shared_instance().connect()?;
    let program = std::env::current_exe()?;
    let program = program
        .to_str()
        .context("the path of this binary is not UTF-8")?;
    let script = format!("stty raw -echo; exec '{program}' emit {bytes} --hold");
    let start = PreparedStart::new(&["sh", "-c", &script], StdioMode::Pty);
    let pid = target.shared_instance().pid();
    Ok(Contender::new(move |samples| {
        samples.push(transfer_output(&mut client, &start, bytes, pid)?);
        Ok(())
    }))
}

/// Makes a child write to a terminal and reads all of its output.
fn read_terminal(bytes: u64) -> Result<OutputTransfer> {
    let (master, slave) = open_raw_terminal()?;
    let started_at = Instant::now();
    let mut child = Command::new(std::env::current_exe()?)
        .args(["emit", &bytes.to_string()])
        .stdin(Stdio::null())
        .stdout(slave)
        .spawn()?;
    let mut terminal = File::from(master);
    let mut buffer = vec![0; TERMINAL_BLOCK];
    let mut remaining = bytes;
    while remaining > 0 {
        let read = terminal.read(&mut buffer)?;
        ensure!(read > 0, "the terminal ended early");
        remaining = remaining.saturating_sub(read as u64);
    }
    let elapsed = started_at.elapsed();
    child.wait()?;
    Ok(OutputTransfer::new(bytes, elapsed, None))
}

fn open_raw_terminal() -> Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, flags)?;
    let mut settings = tcgetattr(&slave)?;
    settings.make_raw();
    tcsetattr(&slave, OptionalActions::Now, &settings)?;
    Ok((master, slave))
}
