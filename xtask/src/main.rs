//! Chores of the workspace: `cargo xtask tidy`, `docs` and `dist`.
//!
//! Not here: anything that ships. Nothing depends on this package.

mod dist;
mod generated_schemas;
mod generated_tables;
mod tidy;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;

const USAGE: &str = "usage: cargo xtask tidy
       cargo xtask docs [--check]
       cargo xtask dist [--out DIR] [--program FILE] [--slim FILE]";

#[expect(
    clippy::print_stderr,
    reason = "the last words of a command-line program"
)]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => run_tidy(),
        ["docs"] => run_docs(DocsMode::Write),
        ["docs", "--check"] => run_docs(DocsMode::Check),
        ["dist", ref options @ ..] => run_dist(options),
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

/// Builds the packages, and prints their paths.
#[expect(clippy::print_stdout, reason = "names what it built")]
fn run_dist(options: &[&str]) -> anyhow::Result<ExitCode> {
    let options = dist::DistOptions::parse(options)?;
    for path in dist::run(&workspace_root()?, options)? {
        println!("{}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// What `docs` does with a document that is out of date.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum DocsMode {
    Write,
    Check,
}

/// Updates the schemas and the generated tables of the documents, or fails if one is out of date.
#[expect(clippy::print_stdout, reason = "names what it changed")]
fn run_docs(mode: DocsMode) -> anyhow::Result<ExitCode> {
    let root = workspace_root()?;
    let read = |path: &str| {
        fs::read_to_string(root.join(path)).with_context(|| format!("failed to read `{path}`"))
    };
    let limits = read(generated_tables::LIMITS)?;
    let mut documents = Vec::from(generated_schemas::all());
    for path in generated_tables::DOCUMENTS {
        let updated =
            generated_tables::update(&read(path)?, &limits).with_context(|| (*path).to_owned())?;
        documents.push((path, updated));
    }
    let mut code = ExitCode::SUCCESS;
    for (path, updated) in documents {
        // A schema may be missing.
        if read(path).is_ok_and(|text| text == updated) {
            continue;
        }
        if mode == DocsMode::Check {
            println!("{path}: out of date; run `cargo xtask docs`");
            code = ExitCode::FAILURE;
        } else {
            fs::write(root.join(path), updated)
                .with_context(|| format!("failed to write `{path}`"))?;
            println!("{path}: updated");
        }
    }
    Ok(code)
}

/// Returns the directory above this package.
fn workspace_root() -> anyhow::Result<PathBuf> {
    let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest_dir
        .parent()
        .map(Path::to_owned)
        .context("the package lies in no workspace")
}
