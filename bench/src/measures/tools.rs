//! Cost of unified exec: `exec_command` of a process that does nothing compared with starting it
//! and receiving its events.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use exec_client::client::ExecServerClient;
use exec_env::command::Command;
use exec_env::process::ExecProcessEvent;
use exec_tools::unified::{
    CallId, CommandProgram, ExecCommand, NullEventSink, OutputView, UnifiedExec,
    UnifiedExecSettings, UnrestrictedPolicy, WaitFor,
};
use exec_wire::id::ProcessId;
use futures_util::StreamExt;
use tokio::runtime::Runtime;

use super::{client, difference};
use crate::floors::spawn::PROGRAM;
use crate::plan::Plan;
use crate::report::{Cell, Reach, Row, Unit};
use crate::stats::{Lane, interleave, p50};
use crate::target::{Instance, Target};

/// Unmeasured runs of each lane.
const WARM_UP: usize = 10;

/// Measures what `exec_command` adds.
pub(crate) fn run(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let mut lanes: Vec<Lane<'_, f64>> = Vec::new();
    for target in targets {
        lanes.push(Lane::prepare(starts(plan, target.shared())));
    }
    for target in targets {
        lanes.push(Lane::prepare(calls(plan, target.shared())));
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

fn starts<'a>(plan: &'a Plan, instance: &Instance) -> Result<Lane<'a, f64>> {
    let (runtime, client) = client::connect(instance)?;
    let mut count = 0_u64;
    lane(plan, move || {
        count += 1;
        runtime.block_on(start(&client, count))
    })
}

/// Starts a process and takes its events.
async fn start(client: &ExecServerClient, count: u64) -> Result<()> {
    let id = ProcessId::new(&format!("start-{count}"))?;
    let command = Command::new(id, vec![PROGRAM.to_owned()], "file:///".parse()?);
    let started = client.environment().backend.start(command).await?;
    let mut events = client::follow(&started.process);
    while let Some(event) = events.next().await {
        match event {
            ExecProcessEvent::Output(_) | ExecProcessEvent::Exited(..) => {}
            ExecProcessEvent::Closed(_) => return Ok(()),
            ExecProcessEvent::Failed(error) => bail!("process failed: {error}"),
        }
    }
    bail!("events ended early")
}

fn calls<'a>(plan: &'a Plan, instance: &Instance) -> Result<Lane<'a, f64>> {
    let (runtime, client) = client::connect(instance)?;
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
    lane(plan, move || {
        count += 1;
        call(&runtime, &unified, count)
    })
}

fn call(runtime: &Runtime, unified: &UnifiedExec, count: u64) -> Result<()> {
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

fn lane<'a>(plan: &'a Plan, mut once: impl FnMut() -> Result<()> + 'a) -> Result<Lane<'a, f64>> {
    for _ in 0..WARM_UP {
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
