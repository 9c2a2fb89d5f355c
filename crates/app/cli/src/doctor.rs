//! `exec-server doctor`: reports what this machine can enforce, what prevents the rest, and how to
//! fix it.
//!
//! The probes are those of `exec-sandbox`; the advice is a pure function of their results.

mod advice;
#[cfg(test)]
mod tests;
mod text;

use std::{fmt, os::unix::net::UnixStream, path::PathBuf, process::ExitCode, time::Duration};

use exec_process::spawner::Spawner;
use exec_sandbox::{
    SandboxSettings,
    abilities::{HostAbilities, PolicySupport, ProbeDepth, policy_support, probe},
};
use rustix::net::sockopt::socket_peercred;
use serde::Serialize;
use tokio::time::timeout;

use crate::{
    command::{
        LocalSocket,
        connect::{ConnectedEnv, EnvArgs},
        failure::CommandFailure,
        process_session::TerminalUse,
        quantity::DurationArg,
        start::{self, ExecArgs, StartRequest},
    },
    settings_source::VariableLookup,
};

pub use self::advice::{DoctorAdvice, advice};

/// Limit for all probes. Each probe gives up earlier and reports what hangs.
const TIMEOUT: Duration = Duration::from_secs(20);

/// What this machine can enforce. Its JSON members are stable: members may be added, none changes.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DoctorReport {
    /// Version of this program.
    pub version: String,
    /// Whether every kind of policy can be enforced.
    pub enforceable: bool,
    /// Probed abilities.
    pub abilities: HostAbilities,
    /// Mechanism for each kind of policy.
    pub outlook: Vec<PolicySupport>,
    /// What prevents the rest, and how to fix it.
    pub advice: Vec<DoctorAdvice>,
    /// State of the local server, if it was checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_server: Option<LocalServerStatus>,
}

impl DoctorReport {
    /// Builds the report for a server with these settings.
    pub fn new(abilities: HostAbilities, settings: SandboxSettings) -> Self {
        Self::with_outlook(
            policy_support(&abilities, settings.mechanism, settings.processes),
            abilities,
        )
    }

    fn with_outlook(outlook: Vec<PolicySupport>, abilities: HostAbilities) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            enforceable: outlook.iter().all(|outlook| outlook.mechanism.is_some()),
            advice: advice(&abilities),
            outlook,
            abilities,
            local_server: None,
        }
    }
}

/// Probes this machine. Leaves nothing running.
///
/// # Errors
/// When the machine does not answer in time.
pub async fn examine(settings: SandboxSettings) -> Result<DoctorReport, ExamineError> {
    let spawner = Spawner::default();
    let found = timeout(TIMEOUT, probe(&spawner, ProbeDepth::All)).await;
    let abilities = found.map_err(|_| ExamineError)?;
    Ok(DoctorReport {
        local_server: Some(LocalServerStatus::check(&|name| std::env::var_os(name))),
        ..DoctorReport::new(abilities, settings)
    })
}

/// Host: a probe hangs.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("this machine did not answer within {} seconds", TIMEOUT.as_secs())]
pub struct ExamineError;

/// State of the local server. Checking it starts nothing.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalServerStatus {
    /// Path of its socket.
    pub socket: PathBuf,
    /// Process id. `None`: it is not running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
}

impl LocalServerStatus {
    /// Checks the socket.
    pub fn check(lookup: VariableLookup<'_>) -> Self {
        let socket = LocalSocket::find(lookup).path().to_owned();
        let listener = UnixStream::connect(&socket).ok();
        let pid = listener.and_then(|stream| socket_peercred(stream).ok());
        Self {
            socket,
            pid: pid.map(|peer| peer.pid.as_raw_nonzero().get()),
        }
    }
}

impl fmt::Display for LocalServerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let socket = self.socket.display();
        match self.pid {
            Some(pid) => write!(f, "their server runs as process {pid}, at unix://{socket}"),
            None => write!(
                f,
                "the first command starts their server, at unix://{socket}"
            ),
        }
    }
}

/// The parent of a command is its supervisor, which runs the server's executable.
const SCRIPT: &str = r#"
program=/proc/$PPID/exe
case $("$program" --version 2>/dev/null) in
"exec-server "*) exec "$program" doctor "$@" ;;
esac
echo "error: the server there cannot examine_remote its machine; run \`exec-server doctor\` there" >&2
exit 69
"#;

/// Limit for the remote report: longer than the probes take.
const REMOTE_TIMEOUT: DurationArg = DurationArg(Duration::from_secs(60));

/// Reports what the machine of an environment can enforce.
pub async fn examine_remote(
    env_args: &EnvArgs,
    options: &[&str],
) -> Result<ExitCode, CommandFailure> {
    let env = ConnectedEnv::open(env_args).await?;
    let argv = ["/bin/sh", "-c", SCRIPT, "doctor"];
    let argv = argv.iter().chain(options);
    let outcome = start::run_without_input(StartRequest {
        env: &env,
        exec_args: &ExecArgs::default(),
        id: start::new_id(),
        argv: argv.map(|&word| word.to_owned()).collect(),
        terminal: TerminalUse::None,
        limit: Some(REMOTE_TIMEOUT),
        keys: None,
    })
    .await?;
    Ok(outcome.status)
}
