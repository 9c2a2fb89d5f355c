//! Capacity of a hub: frames it routes, and many executors and harnesses on it.
//!
//! Raw endpoints send small frames as fast as the hub accepts them. With many connections, measures
//! the memory of each idle one and the round trip of a frame under load.

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

use crate::bench_dir::Scratch;
use crate::bench_plan::Plan;
use crate::bench_target::Target;
use crate::contender::{p50, percentile};
use crate::hub_process::Hub;
use crate::measures::measure_ours;
use crate::relay_endpoint::{connect_harness, data_frame, register_executor, resume_frame};
use crate::report::{Cell, Reach, Row, Unit};
use crate::websocket::WebSocket;

/// The size of a typical small record.
const PAYLOAD: [u8; 128] = [7; 128];
/// Frames that are sent with one write.
const BATCH: u32 = 64;

/// Measures how many frames a hub routes.
pub(crate) fn measure_frames(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let measure = |program: PathBuf| {
        let scratch = Scratch::new()?;
        let hub = Hub::start(&program, &scratch)?;
        let mut rates = Vec::new();
        for block in 0..plan.rate_blocks {
            rates.push(route_frames(&hub, &format!("frames-{block}"), plan.frames)?);
        }
        p50(&rates).context("no samples")
    };
    let columns = measure_ours(targets, measure, |rate| vec![Cell::Value(*rate)], 1);
    vec![
        Row::new(
            "hub-frames",
            "frames routed by a hub, 128 bytes each",
            Unit::PerSecond,
        )
        .reach(Reach::AtLeast(100_000.0))
        .cells(&columns[0]),
    ]
}

/// Sends frames from a harness to an executor; returns how many a second came.
fn route_frames(hub: &Hub, environment: &str, count: u32) -> Result<f64> {
    let mut there = WebSocket::connect(&register_executor(hub, environment, 1)?)?;
    let mut here = WebSocket::connect(&connect_harness(hub, environment, 2)?)?;
    let stream = "11111111-2222-4333-8444-555555555555";
    here.queue_binary(&[&resume_frame(stream)]);
    here.flush()?;
    there.next_message()?;
    let began = Instant::now();
    let sender = thread::spawn(move || -> Result<WebSocket> {
        for seq in 0..count {
            here.queue_binary(&[&data_frame(stream, seq, &PAYLOAD)]);
            if seq % BATCH == BATCH - 1 {
                here.flush()?;
            }
        }
        here.flush()?;
        Ok(here)
    });
    for _ in 0..count {
        let frame = there.next_message()?;
        ensure!(frame.len() > PAYLOAD.len(), "a frame is too short");
    }
    let took = began.elapsed().as_secs_f64();
    let sent = sender.join().ok().context("the sender panicked")?;
    // Open until the last frame has come.
    drop(sent?);
    Ok(f64::from(count) / took)
}

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
pub(crate) fn measure_many_connections(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let measure = |program: PathBuf| {
        let scratch = Scratch::new()?;
        let hub = Hub::start(&program, &scratch)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(load_hub(&hub, plan.pairs))
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
    let columns = measure_ours(targets, measure, cells, 4);
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

async fn load_hub(hub: &Hub, pairs: u32) -> Result<ConnectionLoad> {
    let mut open = Vec::new();
    for number in 0..FIRST.min(pairs) {
        open.push(connect_pair(hub, number).await?);
    }
    thread::sleep(CALM);
    let (before, first) = (hub.memory(), open.len());
    for number in FIRST.min(pairs)..pairs {
        open.push(connect_pair(hub, number).await?);
    }
    thread::sleep(CALM);
    let memory = hub.memory();
    let more = 2 * (open.len() - first).max(1);
    #[expect(clippy::cast_precision_loss, reason = "a size needs no more")]
    let each = memory.saturating_sub(before) as f64 / more as f64;
    let trips = echo_frames(open).await?;
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

async fn connect_pair(hub: &Hub, number: u32) -> Result<EndpointPair> {
    let environment = format!("crowd-{number}");
    let (there, _) = connect_async(register_executor(hub, &environment, 2 * number)?).await?;
    let (here, _) = connect_async(connect_harness(hub, &environment, 2 * number + 1)?).await?;
    Ok(EndpointPair {
        stream: format!("11111111-2222-4333-8444-{number:012}"),
        there,
        here,
    })
}

/// Sends a frame over every pair and waits for its echo, three times.
async fn echo_frames(pairs: Vec<EndpointPair>) -> Result<Vec<f64>> {
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
            resume_frame(&self.stream)
        } else {
            data_frame(
                &self.stream,
                seq - 1,
                b"a frame of the usual size of a keystroke",
            )
        };
        let began = Instant::now();
        self.here.send(Message::binary(frame.clone())).await?;
        let came = next_frame(&mut self.there).await?;
        ensure!(came == frame, "the hub changed a frame");
        self.there.send(Message::binary(came)).await?;
        ensure!(
            next_frame(&mut self.here).await? == frame,
            "the hub changed a frame"
        );
        Ok((self, began.elapsed()))
    }
}

async fn next_frame(socket: &mut Socket) -> Result<Vec<u8>> {
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
