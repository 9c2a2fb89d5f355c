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

use crate::bench_dir::BenchDir;
use crate::bench_plan::BenchPlan;
use crate::bench_target::BenchTarget;
use crate::contender::{p50, percentile};
use crate::hub_process::HubProcess;
use crate::measures::measure_ours;
use crate::relay_endpoint::{connect_harness, data_frame, register_executor, resume_frame};
use crate::report::{ReportCell, ReportRow, RowGoal, ValueUnit};
use crate::websocket::WebSocket;

/// Payload of a typical small record.
const PAYLOAD: [u8; 128] = [7; 128];
/// Frames per write.
const BATCH: u32 = 64;

/// Measures the frames per second that a hub routes.
pub(crate) fn measure_frames(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let measure = |program: PathBuf| {
        let dir = BenchDir::new()?;
        let hub = HubProcess::start(&program, &dir)?;
        let mut rates = Vec::new();
        for block in 0..plan.rate_blocks {
            rates.push(route_frames(&hub, &format!("frames-{block}"), plan.frames)?);
        }
        p50(&rates).context("no samples")
    };
    let columns = measure_ours(targets, measure, |rate| vec![ReportCell::Value(*rate)], 1);
    vec![
        ReportRow::new(
            "hub-frames",
            "frames routed by a hub, 128 bytes each",
            ValueUnit::PerSecond,
        )
        .goal(RowGoal::AtLeast(100_000.0))
        .cells(&columns[0]),
    ]
}

/// Sends frames from a harness to an executor and returns the received frames per second.
fn route_frames(hub: &HubProcess, environment: &str, count: u32) -> Result<f64> {
    let mut executor = WebSocket::connect(&register_executor(hub, environment, 1)?)?;
    let mut harness = WebSocket::connect(&connect_harness(hub, environment, 2)?)?;
    let stream = "11111111-2222-4333-8444-555555555555";
    harness.queue_binary(&[&resume_frame(stream)]);
    harness.flush()?;
    executor.next_message()?;
    let started_at = Instant::now();
    let sender = thread::spawn(move || -> Result<WebSocket> {
        for seq in 0..count {
            harness.queue_binary(&[&data_frame(stream, seq, &PAYLOAD)]);
            if seq % BATCH == BATCH - 1 {
                harness.flush()?;
            }
        }
        harness.flush()?;
        Ok(harness)
    });
    for _ in 0..count {
        let frame = executor.next_message()?;
        ensure!(frame.len() > PAYLOAD.len(), "a frame is too short");
    }
    let elapsed = started_at.elapsed().as_secs_f64();
    let sent = sender.join().ok().context("the sender panicked")?;
    // Keep the socket open until the last frame has arrived.
    drop(sent?);
    Ok(f64::from(count) / elapsed)
}

type ClientSocket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Longest wait for a frame.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Pairs connected before the first memory sample: their one-time costs belong to the hub.
const BASELINE_PAIRS: u32 = 20;
/// Time for memory to settle.
const SETTLE_TIME: Duration = Duration::from_millis(500);

/// Result of the measure with many connections.
struct ConnectionLoad {
    /// Memory of one connection.
    per_connection: f64,
    /// Memory of the hub with all connections.
    memory: f64,
    /// Round-trip times of frames, one per pair and round.
    round_trips: Vec<f64>,
}

