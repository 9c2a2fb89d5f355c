//! `exec-server bench`: measures an environment from this machine.
//!
//! Invariant: bounded in time and bytes, and leaves nothing behind. Not here: comparisons of
//! servers (`bench/`).

mod report;

use std::{
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use clap::Args;
use exec_core::output_log::{BackpressureMode, FollowOptions, FollowStart as FollowFrom};
use exec_env::{
    environment::{Command, ProcessIo},
    filesystem::{FileError, OpenFile, OpenFileRequest},
    process::{EventStream, ExecProcess, ExecProcessEvent},
};
use exec_wire::{
    fs::{OpenMode, RemovePath},
    id::{OutputSeq, ProcessId},
    limits,
    path_uri::PathUri,
    process::{EnvInherit, EnvPolicy, ProcessLimits, TerminalSize, TerminateMode, WaitUntil},
};
use futures_util::{StreamExt, stream};
use serde::Serialize;
use tokio::time::timeout;

use crate::command::{
    bench::report::{LatencySamples, Measurement, MeasurementOutcome, table},
    connect::{ConnectedEnv, EnvArgs},
    failure::{CommandFailure, FailureKind},
    print::{json, print},
};

/// Measures an environment: latency of calls, commands and keystrokes, and throughput of output and
/// files.
///
/// It runs its own commands on its own files, and leaves nothing behind.
#[derive(Args, Clone, Debug)]
pub struct BenchCommand {
    /// Environment to measure.
    #[command(flatten)]
    pub env_args: EnvArgs,

    /// Approximate duration of the whole measurement.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 6,
        value_parser = clap::value_parser!(u64).range(1..=600)
    )]
    pub seconds: u64,

    /// Prints one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

impl BenchCommand {
    /// Runs every measurement. Exits with status 1 if any of them failed.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let env = ConnectedEnv::open(&self.env_args).await?;
        let name = env.name.clone();
        let measure = BenchRunner::new(env, Duration::from_secs(self.seconds) / MEASUREMENTS);
        let measurements = all(&measure).await;
        let text = match self.json {
            true => json(&BenchReport {
                environment: &name,
                measurements: &measurements,
            })?,
            false => format!("{name}\n{}", table(&measurements)),
        };
        print(&text)?;
        let is_failed =
            |one: &Measurement| matches!(one.outcome, MeasurementOutcome::Failed { .. });
        Ok(match measurements.iter().any(is_failed) {
            true => FailureKind::Failed.into(),
            false => ExitCode::SUCCESS,
        })
    }
}

/// Runs all measurements in sequence.
async fn all(measure: &BenchRunner) -> Vec<Measurement> {
    let entry = |name, typical, outcome: Result<MeasurementOutcome, CommandFailure>| Measurement {
        name,
        typical,
        outcome: outcome.unwrap_or_else(|failure| MeasurementOutcome::Failed {
            error: failure.to_string(),
        }),
    };
    vec![
        entry("call", "0.05 ms", measure.call().await),
        entry("command `true`", "1 ms", measure.command().await),
        entry(
            "keystroke on a terminal",
            "0.1 ms",
            measure.keystroke().await,
        ),
        entry("output", "1000 MB/s", measure.output().await),
        entry("file written", "1000 MB/s", measure.write().await),
        entry("file read", "1500 MB/s", measure.read().await),
    ]
}

/// Output of `--json`.
#[derive(Serialize)]
struct BenchReport<'a> {
    environment: &'a str,
    #[serde(rename = "measured")]
    measurements: &'a [Measurement],
}

/// Number of measurements that share the total time.
const MEASUREMENTS: u32 = 6;

/// Limit for one iteration of any measurement.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of the test file.
const FILE: u64 = 256 << 20;
/// Concurrent block requests for a file.
const CONCURRENCY: usize = 8;

/// Runs measurements in one environment.
#[derive(Debug)]
struct BenchRunner {
    env: ConnectedEnv,
    /// Duration of one measurement.
    span: Duration,
    commands: AtomicU64,
}

impl BenchRunner {
    /// Creates a runner that spends `span` on each measurement.
    fn new(env: ConnectedEnv, span: Duration) -> Self {
        Self {
            env,
            span,
            commands: AtomicU64::new(0),
        }
    }

