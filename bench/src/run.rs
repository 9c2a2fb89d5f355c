//! One run: start the targets, take the measures, show and judge them.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::cli::Options;
use crate::measures::GROUPS;
use crate::plan::Plan;
use crate::report::{Cell, Machine, Report, json, markdown, svg, table};
use crate::target::{Launch, OURS, STOCK, Target, absolute};

/// Where cargo puts our server, seen from the workspace.
const SERVER: &str = "target/release/exec-server";

/// Runs everything that `options` ask for.
///
/// Fails if a target broke the protocol, or with `--check` if ours missed a reach.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    fs::create_dir_all(&options.out)
        .with_context(|| format!("cannot make {}", options.out.display()))?;
    raise_file_limit()?;
    let plan = if options.quick {
        Plan::quick()
    } else {
        Plan::full()
    };
    let targets = targets(options)?;
    let mut report = Report {
        machine: Machine::here(),
        quick: plan.quick,
        targets: targets
            .iter()
            .map(|target| target.name().to_owned())
            .collect(),
        rows: Vec::new(),
    };
    let wanted = |name: &str| options.only.iter().any(|only| name.contains(only.as_str()));
    for group in GROUPS
        .iter()
        .filter(|group| options.only.is_empty() || wanted(group.name))
    {
        eprintln!("exec-bench: {} …", group.name);
        report.rows.extend((group.run)(&plan, &targets));
    }
    drop(targets);
    println!("{}", table::render(&report));
    write(options, &report)?;
    Ok(judge(options, &report))
}

fn targets(options: &Options) -> Result<Vec<Target>> {
    let out = absolute(&options.out)?;
    let mut targets = Vec::new();
    let others = options.stock.is_some() || !options.peers.is_empty();
    if options.server.is_none() && !Path::new(SERVER).exists() && others && !options.check {
        eprintln!("exec-bench: there is no {SERVER}; only the others are measured");
    } else {
        let program = absolute(options.server.as_deref().unwrap_or(Path::new(SERVER)))?;
        targets.push(Target::launched(OURS, Launch::ours(program, &out))?);
    }
    if let Some(stock) = &options.stock {
        let program = absolute(stock)?;
        targets.push(Target::launched(STOCK, Launch::stock(program, &out)?)?);
    }
    for peer in &options.peers {
        if targets.iter().any(|target| target.name() == peer.name) {
            bail!("there are two columns `{}`", peer.name);
        }
        targets.push(Target::running(&peer.name, &peer.url));
    }
    Ok(targets)
}

/// Lets the servers started here hold the pipes of many processes; they inherit the limit.
fn raise_file_limit() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    )
    .context("cannot raise the limit of open files")
}

fn write(options: &Options, report: &Report) -> Result<()> {
    let numbers = options
        .json
        .clone()
        .unwrap_or_else(|| options.out.join("bench.json"));
    put(&numbers, &format!("{:#}\n", json::render(report)))?;
    if let Some(path) = &options.svg {
        put(path, &svg::render(report))?;
    }
    if let Some(path) = &options.markdown {
        put(path, &markdown::render(report))?;
    }
    Ok(())
}

fn put(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn judge(options: &Options, report: &Report) -> ExitCode {
    let mut cells = report
        .rows
        .iter()
        .flat_map(|row| row.floor.iter().chain(&row.cells));
    let failed = cells.any(|cell| matches!(cell, Cell::Failed(_)));
    if failed {
        eprintln!("exec-bench: not all could be measured, see FAILED above");
    }
    // A row with a goal but no value counts as missed.
    let reaches = report.rows.iter().filter(|row| row.reach.is_some());
    let ours = report.targets.iter().position(|name| name == OURS);
    let missed = ours.map_or(0, |at| {
        reaches.filter(|row| row.verdict(at) != Some(true)).count()
    });
    if missed > 0 {
        eprintln!("exec-bench: {missed} reaches missed");
    }
    if failed || (options.check && missed > 0) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
