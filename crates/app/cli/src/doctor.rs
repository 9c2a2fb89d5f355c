//! `exec-server doctor`: reports what this machine can enforce, what prevents the rest, and how to
//! fix it.
//!
//! The probes are those of `exec-sandbox`; the advice is a pure function of their results. The text
//! form is at most 100 columns wide.

mod advice;
mod durable_state;
#[cfg(test)]
mod tests;

use std::{fmt, path::PathBuf, process::ExitCode, time::Duration};

use exec_client::backend::ProcessDurability;
use exec_process::spawner::Spawner;
use exec_sandbox::{
    SandboxSettings,
    abilities::{
        CgroupSupport, HostAbilities, PolicySupport, ProbeDepth, ProbeOutcome, policy_support,
        probe,
    },
};
use exec_settings::{local_socket::LocalSocket, settings_source::VariableLookup};
use exec_transport::socket_path::SocketPath;
use rustix::net::sockopt::socket_peercred;
use serde::Serialize;
use tokio::{task::spawn_blocking, time::timeout};

use crate::command::{
    connect::{ConnectedEnv, EnvArgs},
    failure::CommandFailure,
    process_session::TerminalUse,
    quantity::DurationArg,
    run::{self, ExecArgs, StartRequest},
};

pub use self::{
    advice::{DoctorAdvice, advice},
    durable_state::DurableStateStatus,
};

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
    #[serde(rename = "outlook")]
    pub policies: Vec<PolicySupport>,
    /// What prevents the rest, and how to fix it.
    pub advice: Vec<DoctorAdvice>,
    /// State of the local server, if it was checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_server: Option<LocalServerStatus>,
    /// Durable state of that server, if it was checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durable_state: Option<DurableStateStatus>,
}

impl DoctorReport {
    /// Builds the report for a server with these settings.
    pub fn new(abilities: HostAbilities, settings: SandboxSettings) -> Self {
        Self::with_policies(
            policy_support(&abilities, settings.mechanism, settings.processes),
            abilities,
        )
    }

    fn with_policies(policies: Vec<PolicySupport>, abilities: HostAbilities) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            enforceable: policies.iter().all(|policies| policies.mechanism.is_some()),
            advice: advice(&abilities),
            policies,
            abilities,
            local_server: None,
            durable_state: None,
        }
    }
}

/// Probes this machine. Leaves nothing running. `state_dir` is the state directory to look at, by
/// default that of the local server.
///
/// # Errors
/// When the machine does not answer in time.
pub async fn examine(
    settings: SandboxSettings,
    state_dir: Option<PathBuf>,
) -> Result<DoctorReport, ExamineError> {
    let lookup: VariableLookup<'_> = &|name| std::env::var_os(name);
    let state_dir = state_dir.or_else(|| LocalSocket::durable_directory(lookup));
    let durable_state = async {
        let directory = state_dir?;
        spawn_blocking(move || DurableStateStatus::check(directory))
            .await
            .ok()
    };
    let spawner = Spawner::default();
    let found = async { tokio::join!(probe(&spawner, ProbeDepth::All), durable_state) };
    let found = timeout(TIMEOUT, found).await;
    let (abilities, durable_state) = found.map_err(|_| ExamineError)?;
    Ok(DoctorReport {
        local_server: Some(LocalServerStatus::check(lookup)),
        durable_state,
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
        let listener = SocketPath::connect(&socket).ok();
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
echo "error: the server there cannot examine its machine; run \`exec-server doctor\` there" >&2
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
    let request = StartRequest {
        env: &env,
        exec_args: &ExecArgs::default(),
        id: run::new_id(),
        argv: argv.map(|&word| word.to_owned()).collect(),
        terminal: TerminalUse::None,
        limit: Some(REMOTE_TIMEOUT),
        keys: None,
        durability: ProcessDurability::NotDurable,
        tunnels: &[],
    };
    let outcome = run::run_session(request, None).await?;
    Ok(outcome.status)
}

const WIDTH: usize = 100;
/// Width of the name column.
const NAME: usize = 33;
/// Width of the verdict column.
const VERDICT: usize = 5;
/// Maximum length of a refusal reason; the beginning matters most.
const REASON: usize = 120;

impl fmt::Display for DoctorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = &self.abilities.host;
        let (version, kernel, account) = (&self.version, &host.kernel, host.account);
        write!(
            f,
            "exec-server {version} on Linux {kernel}, account {account}"
        )?;
        if let Some(container) = &host.container {
            write!(f, ", in a container ({container})")?;
        }
        writeln!(f, "\n\nWhat works")?;
        for (name, verdict, detail) in table(&self.abilities) {
            let verdict = format!("  {name:NAME$}{verdict:VERDICT$}");
            paragraph(f, &verdict, &detail)?;
        }
        writeln!(f, "\nWhat enforces each kind of policy")?;
        for PolicySupport {
            policy,
            mechanism,
            reason,
        } in &self.policies
        {
            let name = format!("  {policy:NAME$}");
            match (mechanism, reason) {
                (Some(mechanism), _) => paragraph(f, &name, mechanism)?,
                (None, reason) => {
                    let reason = reason.as_deref().unwrap_or("no mechanism");
                    paragraph(f, &name, &format!("refused: {}", beginning(reason)))?;
                }
            }
        }
        let is_long = |policies: &PolicySupport| policies.reason.as_deref().is_some_and(is_long);
        if self.policies.iter().any(is_long) {
            writeln!(f, "  (`exec-server doctor --json` has the reasons in full)")?;
        }
        if !self.advice.is_empty() {
            writeln!(f, "\nWhat would help")?;
        }
        for DoctorAdvice {
            about,
            problem,
            remedies,
        } in &self.advice
        {
            paragraph(f, "  ", &format!("{about}: {problem}"))?;
            for remedy in remedies {
                paragraph(f, "    - ", remedy)?;
            }
        }
        if let Some(server) = &self.local_server {
            writeln!(f, "\nCommands for people")?;
            paragraph(f, "  ", &server.to_string())?;
        }
        if let Some(state) = &self.durable_state {
            writeln!(f, "\nProcesses that outlive their server")?;
            for line in state.lines() {
                paragraph(f, "  ", &line)?;
            }
        }
        let conclusion = if self.enforceable {
            "Every kind of policy can be enforced here."
        } else {
            "Not every kind of policy can be enforced here; what cannot is refused, never weakened."
        };
        writeln!(f, "\n{conclusion}")
    }
}

