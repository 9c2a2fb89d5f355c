//! Many executors and harnesses on one hub: memory of each idle connection, and round trip of a
//! frame under load.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use super::ours;
use crate::hub::{Hub, data, executor, harness, resume};
use crate::plan::Plan;
use crate::report::{Cell, Reach, Row, Unit};
use crate::scratch::Scratch;
use crate::stats::{p50, percentile};
use crate::target::Target;

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Longest wait for anything.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Connections before memory is first looked at: what the first ones cost belongs to the hub.
const FIRST: u32 = 20;
/// How long memory is left to settle.
const CALM: Duration = Duration::from_millis(500);

/// Result of many connections.
struct ConnectionLoad {
    /// Memory of one connection.
    each: f64,
    /// Memory of the hub with all of them.
    memory: f64,
    /// Round trips of frames, one for each pair and round.
    trips: Vec<f64>,
}

/// Measures a crowd.
pub(crate) fn run(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let measure = |program: PathBuf| {
        let scratch = Scratch::new()?;
        let hub = Hub::start(&program, &scratch)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(gather(&hub, plan.pairs))
    };
    let cells = |crowd: &ConnectionLoad| {
        let trip = |of: Option<f64>| of.map_or(Cell::Skipped("none".to_owned()), Cell::Value);
        vec![
            Cell::Value(crowd.each),
            Cell::Value(crowd.memory),
            trip(p50(&crowd.trips)),
            trip(percentile(&crowd.trips, 99)),
        ]
    };
    let columns = ours(targets, measure, cells, 4);
    let pairs = plan.pairs;
    let title = format!("{pairs} executors and {pairs} harnesses on one hub: memory");
    vec![
        Row::new(
            "hub-idle",
            "hub memory for an idle connection",
            Unit::Kibibytes,
        )
        .reach(Reach::AtMost(32.0 * 1024.0))
        .cells(&columns[0]),
        Row::new("hub-crowd", &title, Unit::Bytes).cells(&columns[1]),
        Row::new(
            "hub-crowd-p50",
            "  a frame and its echo, all at once, p50",
            Unit::Seconds,
        )
        .cells(&columns[2]),
        Row::new("hub-crowd-p99", "  p99", Unit::Seconds).cells(&columns[3]),
    ]
}

async fn gather(hub: &Hub, pairs: u32) -> Result<ConnectionLoad> {
    let mut open = Vec::new();
    for number in 0..FIRST.min(pairs) {
        open.push(pair(hub, number).await?);
    }
    thread::sleep(CALM);
    let (before, first) = (hub.memory(), open.len());
    for number in FIRST.min(pairs)..pairs {
        open.push(pair(hub, number).await?);
    }
    thread::sleep(CALM);
    let memory = hub.memory();
    let more = 2 * (open.len() - first).max(1);
    #[expect(clippy::cast_precision_loss, reason = "a size needs no more")]
    let each = memory.saturating_sub(before) as f64 / more as f64;
    let trips = talk(open).await?;
    #[expect(clippy::cast_precision_loss, reason = "a size needs no more")]
    let memory = hub.memory() as f64;
    Ok(ConnectionLoad {
        each,
        memory,
        trips,
    })
}

/// An executor and its harness.
struct EndpointPair {
    stream: String,
    there: Socket,
    here: Socket,
}

async fn pair(hub: &Hub, number: u32) -> Result<EndpointPair> {
    let environment = format!("crowd-{number}");
    let (there, _) = connect_async(executor(hub, &environment, 2 * number)?).await?;
    let (here, _) = connect_async(harness(hub, &environment, 2 * number + 1)?).await?;
    Ok(EndpointPair {
        stream: format!("11111111-2222-4333-8444-{number:012}"),
        there,
        here,
    })
}

/// Sends a frame over every pair and waits for its echo, three times.
async fn talk(pairs: Vec<EndpointPair>) -> Result<Vec<f64>> {
    let mut trips = Vec::new();
    let mut pairs = pairs;
    for round in 0..3 {
        let mut talking = Vec::new();
        for pair in pairs.drain(..) {
            talking.push(tokio::spawn(pair.trip(round)));
        }
        for one in talking {
            let (pair, took) = timeout(RESPONSE_TIMEOUT, one)
                .await
                .context("frame was not forwarded in time")???;
            pairs.push(pair);
            trips.push(took.as_secs_f64());
        }
    }
    Ok(trips)
}

impl EndpointPair {
    async fn trip(mut self, seq: u32) -> Result<(Self, Duration)> {
        let frame = if seq == 0 {
            resume(&self.stream)
        } else {
            data(
                &self.stream,
                seq - 1,
                b"a frame of the usual size of a keystroke",
            )
        };
        let began = Instant::now();
        self.here.send(Message::binary(frame.clone())).await?;
        let came = next(&mut self.there).await?;
        ensure!(came == frame, "the hub changed a frame");
        self.there.send(Message::binary(came)).await?;
        ensure!(
            next(&mut self.here).await? == frame,
            "the hub changed a frame"
        );
        Ok((self, began.elapsed()))
    }
}

async fn next(socket: &mut Socket) -> Result<Vec<u8>> {
    loop {
        match socket.next().await.context("hub closed the connection")?? {
            Message::Binary(frame) => return Ok(frame.to_vec()),
            Message::Ping(_) | Message::Pong(_) => {}
            other @ (Message::Text(_) | Message::Close(_) | Message::Frame(_)) => {
                bail!("the hub sent {other:?}")
            }
        }
    }
}
