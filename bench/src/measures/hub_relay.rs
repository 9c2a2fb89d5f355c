//! Output and keystrokes through hub and Noise, compared with the same client on a direct websocket.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use exec_client::client::ExecServerClient;
use exec_client::connect::{RelayExecServerConnectArgs, RemoteExecServerConnectArgs};
use exec_env::environment::{Command, ProcessIo, StdinMode};
use exec_env::process::{EventStream, ExecProcess, ExecProcessEvent};
use exec_wire::id::ProcessId;
use futures_util::StreamExt;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::bench_dir::BenchDir;
use crate::bench_plan::BenchPlan;
use crate::bench_target::BenchTarget;
use crate::contender::{Contender, interleave, p50};
use crate::hub_process::HubProcess;
use crate::measures::client_overhead::follow_output;
use crate::measures::measure_ours;
use crate::report::{ReportCell, ReportRow, RowGoal, ValueUnit};

/// Id of the measured environment.
pub(super) const ENVIRONMENT: &str = "bench";
/// Unmeasured keystrokes of each contender.
const WARM_UP: usize = 50;
/// Longest time for one transfer.
const LIMIT: Duration = Duration::from_secs(60);
/// A decimal megabyte, as in the goal.
const MEGABYTE: f64 = 1e6;

/// Measures the cost of the path through a hub.
pub(crate) fn measure_relay(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let Some(direct) = targets.first() else {
        return Vec::new();
    };
    let measure = |program: std::path::PathBuf| {
        let dir = BenchDir::new()?;
        let hub = HubProcess::start(&program, &dir)?;
        let _executor = hub.start_executor(hub.url(), ENVIRONMENT)?;
        let direct = || StreamingClient::direct(direct.shared_instance().url());
        let relayed = || StreamingClient::relayed(&hub);
        let mut rates = [
            Contender::new(output_sampler(plan, direct()?)),
            Contender::new(output_sampler(plan, relayed()?)),
        ];
        interleave(plan.rate_blocks, &mut rates);
        let mut echoes = [
            Contender::new(echo_sampler(plan, direct()?)?),
            Contender::new(echo_sampler(plan, relayed()?)?),
        ];
        interleave(plan.blocks, &mut echoes);
        let cells = |contenders: &[Contender<'_, f64>; 2]| {
            [contenders[0].cell(p50), contenders[1].cell(p50)]
        };
        Ok([cells(&rates), cells(&echoes)])
    };
    let mut floors = [
        ReportCell::Skipped("not measured".to_owned()),
        ReportCell::Skipped("not measured".to_owned()),
    ];
    let cells = |measured: &[[ReportCell; 2]; 2]| -> Vec<ReportCell> {
        let [[direct_rate, rate], [direct_echo, echo]] = measured.clone();
        vec![rate, echo, direct_rate, direct_echo]
    };
    let mut columns = measure_ours(targets, measure, cells, 4);
    for (floor, column) in floors.iter_mut().zip(columns.split_off(2)) {
        let value = column.into_iter().find(|cell| cell.value().is_some());
        *floor = value.unwrap_or_else(|| floor.clone());
    }
    let row = |id, title, unit| ReportRow::new(id, title, unit);
    vec![
        row(
            "relay-output",
            "output through hub and Noise, one stream",
            ValueUnit::BytesPerSecond,
        )
        .goal(RowGoal::AtLeast(200.0 * MEGABYTE))
        .cells(&columns[0]),
        row(
            "relay-output-ratio",
            "  against the direct websocket",
            ValueUnit::BytesPerSecond,
        )
        .floor(&floors[0])
        .goal(RowGoal::RatioAtLeast(0.4))
        .cells(&columns[0]),
        row(
            "relay-echo",
            "keystroke echo through hub and Noise, p50",
            ValueUnit::Seconds,
        )
        .floor(&floors[1])
        .goal(RowGoal::RatioAtMost(2.5))
        .cells(&columns[1]),
    ]
}

/// A client and its runtime.
pub(super) struct StreamingClient {
    pub(super) runtime: Runtime,
    pub(super) client: ExecServerClient,
    started: u64,
}

impl StreamingClient {
    pub(super) fn direct(url: &str) -> Result<Self> {
        let args = RemoteExecServerConnectArgs::new(url, "exec-bench");
        Self::connect(|| ExecServerClient::connect_websocket(args))
    }

    pub(super) fn relayed(hub: &HubProcess) -> Result<Self> {
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

/// Starts a shell script.
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

pub(super) fn output_sampler(
    plan: &BenchPlan,
    mut client: StreamingClient,
) -> impl FnMut(&mut Vec<f64>) -> Result<()> {
    let bytes = plan.output_bytes;
    move |samples| {
        let script = format!("exec head -c {bytes} /dev/zero");
        let process = client.start(&script, StdinMode::Null)?;
        let started_at = Instant::now();
        let received = client.runtime.block_on(async {
            let receive = receive_output(follow_output(&process));
            timeout(LIMIT, receive)
                .await
                .context("transfer timed out")?
        })?;
        ensure!(received == bytes, "{received} bytes instead of {bytes}");
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no more precision")]
        samples.push(bytes as f64 / started_at.elapsed().as_secs_f64());
        Ok(())
    }
}

async fn receive_output(mut events: EventStream) -> Result<u64> {
    let mut received = 0;
    loop {
        match events.next().await {
            Some(ExecProcessEvent::Output(chunk)) => received += chunk.data.len() as u64,
            Some(ExecProcessEvent::Exited(..)) => {}
            Some(ExecProcessEvent::Closed(_)) => return Ok(received),
            Some(ExecProcessEvent::Failed(error)) => bail!("process failed: {error}"),
            None => bail!("process exited early"),
        }
    }
}

pub(super) fn echo_sampler(
    plan: &BenchPlan,
    mut client: StreamingClient,
) -> Result<impl FnMut(&mut Vec<f64>) -> Result<()>> {
    let process = client.start("exec cat", StdinMode::Piped)?;
    let mut events = follow_output(&process);
    let mut echo_once = move || {
        let started_at = Instant::now();
        client.runtime.block_on(async {
            let write = process.write(None, Bytes::from_static(b"x"));
            let event = async { events.next().await.context("process exited") };
            let write = async { write.await.context("cannot write") };
            let echoed = async { tokio::try_join!(write, event) };
            let (_, event) = timeout(LIMIT, echoed).await.context("no echo")??;
            ensure!(matches!(event, ExecProcessEvent::Output(_)), "{event:?}");
            Ok(())
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
