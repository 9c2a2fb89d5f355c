//! Keystroke echo: one byte written to `cat`, until its output is back.
//!
//! Measured on an idle server, and while another client sends without a pause.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::bench_plan::BenchPlan;
use crate::bench_target::BenchTarget;
use crate::contender::{Contender, interleave, p50, percentile};
use crate::helper_process::EchoFloor;
use crate::report::{ReportCell, ReportRow, RowGoal, ValueUnit};
use crate::rpc_client::{PreparedStart, RpcClient, StdioMode};
use crate::rpc_message::ServerEvent;
use crate::websocket::{READ_BUFFER, encode_text, open_stream};

/// Unmeasured keystrokes of each contender.
const WARM_UP: usize = 20;

/// Bytes that the terminal prints when it is in raw mode.
const READY: u64 = "ready".len() as u64;

/// Measures keystroke latency on pipes and on a raw pty.
pub(crate) fn measure_echo(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let mut contenders = vec![Contender::from_result(
        EchoFloor::start().map(|mut echo| echo_contender(plan, move || echo.round_trip())),
    )];
    for stdio in [StdioMode::WritablePipes, StdioMode::Pty] {
        contenders.extend(
            targets
                .iter()
                .map(|target| Contender::from_result(cat_contender(plan, target, stdio))),
        );
    }
    interleave(plan.blocks, &mut contenders);

    let cells: Vec<_> = contenders
        .iter()
        .map(|contender| contender.cell(p50))
        .collect();
    let (pipes, pty) = cells[1..].split_at(targets.len());
    let row = |id, title| {
        ReportRow::new(id, title, ValueUnit::Seconds)
            .floor(&cells[0])
            .goal(RowGoal::RatioAtMost(4.0))
    };
    vec![
        row("echo-pipes", "keystroke echo, pipes, p50").cells(pipes),
        row("echo-pty", "keystroke echo, raw pty, p50").cells(pty),
    ]
}

fn cat_contender<'a>(
    plan: &'a BenchPlan,
    target: &BenchTarget,
    stdio: StdioMode,
) -> Result<Contender<'a, f64>> {
    let mut client = target.shared_instance().connect()?;
    let process = if stdio == StdioMode::Pty {
        let script = "stty raw -echo; printf ready; exec cat";
        let process = client.queue_start(&PreparedStart::new(&["sh", "-c", script], stdio));
        client.flush()?;
        await_ready(&mut client)?;
        process
    } else {
        let process = client.queue_start(&PreparedStart::new(&["cat"], stdio));
        client.flush()?;
        client.await_completion(1, 0)?;
        process
    };
    for _ in 0..WARM_UP {
        client.echo(process)?;
    }
    let mut cat = CatProcess { client, process };
    Ok(echo_contender(plan, move || cat.client.echo(cat.process)))
}

/// Waits for the response to the start and for the complete ready mark.
fn await_ready(client: &mut RpcClient) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let (mut has_response, mut bytes) = (false, 0);
    while !has_response || bytes < READY {
        match client.next_event()? {
            ServerEvent::Response => has_response = true,
            ServerEvent::Output(more) => bytes += more,
            ServerEvent::Closed => anyhow::bail!("the terminal closed"),
            ServerEvent::Other => {}
        }
        ensure!(
            Instant::now() < deadline,
            "the terminal did not become ready"
        );
    }
    ensure!(bytes == READY, "the terminal printed more than `ready`");
    Ok(())
}

/// A running `cat`. Dropping it terminates the process, since an external server outlives us.
#[derive(Debug)]
struct CatProcess {
    client: RpcClient,
    process: u64,
}

impl Drop for CatProcess {
    fn drop(&mut self) {
        self.client.queue_terminate(self.process);
        // A connection that already failed fails again; then the end of the session ends the
        // process.
        drop(
            self.client
                .flush()
                .and_then(|()| self.client.await_completion(1, 1)),
        );
    }
}

fn echo_contender<'a>(
    plan: &'a BenchPlan,
    mut operation: impl FnMut() -> Result<Duration> + 'a,
) -> Contender<'a, f64> {
    Contender::new(move |samples| {
        for _ in plan.echoes.iterations() {
            samples.push(operation()?.as_secs_f64());
        }
        Ok(())
    })
}

/// Goal for the 99th percentile of the echo.
const FLOOD_LIMIT: f64 = 0.005;

/// Bytes of the large message, mostly a string of escapes, which is slow to decode.
const LARGE_BYTES: usize = 32 << 20;

/// Measures the echo of one client while another floods the server.
pub(crate) fn measure_flood(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
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
                Ok(p99) => ReportCell::Value(p99),
                Err(error) => ReportCell::Failed(format!("{error:#}")),
            })
            .collect();
        ReportRow::new(id, title, ValueUnit::Seconds)
            .goal(RowGoal::AtMost(FLOOD_LIMIT))
            .cells(&cells)
    })
    .into()
}

fn echo_during_flood(plan: &BenchPlan, target: &BenchTarget, flood: &[u8]) -> Result<f64> {
    let instance = target.start_fresh()?;
    let mut client = instance.connect()?;
    let process = client.queue_start(&PreparedStart::new(&["cat"], StdioMode::WritablePipes));
    client.flush()?;
    client.await_completion(1, 0)?;
    for _ in 0..WARM_UP {
        client.echo(process)?;
    }
    let stream = open_stream(instance.url())?;
    let (mut sender, mut receiver) = (stream.try_clone()?, stream.try_clone()?);
    thread::scope(|scope| {
        // Both threads end when the stream is shut down.
        scope.spawn(move || while sender.write_all(flood).is_ok() {});
        scope.spawn(move || discard_input(&mut receiver));
        let mut samples = Vec::new();
        let result = (|| {
            for _ in 0..plan.blocks {
                for _ in plan.echoes.iterations() {
                    samples.push(client.echo(process)?.as_secs_f64());
                }
            }
            Ok::<_, anyhow::Error>(())
        })();
        drop(stream.shutdown(Shutdown::Both));
        result?;
        percentile(&samples, 99).ok_or_else(|| anyhow::anyhow!("no echo was measured"))
    })
}

fn discard_input(stream: &mut TcpStream) {
    let mut buffer = vec![0; READ_BUFFER];
    while stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
}
