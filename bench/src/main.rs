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

use anyhow::{Context as _, Result, bail};
use clap::Parser as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::bench_plan::Plan;
use crate::bench_target::{Launch, OURS, STOCK, Target, absolute_path};
use crate::cli::{Cli, Helper, Options};
use crate::helper_process::{emit, emit_and_hold, serve_copy, serve_echo, serve_exchange};
use crate::measures::GROUPS;
use crate::report::svg_chart::render_svg;
use crate::report::text::{render_json, render_markdown, render_table};
use crate::report::{Cell, Machine, Report};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.helper {
        None => run(&cli.options),
        Some(helper) => serve(&helper).map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("exec-bench: {error:#}");
        ExitCode::FAILURE
    })
}

/// Plays one of the helper processes that the measures start from this same binary.
fn serve(helper: &Helper) -> anyhow::Result<()> {
    match *helper {
        Helper::Emit { bytes, hold: false } => emit(bytes),
        Helper::Emit { bytes, hold: true } => emit_and_hold(bytes),
        Helper::EchoFloor => serve_echo(),
        Helper::ExchangeFloor { request, response } => serve_exchange(request, response),
        Helper::CopyFloor => serve_copy(),
    }
}

/// Where cargo puts our server, seen from the workspace.
const DEFAULT_SERVER: &str = "target/release/exec-server";

/// Runs everything that `options` ask for.
///
/// Fails if a target broke the protocol, or with `--check` if ours missed a reach.
fn run(options: &Options) -> Result<ExitCode> {
    fs::create_dir_all(&options.out)
        .with_context(|| format!("cannot make {}", options.out.display()))?;
    raise_file_limit()?;
    let plan = if options.quick {
        Plan::quick()
    } else {
        Plan::full()
    };
    let targets = create_targets(options)?;
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
    println!("{}", render_table(&report));
    write_results(options, &report)?;
    Ok(exit_code(options, &report))
}

fn create_targets(options: &Options) -> Result<Vec<Target>> {
    let out = absolute_path(&options.out)?;
    let mut targets = Vec::new();
    let others = options.stock.is_some() || !options.peers.is_empty();
    if options.server.is_none() && !Path::new(DEFAULT_SERVER).exists() && others && !options.check {
        eprintln!("exec-bench: there is no {DEFAULT_SERVER}; only the others are measured");
    } else {
        let program = absolute_path(
            options
                .server
                .as_deref()
                .unwrap_or(Path::new(DEFAULT_SERVER)),
        )?;
        targets.push(Target::launched(OURS, Launch::ours(program, &out))?);
    }
    if let Some(stock) = &options.stock {
        let program = absolute_path(stock)?;
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

fn write_results(options: &Options, report: &Report) -> Result<()> {
    let numbers = options
        .json
        .clone()
        .unwrap_or_else(|| options.out.join("bench.json"));
    write_file(&numbers, &format!("{:#}\n", render_json(report)))?;
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

fn exit_code(options: &Options, report: &Report) -> ExitCode {
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
