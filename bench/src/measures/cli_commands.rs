//! The command line: `exec-server run` compared with the command itself, and `exec-server cp` of a
//! large file compared with a local copy. Our program is the client of every target.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::bench_dir::BenchDir;
use crate::bench_plan::BenchPlan;
use crate::bench_target::{BenchTarget, OURS};
use crate::contender::{Contender, interleave, p50};
use crate::measures::difference;
use crate::measures::process_start::{ChildOutput, PROGRAM, spawn_and_wait};
use crate::report::{ReportCell, ReportRow, RowGoal, ValueUnit};

/// Unmeasured runs of each contender.
const WARM_UP: usize = 5;

/// Measures `exec-server run` and `exec-server cp`.
pub(crate) fn measure_commands(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let ours = targets.iter().find(|target| target.name() == OURS);
    let Some(program) = ours.and_then(BenchTarget::binary_path) else {
        return Vec::new();
    };
    [
        measure_run(plan, targets, &program),
        measure_copy(plan, targets, &program),
    ]
    .concat()
}

fn measure_run(plan: &BenchPlan, targets: &[BenchTarget], program: &Path) -> Vec<ReportRow> {
    let floor = Contender::new(|samples: &mut Vec<f64>| {
        for _ in plan.spawns.iterations() {
            samples.push(spawn_and_wait(ChildOutput::Null)?.as_secs_f64());
        }
        Ok(())
    });
    let mut contenders = vec![floor];
    contenders.extend(targets.iter().map(|target| {
        let line = [
            "run",
            "--env",
            target.shared_instance().url(),
            "--",
            PROGRAM,
        ]
        .map(str::to_owned);
        Contender::from_result(run_contender(plan, program, line.to_vec()))
    }));
    interleave(plan.blocks, &mut contenders);
    let cells: Vec<ReportCell> = contenders
        .iter()
        .map(|contender| contender.cell(p50))
        .collect();
    let (floor, cells) = cells.split_at(1);
    let overhead: Vec<ReportCell> = cells
        .iter()
        .map(|cell| difference((cell, &floor[0])))
        .collect();
    vec![
        ReportRow::new(
            "run-true",
            "exec-server run -- true: more than true itself",
            ValueUnit::Seconds,
        )
        .goal(RowGoal::AtMost(0.005))
        .cells(&overhead),
        ReportRow::new("run-true-all", "  in all", ValueUnit::Seconds)
            .floor(&floor[0])
            .cells(cells),
    ]
}

fn run_contender<'a>(
    plan: &'a BenchPlan,
    program: &Path,
    line: Vec<String>,
) -> Result<Contender<'a, f64>> {
    let program = program.to_owned();
    let operation = move || {
        let started_at = Instant::now();
        run_to_success(Command::new(&program).args(&line))?;
        Ok::<_, anyhow::Error>(started_at.elapsed().as_secs_f64())
    };
    for _ in 0..WARM_UP {
        operation()?;
    }
    Ok(Contender::new(move |samples: &mut Vec<f64>| {
        for _ in plan.spawns.iterations() {
            samples.push(operation()?);
        }
        Ok(())
    }))
}

fn measure_copy(plan: &BenchPlan, targets: &[BenchTarget], program: &Path) -> Vec<ReportRow> {
    let prepared = BenchDir::new().and_then(|dir| {
        let source = dir.file("source", plan.copy_bytes)?;
        Ok((dir, source))
    });
    let (dir, source) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            let cells = vec![ReportCell::from_error(&error); targets.len()];
            return vec![
                ReportRow::new("cp", "exec-server cp", ValueUnit::BytesPerSecond).cells(&cells),
            ];
        }
    };
    let remote = |path: &Path| format!(":{}", path.display());
    let copy = |name: &str, arguments: &dyn Fn(&Path) -> Vec<String>, program: &Path| {
        let target = dir.path().join(name);
        let copy = CopyCommand {
            program: program.to_owned(),
            arguments: arguments(&target),
            target,
            bytes: plan.copy_bytes,
        };
        copy.contender()
    };
    let plain = |target: &Path| vec![source.display().to_string(), target.display().to_string()];
    let mut contenders = vec![copy("floor", &plain, Path::new("cp"))];
    for target in targets {
        let up = |to: &Path| copy_arguments(target, source.display().to_string(), remote(to));
        contenders.push(copy("up", &up, program));
    }
    for target in targets {
        let down = |to: &Path| copy_arguments(target, remote(&source), to.display().to_string());
        contenders.push(copy("down", &down, program));
    }
    interleave(plan.rate_blocks, &mut contenders);
    let cells: Vec<ReportCell> = contenders
        .iter()
        .map(|contender| contender.cell(p50))
        .collect();
    let (floor, cells) = cells.split_at(1);
    let (up, down) = cells.split_at(targets.len());
    let row = |id, title, cells| {
        ReportRow::new(id, title, ValueUnit::BytesPerSecond)
            .floor(&floor[0])
            .goal(RowGoal::AtLeast(300e6))
            .cells(cells)
    };
    vec![
        row("cp-up", "exec-server cp to the server", up),
        row("cp-down", "exec-server cp from the server", down),
    ]
}

fn copy_arguments(target: &BenchTarget, from: String, to: String) -> Vec<String> {
    let url = target.shared_instance().url().to_owned();
    vec!["cp".to_owned(), "--env".to_owned(), url, from, to]
}

/// Copy of one file, repeated each turn.
struct CopyCommand {
    program: PathBuf,
    arguments: Vec<String>,
    target: PathBuf,
    bytes: u64,
}

impl CopyCommand {
    fn contender<'a>(self) -> Contender<'a, f64> {
        Contender::new(move |samples: &mut Vec<f64>| {
            let started_at = Instant::now();
            run_to_success(Command::new(&self.program).args(&self.arguments))?;
            let elapsed = started_at.elapsed().as_secs_f64();
            let copied = fs::metadata(&self.target).context("nothing was copied")?;
            ensure!(copied.len() == self.bytes, "bytes are missing");
            fs::remove_file(&self.target)?;
            #[expect(clippy::cast_precision_loss, reason = "a rate needs no more precision")]
            samples.push(self.bytes as f64 / elapsed);
            Ok(())
        })
    }
}

/// Runs a command that must succeed, and discards its output.
fn run_to_success(command: &mut Command) -> Result<()> {
    let output = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {stderr}", output.status);
    Ok(())
}
