//! Output and keystrokes through hub and Noise, compared with the same client on a direct websocket.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use exec_client::client::ExecServerClient;
use exec_client::connect::{RelayExecServerConnectArgs, RemoteExecServerConnectArgs};
use exec_env::command::{Command, ProcessIo, StdinMode};
use exec_env::process::{EventStream, ExecProcess, ExecProcessEvent};
use exec_wire::id::ProcessId;
use futures_util::StreamExt;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::bench_dir::Scratch;
use crate::bench_plan::Plan;
use crate::bench_target::Target;
use crate::contender::{Lane, interleave, p50};
use crate::hub_process::Hub;
use crate::measures::client_overhead::follow_output;
use crate::measures::measure_ours;
use crate::report::{Cell, Reach, Row, Unit};

/// The environment that is measured.
const ENVIRONMENT: &str = "bench";
/// Unmeasured keystrokes of each lane.
const WARM_UP: usize = 50;
/// Longest that one transfer may take.
const LIMIT: Duration = Duration::from_secs(60);
/// A megabyte of ten to the sixth, as the reach counts it.
const MEGABYTE: f64 = 1e6;

/// Measures what the way through a hub costs.
pub(crate) fn measure_relay(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let Some(direct) = targets.first() else {
        return Vec::new();
    };
    let measure = |program: std::path::PathBuf| {
        let scratch = Scratch::new()?;
        let hub = Hub::start(&program, &scratch)?;
        let _executor = hub.executor(hub.url(), ENVIRONMENT)?;
        let direct = || Client::direct(direct.shared().url());
        let relayed = || Client::relayed(&hub);
        let mut rates = [
            Lane::new(output_sampler(plan, direct()?)),
            Lane::new(output_sampler(plan, relayed()?)),
        ];
        interleave(plan.rate_blocks, &mut rates);
        let mut echoes = [
            Lane::new(echo_sampler(plan, direct()?)?),
            Lane::new(echo_sampler(plan, relayed()?)?),
        ];
        interleave(plan.blocks, &mut echoes);
        let cells = |lanes: &[Lane<'_, f64>; 2]| [lanes[0].cell(p50), lanes[1].cell(p50)];
        Ok([cells(&rates), cells(&echoes)])
    };
    let mut floors = [
        Cell::Skipped("not measured".to_owned()),
        Cell::Skipped("not measured".to_owned()),
    ];
    let cells = |measured: &[[Cell; 2]; 2]| -> Vec<Cell> {
        let [[direct_rate, rate], [direct_echo, echo]] = measured.clone();
        vec![rate, echo, direct_rate, direct_echo]
    };
    let mut columns = measure_ours(targets, measure, cells, 4);
    for (floor, column) in floors.iter_mut().zip(columns.split_off(2)) {
        let value = column.into_iter().find(|cell| cell.value().is_some());
        *floor = value.unwrap_or_else(|| floor.clone());
    }
    let row = |id, title, unit| Row::new(id, title, unit);
    vec![
        row(
            "relay-output",
            "output through hub and Noise, one stream",
            Unit::BytesPerSecond,
        )
        .reach(Reach::AtLeast(200.0 * MEGABYTE))
        .cells(&columns[0]),
        row(
            "relay-output-ratio",
            "  against the direct websocket",
            Unit::BytesPerSecond,
        )
        .floor(&floors[0])
        .reach(Reach::RatioAtLeast(0.4))
        .cells(&columns[0]),
        row(
            "relay-echo",
            "keystroke echo through hub and Noise, p50",
            Unit::Seconds,
        )
        .floor(&floors[1])
        .reach(Reach::RatioAtMost(2.5))
        .cells(&columns[1]),
    ]
}

/// A client and what it runs on.
pub(super) struct Client {
    runtime: Runtime,
    client: ExecServerClient,
    started: u64,
}

impl Client {
    fn direct(url: &str) -> Result<Self> {
        let args = RemoteExecServerConnectArgs::new(url, "exec-bench");
        Self::connect(|| ExecServerClient::connect_websocket(args))
    }

    fn relayed(hub: &Hub) -> Result<Self> {
        let args =
            RelayExecServerConnectArgs::new(hub.url(), ENVIRONMENT, hub.token(), "exec-bench");
        Self::connect(|| ExecServerClient::connect_relay(args))
    }

    fn connect<F, E>(connect: impl FnOnce() -> F) -> Result<Self>
    where
        F: Future<Output = Result<ExecServerClient, E>>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(connect())?;
        Ok(Self {
            runtime,
            client,
            started: 0,
        })
    }

    fn start(&mut self, script: &str, stdin: StdinMode) -> Result<Arc<dyn ExecProcess>> {
        self.started += 1;
        let start = start_script(&self.client, self.started, script, stdin);
        self.runtime.block_on(start)
    }
}

/// Starts a script.
pub(super) async fn start_script(
    client: &ExecServerClient,
    number: u64,
    script: &str,
    stdin: StdinMode,
) -> Result<Arc<dyn ExecProcess>> {
    let id = ProcessId::new(&format!("relay-{number}"))?;
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let command = Command {
        io: ProcessIo::Pipes { stdin },
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        ..Command::new(id, argv, "file:///".parse()?)
    };
    Ok(client.environment().backend.start(command).await?.process)
}

fn output_sampler(plan: &Plan, mut client: Client) -> impl FnMut(&mut Vec<f64>) -> Result<()> {
    let bytes = plan.output_bytes;
    move |samples| {
        let script = format!("exec head -c {bytes} /dev/zero");
        let process = client.start(&script, StdinMode::Null)?;
        let began = Instant::now();
        let taken = client.runtime.block_on(async {
            let take = receive_output(follow_output(&process));
            timeout(LIMIT, take).await.context("transfer timed out")?
        })?;
        ensure!(taken == bytes, "{taken} bytes instead of {bytes}");
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no more")]
        samples.push(bytes as f64 / began.elapsed().as_secs_f64());
        Ok(())
    }
}

async fn receive_output(mut events: EventStream) -> Result<u64> {
    let mut taken = 0;
    loop {
        match events.next().await {
            Some(ExecProcessEvent::Output(chunk)) => taken += chunk.data.len() as u64,
            Some(ExecProcessEvent::Exited(..)) => {}
            Some(ExecProcessEvent::Closed(_)) => return Ok(taken),
            Some(ExecProcessEvent::Failed(error)) => bail!("it failed: {error}"),
            None => bail!("process exited early"),
        }
    }
}

fn echo_sampler(
    plan: &Plan,
    mut client: Client,
) -> Result<impl FnMut(&mut Vec<f64>) -> Result<()>> {
    let process = client.start("exec cat", StdinMode::Piped)?;
    let mut events = follow_output(&process);
    let mut once = move || {
        let began = Instant::now();
        client.runtime.block_on(async {
            let write = process.write(None, Bytes::from_static(b"x"));
            let event = async { events.next().await.context("process exited") };
            let write = async { write.await.context("cannot write") };
            let echoed = async { tokio::try_join!(write, event) };
            let (_, event) = timeout(LIMIT, echoed).await.context("no echo")??;
            ensure!(matches!(event, ExecProcessEvent::Output(_)), "{event:?}");
            Ok(())
        })?;
        Ok::<_, anyhow::Error>(began.elapsed().as_secs_f64())
    };
    for _ in 0..WARM_UP {
        once()?;
    }
    let laps = plan.echoes;
    Ok(move |samples: &mut Vec<f64>| {
        for _ in laps.laps() {
            samples.push(once()?);
        }
        Ok(())
    })
}
