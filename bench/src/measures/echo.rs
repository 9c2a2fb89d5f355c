//! A keystroke: one byte written to `cat`, until its output is back.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::floors::helper::EchoFloor;
use crate::plan::Plan;
use crate::report::{Reach, Row, Unit};
use crate::rpc::{Client, Event, Start, Stdio};
use crate::stats::{Lane, interleave, p50};
use crate::target::Target;

/// Unmeasured keystrokes of each lane.
const WARM_UP: usize = 20;

/// What the raw terminal prints once it is raw.
const READY: u64 = "ready".len() as u64;

/// Measures keystroke latency on pipes and on a raw pty.
pub(crate) fn run(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let mut lanes = vec![Lane::prepare(
        EchoFloor::start().map(|mut echo| lane(plan, move || echo.round_trip())),
    )];
    for stdio in [Stdio::WritablePipes, Stdio::Pty] {
        lanes.extend(
            targets
                .iter()
                .map(|target| Lane::prepare(cat(plan, target, stdio))),
        );
    }
    interleave(plan.blocks, &mut lanes);

    let cells: Vec<_> = lanes.iter().map(|lane| lane.cell(p50)).collect();
    let (pipes, pty) = cells[1..].split_at(targets.len());
    let row = |id, title| {
        Row::new(id, title, Unit::Seconds)
            .floor(&cells[0])
            .reach(Reach::RatioAtMost(4.0))
    };
    vec![
        row("echo-pipes", "keystroke echo, pipes, p50").cells(pipes),
        row("echo-pty", "keystroke echo, raw pty, p50").cells(pty),
    ]
}

fn cat<'a>(plan: &'a Plan, target: &Target, stdio: Stdio) -> Result<Lane<'a, f64>> {
    let mut client = target.shared().connect()?;
    let process = if stdio == Stdio::Pty {
        let script = "stty raw -echo; printf ready; exec cat";
        let process = client.queue_start(&Start::new(&["sh", "-c", script], stdio));
        client.flush()?;
        await_ready(&mut client)?;
        process
    } else {
        let process = client.queue_start(&Start::new(&["cat"], stdio));
        client.flush()?;
        client.settle(1, 0)?;
        process
    };
    for _ in 0..WARM_UP {
        client.echo(process)?;
    }
    let mut cat = Cat { client, process };
    Ok(lane(plan, move || cat.client.echo(cat.process)))
}

/// Waits for the answer to the start and for all of the ready mark.
fn await_ready(client: &mut Client) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let (mut answered, mut bytes) = (false, 0);
    while !answered || bytes < READY {
        match client.next_event()? {
            Event::Response => answered = true,
            Event::Output(more) => bytes += more,
            Event::Closed => anyhow::bail!("the terminal closed"),
            Event::Other => {}
        }
        ensure!(
            Instant::now() < deadline,
            "the terminal did not become ready"
        );
    }
    ensure!(bytes == READY, "the terminal said more than `ready`");
    Ok(())
}

/// Running `cat`, terminated with its lane, since an external server must not keep it.
#[derive(Debug)]
struct Cat {
    client: Client,
    process: u64,
}

impl Drop for Cat {
    fn drop(&mut self) {
        self.client.queue_terminate(self.process);
        // A connection that failed before fails here again; the session ends the process.
        drop(self.client.flush().and_then(|()| self.client.settle(1, 1)));
    }
}

fn lane<'a>(plan: &'a Plan, mut once: impl FnMut() -> Result<Duration> + 'a) -> Lane<'a, f64> {
    Lane::new(move |samples| {
        for _ in plan.echoes.laps() {
            samples.push(once()?.as_secs_f64());
        }
        Ok(())
    })
}
