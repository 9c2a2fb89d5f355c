//! Cost of our client and of unified exec on top of it.
//!
//! A call through the client is compared with the same call on a bare socket, and `exec_command` of
//! a process that does nothing with starting it and receiving its events. One more measure runs many
//! concurrent streams over one connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use exec_client::client::ExecServerClient;
use exec_client::connect::RemoteExecServerConnectArgs;
use exec_core::output_log::{BackpressureMode, FollowOptions, FollowStart};
use exec_env::environment::{Command, ProcessIo, StdinMode};
use exec_env::process::{EventStream, ExecProcess, ExecProcessEvent};
use exec_tools::unified::{
    CallId, CommandProgram, ExecCommand, NullEventSink, OutputView, UnifiedExec,
    UnifiedExecSettings, UnrestrictedPolicy, WaitFor,
};
use exec_wire::environment::ReadEnvironmentStatus;
use exec_wire::id::{OutputSeq, ProcessId};
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use futures_util::stream::{BoxStream, SelectAll};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::bench_plan::BenchPlan;
use crate::bench_target::{BenchTarget, ServerInstance};
use crate::contender::{Contender, interleave, p50};
use crate::measures::difference;
use crate::measures::process_start::PROGRAM;
use crate::report::{ReportCell, ReportRow, RowGoal, ValueUnit};
use crate::rpc_client::PreparedRequest;

/// Unmeasured calls of each contender.
const WARM_UP: usize = 50;
/// Longest time for all streams together.
const LIMIT: Duration = Duration::from_secs(60);

/// Measures the cost of the client.
pub(crate) fn measure_client(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    [measure_calls(plan, targets), measure_streams(plan, targets)].concat()
}

fn measure_calls(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let mut contenders: Vec<Contender<'_, f64>> = Vec::new();
    for target in targets {
        contenders.push(Contender::from_result(bare_call_contender(
            plan,
            target.shared_instance(),
        )));
    }
    for target in targets {
        contenders.push(Contender::from_result(client_call_contender(
            plan,
            target.shared_instance(),
        )));
    }
    interleave(plan.blocks, &mut contenders);
    let cells: Vec<_> = contenders
        .iter()
        .map(|contender| contender.cell(p50))
        .collect();
    let (bare, client) = cells.split_at(targets.len());
    let overhead: Vec<_> = client.iter().zip(bare).map(difference).collect();
    vec![
        ReportRow::new(
            "client-call",
            "call through the client: more than on a bare socket",
            ValueUnit::Seconds,
        )
        .goal(RowGoal::AtMost(0.000_030))
        .cells(&overhead),
        ReportRow::new(
            "client-call-bare",
            "  in all: bare socket",
            ValueUnit::Seconds,
        )
        .cells(bare),
        ReportRow::new("client-call-all", "  in all: client", ValueUnit::Seconds).cells(client),
    ]
}

fn bare_call_contender<'a>(
    plan: &'a BenchPlan,
    instance: &ServerInstance,
) -> Result<Contender<'a, f64>> {
    let mut client = instance.connect()?;
    let request = PreparedRequest::new("environment/status", &Value::Null);
    for _ in 0..WARM_UP {
        client.call(&request)?;
    }
    Ok(Contender::new(move |samples: &mut Vec<f64>| {
        for _ in plan.files.calls.iterations() {
            let started_at = Instant::now();
            client.call(&request)?;
            samples.push(started_at.elapsed().as_secs_f64());
        }
        Ok(())
    }))
}

fn client_call_contender<'a>(
    plan: &'a BenchPlan,
    instance: &ServerInstance,
) -> Result<Contender<'a, f64>> {
    let (runtime, client) = connect_client(instance)?;
    let call = move || {
        let started_at = Instant::now();
        runtime.block_on(client.call(ReadEnvironmentStatus))?;
        Ok::<_, anyhow::Error>(started_at.elapsed().as_secs_f64())
    };
    for _ in 0..WARM_UP {
        call()?;
    }
    Ok(Contender::new(move |samples: &mut Vec<f64>| {
        for _ in plan.files.calls.iterations() {
            samples.push(call()?);
        }
        Ok(())
    }))
}

pub(super) fn connect_client(instance: &ServerInstance) -> Result<(Runtime, ExecServerClient)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let args = RemoteExecServerConnectArgs::new(instance.url(), "exec-bench");
    let client = runtime.block_on(ExecServerClient::connect_websocket(args))?;
    Ok((runtime, client))
}

