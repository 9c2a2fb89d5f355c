//! Probes which sandbox mechanisms work on this host.
//!
//! Every mechanism is tried for real: a mechanism that was not tried counts as not working.

mod host_info;
mod policy_support;

pub use self::{
    host_info::{Cgroups, Host},
    policy_support::{Outlook, outlook},
};

use std::{ffi::CString, io, path::PathBuf, time::Duration};

use exec_process::spawner::{SpawnError, Spawner, Spec, Stage};
use exec_spawn::enclosure::{Enclosure, Guard, Namespaces, NetworkNamespace};
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use crate::{
    bubblewrap, landlock_domain,
    mount_steps::{PseudoFs, mount_steps},
    plan::{FileView, PathAccess},
    syscall_filter::{FilterSpec, SocketAccess, build_filter},
};

/// Timeout of one probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of all probes together.
const TOTAL_PROBE_TIMEOUT: Duration = Duration::from_secs(15);
/// Path that never exists. A "not found" error from exec proves that the enclosure was entered
/// first.
const MISSING_PROGRAM: &str = "/proc/self/missing-program";

/// Mechanisms that this host can use.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Abilities {
    /// Settings of the host that explain failures.
    pub host: Host,
    /// Landlock ABI version; 0 if Landlock is not available.
    pub landlock: u32,
    /// Seccomp filters.
    pub seccomp: Ability,
    /// Namespaces, created together with a user namespace.
    pub namespaces: Ability,
    /// Namespaces without a user namespace, which requires privileges.
    pub privileged_namespaces: Ability,
    /// A PID namespace with its own `/proc`.
    pub processes: Ability,
    /// Names that cannot be created in a writable directory.
    pub guards: Ability,
    /// Bubblewrap.
    pub bubblewrap: Ability,
    /// Path of the bubblewrap program.
    pub bubblewrap_path: Option<PathBuf>,
}

/// Result of one probe.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", tag = "state", content = "reason")]
pub enum Ability {
    /// The mechanism works.
    Works,
    /// The mechanism fails for this reason.
    Fails(String),
    /// Not tried, because it would not be used.
    Untried,
}

impl Ability {
    /// Returns whether the mechanism works.
    pub fn works(&self) -> bool {
        *self == Self::Works
    }

    /// Returns why the mechanism fails.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Fails(reason) => Some(reason),
            Self::Works | Self::Untried => None,
        }
    }
}

/// How many mechanisms are probed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Thoroughness {
    /// Stops as soon as one mechanism works.
    Enough,
    /// Probes every mechanism.
    All,
}

/// Probes what this host can enforce. Takes milliseconds, at most 15 seconds.
pub async fn probe(spawner: &Spawner, thoroughness: Thoroughness) -> Abilities {
    let host = Host::read();
    let probe_all = thoroughness == Thoroughness::All;
    let landlock = landlock_domain::abi_version();
    let runner = ProbeRunner {
        spawner,
        overall_deadline: Instant::now() + TOTAL_PROBE_TIMEOUT,
    };
    let seccomp = runner.try_enclosure(Ok(filter_probe())).await;
    let namespace_probe = |user, processes| namespace_probe(user, processes, host.account);
    let mut processes = runner
        .try_enclosure(namespace_probe(UserNamespace::New, PidNamespace::New))
        .await;
    let unprivileged = match &processes {
        Ability::Works => Ability::Works,
        Ability::Fails(_) | Ability::Untried => {
            runner
                .try_enclosure(namespace_probe(UserNamespace::New, PidNamespace::Host))
                .await
        }
    };
    let mut privileged = Ability::Untried;
    if probe_all || !unprivileged.works() {
        privileged = runner
            .try_enclosure(namespace_probe(UserNamespace::Host, PidNamespace::Host))
            .await;
        if privileged.works() && !unprivileged.works() {
            processes = runner
                .try_enclosure(namespace_probe(UserNamespace::Host, PidNamespace::New))
                .await;
        }
    }
    let has_namespaces = unprivileged.works() || privileged.works();
    let guards = if !has_namespaces {
        Ability::Fails("namespaces are not available".to_owned())
    } else if landlock < landlock_domain::MIN_ABI_REFER {
        let required_abi = landlock_domain::MIN_ABI_REFER;
        Ability::Fails(format!(
            "requires Landlock ABI {required_abi}, this kernel has {landlock}"
        ))
    } else {
        let user = if unprivileged.works() {
            UserNamespace::New
        } else {
            UserNamespace::Host
        };
        let guarded = namespace_probe(user, PidNamespace::Host)
            .and_then(|inner| guard_probe(inner, landlock));
        runner.try_enclosure(guarded).await
    };
    let bubblewrap_path = bubblewrap::find_program();
    let bubblewrap = match &bubblewrap_path {
        Some(path) if probe_all || !has_namespaces => {
            bubblewrap::probe_bubblewrap(path, runner.deadline()).await
        }
        Some(_) => Ability::Untried,
        None => Ability::Fails("bwrap is not installed".to_owned()),
    };
    Abilities {
        host,
        landlock,
        seccomp,
        namespaces: unprivileged,
        privileged_namespaces: privileged,
        processes,
        guards,
        bubblewrap,
        bubblewrap_path,
    }
}

