//! Direct spawn and wait, one at a time and many at once, with nothing but the standard library.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{WaitOptions, wait};

use crate::plan::Budget;

/// The program that every spawn measure runs.
pub(crate) const PROGRAM: &str = "/bin/true";

/// Output target of a floor's children.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Output {
    /// Pipes, as every server must use them.
    Piped,
    /// `/dev/null`: the least there is.
    Null,
}

/// Spawns one process and waits for it.
pub(crate) fn spawn_and_wait(output: Output) -> Result<Duration> {
    let began = Instant::now();
    let status = spawn(output)?.wait()?;
    let took = began.elapsed();
    ensure!(status.success(), "{PROGRAM} failed");
    Ok(took)
}

/// Keeps `width` processes running within `budget`, and returns how many ended per second.
pub(crate) fn rate(output: Output, width: usize, budget: Budget) -> Result<f64> {
    let mut running = BTreeMap::new();
    let began = Instant::now();
    for _ in 0..width {
        insert(&mut running, spawn(output)?);
    }
    let mut ended = 0_u32;
    for _ in budget.laps() {
        reap(&mut running)?;
        ended += 1;
        insert(&mut running, spawn(output)?);
    }
    let rate = f64::from(ended) / began.elapsed().as_secs_f64();
    while !running.is_empty() {
        reap(&mut running)?;
    }
    Ok(rate)
}

fn insert(running: &mut BTreeMap<u32, Child>, child: Child) {
    running.insert(child.id(), child);
}

/// Waits for any child. Only those of this loop may end meanwhile; a server that does is an error.
fn reap(running: &mut BTreeMap<u32, Child>) -> Result<()> {
    let (pid, status) = wait(WaitOptions::empty())?.context("nothing to wait for")?;
    ensure!(status.exit_status() == Some(0), "process {pid} failed");
    let pid = u32::try_from(pid.as_raw_nonzero().get())?;
    running
        .remove(&pid)
        .with_context(|| format!("process {pid} ended unexpectedly"))?;
    Ok(())
}

fn spawn(output: Output) -> Result<Child> {
    let stdio = || match output {
        Output::Piped => Stdio::piped(),
        Output::Null => Stdio::null(),
    };
    let mut command = Command::new(PROGRAM);
    command.stdin(Stdio::null()).stdout(stdio()).stderr(stdio());
    command
        .spawn()
        .with_context(|| format!("cannot run {PROGRAM}"))
}
