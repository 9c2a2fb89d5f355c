//! Tunnels: throughput and echo beside those of a process, set-up and memory. `port_forward` has
//! what goes through the command line.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use exec_env::tunnel::{TunnelStream, TunnelTarget};
use futures_util::future::try_join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::bench_dir::BenchDir;
use crate::bench_plan::BenchPlan;
use crate::bench_target::{BenchTarget, OURS};
use crate::contender::{Contender, interleave, p50, percentile};
use crate::hub_process::HubProcess;
use crate::measures::hub_relay::{ENVIRONMENT, StreamingClient, echo_sampler, output_sampler};
use crate::measures::measure_ours;
use crate::measures::port_forward::{measure_cuts, measure_detection};
use crate::process_usage::{listener_pid, private_memory, url_port};
use crate::report::{ReportCell, ReportRow, RowGoal, ValueUnit};

/// Unmeasured echoes and connections of each contender.
const WARM_UP: usize = 50;
/// Longest time for one transfer.
pub(super) const LIMIT: Duration = Duration::from_secs(120);
/// Private memory of the server for each open tunnel. Its windows are empty: what remains is the
/// state of both ends and a small read buffer.
const TUNNEL_MEMORY: f64 = 64.0 * 1024.0;
/// A decimal megabyte, as in the goal.
const MEGABYTE: f64 = 1e6;
/// Bytes of one read and one write.
pub(super) const BUFFER_BYTES: usize = 256 << 10;

/// Measures tunnels of our server.
pub(crate) fn measure_tunnels(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let ours = targets.iter().find(|target| target.name() == OURS);
    let Some(direct) = ours else {
        return Vec::new();
    };
    let measure = |program: std::path::PathBuf| {
        let dir = BenchDir::new()?;
        let hub = HubProcess::start(&program, &dir)?;
        let _executor = hub.start_executor(hub.url(), ENVIRONMENT)?;
        let far = FarEnd::start()?;
        let connect = || StreamingClient::direct(direct.shared_instance().url());
        let relay = || StreamingClient::relayed(&hub);
        let mut rates = [
            Contender::new(output_sampler(plan, connect()?)),
            Contender::new(output_sampler(plan, relay()?)),
            Contender::new(download_sampler(plan, connect()?, far.address)),
            Contender::new(download_sampler(plan, relay()?, far.address)),
        ];
        interleave(plan.rate_blocks, &mut rates);
        let mut latencies = [
            Contender::new(echo_sampler(plan, connect()?)?),
            Contender::new(tunnel_echo_sampler(plan, connect()?, far.address)?),
            Contender::new(open_sampler(plan, connect()?, far.address)?),
        ];
        interleave(plan.blocks, &mut latencies);
        let mut cells: Vec<_> = rates
            .iter()
            .chain(&latencies)
            .map(|contender| contender.cell(p50))
            .collect();
        let memory = measure_memory(plan, direct, connect()?, far.address);
        cells.push(cell(memory));
        let url = direct.shared_instance().url();
        let mut detection = [Contender::new(|samples: &mut Vec<f64>| {
            measure_detection(plan, &program, url, samples)
        })];
        interleave(1, &mut detection);
        cells.push(detection[0].cell(|samples| percentile(samples, 100)));
        cells.push(cell(measure_cuts(plan, &program, &dir, &hub, far.address)));
        Ok(cells)
    };
    let columns = measure_ours(targets, measure, Vec::clone, 10);
    let floor = |index: usize| {
        let measured = columns[index].iter().find(|cell| cell.value().is_some());
        let skipped = ReportCell::Skipped("not measured".to_owned());
        measured.cloned().unwrap_or(skipped)
    };
    let row = |id, title: &str, unit| ReportRow::new(id, title, unit);
    let (tunnels, cuts) = (plan.tunnels, plan.tunnel_cuts);
    vec![
        row(
            "tunnel-output",
            "tunnel against output, direct",
            ValueUnit::BytesPerSecond,
        )
        .floor(&floor(0))
        .goal(RowGoal::RatioAtLeast(0.5))
        .cells(&columns[2]),
        row(
            "tunnel-relay",
            "tunnel through hub and Noise",
            ValueUnit::BytesPerSecond,
        )
        .goal(RowGoal::AtLeast(150.0 * MEGABYTE))
        .cells(&columns[3]),
        row(
            "tunnel-relay-ratio",
            "  against output through hub and Noise",
            ValueUnit::BytesPerSecond,
        )
        .floor(&floor(1))
        .goal(RowGoal::RatioAtLeast(0.5))
        .cells(&columns[3]),
        row(
            "tunnel-echo",
            "echo in a tunnel against a process, p50",
            ValueUnit::Seconds,
        )
        .floor(&floor(4))
        .goal(RowGoal::RatioAtMost(2.0))
        .cells(&columns[5]),
        row(
            "tunnel-open",
            "connection in a tunnel, until its first byte, p50",
            ValueUnit::Seconds,
        )
        .goal(RowGoal::AtMost(0.002))
        .cells(&columns[6]),
        row(
            "tunnel-memory",
            &format!("private memory of the server for {tunnels} tunnels that are used at once"),
            ValueUnit::Bytes,
        )
        .goal(RowGoal::AtMost(TUNNEL_MEMORY * to_f64(plan.tunnels)))
        .cells(&columns[7]),
        row(
            "tunnel-auto",
            "a port listens, until run --tunnel auto prints its URL, worst",
            ValueUnit::Seconds,
        )
        .goal(RowGoal::AtMost(1.0))
        .cells(&columns[8]),
        row(
            "tunnel-cuts",
            &format!("port forward through the hub, {cuts} cuts at both ends, each byte compared"),
            ValueUnit::BytesPerSecond,
        )
        .cells(&columns[9]),
    ]
}

