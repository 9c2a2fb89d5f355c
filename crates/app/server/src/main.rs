//! The `exec-server` binary.

use std::{io::Write, process::ExitCode};

use anyhow::Context;
use clap::CommandFactory;
use exec_server::{
    ExecServerRuntimePaths, RemoteEnvironmentConfig, background,
    cli::{Cli, Command, DoctorArgs, HubArgs, HubCommand},
    command::{CommandFailure, warn_of_foreign_keys},
    config::{self, LogConfig, ServerConfig, VariableLookup},
    doctor, hub,
    observe::Telemetry,
    remote::{self, ForwardConfig, RemoteConfigError},
};

fn main() -> ExitCode {
    exec_server::run_if_helper();
    with_large_stack(run)
}

/// Runs on this thread, or on one with a larger stack if the limit for this one is too low to serve.
fn with_large_stack(work: fn() -> ExitCode) -> ExitCode {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
    if limit.is_none_or(|bytes| bytes >= MIN_STACK_BYTES) {
        return work();
    }
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    match thread.spawn(work) {
        Ok(thread) => thread.join().unwrap_or(ExitCode::FAILURE),
        Err(error) => {
            let why =
                "cannot have a stack of 8 MiB: raise the limits of `ulimit -s` and `ulimit -v`";
            report(&anyhow::Error::new(error).context(why));
            ExitCode::FAILURE
        }
    }
}

/// Less than this much stack has been seen to be too little.
const MIN_STACK_BYTES: u64 = 4 << 20;
/// What systems give a program by default.
const STACK_BYTES: usize = 8 << 20;

fn run() -> ExitCode {
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    if cli.background {
        background::detach_from_terminal();
    }
    if let Err(error) = exec_process::spawner::adopt_orphans() {
        // Without it, commands that kill spawner and supervisor leave processes behind.
        tracing::debug!(%error, "orphans of commands are not adopted");
    }
    match start(cli) {
        Ok(code) => code,
        Err(error) => {
            tracing::debug!(?error, "server failed");
            report(&error);
            status(&error)
        }
    }
}

/// A line that asks for what cannot be is told from a failure of what can.
fn status(error: &anyhow::Error) -> ExitCode {
    if let Some(failure) = error.downcast_ref::<CommandFailure>() {
        return failure.kind.into();
    }
    let wrong_line = error
        .downcast_ref::<RemoteConfigError>()
        .is_some_and(RemoteConfigError::is_usage);
    if wrong_line {
        ExitCode::from(USAGE_STATUS)
    } else {
        ExitCode::FAILURE
    }
}

/// The status that the parser ends with too.
const USAGE_STATUS: u8 = 2;

fn start(cli: Cli) -> anyhow::Result<ExitCode> {
    let lookup: VariableLookup<'_> = &|name| std::env::var_os(name);
    if let Some(command) = &cli.command {
        let logs = LogConfig::of_command(&cli.settings, lookup);
        // What is not asked for is not set up: a person waits for the first byte.
        if !matches!(command, Command::People(_)) || logs.level.is_some() {
            Telemetry::logs(&logs).end();
        }
    }
    match &cli.command {
        Some(Command::Forward(forward)) => {
            let config = ForwardConfig::find(forward, lookup)?;
            return block_on_current_thread(completed(remote::run_forward(config)));
        }
        Some(Command::Hub(hub)) => return run_hub(hub, lookup),
        Some(Command::People(line)) => {
            let line = line.clone();
            return block_on_current_thread(async { Ok(line.run(Cli::command).await?) });
        }
        Some(Command::Doctor(doctor)) if doctor.env_args.env.is_some() => {
            let DoctorArgs { env_args, json } = doctor.clone();
            let options: &[&str] = if json { &["--json"] } else { &[] };
            return block_on_current_thread(async move {
                Ok(doctor::examine_remote(&env_args, options).await?)
            });
        }
        Some(Command::Doctor(_)) | None => {}
    }
    let (registration, transport) = (cli.registration.clone(), cli.transport.clone());
    let chatgpt = cli.chatgpt.clone();
    let command = cli.command.clone();
    let config = config::load(cli, lookup)?;
    if let Some(Command::Doctor(doctor)) = command {
        return block_on_current_thread(examine(config, doctor));
    }
    let telemetry = Telemetry::begin(&config.logs, lookup)?;
    let paths = ExecServerRuntimePaths::default();
    let server = config.clone();
    let remote =
        RemoteEnvironmentConfig::find(&registration, &transport, &chatgpt, server, lookup)?;
    let outcome = match remote {
        Some(remote) => block_on_current_thread(completed(exec_server::run_remote_environment(
            remote, paths,
        ))),
        None => block_on_current_thread(completed(exec_server::run_main(config, paths))),
    };
    telemetry.end();
    outcome
}

/// Ends well if it ends without an error.
async fn completed(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<ExitCode> {
    work.await.map(|()| ExitCode::SUCCESS)
}

/// Runs something to its end. One thread moves every byte: a keystroke crosses no queue between threads,
/// and on a small machine the other cores belong to the commands.
fn block_on_current_thread(
    work: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .build()?;
    let outcome = runtime.block_on(work);
    // Standard input may be blocked in a read that nobody needs any more.
    runtime.shutdown_background();
    outcome
}

/// Runs a hub, or does something else with one. It carries what others send, on every core.
fn run_hub(hub: &HubArgs, lookup: VariableLookup<'_>) -> anyhow::Result<ExitCode> {
    match &hub.command {
        Some(HubCommand::Token(command)) => {
            let (mut out, mut aside) = (std::io::stdout().lock(), std::io::stderr().lock());
            hub::edit_tokens(command, lookup, &mut out, &mut aside)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(HubCommand::Environments(flags)) => block_on_current_thread(completed(async {
            let text = hub::list_environments(flags, lookup).await?;
            print(&text)
        })),
        None => {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()?;
            runtime.block_on(completed(hub::run_hub(&hub.flags, lookup)))
        }
    }
}

/// Prints what this machine can enforce. The status tells whether that is everything.
async fn examine(config: ServerConfig, options: DoctorArgs) -> anyhow::Result<ExitCode> {
    for warning in &config.warnings {
        tracing::error!("{warning}");
    }
    warn_of_foreign_keys(&|name| std::env::var_os(name));
    let report = doctor::examine(config.sandbox).await?;
    let text = match options.json {
        true => format!("{}\n", serde_json::to_string_pretty(&report)?),
        false => report.to_string(),
    };
    print(&text)?;
    Ok(match report.enforceable {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .context("cannot write to stdout")
}

/// Threads that may wait for disks. Each session has at most a few dozen; if a mount hangs, those that
/// touch it are stuck until it is back, and others need theirs.
const MAX_BLOCKING_THREADS: usize = 4096;

/// Says the last words. If nobody can hear them, the status is still told.
fn report(error: &anyhow::Error) {
    let mut stderr = std::io::stderr().lock();
    drop(match error.downcast_ref::<CommandFailure>() {
        Some(failure) => writeln!(stderr, "error: {failure}"),
        None => writeln!(stderr, "Error: {error:#}"),
    });
}
