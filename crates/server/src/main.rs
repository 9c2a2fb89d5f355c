//! The `exec-server` binary.

use std::{io::Write, process::ExitCode};

use anyhow::Context;
use clap::Parser;
use exec_server::{
    ExecServerRuntimePaths,
    cli::{Cli, Command, Doctor},
    config::{self, ServerConfig},
    doctor,
};
use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

fn main() -> ExitCode {
    exec_server::run_if_helper();
    let cli = Cli::parse();
    log_to_stderr();
    match start(cli) {
        Ok(code) => code,
        Err(error) => {
            tracing::debug!(?error, "server failed");
            report(&error);
            ExitCode::FAILURE
        }
    }
}

fn start(cli: Cli) -> anyhow::Result<ExitCode> {
    let command = cli.command.clone();
    let config = config::load(cli, &|name| std::env::var_os(name))?;
    // One thread moves every byte: a keystroke crosses no queue between threads, and on a small
    // machine the other cores belong to the commands.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .build()?;
    let outcome = runtime.block_on(async {
        match command {
            None => exec_server::run_main(config, ExecServerRuntimePaths::default())
                .await
                .map(|()| ExitCode::SUCCESS),
            Some(Command::Doctor(doctor)) => examine(config, doctor).await,
        }
    });
    // Standard input may be blocked in a read that nobody needs any more.
    runtime.shutdown_background();
    outcome
}

/// Prints what this machine can enforce. The status tells whether that is everything.
async fn examine(config: ServerConfig, options: Doctor) -> anyhow::Result<ExitCode> {
    for warning in &config.warnings {
        tracing::error!("{warning}");
    }
    let report = doctor::examine(config.sandbox).await?;
    let text = match options.json {
        true => format!("{}\n", serde_json::to_string_pretty(&report)?),
        false => report.to_string(),
    };
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .context("cannot write to stdout")?;
    Ok(match report.enforceable {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Threads that may wait for disks. Each session has at most a few dozen; if a mount hangs, those that
/// touch it are stuck until it is back, and others need theirs.
const MAX_BLOCKING_THREADS: usize = 4096;

/// Logs go to stderr: stdout carries one line, or the protocol.
fn log_to_stderr() {
    let filter = EnvFilter::builder()
        .with_default_directive(tracing::level_filters::LevelFilter::ERROR.into())
        .from_env_lossy();
    tracing_subscriber::registry()
        .with(fmt::layer().with_writer(std::io::stderr).with_ansi(false))
        .with(filter)
        .init();
}

#[expect(
    clippy::print_stderr,
    reason = "the last words of a command-line program"
)]
fn report(error: &anyhow::Error) {
    eprintln!("Error: {error:#}");
}