fn cell(measured: Result<f64>) -> ReportCell {
    match measured {
        Ok(value) => ReportCell::Value(value),
        Err(error) => ReportCell::from_error(&error),
    }
}

/// Bytes of one read of an echo.
const ECHO_BYTES: usize = 16 << 10;

/// A TCP server behind the tunnels. The first 8 bytes of a connection are a number: that many bytes
/// of the pattern are sent, or everything is echoed if it is zero.
struct FarEnd {
    address: SocketAddr,
}

impl FarEnd {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A connection that breaks fails the measure at its other end.
                thread::spawn(move || drop(serve(stream)));
            }
        });
        Ok(Self { address })
    }
}

fn serve(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut count = [0; 8];
    stream.read_exact(&mut count)?;
    let mut left = u64::from_be_bytes(count);
    if left == 0 {
        stream.write_all(&[0])?;
        let mut buffer = vec![0; ECHO_BYTES];
        while let read @ 1.. = stream.read(&mut buffer)? {
            stream.write_all(&buffer[..read])?;
        }
    }
    let block = pattern();
    let mut at = 0;
    while left > 0 {
        let bytes = usize::try_from(left)?.min(BUFFER_BYTES);
        stream.write_all(&block[at..at + bytes])?;
        left -= bytes as u64;
        at = (at + bytes) % PERIOD;
    }
    Ok(())
}

/// Period of the pattern: no power of two, so that moved data differs.
pub(super) const PERIOD: usize = 65_521;

/// Returns the pattern from any position of its period, for a whole buffer.
pub(super) fn pattern() -> Vec<u8> {
    let byte = |at: usize| u8::try_from(at % PERIOD % 251).unwrap_or_default();
    (0..PERIOD + BUFFER_BYTES).map(byte).collect()
}

async fn open(client: &StreamingClient, address: SocketAddr) -> Result<Box<dyn TunnelStream>> {
    let network = client.client.environment().network;
    let opened = network.open(TunnelTarget::loopback(address.port()));
    Ok(timeout(LIMIT, opened).await.context("no connection")??)
}

/// Receives bytes of the pattern, without comparing them.
async fn download(client: &StreamingClient, address: SocketAddr, bytes: u64) -> Result<()> {
    let mut tunnel = open(client, address).await?;
    tunnel.write_all(&bytes.to_be_bytes()).await?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut received = 0;
    while let read @ 1.. = tunnel.read(&mut buffer).await? {
        received += read as u64;
    }
    ensure!(received == bytes, "{received} bytes instead of {bytes}");
    Ok(())
}

