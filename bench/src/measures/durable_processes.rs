//! Durable processes, compared with ordinary ones of the same server: start, echo, output, memory,
//! and the time to adopt many.
//!
//! The reference of the ratios is an ordinary process of the same server. Other servers have no
//! durable processes.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::bench_dir::BenchDir;
use crate::bench_plan::BenchPlan;
use crate::bench_target::{BenchTarget, LaunchConfig, OURS, ServerInstance};
use crate::contender::{Contender, interleave, p50};
use crate::process_usage::{private_memory, programs_of};
use crate::report::{ReportCell, ReportRow, RowGoal, ValueUnit};
use crate::rpc_client::{PreparedStart, RpcClient, StdioMode};
use crate::rpc_message::ServerEvent;

/// Unmeasured runs of each contender.
const WARM_UP: usize = 20;
/// Longest wait for output of many processes.
const OUTPUT_LIMIT: Duration = Duration::from_secs(120);

/// Measures everything about durable processes.
pub(crate) fn measure_durable(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let ours = targets.iter().find(|target| target.name() == OURS);
    let Some((launch, program)) = ours.and_then(|ours| {
        let (launch, program) = (ours.launch_config()?, ours.binary_path()?);
        Some((launch, program))
    }) else {
        return Vec::new();
    };
    let server = DurableBench { launch, program };
    let spread = |cell: ReportCell| -> Vec<_> {
        let other = ReportCell::Skipped("has no durable processes".to_owned());
        let select = |target: &BenchTarget| match target.name() {
            OURS => cell.clone(),
            _ => other.clone(),
        };
        targets.iter().map(select).collect()
    };
    let (writers, adopted) = (plan.durable_writers, plan.idle_processes);
    let to_cell = |measured: Result<f64>| match measured {
        Ok(value) => ReportCell::Value(value),
        Err(error) => ReportCell::from_error(&error),
    };
    let compared = |id, title: &str, unit, goal, cells: Result<[ReportCell; 2]>| {
        let [ordinary, durable] = cells.unwrap_or_else(|error| {
            let cell = ReportCell::from_error(&error);
            [cell.clone(), cell]
        });
        ReportRow::new(id, title, unit)
            .floor(&ordinary)
            .goal(goal)
            .cells(&spread(durable))
    };
    let mib = plan.output_bytes >> 20;
    vec![
        compared(
            "durable-spawn",
            "durable start → closed, p50 (floor: ordinary)",
            ValueUnit::Seconds,
            RowGoal::RatioAtMost(1.3),
            server.compare_starts(plan),
        ),
        compared(
            "durable-echo",
            "durable keystroke echo, pipes, p50 (floor: ordinary)",
            ValueUnit::Seconds,
            RowGoal::RatioAtMost(1.5),
            server.compare_echoes(plan),
        ),
        compared(
            "durable-output",
            &format!("{mib} MiB of durable output, JSON (floor: ordinary)"),
            ValueUnit::BytesPerSecond,
            RowGoal::RatioAtLeast(0.5),
            server.compare_output(plan),
        ),
        ReportRow::new(
            "durable-memory",
            &format!("memory, {writers} durable processes wrote 100 MiB each"),
            ValueUnit::Bytes,
        )
        .goal(RowGoal::AtMost(f64::from(16 << 20)))
        .cells(&spread(to_cell(server.memory_of_writers(writers)))),
        ReportRow::new(
            "durable-adoption",
            &format!("start that adopts {adopted} processes"),
            ValueUnit::Seconds,
        )
        .goal(RowGoal::AtMost(1.0))
        .cells(&spread(to_cell(server.adoption_time(adopted)))),
    ]
}

/// Starts our server with a state directory.
#[derive(Debug)]
struct DurableBench<'a> {
    launch: &'a LaunchConfig,
    program: PathBuf,
}

/// A server with a state directory. Dropping it kills everything.
#[derive(Debug)]
struct DurableInstance {
    server: Option<ServerInstance>,
    program: PathBuf,
    others: Vec<u32>,
    dir: BenchDir,
}

