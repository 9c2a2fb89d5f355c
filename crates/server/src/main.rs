//! The `exec-server` binary.

use std::process::ExitCode;

use clap::Parser;
use exec_server::{cli::Cli, config};
use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

fn main() -> ExitCode {
    let cli = Cli::parse();
    log_to_stderr();
    match start(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::debug!(?error, "server failed");
            report(&error);
            ExitCode::FAILURE
        }
    }
}

fn start(cli: Cli) -> anyhow::Result<()> {
    let config = config::load(cli, &|name| std::env::var_os(name))?;
    // One thread moves every byte: a keystroke crosses no queue between threads, and on a small
    // machine the other cores belong to the commands.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .build()?;
    let outcome = runtime.block_on(exec_server::run_main(config));
    // Standard input may be blocked in a read that nobody needs any more.
    runtime.shutdown_background();
    outcome
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
