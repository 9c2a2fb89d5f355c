//! Measures exec-server: floors, our server and any peer, in one run, over the websocket wire. One
//! group of measures goes through our client, to show its cost.
//!
//! Standalone on purpose: except for that group it shares no code with the server, so a mistake
//! there cannot hide here. Floors and targets take turns in blocks, so that the noise of the
//! machine affects all alike. Invariants: every loop is bounded in count and in time, and this
//! program ends only the processes that it started. `exec-conformance` checks correctness; here
//! only what the numbers depend on is checked.
#![expect(
    clippy::print_stdout,
    reason = "the table on stdout is the purpose of this program"
)]

mod base64;
mod bench_dir;
mod bench_plan;
mod bench_target;
mod cli;
mod contender;
mod cutting_forwarder;
mod helper_process;
mod hub_process;
mod measures;
mod process_usage;
mod relay_endpoint;
mod report;
mod rpc_client;
mod rpc_message;
mod websocket;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Parser as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::bench_plan::BenchPlan;
use crate::bench_target::{BenchTarget, LaunchConfig, OURS, STOCK, absolute_path};
use crate::cli::{BenchCli, BenchOptions, HelperCommand};
use crate::helper_process::{emit, emit_and_hold, listen, serve_copy, serve_echo, serve_exchange};
use crate::measures::GROUPS;
use crate::report::svg_chart::render_svg;
use crate::report::text::{render_json, render_markdown, render_table};
use crate::report::{MachineInfo, ReportCell, RunReport};

fn main() -> ExitCode {
    let cli = BenchCli::parse();
    let outcome = match cli.helper {
        None => run(&cli.options),
        Some(helper) => run_helper(&helper).map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("exec-bench: {error:#}");
        ExitCode::FAILURE
    })
}

/// Runs as one of the helper processes that the measures start from this binary.
fn run_helper(helper: &HelperCommand) -> anyhow::Result<()> {
    match *helper {
        HelperCommand::Emit { bytes, hold: false } => emit(bytes),
        HelperCommand::Emit { bytes, hold: true } => emit_and_hold(bytes),
        HelperCommand::EchoFloor => serve_echo(),
        HelperCommand::ExchangeFloor { request, response } => serve_exchange(request, response),
        HelperCommand::Listen { millis } => listen(Duration::from_millis(millis)),
        HelperCommand::CopyFloor => serve_copy(),
    }
}

/// Path of our server below the workspace, as built by cargo.
const DEFAULT_SERVER: &str = "target/release/exec-server";

/// Runs the selected measures, prints the table and writes the results.
///
/// Fails if a target violated the protocol, or with `--check` if our server missed a goal.
fn run(options: &BenchOptions) -> Result<ExitCode> {
    fs::create_dir_all(&options.out)
        .with_context(|| format!("cannot create {}", options.out.display()))?;
    raise_file_limit()?;
    let plan = if options.quick {
        BenchPlan::quick()
    } else {
        BenchPlan::full()
    };
    let targets = create_targets(options)?;
    let mut report = RunReport {
        machine: MachineInfo::detect(),
        quick: plan.quick,
        targets: targets
            .iter()
            .map(|target| target.name().to_owned())
            .collect(),
        rows: Vec::new(),
    };
    let is_selected = |name: &str| options.only.iter().any(|only| name.contains(only.as_str()));
    for group in GROUPS
        .iter()
        .filter(|group| options.only.is_empty() || is_selected(group.name))
    {
        eprintln!("exec-bench: {} …", group.name);
        report.rows.extend((group.run)(&plan, &targets));
    }
    drop(targets);
    println!("{}", render_table(&report));
    write_results(options, &report)?;
    Ok(exit_code(options, &report))
}

fn create_targets(options: &BenchOptions) -> Result<Vec<BenchTarget>> {
    let out = absolute_path(&options.out)?;
    let mut targets = Vec::new();
    let has_others = options.stock.is_some() || !options.peers.is_empty();
    if options.server.is_none()
        && !Path::new(DEFAULT_SERVER).exists()
        && has_others
        && !options.check
    {
        eprintln!("exec-bench: {DEFAULT_SERVER} not found; measuring only the other servers");
    } else {
        let program = absolute_path(
            options
                .server
                .as_deref()
                .unwrap_or(Path::new(DEFAULT_SERVER)),
        )?;
        targets.push(BenchTarget::launch(
            OURS,
            LaunchConfig::ours(program, &out),
        )?);
    }
    if let Some(stock) = &options.stock {
        let program = absolute_path(stock)?;
        targets.push(BenchTarget::launch(
            STOCK,
            LaunchConfig::stock(program, &out)?,
        )?);
    }
    for peer in &options.peers {
        if targets.iter().any(|target| target.name() == peer.name) {
            bail!("duplicate column `{}`", peer.name);
        }
        targets.push(BenchTarget::attach(&peer.name, &peer.url));
    }
    Ok(targets)
}

/// Raises the limit of open files, which the servers inherit: they hold the pipes of many
/// processes.
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

fn write_results(options: &BenchOptions, report: &RunReport) -> Result<()> {
    let json_path = options
        .json
        .clone()
        .unwrap_or_else(|| options.out.join("bench.json"));
    write_file(&json_path, &format!("{:#}\n", render_json(report)))?;
    if let Some(path) = &options.svg {
        write_file(path, &render_svg(report))?;
    }
    if let Some(path) = &options.markdown {
        write_file(path, &render_markdown(report))?;
    }
    Ok(())
}

fn write_file(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn exit_code(options: &BenchOptions, report: &RunReport) -> ExitCode {
    let mut cells = report
        .rows
        .iter()
        .flat_map(|row| row.floor.iter().chain(&row.cells));
    let has_failures = cells.any(|cell| matches!(cell, ReportCell::Failed(_)));
    if has_failures {
        eprintln!("exec-bench: some measures failed, see FAILED above");
    }
    // A row with a goal but no value counts as missed.
    let rows_with_goal = report.rows.iter().filter(|row| row.goal.is_some());
    let ours = report.targets.iter().position(|name| name == OURS);
    let missed = ours.map_or(0, |column| {
        rows_with_goal
            .filter(|row| row.meets_goal(column) != Some(true))
            .count()
    });
    if missed > 0 {
        eprintln!("exec-bench: {missed} goals missed, see MISSED above");
    }
    if has_failures || (options.check && missed > 0) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