impl DurableBench<'_> {
    fn start(&self) -> Result<DurableInstance> {
        let mut instance = DurableInstance {
            server: None,
            others: programs_of(&self.program),
            program: self.program.clone(),
            dir: BenchDir::new()?,
        };
        instance.server = Some(self.launch_on(&instance.dir)?);
        Ok(instance)
    }

    fn launch_on(&self, dir: &BenchDir) -> Result<ServerInstance> {
        let state = dir.path().join("state");
        let state = state.to_str().context("path is not UTF-8")?;
        ServerInstance::launch(&self.launch.with_args(&["--state-dir", state]))
    }

    fn compare_starts(&self, plan: &BenchPlan) -> Result<[ReportCell; 2]> {
        let instance = self.start()?;
        compare(plan.blocks, |durable| {
            let mut client = instance.server()?.connect()?;
            let start = prepared(&["/bin/true"], StdioMode::Pipes, durable);
            for _ in 0..WARM_UP {
                client.run_to_close(&start)?;
            }
            let budget = plan.spawns;
            Ok(Contender::new(move |samples: &mut Vec<f64>| {
                for _ in budget.iterations() {
                    samples.push(client.run_to_close(&start)?.as_secs_f64());
                }
                Ok(())
            }))
        })
    }

    fn compare_echoes(&self, plan: &BenchPlan) -> Result<[ReportCell; 2]> {
        let instance = self.start()?;
        compare(plan.blocks, |durable| {
            let mut client = instance.server()?.connect()?;
            let start = prepared(&["cat"], StdioMode::WritablePipes, durable);
            let process = client.queue_start(&start);
            client.flush()?;
            client.await_completion(1, 0)?;
            for _ in 0..WARM_UP {
                client.echo(process)?;
            }
            let budget = plan.echoes;
            Ok(Contender::new(move |samples: &mut Vec<f64>| {
                for _ in budget.iterations() {
                    samples.push(client.echo(process)?.as_secs_f64());
                }
                Ok(())
            }))
        })
    }

    fn compare_output(&self, plan: &BenchPlan) -> Result<[ReportCell; 2]> {
        let instance = self.start()?;
        let bytes = plan.output_bytes;
        compare(plan.rate_blocks, |durable| {
            let mut client = instance.server()?.connect()?;
            let program = this_program()?;
            let argv = [&program, "emit", &bytes.to_string()];
            let start = prepared(&argv, StdioMode::Pipes, durable);
            Ok(Contender::new(move |samples: &mut Vec<f64>| {
                samples.push(output_rate(&mut client, &start, bytes)?);
                Ok(())
            }))
        })
    }

    /// Returns the memory of server, keeper and spawner above that of idle ones, after `count`
    /// processes have written 100 MiB each and go on.
    fn memory_of_writers(&self, count: u64) -> Result<f64> {
        const BYTES: u64 = 100 << 20;
        let instance = self.start()?;
        let mut client = instance.server()?.connect()?;
        let first = prepared(&["/bin/true"], StdioMode::Pipes, true);
        client.run_to_close(&first)?;
        let idle = instance.private_memory()?;
        let program = this_program()?;
        let argv = [&program, "emit", &BYTES.to_string(), "--hold"];
        let start =
            prepared(&argv, StdioMode::WritablePipes, true).with_member("detached", &json!(true));
        for _ in 0..count {
            let _process: u64 = client.queue_start(&start);
            client.flush()?;
        }
        let (started_at, mut total) = (Instant::now(), 0);
        while total < count * BYTES {
            if let ServerEvent::Output(more) = client.next_event()? {
                total += more;
            }
            ensure!(
                started_at.elapsed() < OUTPUT_LIMIT,
                "only {total} bytes arrived"
            );
        }
        Ok(instance.private_memory()?.saturating_sub(idle) as f64)
    }

    /// Returns the start time of a server that adopts `count` processes.
    fn adoption_time(&self, count: u64) -> Result<f64> {
        let mut instance = self.start()?;
        let mut client = instance.server()?.connect()?;
        let start = prepared(&["sleep", "1000"], StdioMode::WritablePipes, true);
        for _ in 0..count {
            let _process: u64 = client.queue_start(&start);
            client.flush()?;
            client.await_completion(1, 0)?;
        }
        instance.kill_server()?;
        let next = self.launch_on(&instance.dir)?;
        let time = next.startup_time().context("server was not started here")?;
        instance.server = Some(next);
        Ok(time.as_secs_f64())
    }
}

impl DurableInstance {
    fn server(&self) -> Result<&ServerInstance> {
        self.server.as_ref().context("server was killed")
    }

    fn kill_server(&mut self) -> Result<()> {
        let server = self.server.take().context("server was killed")?;
        server.kill();
        Ok(())
    }

    /// Returns the memory of server, keeper and spawners.
    fn private_memory(&self) -> Result<u64> {
        let server = self.server()?.pid().context("server was not found")?;
        let is_keeper = |pid: &u32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.trim() == "exec-keeper" && !self.others.contains(pid)
        };
        let keeper = programs_of(&self.program).into_iter().find(is_keeper);
        let keeper = keeper.context("keeper was not found")?;
        Ok(private_memory(server) + private_memory(keeper))
    }
}

impl Drop for DurableInstance {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.kill();
        }
        let own = programs_of(&self.program).into_iter();
        for pid in own.filter(|pid| !self.others.contains(pid)) {
            crate::bench_target::send_kill(pid);
        }
    }
}

/// Measures an ordinary and a durable contender in turns.
fn compare<'a>(
    blocks: usize,
    mut contender: impl FnMut(bool) -> Result<Contender<'a, f64>>,
) -> Result<[ReportCell; 2]> {
    let mut contenders = [contender(false)?, contender(true)?];
    interleave(blocks, &mut contenders);
    Ok(contenders.map(|contender| contender.cell(p50)))
}

fn prepared(argv: &[&str], stdio: StdioMode, durable: bool) -> PreparedStart {
    PreparedStart::new(argv, stdio).with_member("durable", &json!(durable))
}

fn this_program() -> Result<String> {
    let program = std::env::current_exe()?;
    let program = program
        .to_str()
        .context("path of this binary is not UTF-8")?;
    Ok(program.to_owned())
}

/// Runs a process to its close and returns its bytes per second.
fn output_rate(client: &mut RpcClient, start: &PreparedStart, bytes: u64) -> Result<f64> {
    let started_at = Instant::now();
    let _process: u64 = client.queue_start(start);
    client.flush()?;
    let (mut total, mut has_response, mut closed) = (0, false, false);
    while !has_response || !closed {
        match client.next_event()? {
            ServerEvent::Output(more) => total += more,
            ServerEvent::Response => has_response = true,
            ServerEvent::Closed => closed = true,
            ServerEvent::Other => {}
        }
    }
    ensure!(total == bytes, "{total} of {bytes} bytes arrived");
    Ok(bytes as f64 / started_at.elapsed().as_secs_f64())
}