/// Whether the probe creates a user namespace.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum UserNamespace {
    New,
    Host,
}

/// Whether the probe creates a PID namespace.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PidNamespace {
    New,
    Host,
}

fn filter_probe() -> Enclosure {
    Enclosure {
        filter: build_filter(FilterSpec {
            sockets: SocketAccess::Pairs,
            shares_host_files: true,
            shares_host_processes: true,
            brokered: false,
        }),
        ..Enclosure::default()
    }
}

fn namespace_probe(
    user: UserNamespace,
    processes: PidNamespace,
    account: u32,
) -> Result<Enclosure, String> {
    let view = FileView {
        base: PathAccess::Read,
        layers: Vec::new(),
        forbidden: Vec::new(),
        links: Vec::new(),
    };
    let pseudo_fs = PseudoFs {
        devices: true,
        processes: processes == PidNamespace::New,
        account,
    };
    Ok(Enclosure {
        namespaces: Some(Namespaces {
            user: user == UserNamespace::New,
            processes: processes == PidNamespace::New,
            network: Some(NetworkNamespace::default()),
            steps: mount_steps(&view, pseudo_fs).map_err(|error| error.to_string())?,
        }),
        ..Enclosure::default()
    })
}

fn guard_probe(mut enclosure: Enclosure, landlock: u32) -> Result<Enclosure, String> {
    let domain =
        landlock_domain::deny_creation(landlock, landlock_domain::AbstractSocketScope::Isolated);
    enclosure.landlock = Some(domain.map_err(|error| error.to_string())?);
    enclosure.filter = build_filter(FilterSpec {
        sockets: SocketAccess::Pairs,
        shares_host_files: false,
        shares_host_processes: false,
        brokered: true,
    });
    enclosure.guards = vec![Guard {
        directory: c"/".to_owned(),
        names: vec![c".git".to_owned()],
    }];
    Ok(enclosure)
}

/// Runs probes until the overall deadline.
struct ProbeRunner<'a> {
    spawner: &'a Spawner,
    overall_deadline: Instant,
}

impl ProbeRunner<'_> {
    fn deadline(&self) -> Instant {
        self.overall_deadline.min(Instant::now() + PROBE_TIMEOUT)
    }

    /// Tries to run [`MISSING_PROGRAM`] in the enclosure. A "not found" error means that every step
    /// up to exec succeeded.
    async fn try_enclosure(&self, enclosure: Result<Enclosure, String>) -> Ability {
        let spec = enclosure.and_then(|inner| probe_spec(inner).map_err(|error| error.to_string()));
        let spec = match spec {
            Ok(spec) => spec,
            Err(reason) => return Ability::Fails(reason),
        };
        match timeout_at(self.deadline(), self.spawner.spawn(spec)).await {
            Ok(Err(SpawnError::Host {
                stage: Stage::Exec,
                source,
            })) if source.kind() == io::ErrorKind::NotFound => Ability::Works,
            Ok(Ok(_)) => Ability::Fails("a program that does not exist was started".to_owned()),
            Ok(Err(error)) => Ability::Fails(error.explained()),
            Err(_) => Ability::Fails("timed out".to_owned()),
        }
    }
}

fn probe_spec(enclosure: Enclosure) -> io::Result<Spec> {
    let open_null = || {
        let mut options = std::fs::File::options();
        options.read(true).write(true).open("/dev/null")
    };
    let program = CString::new(MISSING_PROGRAM)?;
    Ok(Spec {
        candidates: vec![program.clone()],
        argv: vec![program],
        env: Vec::new(),
        cwd: c"/".to_owned(),
        stdin: open_null()?.into(),
        stdout: open_null()?.into(),
        stderr: open_null()?.into(),
        terminal: false,
        extra: Vec::new(),
        limits: Vec::new(),
        enclosure: Some(enclosure),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn probe_of_this_host_gives_a_reason_for_each_failure() {
        let spawner = Spawner::default();
        let abilities = probe(&spawner, Thoroughness::All).await;
        assert!(abilities.seccomp.works(), "{abilities:#?}");
        // Namespaces may be forbidden here, but then the probe gives a reason.
        let namespaces = abilities.namespaces;
        assert!(namespaces.works() || namespaces.reason().is_some_and(|reason| !reason.is_empty()));
    }
}