fn measure_streams(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let measured: Vec<_> = targets
        .iter()
        .map(|target| stream_concurrently(plan, target.shared_instance()))
        .collect();
    let cells = |value: fn(&StreamingResult) -> f64| -> Vec<ReportCell> {
        let cell = |result: &Result<StreamingResult>| match result {
            Ok(streamed) => ReportCell::Value(value(streamed)),
            Err(error) => ReportCell::from_error(error),
        };
        measured.iter().map(cell).collect()
    };
    let count = plan.streams;
    vec![
        ReportRow::new(
            "client-streams",
            &format!("{count} streams through one client"),
            ValueUnit::BytesPerSecond,
        )
        .cells(&cells(|streamed| streamed.rate)),
        ReportRow::new(
            "client-streams-slowest",
            "  share of the slowest when the first is done",
            ValueUnit::Share,
        )
        .cells(&cells(|streamed| streamed.slowest)),
    ]
}

/// Result of concurrent streaming.
struct StreamingResult {
    /// Bytes per second of all streams together.
    rate: f64,
    /// Fraction that the slowest stream has received when the first one completes.
    slowest: f64,
}

/// Lets all processes write concurrently, receives their output, and counts every byte.
fn stream_concurrently(plan: &BenchPlan, instance: &ServerInstance) -> Result<StreamingResult> {
    let (runtime, client) = connect_client(instance)?;
    let all = async {
        let mut processes = Vec::new();
        for number in 0..plan.streams {
            processes.push(start_stream(&client, number, plan.stream_bytes).await?);
        }
        let mut events = SelectAll::new();
        for (number, process) in processes.iter().enumerate() {
            events.push(
                follow_output(process)
                    .map(move |event| (number, event))
                    .boxed(),
            );
        }
        let started_at = Instant::now();
        // Receive while writing: a response is queued behind unread output.
        let writes = processes.iter().map(|process| {
            let write = process.write(None, Bytes::from_static(b"\n"));
            async { write.await.context("cannot write") }
        });
        let (received, slowest) =
            tokio::try_join!(receive_streams(events, plan), try_join_all(writes))?.0;
        let bytes: u64 = received.iter().sum();
        #[expect(
            clippy::cast_precision_loss,
            reason = "a fraction needs no more precision"
        )]
        let streamed = StreamingResult {
            rate: bytes as f64 / started_at.elapsed().as_secs_f64(),
            slowest: slowest as f64 / plan.stream_bytes as f64,
        };
        Ok(streamed)
    };
    runtime
        .block_on(async { timeout(LIMIT, all).await })
        .context("streams timed out")?
}

/// Receives all output. Returns the bytes of each stream, and the bytes of the slowest one when the
/// first completed.
async fn receive_streams(
    mut events: SelectAll<BoxStream<'_, (usize, ExecProcessEvent)>>,
    plan: &BenchPlan,
) -> Result<(Vec<u64>, u64)> {
    let mut received = vec![0_u64; plan.streams];
    let (mut slowest, mut open) = (None, plan.streams);
    while open > 0 {
        let Some((number, event)) = events.next().await else {
            bail!("{open} streams ended early");
        };
        match event {
            ExecProcessEvent::Output(chunk) => received[number] += chunk.data.len() as u64,
            ExecProcessEvent::Exited(..) => {}
            ExecProcessEvent::Closed(_) => {
                ensure!(received[number] == plan.stream_bytes, "bytes are missing");
                slowest.get_or_insert_with(|| received.iter().copied().min().unwrap_or(0));
                open -= 1;
            }
            ExecProcessEvent::Failed(error) => bail!("stream failed: {error}"),
        }
    }
    Ok((received, slowest.unwrap_or(0)))
}

async fn start_stream(
    client: &ExecServerClient,
    number: usize,
    bytes: u64,
) -> Result<Arc<dyn ExecProcess>> {
    let id = ProcessId::new(&format!("stream-{number}"))?;
    let script = format!("read line; exec head -c {bytes} /dev/zero");
    let argv = ["/bin/sh".to_owned(), "-c".to_owned(), script].to_vec();
    let command = Command {
        io: ProcessIo::Pipes {
            stdin: StdinMode::Piped,
        },
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        ..Command::new(id, argv, "file:///".parse()?)
    };
    Ok(client.environment().backend.start(command).await?.process)
}

