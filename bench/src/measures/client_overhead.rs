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
use exec_env::command::{Command, ProcessIo, StdinMode};
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

use crate::bench_plan::Plan;
use crate::bench_target::{Instance, Target};
use crate::contender::{Lane, interleave, p50};
use crate::measures::difference;
use crate::measures::process_start::PROGRAM;
use crate::report::{Cell, Reach, Row, Unit};
use crate::rpc_client::Request;

/// Unmeasured calls of each lane.
const WARM_UP: usize = 50;
/// Longest that all streams together may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Measures what the client costs.
pub(crate) fn measure_client(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    [measure_calls(plan, targets), measure_streams(plan, targets)].concat()
}

fn measure_calls(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let mut lanes: Vec<Lane<'_, f64>> = Vec::new();
    for target in targets {
        lanes.push(Lane::prepare(bare_call_contender(plan, target.shared())));
    }
    for target in targets {
        lanes.push(Lane::prepare(client_call_contender(plan, target.shared())));
    }
    interleave(plan.blocks, &mut lanes);
    let cells: Vec<_> = lanes.iter().map(|lane| lane.cell(p50)).collect();
    let (bare, through) = cells.split_at(targets.len());
    let more: Vec<_> = through.iter().zip(bare).map(difference).collect();
    vec![
        Row::new(
            "client-call",
            "call through the client: more than on a bare socket",
            Unit::Seconds,
        )
        .reach(Reach::AtMost(0.000_030))
        .cells(&more),
        Row::new("client-call-bare", "  in all: bare socket", Unit::Seconds).cells(bare),
        Row::new("client-call-all", "  in all: client", Unit::Seconds).cells(through),
    ]
}

fn bare_call_contender<'a>(plan: &'a Plan, instance: &Instance) -> Result<Lane<'a, f64>> {
    let mut client = instance.connect()?;
    let request = Request::new("environment/status", &Value::Null);
    for _ in 0..WARM_UP {
        client.call(&request)?;
    }
    Ok(Lane::new(move |samples: &mut Vec<f64>| {
        for _ in plan.files.calls.laps() {
            let began = Instant::now();
            client.call(&request)?;
            samples.push(began.elapsed().as_secs_f64());
        }
        Ok(())
    }))
}

fn client_call_contender<'a>(plan: &'a Plan, instance: &Instance) -> Result<Lane<'a, f64>> {
    let (runtime, client) = connect_client(instance)?;
    let call = move || {
        let began = Instant::now();
        runtime.block_on(client.call(ReadEnvironmentStatus))?;
        Ok::<_, anyhow::Error>(began.elapsed().as_secs_f64())
    };
    for _ in 0..WARM_UP {
        call()?;
    }
    Ok(Lane::new(move |samples: &mut Vec<f64>| {
        for _ in plan.files.calls.laps() {
            samples.push(call()?);
        }
        Ok(())
    }))
}

pub(super) fn connect_client(instance: &Instance) -> Result<(Runtime, ExecServerClient)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let args = RemoteExecServerConnectArgs::new(instance.url(), "exec-bench");
    let client = runtime.block_on(ExecServerClient::connect_websocket(args))?;
    Ok((runtime, client))
}

fn measure_streams(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let measured: Vec<_> = targets
        .iter()
        .map(|target| stream_concurrently(plan, target.shared()))
        .collect();
    let cells = |of: fn(&StreamingResult) -> f64| -> Vec<Cell> {
        let cell = |streamed: &Result<StreamingResult>| match streamed {
            Ok(streamed) => Cell::Value(of(streamed)),
            Err(error) => Cell::without(error),
        };
        measured.iter().map(cell).collect()
    };
    let count = plan.streams;
    vec![
        Row::new(
            "client-streams",
            &format!("{count} streams through one client"),
            Unit::BytesPerSecond,
        )
        .cells(&cells(|streamed| streamed.rate)),
        Row::new(
            "client-streams-slowest",
            "  share of the slowest when the first is done",
            Unit::Share,
        )
        .cells(&cells(|streamed| streamed.slowest)),
    ]
}

/// Result of concurrent streaming.
struct StreamingResult {
    /// Bytes per second of all together.
    rate: f64,
    /// Share of the slowest stream when the first one is complete.
    slowest: f64,
}