    /// Measures the latency of an iteration.
    async fn repeat(
        &self,
        mut iterate: impl AsyncFnMut() -> Result<(), CommandFailure>,
    ) -> Result<MeasurementOutcome, CommandFailure> {
        let mut samples = LatencySamples::default();
        let until = Instant::now() + self.span;
        while Instant::now() < until && !samples.is_full() {
            let started = Instant::now();
            iterate().await?;
            samples.push(started.elapsed());
        }
        Ok(MeasurementOutcome::of_times(samples))
    }

    /// Measures the latency of a no-op call.
    async fn call(&self) -> Result<MeasurementOutcome, CommandFailure> {
        self.repeat(async || Ok(self.env.client.status().await.map(drop)?))
            .await
    }

    /// Measures a no-op command from start to exit.
    async fn command(&self) -> Result<MeasurementOutcome, CommandFailure> {
        self.repeat(async || {
            let process = self.start(&["true"], None).await?;
            let ended = process.wait(WaitUntil::Exited, Some(TIMEOUT)).await;
            let status = ended.map_err(CommandFailure::failed)?;
            match status.exit.map(|exit| exit.code) {
                Some(0) => Ok(()),
                code => Err(CommandFailure::failed(format!(
                    "`true` ended with {code:?}"
                ))),
            }
        })
        .await
    }

    /// Measures the latency of a keystroke until its echo arrives.
    async fn keystroke(&self) -> Result<MeasurementOutcome, CommandFailure> {
        let size = TerminalSize { rows: 24, cols: 80 };
        let cat = self.start(&["cat"], Some(size)).await?;
        let mut events = follow(&*cat);
        let measured = self.repeat(async || {
            let queued = cat.write(None, Bytes::from_static(b"x")).await;
            queued.map_err(CommandFailure::failed)?;
            next_output(&mut events).await.map(drop)
        });
        let measured = measured.await?;
        end(&*cat).await?;
        Ok(measured)
    }

    /// Measures the throughput of command output.
    async fn output(&self) -> Result<MeasurementOutcome, CommandFailure> {
        let zeros = self.start(&["cat", "/dev/zero"], None).await?;
        let mut events = follow(&*zeros);
        next_output(&mut events).await?;
        let (started, mut bytes) = (Instant::now(), 0);
        while started.elapsed() < self.span {
            bytes += next_output(&mut events).await?;
        }
        let took = started.elapsed();
        end(&*zeros).await?;
        Ok(MeasurementOutcome::of_bytes(bytes, took))
    }

    /// Measures write throughput of a file.
    async fn write(&self) -> Result<MeasurementOutcome, CommandFailure> {
        let path = self.scratch().await?;
        let written = self.write_file(&path).await;
        self.remove(&path).await?;
        let (bytes, took) = written?;
        Ok(MeasurementOutcome::of_bytes(bytes, took))
    }

    /// Measures read throughput of a file.
    async fn read(&self) -> Result<MeasurementOutcome, CommandFailure> {
        let path = self.scratch().await?;
        let read = self.read_file(&path).await;
        self.remove(&path).await?;
        let (bytes, took) = read?;
        Ok(MeasurementOutcome::of_bytes(bytes, took))
    }

    async fn write_file(&self, path: &PathUri) -> Result<(u64, Duration), CommandFailure> {
        let file = self.open(path, OpenMode::Replace).await?;
        let block = Bytes::from(vec![b'x'; limits::MAX_BLOCK_BYTES]);
        let started = Instant::now();
        let size = block.len() as u64;
        let is_time = |_: &u64| started.elapsed() < self.span;
        let offsets = (0..FILE / size)
            .map(|index| index * size)
            .take_while(is_time);
        let mut writes = stream::iter(offsets)
            .map(|offset| file.write_block(offset, block.clone()))
            .buffer_unordered(CONCURRENCY);
        let mut bytes = 0;
        while let Some(written) = within(writes.next()).await? {
            written.map_err(CommandFailure::failed)?;
            bytes += size;
        }
        Ok((bytes, started.elapsed()))
    }