/// Measures a hub with many connections.
pub(crate) fn measure_many_connections(
    plan: &BenchPlan,
    targets: &[BenchTarget],
) -> Vec<ReportRow> {
    let measure = |program: PathBuf| {
        let dir = BenchDir::new()?;
        let hub = HubProcess::start(&program, &dir)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(load_hub(&hub, plan.pairs))
    };
    let cells = |load: &ConnectionLoad| {
        let round_trip = |value: Option<f64>| {
            value.map_or(ReportCell::Skipped("none".to_owned()), ReportCell::Value)
        };
        vec![
            ReportCell::Value(load.per_connection),
            ReportCell::Value(load.memory),
            round_trip(p50(&load.round_trips)),
            round_trip(percentile(&load.round_trips, 99)),
        ]
    };
    let columns = measure_ours(targets, measure, cells, 4);
    let pairs = plan.pairs;
    let title = format!("{pairs} executors and {pairs} harnesses on one hub: memory");
    vec![
        ReportRow::new(
            "hub-idle",
            "hub memory for an idle connection",
            ValueUnit::Kibibytes,
        )
        .goal(RowGoal::AtMost(32.0 * 1024.0))
        .cells(&columns[0]),
        ReportRow::new("hub-crowd", &title, ValueUnit::Bytes).cells(&columns[1]),
        ReportRow::new(
            "hub-crowd-p50",
            "  a frame and its echo, all at once, p50",
            ValueUnit::Seconds,
        )
        .cells(&columns[2]),
        ReportRow::new("hub-crowd-p99", "  p99", ValueUnit::Seconds).cells(&columns[3]),
    ]
}

async fn load_hub(hub: &HubProcess, pairs: u32) -> Result<ConnectionLoad> {
    let mut connected = Vec::new();
    for number in 0..BASELINE_PAIRS.min(pairs) {
        connected.push(connect_pair(hub, number).await?);
    }
    thread::sleep(SETTLE_TIME);
    let (before, first) = (hub.resident_memory(), connected.len());
    for number in BASELINE_PAIRS.min(pairs)..pairs {
        connected.push(connect_pair(hub, number).await?);
    }
    thread::sleep(SETTLE_TIME);
    let memory = hub.resident_memory();
    let added = 2 * (connected.len() - first).max(1);
    #[expect(clippy::cast_precision_loss, reason = "a size needs no more precision")]
    let per_connection = memory.saturating_sub(before) as f64 / added as f64;
    let round_trips = echo_frames(connected).await?;
    #[expect(clippy::cast_precision_loss, reason = "a size needs no more precision")]
    let memory = hub.resident_memory() as f64;
    Ok(ConnectionLoad {
        per_connection,
        memory,
        round_trips,
    })
}

/// An executor and its harness.
struct EndpointPair {
    stream: String,
    executor: ClientSocket,
    harness: ClientSocket,
}

async fn connect_pair(hub: &HubProcess, number: u32) -> Result<EndpointPair> {
    let environment = format!("crowd-{number}");
    let (executor, _) = connect_async(register_executor(hub, &environment, 2 * number)?).await?;
    let (harness, _) = connect_async(connect_harness(hub, &environment, 2 * number + 1)?).await?;
    Ok(EndpointPair {
        stream: format!("11111111-2222-4333-8444-{number:012}"),
        executor,
        harness,
    })
}

/// Sends a frame over every pair and waits for its echo, three times.
async fn echo_frames(pairs: Vec<EndpointPair>) -> Result<Vec<f64>> {
    let mut round_trips = Vec::new();
    let mut pairs = pairs;
    for round in 0..3 {
        let mut tasks = Vec::new();
        for pair in pairs.drain(..) {
            tasks.push(tokio::spawn(pair.round_trip(round)));
        }
        for task in tasks {
            let (pair, elapsed) = timeout(RESPONSE_TIMEOUT, task)
                .await
                .context("frame was not forwarded in time")???;
            pairs.push(pair);
            round_trips.push(elapsed.as_secs_f64());
        }
    }
    Ok(round_trips)
}

impl EndpointPair {
    async fn round_trip(mut self, seq: u32) -> Result<(Self, Duration)> {
        let frame = if seq == 0 {
            resume_frame(&self.stream)
        } else {
            data_frame(
                &self.stream,
                seq - 1,
                b"a frame of the usual size of a keystroke",
            )
        };
        let started_at = Instant::now();
        self.harness.send(Message::binary(frame.clone())).await?;
        let received = next_frame(&mut self.executor).await?;
        ensure!(received == frame, "the hub changed a frame");
        self.executor.send(Message::binary(received)).await?;
        ensure!(
            next_frame(&mut self.harness).await? == frame,
            "the hub changed a frame"
        );
        Ok((self, started_at.elapsed()))
    }
}

async fn next_frame(socket: &mut ClientSocket) -> Result<Vec<u8>> {
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
