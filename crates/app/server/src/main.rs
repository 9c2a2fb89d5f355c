//! The `exec-server` binary.

use std::{io::Write, process::ExitCode};

#[cfg(feature = "cli")]
use anyhow::Context;
#[cfg(feature = "cli")]
use clap::CommandFactory;
use exec_server::{
    ExecServerRuntimePaths,
    cli::{BridgeArgs, Cli, Command},
    config::{self, LogConfig, ServerConfig, VariableLookup},
    telemetry::{self, Telemetry},
};
#[cfg(feature = "remote")]
use exec_server::{
    RemoteEnvironmentConfig,
    cli::ForwardArgs,
    remote::{self, ForwardConfig, RemoteConfigError},
};
#[cfg(feature = "cli")]
use exec_server::{
    cli::{DoctorArgs, JoinArgs},
    command::{CommandFailure, UserCommand, is_interactive, show_overview, warn_of_foreign_keys},
    doctor,
    join::{JoinedHub, join_hub},
};
#[cfg(feature = "hub")]
use exec_server::{
    cli::{HubArgs, HubCommand},
    hub,
};

fn main() -> ExitCode {
    exec_server::run_if_helper();
    with_large_stack(run)
}

/// Runs on this thread, or on one with a larger stack if the stack limit is too low.
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
                "cannot allocate a stack of 8 MiB: raise the limits of `ulimit -s` and `ulimit -v`";
            report(&anyhow::Error::new(error).context(why));
            ExitCode::FAILURE
        }
    }
}

/// Less than this has proved too little.
const MIN_STACK_BYTES: u64 = 4 << 20;
/// Default stack size of common systems.
const STACK_BYTES: usize = 8 << 20;