    async fn read_file(&self, path: &PathUri) -> Result<(u64, Duration), CommandFailure> {
        let (size, _) = self.write_file(path).await?;
        let file = self.open(path, OpenMode::Read).await?;
        let (started, mut bytes) = (Instant::now(), 0);
        while started.elapsed() < self.span && bytes < FILE.max(size) * MAX_PASSES {
            let step = limits::MAX_BLOCK_BYTES;
            let offsets = (0..size).step_by(step);
            let mut reads = stream::iter(offsets)
                .map(|offset| file.read_block(offset, step))
                .buffer_unordered(CONCURRENCY);
            while let Some(read) = within(reads.next()).await? {
                bytes += read.map_err(CommandFailure::failed)?.data.len() as u64;
            }
        }
        Ok((bytes, started.elapsed()))
    }

    async fn open(
        &self,
        path: &PathUri,
        mode: OpenMode,
    ) -> Result<std::sync::Arc<dyn OpenFile>, CommandFailure> {
        let open = OpenFileRequest {
            path: path.clone(),
            mode,
            sandbox: None,
        };
        within(self.env.environment().files.open(open))
            .await?
            .map_err(CommandFailure::failed)
    }

    async fn remove(&self, path: &PathUri) -> Result<(), CommandFailure> {
        let remove = RemovePath {
            path: path.clone(),
            recursive: Some(false),
            force: Some(true),
            follow_symlinks: None,
            sandbox: None,
        };
        let removed: Result<(), FileError> =
            within(self.env.environment().files.remove(remove)).await?;
        removed.map_err(CommandFailure::failed)
    }

    /// Returns a unique path in the temporary directory.
    async fn scratch(&self) -> Result<PathUri, CommandFailure> {
        let info = &self.env.info;
        let directory = match &info.temp_dir {
            Some(directory) => directory.clone(),
            None => self.env.path("/tmp").await?,
        };
        let name = format!("exec-server-bench-{}", uuid::Uuid::new_v4().simple());
        directory.join(&name).map_err(CommandFailure::failed)
    }

    async fn start(
        &self,
        argv: &[&str],
        terminal: Option<TerminalSize>,
    ) -> Result<std::sync::Arc<dyn ExecProcess>, CommandFailure> {
        let number = self.commands.fetch_add(1, Ordering::Relaxed);
        let id = ProcessId::new(&format!("bench-{number}")).map_err(CommandFailure::failed)?;
        let argv = argv.iter().map(|&word| word.to_owned()).collect();
        let mut command = Command::new(id, argv, self.env.path("/").await?);
        if let Some(size) = terminal {
            command.io = ProcessIo::Terminal(size);
        }
        command.env_policy = Some(EnvPolicy {
            inherit: EnvInherit::Core,
            ignore_default_excludes: false,
            exclude: Vec::new(),
            set: Default::default(),
            include_only: Vec::new(),
        });
        command.limits = ProcessLimits {
            wall_ms: Some(u64::try_from((self.span + TIMEOUT).as_millis()).unwrap_or(u64::MAX)),
            ..ProcessLimits::default()
        };
        let started = within(self.env.environment().backend.start(command)).await?;
        Ok(started.map_err(CommandFailure::failed)?.process)
    }
}

fn follow(process: &dyn ExecProcess) -> EventStream {
    process.follow(FollowOptions {
        start: FollowFrom::After(OutputSeq(0)),
        backpressure: BackpressureMode::Pause,
    })
}

/// Waits for output and returns its number of bytes.
async fn next_output(events: &mut EventStream) -> Result<u64, CommandFailure> {
    match within(events.next()).await? {
        Some(ExecProcessEvent::Output(chunk)) => Ok(chunk.data.len() as u64),
        Some(ExecProcessEvent::Failed(error)) => Err(CommandFailure::failed(error)),
        other => Err(CommandFailure::failed(format!(
            "the command exited: {other:?}"
        ))),
    }
}

async fn end(process: &dyn ExecProcess) -> Result<(), CommandFailure> {
    let ended = within(process.terminate(TerminateMode::Force)).await?;
    ended.map(drop).map_err(CommandFailure::failed)
}

async fn within<T>(what: impl Future<Output = T>) -> Result<T, CommandFailure> {
    let late =
        |_| CommandFailure::failed(format!("no output within {} seconds", TIMEOUT.as_secs()));
    timeout(TIMEOUT, what).await.map_err(late)
}

/// Maximum number of read passes over the file.
const MAX_PASSES: u64 = 64;
