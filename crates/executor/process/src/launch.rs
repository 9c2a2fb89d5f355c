//! Launches a command: opens its stdio, has the spawner start it, and starts its process task.

use std::{
    ffi::{CString, OsString},
    io,
    os::{fd::OwnedFd, unix::ffi::OsStringExt},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use exec_core::output_log::{OutputLog, RetentionLimits};
use exec_spawn::sandbox_setup::SandboxSetup;
use exec_wire::{
    id::ProcessId,
    process::{ProcessLimits, TerminalSize},
};
use tokio::time::Instant;

use crate::{
    durable_record::now_ms,
    local_process::{LocalProcess, SharedState},
    process_task::{OutputReader, ProcessTask, ProcessTimers, TreeLimits},
    spawner::{
        CommandSpec, InheritedFd, LimitedResource, ResourceLimit, SpawnError, SpawnStage, Spawner,
        SupervisedChild,
    },
    stdio::StdioEnds,
};

/// Describes a command completely, so that launching it involves no further decision.
#[derive(Debug)]
pub struct ProcessLaunch {
    /// Id that the caller chose for the process.
    pub id: ProcessId,
    /// Program to run. Looked up in the `PATH` of `env` if it contains no slash.
    pub program: OsString,
    /// Arguments, including the program's name.
    pub argv: Vec<OsString>,
    /// Complete environment of the command.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory.
    pub cwd: PathBuf,
    /// Kind of the standard descriptors.
    pub io: LaunchStdio,
    /// Resource limits.
    pub limits: ProcessLimits,
    /// Descriptors that the command inherits in addition to the standard ones.
    pub extra: Vec<InheritedFd>,
    /// Whether a sandbox policy applies, enforced by any mechanism. A failed exit is then scanned
    /// for signs of a denial.
    pub sandboxed: bool,
    /// Sandbox set-up to apply between clone and exec.
    pub sandbox_setup: Option<SandboxSetup>,
}

impl ProcessLaunch {
    /// Copies everything except the sandbox set-up, which can be used for one start only.
    pub fn without_sandbox_setup(&self) -> io::Result<Self> {
        let extra = self.extra.iter().map(|extra| {
            Ok(InheritedFd {
                fd: extra.fd.try_clone()?,
                target: extra.target,
            })
        });
        Ok(Self {
            id: self.id.clone(),
            program: self.program.clone(),
            argv: self.argv.clone(),
            env: self.env.clone(),
            cwd: self.cwd.clone(),
            io: self.io,
            limits: self.limits,
            extra: extra.collect::<io::Result<_>>()?,
            sandboxed: self.sandboxed,
            sandbox_setup: None,
        })
    }
}

/// Kind of a child's standard descriptors.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LaunchStdio {
    /// Pipes for output; stdin is `/dev/null`.
    Pipes,
    /// Pipes for output and for stdin.
    PipesWithStdin,
    /// A pseudo-terminal of this size.
    Terminal(TerminalSize),
}

/// Settings of the output log.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutputSettings {
    /// How much output the log retains.
    pub retention: RetentionLimits,
}

/// Launches a command. If the future is dropped, the command is killed.
pub async fn launch(
    spawner: &Spawner,
    launch: ProcessLaunch,
    settings: OutputSettings,
) -> Result<Arc<LocalProcess>, SpawnError> {
    let host = |source: io::Error| SpawnError::Host {
        stage: SpawnStage::Setup,
        source,
    };
    let StdioEnds {
        parent,
        child,
        terminal,
    } = StdioEnds::open(launch.io).map_err(host)?;
    let (id, task) = (launch.id.clone(), TaskSettings::of(&launch));
    let spec = command_spec(launch, child, terminal)?;
    // Taken before the command can run, so that the reported wall time covers all of its CPU time.
    let started = Instant::now();
    let child = Arc::new(spawner.spawn(spec).await?);
    let (input, sources, terminal) = parent.register().map_err(host)?;
    let log = OutputLog::new(settings.retention);
    let shared = Arc::new(SharedState::new(log, input, Arc::clone(&child)));
    let pid = child.pid();
    tokio::spawn(task.task(&shared, child, sources, started).run());
    let process = LocalProcess::new(id, shared, terminal, pid, now_ms());
    Ok(Arc::new(process))
}

/// Builds the command for the spawner.
pub(crate) fn command_spec(
    launch: ProcessLaunch,
    [stdin, stdout, stderr]: [OwnedFd; 3],
    terminal: bool,
) -> Result<CommandSpec, SpawnError> {
    Ok(CommandSpec {
        candidates: candidates(&launch)?,
        argv: launch
            .argv
            .into_iter()
            .map(|arg| c_string(arg, "argv"))
            .collect::<Result<_, _>>()?,
        env: launch.env.into_iter().map(pair).collect::<Result<_, _>>()?,
        cwd: c_string(launch.cwd.into_os_string(), "cwd")?,
        stdin,
        stdout,
        stderr,
        terminal,
        inherited_fds: launch.extra,
        limits: resource_limits(&launch.limits),
        sandbox_setup: launch.sandbox_setup,
    })
}