fn run() -> ExitCode {
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    if cli.background {
        detach_from_terminal();
        telemetry::bound_stderr_log();
    }
    if let Err(error) = exec_spawn::spawner::adopt_orphans() {
        // Without it, commands that kill spawner and supervisor leave orphans.
        tracing::debug!(%error, "cannot adopt orphans of commands");
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

/// Detaches from the terminal that started this process, so that its Ctrl-C and hang-up no longer
/// apply. Also sets the process name, because the process was started as `/proc/self/exe` and `ps`
/// would show `exe`.
fn detach_from_terminal() {
    if let Err(error) = rustix::process::setsid() {
        // The process already leads its own group.
        tracing::debug!(%error, "cannot create a session");
    }
    if let Err(error) = rustix::thread::set_name(c"exec-server") {
        tracing::debug!(%error, "cannot set the process name");
    }
}

/// Returns the exit status of an error. Usage errors have their own.
fn status(error: &anyhow::Error) -> ExitCode {
    #[cfg(feature = "cli")]
    if let Some(failure) = error.downcast_ref::<CommandFailure>() {
        return failure.kind.into();
    }
    #[cfg(feature = "remote")]
    if error
        .downcast_ref::<RemoteConfigError>()
        .is_some_and(RemoteConfigError::is_usage)
    {
        return ExitCode::from(USAGE_STATUS);
    }
    let _other = error;
    ExitCode::FAILURE
}

/// Exit status of clap, too.
#[cfg(feature = "remote")]
const USAGE_STATUS: u8 = 2;

fn start(cli: Cli) -> anyhow::Result<ExitCode> {
    #[cfg(feature = "cli")]
    let mut cli = cli;
    let lookup: VariableLookup<'_> = &|name| std::env::var_os(name);
    if let Some(command) = &cli.command {
        let logs = LogConfig::of_command(&cli.settings, lookup);
        // Logging is set up only on request, to start commands quickly.
        if !is_server(command) && (!is_for_people(command) || logs.level.is_some()) {
            Telemetry::logs(&logs).end();
        }
    }
    match &cli.command {
        #[cfg(feature = "remote")]
        Some(Command::Forward(forward)) => return run_forward(forward, lookup),
        Some(Command::Bridge(bridge)) => return run_bridge(bridge),
        #[cfg(feature = "hub")]
        Some(Command::Hub(hub)) => return run_hub(hub, lookup),
        #[cfg(feature = "cli")]
        Some(Command::People(line)) => return run_command(line),
        #[cfg(feature = "cli")]
        Some(Command::Doctor(doctor)) => return run_doctor(doctor.clone(), cli, lookup),
        #[cfg(feature = "cli")]
        Some(Command::Join(join)) => match run_join(join, lookup)? {
            Some(joined) => {
                cli.command = None;
                cli.registration.remote = Some(joined.hub);
                cli.registration.environment_id = Some(joined.environment);
                cli.registration.remote_token_file = Some(joined.token_file);
            }
            None => return Ok(ExitCode::SUCCESS),
        },
        #[cfg(feature = "cli")]
        None if is_bare_on_terminal(lookup) => return run_overview(),
        None => {}
    }
    #[cfg(feature = "remote")]
    let (registration, transport, chatgpt) = (
        cli.registration.clone(),
        cli.transport.clone(),
        cli.chatgpt.clone(),
    );
    let config = config::load(cli, lookup)?;
    let telemetry = Telemetry::begin(&config.logs, lookup)?;
    #[cfg(feature = "remote")]
    let remote = {
        let server = config.clone();
        RemoteEnvironmentConfig::find(&registration, &transport, &chatgpt, server, lookup)?
    };
    #[cfg(feature = "remote")]
    if let Some(remote) = remote {
        let outcome = serve_remotely(remote);
        telemetry.end();
        return outcome;
    }
    let outcome = serve(config);
    telemetry.end();
    outcome
}

// Each of the following is compiled apart: a future of any other command would otherwise be part of
// the stack frame below a running server, 200 KiB in all.

#[inline(never)]
fn serve(config: ServerConfig) -> anyhow::Result<ExitCode> {
    let paths = ExecServerRuntimePaths::default();
    block_on_current_thread(completed(exec_server::run_main(config, paths)))
}

#[cfg(feature = "remote")]
#[inline(never)]
fn serve_remotely(config: RemoteEnvironmentConfig) -> anyhow::Result<ExitCode> {
    let paths = ExecServerRuntimePaths::default();
    let running = exec_server::run_remote_environment(config, paths);
    block_on_current_thread(completed(running))
}

#[cfg(feature = "remote")]
#[inline(never)]
fn run_forward(forward: &ForwardArgs, lookup: VariableLookup<'_>) -> anyhow::Result<ExitCode> {
    let config = ForwardConfig::find(forward, lookup)?;
    block_on_current_thread(completed(remote::run_forward(config)))
}

#[inline(never)]
fn run_bridge(bridge: &BridgeArgs) -> anyhow::Result<ExitCode> {
    if bridge.check {
        let version = env!("CARGO_PKG_VERSION");
        writeln!(std::io::stdout(), "exec-server-bridge {version}")?;
        return Ok(ExitCode::SUCCESS);
    }
    block_on_current_thread(completed(exec_server::bridge::run_bridge()))
}

#[cfg(feature = "cli")]
#[inline(never)]
fn run_command(command: &UserCommand) -> anyhow::Result<ExitCode> {
    let command = command.clone();
    block_on_current_thread(async { Ok(command.run(Cli::command).await?) })
}

#[cfg(feature = "cli")]
#[inline(never)]
fn run_doctor(
    doctor: DoctorArgs,
    cli: Cli,
    lookup: VariableLookup<'_>,
) -> anyhow::Result<ExitCode> {
    if doctor.env_args.env.is_none() {
        return block_on_current_thread(examine(config::load(cli, lookup)?, doctor));
    }
    let DoctorArgs { env_args, json } = doctor;
    let options: &[&str] = if json { &["--json"] } else { &[] };
    block_on_current_thread(async move { Ok(doctor::examine_remote(&env_args, options).await?) })
}

#[cfg(feature = "cli")]
#[inline(never)]
fn run_join(join: &JoinArgs, lookup: VariableLookup<'_>) -> anyhow::Result<Option<JoinedHub>> {
    block_on_current_thread(async { Ok(join_hub(join, lookup).await?) })
}

#[cfg(feature = "cli")]
#[inline(never)]
fn run_overview() -> anyhow::Result<ExitCode> {
    block_on_current_thread(async { Ok(show_overview().await?) })
}

/// Returns whether the program was started on a terminal without arguments, and neither variables
/// nor the configuration file set a listener. The server reports an invalid configuration.
#[cfg(feature = "cli")]
fn is_bare_on_terminal(lookup: VariableLookup<'_>) -> bool {
    std::env::args_os().len() == 1
        && is_interactive()
        && config::configured_listener(lookup).is_ok_and(|listen| listen.is_none())
}

/// Returns whether a command works in an environment and is meant for interactive use.
fn is_for_people(command: &Command) -> bool {
    match command {
        #[cfg(feature = "cli")]
        Command::People(_) => true,
        #[cfg(feature = "cli")]
        Command::Doctor(_) => false,
        #[cfg(feature = "cli")]
        Command::Join(_) => false,
        #[cfg(feature = "hub")]
        Command::Hub(_) => false,
        Command::Bridge(_) => true,
        #[cfg(feature = "remote")]
        Command::Forward(_) => false,
    }
}

/// Returns whether a command becomes the server, which sets up its own logging.
fn is_server(command: &Command) -> bool {
    #[cfg(feature = "cli")]
    if let Command::Join(join) = command {
        return !join.service;
    }
    let _other = command;
    false
}

/// Maps success to the exit status 0.
async fn completed(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<ExitCode> {
    work.await.map(|()| ExitCode::SUCCESS)
}

/// Runs a future on a single-threaded runtime: keystrokes cross no queue between threads, and on a
/// small machine the other cores belong to the commands.
fn block_on_current_thread<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .build()?;
    let outcome = runtime.block_on(work);
    // Stdin may still be blocked in a read.
    runtime.shutdown_background();
    outcome
}

/// Runs a hub, on all cores, or one of its subcommands.
#[cfg(feature = "hub")]
#[inline(never)]
fn run_hub(hub: &HubArgs, lookup: VariableLookup<'_>) -> anyhow::Result<ExitCode> {
    match &hub.command {
        Some(HubCommand::Token(command)) => {
            let (mut out, mut messages) = (std::io::stdout().lock(), std::io::stderr().lock());
            hub::edit_tokens(command, lookup, &mut out, &mut messages)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(HubCommand::Invite(invite)) => {
            let (mut out, mut messages) = (std::io::stdout().lock(), std::io::stderr().lock());
            hub::create_invite(invite, lookup, &mut out, &mut messages)?;
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

/// Prints what this machine can enforce. Exits with status 1 unless it is everything.
#[cfg(feature = "cli")]
async fn examine(config: ServerConfig, options: DoctorArgs) -> anyhow::Result<ExitCode> {
    for warning in &config.warnings {
        tracing::error!("{warning}");
    }
    warn_of_foreign_keys(&|name| std::env::var_os(name));
    let state_dir = config.durable.map(|durable| durable.directory);
    let report = doctor::examine(config.sandbox, state_dir).await?;
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

#[cfg(feature = "cli")]
fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .context("cannot write to stdout")
}

/// Maximum blocking threads. Each session uses at most a few dozen; if a mount hangs, threads that
/// touch it are stuck, and others need theirs.
const MAX_BLOCKING_THREADS: usize = 4096;

/// Prints an error. A broken stderr is ignored: the exit status still reports it.
fn report(error: &anyhow::Error) {
    let mut stderr = std::io::stderr().lock();
    #[cfg(feature = "cli")]
    if let Some(failure) = error.downcast_ref::<CommandFailure>() {
        drop(writeln!(stderr, "error: {failure}"));
        return;
    }
    drop(writeln!(stderr, "Error: {error:#}"));
}
