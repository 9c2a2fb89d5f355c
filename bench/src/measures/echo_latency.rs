//! Keystroke echo: one byte written to `cat`, until its output is back.
//!
//! Measured on an idle server, and while another client sends without a pause.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::bench_plan::Plan;
use crate::bench_target::Target;
use crate::contender::{Lane, interleave, p50, percentile};
use crate::helper_process::EchoFloor;
use crate::report::{Cell, Reach, Row, Unit};
use crate::rpc_client::{Client, Start, Stdio};
use crate::rpc_message::Event;
use crate::websocket::{READ_BUFFER, encode_text, open_stream};

/// Unmeasured keystrokes of each lane.
const WARM_UP: usize = 20;

/// What the raw terminal prints once it is raw.
const READY: u64 = "ready".len() as u64;

/// Measures keystroke latency on pipes and on a raw pty.
pub(crate) fn measure_echo(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let mut lanes =
        vec![Lane::prepare(EchoFloor::start().map(|mut echo| {
            echo_contender(plan, move || echo.round_trip())
        }))];
    for stdio in [Stdio::WritablePipes, Stdio::Pty] {
        lanes.extend(
            targets
                .iter()
                .map(|target| Lane::prepare(cat_contender(plan, target, stdio))),
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

fn cat_contender<'a>(plan: &'a Plan, target: &Target, stdio: Stdio) -> Result<Lane<'a, f64>> {
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
    let mut cat = CatProcess { client, process };
    Ok(echo_contender(plan, move || cat.client.echo(cat.process)))
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
struct CatProcess {
    client: Client,
    process: u64,
}

impl Drop for CatProcess {
    fn drop(&mut self) {
        self.client.queue_terminate(self.process);
        // A connection that failed before fails here again; the session ends the process.
        drop(self.client.flush().and_then(|()| self.client.settle(1, 1)));
    }
}

fn echo_contender<'a>(
    plan: &'a Plan,
    mut once: impl FnMut() -> Result<Duration> + 'a,
) -> Lane<'a, f64> {
    Lane::new(move |samples| {
        for _ in plan.echoes.laps() {
            samples.push(once()?.as_secs_f64());
        }
        Ok(())
    })
}

/// What the echo may take at the 99th percentile.
const FLOOD_LIMIT: f64 = 0.005;

/// Bytes of the large message, most of them a string of escapes, which is slow to decode.
const LARGE_BYTES: usize = 32 << 20;

/// Measures the echo of one client during the flood of another.
pub(crate) fn measure_flood(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let tiny = encode_text(b"[]").repeat(4096);
    let escapes = "\\u0041".repeat(LARGE_BYTES / 6);
    let large = encode_text(format!(r#"{{"id":1,"method":"x","params":"{escapes}"}}"#).as_bytes());
    [
        (
            "flood-frames",
            "echo, another client floods tiny messages, p99",
            &tiny,
        ),
        (
            "flood-json",
            "echo, another client sends 32 MiB of JSON, p99",
            &large,
        ),
    ]
    .map(|(id, title, flood)| {
        let cells: Vec<_> = targets
            .iter()
            .map(|target| match echo_during_flood(plan, target, flood) {
                Ok(p99) => Cell::Value(p99),
                Err(error) => Cell::Failed(format!("{error:#}")),
            })
            .collect();
        Row::new(id, title, Unit::Seconds)
            .reach(Reach::AtMost(FLOOD_LIMIT))
            .cells(&cells)
    })
    .into()
}

fn echo_during_flood(plan: &Plan, target: &Target, flood: &[u8]) -> Result<f64> {
    let instance = target.fresh()?;
    let mut client = instance.connect()?;
    let process = client.queue_start(&Start::new(&["cat"], Stdio::WritablePipes));
    client.flush()?;
    client.settle(1, 0)?;
    for _ in 0..WARM_UP {
        client.echo(process)?;
    }
    let stream = open_stream(instance.url())?;
    let (mut sends, mut receives) = (stream.try_clone()?, stream.try_clone()?);
    thread::scope(|scope| {
        // Both end when the stream is shut down.
        scope.spawn(move || while sends.write_all(flood).is_ok() {});
        scope.spawn(move || discard_input(&mut receives));
        let mut samples = Vec::new();
        let echoed = (|| {
            for _ in 0..plan.blocks {
                for _ in plan.echoes.laps() {
                    samples.push(client.echo(process)?.as_secs_f64());
                }
            }
            Ok::<_, anyhow::Error>(())
        })();
        drop(stream.shutdown(Shutdown::Both));
        echoed?;
        percentile(&samples, 99).ok_or_else(|| anyhow::anyhow!("no echo was measured"))
    })
}

fn discard_input(stream: &mut TcpStream) {
    let mut buffer = vec![0; READ_BUFFER];
    while stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
}
