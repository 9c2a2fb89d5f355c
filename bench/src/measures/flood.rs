//! Echo latency while another client sends without a pause.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread;

use anyhow::Result;

use crate::plan::Plan;
use crate::report::{Cell, Reach, Row, Unit};
use crate::rpc::{Start, Stdio};
use crate::stats::percentile;
use crate::target::Target;
use crate::ws;

/// What the echo may take at the 99th percentile.
const LIMIT: f64 = 0.005;

/// Unmeasured keystrokes.
const WARM_UP: usize = 20;

/// Bytes of the large message, most of them a string of escapes, which is slow to decode.
const LARGE_BYTES: usize = 32 << 20;

/// Measures the echo of one client during the flood of another.
pub(crate) fn run(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let tiny = ws::encode_text(b"[]").repeat(4096);
    let escapes = "\\u0041".repeat(LARGE_BYTES / 6);
    let large =
        ws::encode_text(format!(r#"{{"id":1,"method":"x","params":"{escapes}"}}"#).as_bytes());
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
            .map(|target| match measure(plan, target, flood) {
                Ok(p99) => Cell::Value(p99),
                Err(error) => Cell::Failed(format!("{error:#}")),
            })
            .collect();
        Row::new(id, title, Unit::Seconds)
            .reach(Reach::AtMost(LIMIT))
            .cells(&cells)
    })
    .into()
}

fn measure(plan: &Plan, target: &Target, flood: &[u8]) -> Result<f64> {
    let instance = target.fresh()?;
    let mut client = instance.connect()?;
    let process = client.queue_start(&Start::new(&["cat"], Stdio::WritablePipes));
    client.flush()?;
    client.settle(1, 0)?;
    for _ in 0..WARM_UP {
        client.echo(process)?;
    }
    let stream = ws::open(instance.url())?;
    let (mut sends, mut receives) = (stream.try_clone()?, stream.try_clone()?);
    thread::scope(|scope| {
        // Both end when the stream is shut down.
        scope.spawn(move || while sends.write_all(flood).is_ok() {});
        scope.spawn(move || discard(&mut receives));
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

fn discard(stream: &mut TcpStream) {
    let mut buffer = vec![0; ws::READ_BUFFER];
    while stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
}