fn table(can: &HostAbilities) -> Vec<(&'static str, &'static str, String)> {
    let mut rows = vec![
        (
            "Landlock",
            if can.landlock > 0 { "yes" } else { "no" },
            landlock(can.landlock),
        ),
        row("seccomp filters", &can.seccomp, ""),
        row(
            "user namespaces",
            &can.namespaces,
            "with mounts, ipc and network",
        ),
    ];
    // For ordinary accounts this never works, and that is fine.
    if can.privileged_namespaces.works() || can.host.account == 0 {
        let (name, detail) = ("privileged namespaces", "the same without a user namespace");
        rows.push(row(name, &can.privileged_namespaces, detail));
    }
    let path = can.bubblewrap_path.as_ref();
    let path = path.map_or(String::new(), |path| path.display().to_string());
    let (cgroups, groups) = cgroups(can.host.cgroups);
    rows.extend([
        row("pid namespace", &can.processes, "with a private /proc"),
        row(
            "guarded names",
            &can.guards,
            "missing names stay missing in writable directories",
        ),
        row("bubblewrap", &can.bubblewrap, &path),
        ("control groups", cgroups, groups.to_owned()),
    ]);
    rows
}

fn row(
    name: &'static str,
    ability: &ProbeOutcome,
    detail: &str,
) -> (&'static str, &'static str, String) {
    match ability {
        ProbeOutcome::Works => (name, "yes", detail.to_owned()),
        ProbeOutcome::Fails(reason) => (name, "no", reason.clone()),
        ProbeOutcome::Untried => (name, "-", "not probed".to_owned()),
    }
}

/// Explains what a Landlock ABI means for policies.
fn landlock(abi: u32) -> String {
    let meaning = match abi {
        0 => return "the kernel does not offer it".to_owned(),
        1 => "too old for policies, and for missing names",
        2..=5 => "protects missing names; too old for policies",
        _ => "enforces read-only policies, protects missing names",
    };
    format!("ABI {abi}: {meaning}")
}

fn cgroups(found: CgroupSupport) -> (&'static str, &'static str) {
    match found {
        CgroupSupport::None => ("no", "none are mounted; no policy needs them"),
        CgroupSupport::First => ("v1", "no policy needs them"),
        CgroupSupport::Unified => ("v2", "not writable for this account; no policy needs them"),
        CgroupSupport::Writable => ("v2", "writable for this account; no policy needs them"),
    }
}

fn is_long(reason: &str) -> bool {
    reason.chars().count() > REASON
}

/// Truncates a reason.
fn beginning(reason: &str) -> String {
    if !is_long(reason) {
        return reason.to_owned();
    }
    let mut cut: String = reason.chars().take(REASON).collect();
    cut.truncate(cut.rfind(' ').unwrap_or(cut.len()));
    format!("{cut}…")
}

/// Writes an indented paragraph after a prefix.
fn paragraph(f: &mut fmt::Formatter<'_>, start: &str, words: &str) -> fmt::Result {
    let indent = start.chars().count();
    let mut line = start.to_owned();
    let mut empty = true;
    for word in words.split_whitespace() {
        let length = line.chars().count() + usize::from(!empty) + word.chars().count();
        if length > WIDTH && !empty {
            writeln!(f, "{line}")?;
            line = " ".repeat(indent);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    writeln!(f, "{}", line.trim_end())
}