pub(super) fn follow_output(process: &Arc<dyn ExecProcess>) -> EventStream {
    process.follow(FollowOptions {
        start: FollowStart::After(OutputSeq(0)),
        backpressure: BackpressureMode::Pause,
    })
}

/// Unmeasured runs of each contender.
const TOOL_WARM_UP: usize = 10;

/// Measures the overhead of `exec_command`.
pub(crate) fn measure_tools(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let mut contenders: Vec<Contender<'_, f64>> = Vec::new();
    for target in targets {
        contenders.push(Contender::from_result(start_contender(
            plan,
            target.shared_instance(),
        )));
    }
    for target in targets {
        contenders.push(Contender::from_result(tool_contender(
            plan,
            target.shared_instance(),
        )));
    }
    interleave(plan.blocks, &mut contenders);
    let cells: Vec<ReportCell> = contenders
        .iter()
        .map(|contender| contender.cell(p50))
        .collect();
    let (starts, calls) = cells.split_at(targets.len());
    let overhead: Vec<ReportCell> = calls.iter().zip(starts).map(difference).collect();
    vec![
        ReportRow::new(
            "exec-command",
            "exec_command: more than start → closed",
            ValueUnit::Seconds,
        )
        .goal(RowGoal::AtMost(0.001))
        .cells(&overhead),
        ReportRow::new(
            "exec-command-start",
            "  in all: start → closed",
            ValueUnit::Seconds,
        )
        .cells(starts),
        ReportRow::new(
            "exec-command-all",
            "  in all: exec_command",
            ValueUnit::Seconds,
        )
        .cells(calls),
    ]
}

fn start_contender<'a>(
    plan: &'a BenchPlan,
    instance: &ServerInstance,
) -> Result<Contender<'a, f64>> {
    let (runtime, client) = connect_client(instance)?;
    let mut count = 0_u64;
    timed_contender(plan, move || {
        count += 1;
        runtime.block_on(start_and_follow(&client, count))
    })
}

/// Starts a process and receives its events.
pub(super) async fn start_and_follow(client: &ExecServerClient, count: u64) -> Result<()> {
    let id = ProcessId::new(&format!("start-{count}"))?;
    let command = Command::new(id, vec![PROGRAM.to_owned()], "file:///".parse()?);
    let started = client.environment().backend.start(command).await?;
    let mut events = follow_output(&started.process);
    while let Some(event) = events.next().await {
        match event {
            ExecProcessEvent::Output(_) | ExecProcessEvent::Exited(..) => {}
            ExecProcessEvent::Closed(_) => return Ok(()),
            ExecProcessEvent::Failed(error) => bail!("process failed: {error}"),
        }
    }
    bail!("events ended early")
}

fn tool_contender<'a>(
    plan: &'a BenchPlan,
    instance: &ServerInstance,
) -> Result<Contender<'a, f64>> {
    let (runtime, client) = connect_client(instance)?;
    let unified = {
        let _guard = runtime.enter();
        let (policy, events) = (Arc::new(UnrestrictedPolicy), Arc::new(NullEventSink));
        UnifiedExec::new(
            client.environment(),
            UnifiedExecSettings::default(),
            policy,
            events,
        )
    };
    let mut count = 0_u64;
    timed_contender(plan, move || {
        count += 1;
        exec_command(&runtime, &unified, count)
    })
}

fn exec_command(runtime: &Runtime, unified: &UnifiedExec, count: u64) -> Result<()> {
    let call = ExecCommand {
        call_id: CallId(count.to_string()),
        program: CommandProgram::Argv(vec![PROGRAM.to_owned()]),
        workdir: Some("file:///".parse()?),
        env: Default::default(),
        tty: false,
        stdin: None,
        yield_time: None,
        wait: WaitFor::Exit,
        max_output_tokens: None,
        view: OutputView::Plain,
        justification: None,
    };
    let output = runtime.block_on(unified.exec_command(call))?;
    ensure!(
        output.exit.is_some_and(|exit| exit.code == 0),
        "the command failed"
    );
    Ok(())
}

fn timed_contender<'a>(
    plan: &'a BenchPlan,
    mut operation: impl FnMut() -> Result<()> + 'a,
) -> Result<Contender<'a, f64>> {
    for _ in 0..TOOL_WARM_UP {
        operation()?;
    }
    Ok(Contender::new(move |samples: &mut Vec<f64>| {
        for _ in plan.spawns.iterations() {
            let started_at = Instant::now();
            operation()?;
            samples.push(started_at.elapsed().as_secs_f64());
        }
        Ok(())
    }))
}
