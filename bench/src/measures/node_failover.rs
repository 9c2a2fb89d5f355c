//! Three hub nodes, one of them killed under load: every byte arrives; measures the recovery time.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use exec_client::client::ExecServerClient;
use exec_client::connect::RelayExecServerConnectArgs;
use exec_env::environment::StdinMode;
use exec_env::process::ExecProcessEvent;
use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use tokio::runtime::Builder;
use tokio::sync::Barrier;
use tokio::time::timeout;

use crate::bench_dir::BenchDir;
use crate::bench_plan::BenchPlan;
use crate::bench_target::BenchTarget;
use crate::contender::{p50, percentile};
use crate::hub_process::{HubProcess, NatsProcess, NodeBalancer};
use crate::measures::client_overhead::follow_output;
use crate::measures::hub_relay::start_script;
use crate::measures::measure_ours;
use crate::report::{ReportCell, ReportRow, RowGoal, ValueUnit};

/// Longest time for the whole measure.
const LIMIT: Duration = Duration::from_secs(90);
/// Lines of each writer, one every 10 ms: enough to see the complete recovery, or in a smoke test
/// only that it works.
const LINES: usize = 1500;
const QUICK_LINES: usize = 500;
/// Lines received before the node is killed.
const LINES_BEFORE_KILL: usize = 100;
/// Seconds without a line from which a writer counts as connected through the killed node.
const STALL: f64 = 0.3;

/// Measures the recovery of streams through a killed node.
pub(crate) fn measure_failover(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let measure = |program: PathBuf| {
        let dir = BenchDir::new()?;
        let nats = NatsProcess::start(&dir)?;
        let mut nodes = HubProcess::start_cluster(&program, &dir, nats.url())?;
        let addresses = nodes.iter().map(|node| node.authority().to_owned());
        let balancer = NodeBalancer::start(addresses.collect())?;
        let mut executors = Vec::new();
        for pair in 0..plan.writers {
            executors.push(nodes[0].start_executor(balancer.url(), &format!("writer-{pair}"))?);
        }
        let token = nodes[0].token().to_owned();
        let lines = if plan.quick { QUICK_LINES } else { LINES };
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let kill_barrier = Arc::new(Barrier::new(plan.writers + 1));
            let writers = (0..plan.writers).map(|pair| {
                let args = RelayExecServerConnectArgs::new(
                    balancer.url(),
                    format!("writer-{pair}"),
                    &token,
                    "exec-bench",
                );
                receive_lines(args, lines, Arc::clone(&kill_barrier))
            });
            let kill = async {
                kill_barrier.wait().await;
                // SIGKILL, not a graceful shutdown.
                drop(nodes.remove(0));
                Ok(())
            };
            let all = async { tokio::try_join!(try_join_all(writers), kill) };
            let (gaps, ()) = timeout(LIMIT, all).await.context("recovery timed out")??;
            Ok(gaps)
        })
    };
    let cells = |gaps: &Vec<f64>| {
        let stalls: Vec<f64> = gaps.iter().copied().filter(|gap| *gap > STALL).collect();
        let cell = |value: Option<f64>| ReportCell::Value(value.unwrap_or(0.0));
        #[expect(clippy::cast_precision_loss, reason = "a small count")]
        let stalled_writers = stalls.len() as f64;
        vec![
            cell(percentile(&stalls, 95)),
            cell(p50(&stalls)),
            ReportCell::Value(stalled_writers),
        ]
    };
    let columns = measure_ours(targets, measure, cells, 3);
    let title = format!(
        "one of three nodes killed, {} writers: recovery p95",
        plan.writers
    );
    vec![
        ReportRow::new("nodes-recovery", &title, ValueUnit::Seconds)
            .goal(RowGoal::AtMost(5.0))
            .cells(&columns[0]),
        ReportRow::new("nodes-recovery-p50", "  p50", ValueUnit::Seconds).cells(&columns[1]),
        ReportRow::new(
            "nodes-hit",
            "  writers that went through the killed node",
            ValueUnit::Count,
        )
        .cells(&columns[2]),
    ]
}

/// Receives the lines of one writer, all of which must arrive, and returns the longest gap between
/// two lines.
async fn receive_lines(
    args: RelayExecServerConnectArgs,
    lines: usize,
    kill_barrier: Arc<Barrier>,
) -> Result<f64> {
    let client = ExecServerClient::connect_relay(args).await?;
    let script = format!("i=0; while [ $i -lt {lines} ]; do i=$((i+1)); echo $i; sleep 0.01; done");
    let process = start_script(&client, 1, &script, StdinMode::Null).await?;
    let mut events = follow_output(&process);
    let (mut text, mut longest_gap, mut has_started) = (Vec::new(), 0.0_f64, false);
    let mut last_output = Instant::now();
    loop {
        match events.next().await.context("process exited early")? {
            ExecProcessEvent::Output(chunk) => {
                longest_gap = longest_gap.max(last_output.elapsed().as_secs_f64());
                last_output = Instant::now();
                text.extend_from_slice(&chunk.data);
                if !has_started
                    && text.iter().filter(|byte| **byte == b'\n').count() >= LINES_BEFORE_KILL
                {
                    has_started = true;
                    kill_barrier.wait().await;
                    last_output = Instant::now();
                    longest_gap = 0.0;
                }
            }
            ExecProcessEvent::Exited(..) => {}
            ExecProcessEvent::Closed(_) => break,
            ExecProcessEvent::Failed(error) => bail!("a writer failed: {error}"),
        }
    }
    let expected: String = (1..=lines).map(|line| format!("{line}\n")).collect();
    ensure!(text == expected.as_bytes(), "bytes were lost or repeated");
    Ok(longest_gap)
}
