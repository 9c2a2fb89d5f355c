//! The command line: `exec-server run` compared with the command itself, and `exec-server cp` of a
//! large file compared with a local copy. Our program is the client of every target.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::bench_dir::Scratch;
use crate::bench_plan::Plan;
use crate::bench_target::{OURS, Target};
use crate::contender::{Lane, interleave, p50};
use crate::measures::difference;
use crate::measures::process_start::{ChildOutput, PROGRAM, spawn_and_wait};
use crate::report::{Cell, Reach, Row, Unit};

/// Unmeasured runs of each lane.
const WARM_UP: usize = 5;

/// Measures commands of the command line.
pub(crate) fn measure_commands(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let ours = targets.iter().find(|target| target.name() == OURS);
    let Some(program) = ours.and_then(Target::binary) else {
        return Vec::new();
    };
    [
        measure_run(plan, targets, &program),
        measure_copy(plan, targets, &program),
    ]
    .concat()
}

fn measure_run(plan: &Plan, targets: &[Target], program: &Path) -> Vec<Row> {
    let floor = Lane::new(|samples: &mut Vec<f64>| {
        for _ in plan.spawns.laps() {
            samples.push(spawn_and_wait(ChildOutput::Null)?.as_secs_f64());
        }
        Ok(())
    });
    let mut lanes = vec![floor];
    lanes.extend(targets.iter().map(|target| {
        let line = ["run", "--env", target.shared().url(), "--", PROGRAM].map(str::to_owned);
        Lane::prepare(run_contender(plan, program, line.to_vec()))
    }));
    interleave(plan.blocks, &mut lanes);
    let cells: Vec<Cell> = lanes.iter().map(|lane| lane.cell(p50)).collect();
    let (floor, cells) = cells.split_at(1);
    let more: Vec<Cell> = cells
        .iter()
        .map(|cell| difference((cell, &floor[0])))
        .collect();
    vec![
        Row::new(
            "run-true",
            "exec-server run -- true: more than true itself",
            Unit::Seconds,
        )
        .reach(Reach::AtMost(0.005))
        .cells(&more),
        Row::new("run-true-all", "  in all", Unit::Seconds)
            .floor(&floor[0])
            .cells(cells),
    ]
}

fn run_contender<'a>(plan: &'a Plan, program: &Path, line: Vec<String>) -> Result<Lane<'a, f64>> {
    let program = program.to_owned();
    let once = move || {
        let began = Instant::now();
        run_to_success(Command::new(&program).args(&line))?;
        Ok::<_, anyhow::Error>(began.elapsed().as_secs_f64())
    };
    for _ in 0..WARM_UP {
        once()?;
    }
    Ok(Lane::new(move |samples: &mut Vec<f64>| {
        for _ in plan.spawns.laps() {
            samples.push(once()?);
        }
        Ok(())
    }))
}

fn measure_copy(plan: &Plan, targets: &[Target], program: &Path) -> Vec<Row> {
    let prepared = Scratch::new().and_then(|scratch| {
        let source = scratch.file("source", plan.copy_bytes)?;
        Ok((scratch, source))
    });
    let (scratch, source) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            let cells = vec![Cell::without(&error); targets.len()];
            return vec![Row::new("cp", "exec-server cp", Unit::BytesPerSecond).cells(&cells)];
        }
    };
    let there = |path: &Path| format!(":{}", path.display());
    let copy = |name: &str, arguments: &dyn Fn(&Path) -> Vec<String>, program: &Path| {
        let target = scratch.path().join(name);
        let copy = CopyCommand {
            program: program.to_owned(),
            arguments: arguments(&target),
            target,
            bytes: plan.copy_bytes,
        };
        copy.contender()
    };
    let plain = |target: &Path| vec![source.display().to_string(), target.display().to_string()];
    let mut lanes = vec![copy("floor", &plain, Path::new("cp"))];
    for target in targets {
        let up = |to: &Path| copy_arguments(target, source.display().to_string(), there(to));
        lanes.push(copy("up", &up, program));
    }
    for target in targets {
        let down = |to: &Path| copy_arguments(target, there(&source), to.display().to_string());
        lanes.push(copy("down", &down, program));
    }
    interleave(plan.rate_blocks, &mut lanes);
    let cells: Vec<Cell> = lanes.iter().map(|lane| lane.cell(p50)).collect();
    let (floor, cells) = cells.split_at(1);
    let (up, down) = cells.split_at(targets.len());
    let row = |id, title, cells| {
        Row::new(id, title, Unit::BytesPerSecond)
            .floor(&floor[0])
            .reach(Reach::AtLeast(300e6))
            .cells(cells)
    };
    vec![
        row("cp-up", "exec-server cp to the server", up),
        row("cp-down", "exec-server cp from the server", down),
    ]
}

fn copy_arguments(target: &Target, from: String, to: String) -> Vec<String> {
    let url = target.shared().url().to_owned();
    vec!["cp".to_owned(), "--env".to_owned(), url, from, to]
}

/// One file that is copied again and again.
struct CopyCommand {
    program: PathBuf,
    arguments: Vec<String>,
    target: PathBuf,
    bytes: u64,
}

impl CopyCommand {
    fn contender<'a>(self) -> Lane<'a, f64> {
        Lane::new(move |samples: &mut Vec<f64>| {
            let began = Instant::now();
            run_to_success(Command::new(&self.program).args(&self.arguments))?;
            let took = began.elapsed().as_secs_f64();
            let copied = fs::metadata(&self.target).context("nothing was copied")?;
            ensure!(copied.len() == self.bytes, "bytes are missing");
            fs::remove_file(&self.target)?;
            #[expect(clippy::cast_precision_loss, reason = "a rate needs no more")]
            samples.push(self.bytes as f64 / took);
            Ok(())
        })
    }
}

/// Runs a command that must succeed without output.
fn run_to_success(command: &mut Command) -> Result<()> {
    let output = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", output.status);
    Ok(())
}
