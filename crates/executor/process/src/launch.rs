//! Launches a command: opens its stdio, has the spawner start it, and starts its process task.

use std::{io, sync::Arc};

use exec_core::output_log::{OutputLog, RetentionLimits};
use exec_journal::now_ms;
use exec_wire::{
    id::ProcessId,
    process::{ProcessLimits, TerminalSize},
};
use rustix::process::Resource;
use tokio::time::Instant;

use crate::{
    local_process::{LocalProcess, SharedState},
    process_task::{ProcessTask, TaskSettings},
    spawner::{CommandSpec, ResourceLimit, SpawnError, SpawnStage, Spawner},
    stdio::StdioEnds,
};

/// A command, and how its process is run.
#[derive(Debug)]
pub struct ProcessLaunch {
    /// Id that the caller chose for the process.
    pub id: ProcessId,
    /// The command. Its resource limits are those of `limits`.
    pub command: CommandSpec,
    /// Kind of the standard descriptors.
    pub io: LaunchStdio,
    /// Resource limits of the command, and deadlines of its process task.
    pub limits: ProcessLimits,
    /// Whether a sandbox policy applies, enforced by any mechanism. A failed exit is then scanned
    /// for signs of a denial.
    pub sandboxed: bool,
}

impl ProcessLaunch {
    /// Creates the launch of a command outside a sandbox, and sets the limits of the command.
    pub fn new(
        id: ProcessId,
        mut command: CommandSpec,
        io: LaunchStdio,
        limits: ProcessLimits,
    ) -> Self {
        command.limits = resource_limits(&limits);
        Self {
            id,
            command,
            io,
            limits,
            sandboxed: false,
        }
    }

    /// Copies everything except the sandbox set-up, which can be used for one start only.
    pub fn without_sandbox_setup(&self) -> io::Result<Self> {
        Ok(Self {
            id: self.id.clone(),
            command: self.command.without_sandbox_setup()?,
            ..*self
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

/// Launches a command, and retains this much of its output. If the future is dropped, the command
/// is killed.
pub async fn launch(
    spawner: &Spawner,
    launch: ProcessLaunch,
    retention: RetentionLimits,
) -> Result<Arc<LocalProcess>, SpawnError> {
    let host = |source: io::Error| SpawnError::Host {
        stage: SpawnStage::Setup,
        source,
    };
    let StdioEnds { parent, child } = StdioEnds::open(launch.io).map_err(host)?;
    let settings = TaskSettings {
        limits: launch.limits,
        sandboxed: launch.sandboxed,
    };
    // Taken before the command can run, so that the reported wall time covers all of its CPU time.
    let started = Instant::now();
    let child = Arc::new(spawner.spawn(launch.command, child).await?);
    let (input, sources, terminal) = parent.register().map_err(host)?;
    let log = OutputLog::new(retention);
    let shared = SharedState::new(log, input, Some(Arc::clone(&child)), None);
    let (shared, pid) = (Arc::new(shared), child.pid());
    tokio::spawn(ProcessTask::new(settings, &shared, child, sources, started).run());
    let process = LocalProcess::new(launch.id, shared, terminal, pid, now_ms());
    Ok(Arc::new(process))
}

fn resource_limits(limits: &ProcessLimits) -> Vec<ResourceLimit> {
    let seconds = limits.cpu_ms.map(|millis| millis.div_ceil(1000).max(1));
    [
        (Resource::Cpu, seconds),
        (Resource::Data, limits.memory_bytes),
        (Resource::Nproc, limits.processes),
        (Resource::Nofile, limits.open_files),
        (Resource::Fsize, limits.file_bytes),
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
        let command = CommandSpec {
            program: "/bin/sh".into(),
            argv: ["sh", "-c", "read line"].map(Into::into).to_vec(),
            cwd: "/".into(),
            ..CommandSpec::default()
        };
        let command = ProcessLaunch::new(
            ProcessId::new("p").unwrap(),
            command,
            LaunchStdio::PipesWithStdin,
            ProcessLimits::default(),
        );
        let process = launch(&spawner, command, RetentionLimits::default())
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
