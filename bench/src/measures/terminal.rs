//! Bulk output of a terminal; every byte is counted.
//!
//! The kernel hands out at most 4 KiB of a terminal a read, so that how a server reads matters more
//! than what it does with the bytes. The floor is a process that reads a terminal and does nothing
//! else.

use std::io::Read as _;
use std::process::{Command, Stdio as ChildStdio};
use std::time::Instant;
use std::{fs::File, os::fd::OwnedFd};

use anyhow::{Context as _, Result, ensure};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

use super::Transfer;
use super::output::{median, transfer};
use crate::plan::Plan;
use crate::report::{Reach, Row, Unit};
use crate::rpc::{Start, Stdio};
use crate::stats::{Lane, interleave};
use crate::target::Target;

/// Bytes per read: more than the kernel gives.
const BLOCK: usize = 64 * 1024;

/// Measures throughput against the stock server's and a bare reader's.
pub(crate) fn run(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let bytes = plan.output_bytes / 4;
    let mut lanes = vec![Lane::new(move |samples: &mut Vec<Transfer>| {
        samples.push(read_bare(bytes)?);
        Ok(())
    })];
    let served = |target: &Target| lane(bytes, target);
    lanes.extend(targets.iter().map(|target| Lane::prepare(served(target))));
    interleave(plan.rate_blocks, &mut lanes);

    let rates: Vec<_> = lanes
        .iter()
        .map(|lane| lane.cell(median(|transfer| Some(transfer.rate))))
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

fn lane(bytes: u64, target: &Target) -> Result<Lane<'static, Transfer>> {
    let mut client = target.shared().connect()?;
    let program = std::env::current_exe()?;
    let program = program
        .to_str()
        .context("the path of this binary is not UTF-8")?;
    let script = format!("stty raw -echo; exec '{program}' emit {bytes} --hold");
    let start = Start::new(&["sh", "-c", &script], Stdio::Pty);
    let pid = target.shared().pid();
    Ok(Lane::new(move |samples| {
        samples.push(transfer(&mut client, &start, bytes, pid)?);
        Ok(())
    }))
}

/// Has a child write to a terminal and reads all of it.
fn read_bare(bytes: u64) -> Result<Transfer> {
    let (ours, theirs) = open_raw()?;
    let began = Instant::now();
    let mut child = Command::new(std::env::current_exe()?)
        .args(["emit", &bytes.to_string()])
        .stdin(ChildStdio::null())
        .stdout(theirs)
        .spawn()?;
    let mut terminal = File::from(ours);
    let mut buffer = vec![0; BLOCK];
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

fn open_raw() -> Result<(OwnedFd, OwnedFd)> {
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