fn download_sampler(
    plan: &BenchPlan,
    client: StreamingClient,
    address: SocketAddr,
) -> impl FnMut(&mut Vec<f64>) -> Result<()> {
    let bytes = plan.output_bytes;
    move |samples| {
        let started_at = Instant::now();
        client.runtime.block_on(async {
            let transfer = download(&client, address, bytes);
            timeout(LIMIT, transfer)
                .await
                .context("transfer timed out")?
        })?;
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no more precision")]
        samples.push(bytes as f64 / started_at.elapsed().as_secs_f64());
        Ok(())
    }
}

fn tunnel_echo_sampler(
    plan: &BenchPlan,
    client: StreamingClient,
    address: SocketAddr,
) -> Result<impl FnMut(&mut Vec<f64>) -> Result<()>> {
    let mut tunnel = client.runtime.block_on(open_echo(&client, address))?;
    let mut echo_once = move || {
        let started_at = Instant::now();
        client.runtime.block_on(async {
            tunnel.write_all(b"x").await?;
            let echoed = timeout(LIMIT, tunnel.read_exact(&mut [0])).await;
            echoed.context("no echo")??;
            Ok::<_, anyhow::Error>(())
        })?;
        Ok::<_, anyhow::Error>(started_at.elapsed().as_secs_f64())
    };
    for _ in 0..WARM_UP {
        echo_once()?;
    }
    let budget = plan.echoes;
    Ok(move |samples: &mut Vec<f64>| {
        for _ in budget.iterations() {
            samples.push(echo_once()?);
        }
        Ok(())
    })
}

/// Opens a tunnel to an echo and receives its first byte.
async fn open_echo(client: &StreamingClient, address: SocketAddr) -> Result<Box<dyn TunnelStream>> {
    let mut tunnel = open(client, address).await?;
    tunnel.write_all(&0_u64.to_be_bytes()).await?;
    let first = timeout(LIMIT, tunnel.read_exact(&mut [0])).await;
    first.context("no first byte")??;
    Ok(tunnel)
}

fn open_sampler(
    plan: &BenchPlan,
    client: StreamingClient,
    address: SocketAddr,
) -> Result<impl FnMut(&mut Vec<f64>) -> Result<()>> {
    let open_once = move || {
        let started_at = Instant::now();
        client.runtime.block_on(open_echo(&client, address))?;
        Ok::<_, anyhow::Error>(started_at.elapsed().as_secs_f64())
    };
    for _ in 0..WARM_UP {
        open_once()?;
    }
    let budget = plan.echoes;
    Ok(move |samples: &mut Vec<f64>| {
        for _ in budget.iterations() {
            samples.push(open_once()?);
        }
        Ok(())
    })
}

/// Returns how much private memory the server has for many tunnels, which are opened at once and
/// carry data at the same time.
fn measure_memory(
    plan: &BenchPlan,
    target: &BenchTarget,
    client: StreamingClient,
    address: SocketAddr,
) -> Result<f64> {
    let url = target.shared_instance().url();
    let port = url_port(url).context("the server has no port")?;
    let pid = listener_pid(port).context("the server has no process")?;
    let before = private_memory(pid);
    let tunnels = client.runtime.block_on(async {
        let opening = (0..plan.tunnels).map(|_| open_echo(&client, address));
        let mut tunnels = try_join_all(opening).await?;
        let used = tunnels
            .iter_mut()
            .enumerate()
            .map(|(number, tunnel)| async move {
                let data = number.to_be_bytes().repeat(4096 / 8);
                let mut echoed = vec![0; data.len()];
                tunnel.write_all(&data).await?;
                let read = timeout(LIMIT, tunnel.read_exact(&mut echoed)).await;
                read.context("no echo")??;
                ensure!(echoed == data, "tunnel {number} returned other bytes");
                Ok(())
            });
        try_join_all(used).await?;
        Ok::<_, anyhow::Error>(tunnels)
    })?;
    let grown = private_memory(pid).saturating_sub(before);
    drop(tunnels);
    Ok(to_f64(usize::try_from(grown)?))
}

#[expect(clippy::cast_precision_loss, reason = "memory needs no more precision")]
fn to_f64(value: usize) -> f64 {
    value as f64
}
