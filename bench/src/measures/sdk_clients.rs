//! The clients of other languages beside the Rust client: a command that does nothing, and bulk
//! output.
//!
//! Each client runs in a process of its own (`bench/clients`) and times its calls itself. It takes
//! turns with the others on one connection that stays open.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::bench_plan::{BenchPlan, SampleBudget};
use crate::bench_target::{BenchTarget, OURS};
use crate::contender::{Contender, interleave, p50};
use crate::measures::client_overhead::{connect_client, start_and_follow};
use crate::measures::hub_relay::{StreamingClient, output_sampler};
use crate::measures::{difference, measure_ours};
use crate::report::{ReportCell, ReportRow, RowGoal, ValueUnit};

/// Unmeasured commands of each client.
const WARM_UP: SampleBudget = SampleBudget {
    count: 20,
    time: std::time::Duration::from_secs(5),
};

/// A client of another language, as the table names it.
#[derive(Clone, Copy)]
enum SdkClient {
    Python,
    Asyncio,
    Node,
}

impl SdkClient {
    const ALL: [Self; 3] = [Self::Python, Self::Asyncio, Self::Node];

    /// Returns the command that runs it, or what to do first.
    fn command(self, url: &str) -> Result<Command, &'static str> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let python = |mode| {
            let program = root.join("../target/sdk-python/bin/python");
            let arguments = [PathBuf::from(url), PathBuf::from(mode)];
            (program, root.join("clients/client.py"), arguments.to_vec())
        };
        let (program, script, arguments) = match self {
            Self::Python => python("sync"),
            Self::Asyncio => python("asyncio"),
            Self::Node => {
                if !root.join("../sdk/typescript/dist/node.js").exists() {
                    return Err("run sdk/typescript/scripts/test first");
                }
                let script = root.join("clients/client.mjs");
                ("node".into(), script, vec![PathBuf::from(url)])
            }
        };
        if program.is_absolute() && !program.exists() {
            return Err("run sdk/python/scripts/test first");
        }
        let mut command = Command::new(program);
        command.arg(script).args(arguments);
        Ok(command)
    }
}

/// Measures the clients of other languages.
pub(crate) fn measure_sdks(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let ours = targets.iter().find(|target| target.name() == OURS);
    let Some(instance) = ours.map(BenchTarget::shared_instance) else {
        return Vec::new();
    };
    let url = instance.url();
    let measure = |_program: PathBuf| {
        let (runtime, client) = connect_client(instance)?;
        let mut count = 0_u64;
        let mut runs = vec![Contender::new(move |samples: &mut Vec<f64>| {
            for _ in plan.spawns.iterations() {
                count += 1;
                let started_at = Instant::now();
                runtime.block_on(start_and_follow(&client, count))?;
                samples.push(started_at.elapsed().as_secs_f64());
            }
            Ok(())
        })];
        runs.extend(SdkClient::ALL.map(|client| run_contender(plan, client, url)));
        interleave(plan.blocks, &mut runs);
        let direct = StreamingClient::direct(url)?;
        let mut outputs = vec![Contender::new(output_sampler(plan, direct))];
        outputs.extend(SdkClient::ALL.map(|client| output_contender(plan, client, url)));
        interleave(plan.rate_blocks, &mut outputs);
        let cells = runs.iter().chain(&outputs);
        Ok(cells
            .map(|contender| contender.cell(p50))
            .collect::<Vec<_>>())
    };
    let columns = measure_ours(targets, measure, Vec::clone, 8);
    let (runs, outputs) = columns.split_at(4);
    let more = |column: &[ReportCell]| -> Vec<ReportCell> {
        column.iter().zip(&runs[0]).map(difference).collect()
    };
    let run = |id, title, goal, column: usize| {
        ReportRow::new(id, title, ValueUnit::Seconds)
            .goal(RowGoal::AtMost(goal))
            .cells(&more(&runs[column]))
    };
    let output = |id, title, column: usize| {
        ReportRow::new(id, title, ValueUnit::BytesPerSecond).cells(&outputs[column])
    };
    vec![
        ReportRow::new(
            "sdk-run-rust",
            "a command through the Rust client",
            ValueUnit::Seconds,
        )
        .cells(&runs[0]),
        run("sdk-run-python", "  Python: more", 0.0015, 1),
        run("sdk-run-asyncio", "  Python with asyncio: more", 0.0015, 2),
        run("sdk-run-node", "  Node: more", 0.001, 3),
        output("sdk-output-rust", "output through the Rust client", 0),
        output("sdk-output-python", "  Python", 1).goal(RowGoal::AtLeast(150e6)),
        output("sdk-output-asyncio", "  Python with asyncio", 2).goal(RowGoal::AtLeast(150e6)),
        output("sdk-output-node", "  Node", 3).goal(RowGoal::AtLeast(300e6)),
    ]
}

fn run_contender<'a>(plan: &BenchPlan, client: SdkClient, url: &str) -> Contender<'a, f64> {
    let budget = plan.spawns;
    let start = |command| {
        let mut process = ClientProcess::start(command)?;
        process.run(WARM_UP)?;
        Ok(Contender::new(move |samples: &mut Vec<f64>| {
            samples.extend(process.run(budget)?);
            Ok(())
        }))
    };
    match client.command(url) {
        Ok(command) => Contender::from_result(start(command)),
        Err(reason) => Contender::skipped(reason),
    }
}

fn output_contender<'a>(plan: &BenchPlan, client: SdkClient, url: &str) -> Contender<'a, f64> {
    let bytes = plan.output_bytes;
    let start = |command| {
        let mut process = ClientProcess::start(command)?;
        Ok(Contender::new(move |samples: &mut Vec<f64>| {
            let times = process.request(&format!("output {bytes}"))?;
            #[expect(clippy::cast_precision_loss, reason = "a rate needs no more precision")]
            samples.extend(times.iter().map(|seconds| bytes as f64 / seconds));
            Ok(())
        }))
    };
    match client.command(url) {
        Ok(command) => Contender::from_result(start(command)),
        Err(reason) => Contender::skipped(reason),
    }
}

/// A client in a process of its own. Dropping it ends the process.
struct ClientProcess {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl ClientProcess {
    fn start(mut command: Command) -> Result<Self> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start the client")?;
        Ok(Self {
            stdin: child.stdin.take().context("no stdin")?,
            stdout: BufReader::new(child.stdout.take().context("no stdout")?),
            child,
        })
    }

    /// Runs a command that does nothing, as often as the budget allows, and returns the times.
    fn run(&mut self, budget: SampleBudget) -> Result<Vec<f64>> {
        let seconds = budget.time.as_secs_f64();
        self.request(&format!("run {} {seconds}", budget.count))
    }

    /// Sends a request and returns the times in the response.
    fn request(&mut self, request: &str) -> Result<Vec<f64>> {
        writeln!(self.stdin, "{request}")?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the client ended, see its error output");
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        // The process may already have exited.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
