//! Chores of the workspace: `cargo xtask tidy`.
//!
//! Not here: anything that ships. Nothing depends on this package.

mod tidy;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;

const USAGE: &str = "usage: cargo xtask tidy";

#[expect(
    clippy::print_stderr,
    reason = "the last words of a command-line program"
)]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => run_tidy(),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// Prints what tidy found; fails if any of it is a fault.
#[expect(
    clippy::print_stdout,
    reason = "the findings are what the command is for"
)]
fn run_tidy() -> anyhow::Result<ExitCode> {
    let report = tidy::run(&workspace_root()?)?;
    for remark in &report.remarks {
        println!("note: {remark}");
    }
    for fault in &report.faults {
        println!("fault: {fault}");
    }
    println!(
        "tidy: {} faults, {} notes",
        report.faults.len(),
        report.remarks.len()
    );
    Ok(if report.faults.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Returns the directory above this package.
fn workspace_root() -> anyhow::Result<PathBuf> {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent()
        .map(Path::to_owned)
        .context("the package lies in no workspace")
}