/// Lets all processes write concurrently, receives their output, and counts every byte.
fn stream_concurrently(plan: &Plan, instance: &Instance) -> Result<StreamingResult> {
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
        let began = Instant::now();
        // Receive while releasing them: a response is queued behind unread output.
        let writes = processes.iter().map(|process| {
            let write = process.write(None, Bytes::from_static(b"\n"));
            async { write.await.context("cannot write") }
        });
        let (taken, slowest) =
            tokio::try_join!(receive_streams(events, plan), try_join_all(writes))?.0;
        let bytes: u64 = taken.iter().sum();
        #[expect(clippy::cast_precision_loss, reason = "a share needs no more")]
        let streamed = StreamingResult {
            rate: bytes as f64 / began.elapsed().as_secs_f64(),
            slowest: slowest as f64 / plan.stream_bytes as f64,
        };
        Ok(streamed)
    };
    runtime
        .block_on(async { timeout(LIMIT, all).await })
        .context("streams timed out")?
}

/// Receives everything. Returns the bytes of each stream, and those of the slowest when the first
/// was complete.
async fn receive_streams(
    mut events: SelectAll<BoxStream<'_, (usize, ExecProcessEvent)>>,
    plan: &Plan,
) -> Result<(Vec<u64>, u64)> {
    let mut taken = vec![0_u64; plan.streams];
    let (mut slowest, mut open) = (None, plan.streams);
    while open > 0 {
        let Some((number, event)) = events.next().await else {
            bail!("{open} streams ended early");
        };
        match event {
            ExecProcessEvent::Output(chunk) => taken[number] += chunk.data.len() as u64,
            ExecProcessEvent::Exited(..) => {}
            ExecProcessEvent::Closed(_) => {
                ensure!(taken[number] == plan.stream_bytes, "bytes are missing");
                slowest.get_or_insert_with(|| taken.iter().copied().min().unwrap_or(0));
                open -= 1;
            }
            ExecProcessEvent::Failed(error) => bail!("stream failed: {error}"),
        }
    }
    Ok((taken, slowest.unwrap_or(0)))
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

/// Unmeasured runs of each lane.
const TOOL_WARM_UP: usize = 10;

/// Measures what `exec_command` adds.
pub(crate) fn measure_tools(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let mut lanes: Vec<Lane<'_, f64>> = Vec::new();
    for target in targets {
        lanes.push(Lane::prepare(start_contender(plan, target.shared())));
    }
    for target in targets {
        lanes.push(Lane::prepare(tool_contender(plan, target.shared())));
    }
    interleave(plan.blocks, &mut lanes);
    let cells: Vec<Cell> = lanes.iter().map(|lane| lane.cell(p50)).collect();
    let (starts, calls) = cells.split_at(targets.len());
    let more: Vec<Cell> = calls.iter().zip(starts).map(difference).collect();
    vec![
        Row::new(
            "exec-command",
            "exec_command: more than start → closed",
            Unit::Seconds,
        )
        .reach(Reach::AtMost(0.001))
        .cells(&more),
        Row::new(
            "exec-command-start",
            "  in all: start → closed",
            Unit::Seconds,
        )
        .cells(starts),
        Row::new("exec-command-all", "  in all: exec_command", Unit::Seconds).cells(calls),
    ]
}

fn start_contender<'a>(plan: &'a Plan, instance: &Instance) -> Result<Lane<'a, f64>> {
    let (runtime, client) = connect_client(instance)?;
    let mut count = 0_u64;
    timed_contender(plan, move || {
        count += 1;
        runtime.block_on(start_and_follow(&client, count))
    })
}

/// Starts a process and takes its events.
async fn start_and_follow(client: &ExecServerClient, count: u64) -> Result<()> {
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

fn tool_contender<'a>(plan: &'a Plan, instance: &Instance) -> Result<Lane<'a, f64>> {
    let (runtime, client) = connect_client(instance)?;
    let unified = {
        let _inside = runtime.enter();
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
    ensure!(output.exit.is_some_and(|exit| exit.code == 0), "it failed");
    Ok(())
}

fn timed_contender<'a>(
    plan: &'a Plan,
    mut once: impl FnMut() -> Result<()> + 'a,
) -> Result<Lane<'a, f64>> {
    for _ in 0..TOOL_WARM_UP {
        once()?;
    }
    Ok(Lane::new(move |samples: &mut Vec<f64>| {
        for _ in plan.spawns.laps() {
            let began = Instant::now();
            once()?;
            samples.push(began.elapsed().as_secs_f64());
        }
        Ok(())
    }))
}
