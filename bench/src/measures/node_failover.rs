//! Three hub nodes, one of them killed under load: every byte arrives; measures the recovery time.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use exec_client::client::ExecServerClient;
use exec_client::connect::RelayExecServerConnectArgs;
use exec_env::command::StdinMode;
use exec_env::process::ExecProcessEvent;
use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use tokio::runtime::Builder;
use tokio::sync::Barrier;
use tokio::time::timeout;

use crate::bench_dir::Scratch;
use crate::bench_plan::Plan;
use crate::bench_target::Target;
use crate::contender::{p50, percentile};
use crate::hub_process::{Hub, LoadBalancer, NatsServer};
use crate::measures::client_overhead::follow_output;
use crate::measures::hub_relay::start_script;
use crate::measures::measure_ours;
use crate::report::{Cell, Reach, Row, Unit};

/// Longest that all of it may take.
const LIMIT: Duration = Duration::from_secs(90);
/// Lines of each writer, one every 10 ms: long enough to see the recovery whole, or only that it
/// works.
const LINES: usize = 1500;
const QUICK_LINES: usize = 500;
/// Lines that come before the node is killed.
const BEFORE: usize = 100;
/// Longer than this without a line, and its node was the one that was killed.
const STALL: f64 = 0.3;

/// Measures the recovery of what went through a killed node.
pub(crate) fn measure_failover(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let measure = |program: PathBuf| {
        let scratch = Scratch::new()?;
        let nats = NatsServer::start(&scratch)?;
        let mut nodes = Hub::nodes(&program, &scratch, nats.url())?;
        let addresses = nodes.iter().map(|node| node.authority().to_owned());
        let balancer = LoadBalancer::start(addresses.collect())?;
        let mut executors = Vec::new();
        for pair in 0..plan.writers {
            executors.push(nodes[0].executor(balancer.url(), &format!("writer-{pair}"))?);
        }
        let token = nodes[0].token().to_owned();
        let lines = if plan.quick { QUICK_LINES } else { LINES };
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let begun = Arc::new(Barrier::new(plan.writers + 1));
            let writers = (0..plan.writers).map(|pair| {
                let args = RelayExecServerConnectArgs::new(
                    balancer.url(),
                    format!("writer-{pair}"),
                    &token,
                    "exec-bench",
                );
                receive_lines(args, lines, Arc::clone(&begun))
            });
            let kill = async {
                begun.wait().await;
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
        let cell = |value: Option<f64>| Cell::Value(value.unwrap_or(0.0));
        #[expect(clippy::cast_precision_loss, reason = "a count of a few")]
        let hit = stalls.len() as f64;
        vec![
            cell(percentile(&stalls, 95)),
            cell(p50(&stalls)),
            Cell::Value(hit),
        ]
    };
    let columns = measure_ours(targets, measure, cells, 3);
    let title = format!(
        "one of three nodes killed, {} writers: recovery p95",
        plan.writers
    );
    vec![
        Row::new("nodes-recovery", &title, Unit::Seconds)
            .reach(Reach::AtMost(5.0))
            .cells(&columns[0]),
        Row::new("nodes-recovery-p50", "  p50", Unit::Seconds).cells(&columns[1]),
        Row::new(
            "nodes-hit",
            "  writers that went through the killed node",
            Unit::Count,
        )
        .cells(&columns[2]),
    ]
}

/// Receives the lines of one writer, all of which must arrive, and returns the longest gap between
/// two.
async fn receive_lines(
    args: RelayExecServerConnectArgs,
    lines: usize,
    begun: Arc<Barrier>,
) -> Result<f64> {
    let client = ExecServerClient::connect_relay(args).await?;
    let script = format!("i=0; while [ $i -lt {lines} ]; do i=$((i+1)); echo $i; sleep 0.01; done");
    let process = start_script(&client, 1, &script, StdinMode::Null).await?;
    let mut events = follow_output(&process);
    let (mut text, mut longest, mut told) = (Vec::new(), 0.0_f64, false);
    let mut last = Instant::now();
    loop {
        match events.next().await.context("process exited early")? {
            ExecProcessEvent::Output(chunk) => {
                longest = longest.max(last.elapsed().as_secs_f64());
                last = Instant::now();
                text.extend_from_slice(&chunk.data);
                if !told && text.iter().filter(|byte| **byte == b'\n').count() >= BEFORE {
                    told = true;
                    begun.wait().await;
                    last = Instant::now();
                    longest = 0.0;
                }
            }
            ExecProcessEvent::Exited(..) => {}
            ExecProcessEvent::Closed(_) => break,
            ExecProcessEvent::Failed(error) => bail!("a writer failed: {error}"),
        }
    }
    let expected: String = (1..=lines).map(|line| format!("{line}\n")).collect();
    ensure!(text == expected.as_bytes(), "bytes were lost or repeated");
    Ok(longest)
}