/// Settings of a process task, for a new process and for an adopted one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskSettings {
    pub(crate) limits: ProcessLimits,
    pub(crate) sandboxed: bool,
}

impl TaskSettings {
    pub(crate) fn of(launch: &ProcessLaunch) -> Self {
        Self {
            limits: launch.limits,
            sandboxed: launch.sandboxed,
        }
    }

    /// Creates the task of a process that started at `started`.
    pub(crate) fn task(
        self,
        shared: &Arc<SharedState>,
        child: Arc<SupervisedChild>,
        sources: Vec<OutputReader>,
        started: Instant,
    ) -> ProcessTask {
        let millis = Duration::from_millis;
        let timers = ProcessTimers {
            wall: self.limits.wall_ms.map(millis),
            idle: self.limits.idle_ms.map(millis),
            tree: TreeLimits {
                memory_bytes: self.limits.memory_bytes,
                // The kernel enforces RLIMIT_NPROC, except for root; sampling counts this tree
                // only.
                processes: self.limits.processes,
            },
        };
        let task = ProcessTask::new(Arc::clone(shared), child, sources, timers, started);
        task.sandboxed(self.sandboxed)
    }
}

fn candidates(launch: &ProcessLaunch) -> Result<Vec<CString>, SpawnError> {
    let path = launch
        .env
        .iter()
        .rfind(|(name, _)| name == "PATH")
        .map(|(_, value)| value);
    let paths = CommandSpec::candidates(&launch.program, path.map(OsString::as_os_str));
    paths
        .into_iter()
        .map(|path| c_string(path, "argv"))
        .collect()
}

fn resource_limits(limits: &ProcessLimits) -> Vec<ResourceLimit> {
    let seconds = limits.cpu_ms.map(|millis| millis.div_ceil(1000).max(1));
    [
        (LimitedResource::Cpu, seconds),
        (LimitedResource::Data, limits.memory_bytes),
        (LimitedResource::Processes, limits.processes),
        (LimitedResource::OpenFiles, limits.open_files),
        (LimitedResource::FileSize, limits.file_bytes),
    ]
    .into_iter()
    .filter_map(|(resource, value)| {
        Some(ResourceLimit {
            resource,
            value: value?,
        })
    })
    .collect()
}

fn pair((name, value): (OsString, OsString)) -> Result<CString, SpawnError> {
    let mut text = name.into_vec();
    text.push(b'=');
    text.extend_from_slice(&value.into_vec());
    c_string(OsString::from_vec(text), "env")
}

fn c_string(text: OsString, field: &'static str) -> Result<CString, SpawnError> {
    CString::new(text.into_vec()).map_err(|_| SpawnError::Nul(field))
}

#[cfg(test)]
mod tests {
    use std::{fs::OpenOptions, io::ErrorKind, time::Duration};

    use exec_env::process::ExecProcess;
    use exec_wire::{
        id::ProcessId,
        process::{ProcessLimits, WaitUntil},
    };
    use tokio::{net::unix::pipe::Sender, time::timeout};

    use super::*;
    use crate::spawner::Spawner;

    #[tokio::test]
    async fn dropping_a_process_closes_output_held_open_elsewhere() {
        let spawner = Spawner::default();
        let command = ProcessLaunch {
            id: ProcessId::new("p").unwrap(),
            program: "/bin/sh".into(),
            argv: ["sh", "-c", "read line"].map(Into::into).to_vec(),
            env: Vec::new(),
            cwd: "/".into(),
            io: LaunchStdio::PipesWithStdin,
            limits: ProcessLimits::default(),
            extra: Vec::new(),
            sandboxed: false,
            sandbox_setup: None,
        };
        let process = launch(&spawner, command, OutputSettings::default())
            .await
            .unwrap();
        let output = format!("/proc/{}/fd/1", process.status().os_pid.unwrap());
        let outsider =
            Sender::from_file(OpenOptions::new().write(true).open(output).unwrap()).unwrap();
        process.close_stdin(None).await.unwrap();
        process.wait(WaitUntil::Exited, None).await.unwrap();
        assert!(
            !process.status().closed,
            "another process holds the output open"
        );
        drop(process);
        let refused = async {
            loop {
                outsider.writable().await.unwrap();
                match outsider.try_write(b"x") {
                    Err(error) if error.kind() == ErrorKind::BrokenPipe => return,
                    _ => tokio::task::yield_now().await,
                }
            }
        };
        timeout(Duration::from_secs(10), refused)
            .await
            .expect("output is closed after the drop");
    }
}
