//! Probes which sandbox mechanisms work on this host, and reads the host settings that explain why
//! a mechanism does not work.
//!
//! Every mechanism is tried for real: a mechanism that was not tried counts as not working.

mod policy_support;

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use exec_process::spawner::{CommandSpec, CommandStdio, SpawnError, SpawnStage, Spawner};
use exec_spawn::sandbox_setup::{NameGuard, NamespaceSetup, NetworkNamespace, SandboxSetup};
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use crate::{
    bubblewrap, landlock_domain,
    mount_steps::{PseudoFs, mount_steps},
    plan::{FileView, PathAccess},
    syscall_filter::{FilterSpec, SocketAccess, build_filter},
};

pub use self::policy_support::{PolicySupport, policy_support};

/// Timeout of one probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of all probes together.
const TOTAL_PROBE_TIMEOUT: Duration = Duration::from_secs(15);
/// Path that never exists. A "not found" error from exec proves that the sandbox was entered
/// first.
const MISSING_PROGRAM: &str = "/proc/self/missing-program";

/// Mechanisms that this host can use.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostAbilities {
    /// Settings of the host that explain failures.
    pub host: HostInfo,
    /// Landlock ABI version; 0 if Landlock is not available.
    pub landlock: u32,
    /// Seccomp filters.
    pub seccomp: ProbeOutcome,
    /// Namespaces, created together with a user namespace.
    pub namespaces: ProbeOutcome,
    /// Namespaces without a user namespace, which requires privileges.
    pub privileged_namespaces: ProbeOutcome,
    /// A PID namespace with its own `/proc`.
    pub processes: ProbeOutcome,
    /// Names that cannot be created in a writable directory.
    pub guards: ProbeOutcome,
    /// Bubblewrap.
    pub bubblewrap: ProbeOutcome,
    /// Path of the bubblewrap program.
    pub bubblewrap_path: Option<PathBuf>,
}

/// Result of one probe.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", tag = "state", content = "reason")]
pub enum ProbeOutcome {
    /// The mechanism works.
    Works,
    /// The mechanism fails for this reason.
    Fails(String),
    /// Not tried, because it would not be used.
    Untried,
}

impl ProbeOutcome {
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
pub enum ProbeDepth {
    /// Stops as soon as one mechanism works.
    Enough,
    /// Probes every mechanism.
    All,
}

/// Probes what this host can enforce. Takes milliseconds, at most 15 seconds.
pub async fn probe(spawner: &Spawner, thoroughness: ProbeDepth) -> HostAbilities {
    let host = HostInfo::read();
    let probe_all = thoroughness == ProbeDepth::All;
    let landlock = landlock_domain::abi_version();
    let runner = ProbeRunner {
        spawner,
        overall_deadline: Instant::now() + TOTAL_PROBE_TIMEOUT,
    };
    let seccomp = runner.try_setup(Ok(filter_probe())).await;
    let namespace_probe = |user, processes| namespace_probe(user, processes, host.account);
    let mut processes = runner
        .try_setup(namespace_probe(UserNamespace::New, PidNamespace::New))
        .await;
    let unprivileged = match &processes {
        ProbeOutcome::Works => ProbeOutcome::Works,
        ProbeOutcome::Fails(_) | ProbeOutcome::Untried => {
            runner
                .try_setup(namespace_probe(UserNamespace::New, PidNamespace::Host))
                .await
        }
    };
    let mut privileged = ProbeOutcome::Untried;
    if probe_all || !unprivileged.works() {
        privileged = runner
            .try_setup(namespace_probe(UserNamespace::Host, PidNamespace::Host))
            .await;
        if privileged.works() && !unprivileged.works() {
            processes = runner
                .try_setup(namespace_probe(UserNamespace::Host, PidNamespace::New))
                .await;
        }
    }
    let has_namespaces = unprivileged.works() || privileged.works();
    let guards = if !has_namespaces {
        ProbeOutcome::Fails("namespaces are not available".to_owned())
    } else if landlock < landlock_domain::MIN_ABI_REFER {
        let required_abi = landlock_domain::MIN_ABI_REFER;
        ProbeOutcome::Fails(format!(
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
        runner.try_setup(guarded).await
    };
    let bubblewrap_path = bubblewrap::find_program();
    let bubblewrap = match &bubblewrap_path {
        Some(path) if probe_all || !has_namespaces => {
            bubblewrap::probe_bubblewrap(path, runner.deadline()).await
        }
        Some(_) => ProbeOutcome::Untried,
        None => ProbeOutcome::Fails("bwrap is not installed".to_owned()),
    };
    HostAbilities {
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

fn filter_probe() -> SandboxSetup {
    SandboxSetup {
        filter: build_filter(FilterSpec {
            sockets: SocketAccess::Pairs,
            shares_host_files: true,
            shares_host_processes: true,
            brokered: false,
        }),
        ..SandboxSetup::default()
    }
}

fn namespace_probe(
    user: UserNamespace,
    processes: PidNamespace,
    account: u32,
) -> Result<SandboxSetup, String> {
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
    Ok(SandboxSetup {
        namespaces: Some(NamespaceSetup {
            user: user == UserNamespace::New,
            processes: processes == PidNamespace::New,
            network: Some(NetworkNamespace::default()),
            steps: mount_steps(&view, pseudo_fs).map_err(|error| error.to_string())?,
        }),
        ..SandboxSetup::default()
    })
}

fn guard_probe(mut setup: SandboxSetup, landlock: u32) -> Result<SandboxSetup, String> {
    let domain =
        landlock_domain::deny_creation(landlock, landlock_domain::AbstractSocketScope::Isolated);
    setup.landlock = Some(domain.map_err(|error| error.to_string())?);
    setup.filter = build_filter(FilterSpec {
        sockets: SocketAccess::Pairs,
        shares_host_files: false,
        shares_host_processes: false,
        brokered: true,
    });
    setup.guards = vec![NameGuard {
        directory: c"/".to_owned(),
        names: vec![c".git".to_owned()],
    }];
    Ok(setup)
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

    /// Tries to run [`MISSING_PROGRAM`] in the sandbox. A "not found" error means that every step
    /// up to exec succeeded.
    async fn try_setup(&self, setup: Result<SandboxSetup, String>) -> ProbeOutcome {
        let probe = setup.and_then(|setup| {
            let stdio = CommandStdio::null().map_err(|error| error.to_string())?;
            Ok((probe_command(setup), stdio))
        });
        let (command, stdio) = match probe {
            Ok(probe) => probe,
            Err(reason) => return ProbeOutcome::Fails(reason),
        };
        match timeout_at(self.deadline(), self.spawner.spawn(command, stdio)).await {
            Ok(Err(SpawnError::Host {
                stage: SpawnStage::Exec,
                source,
            })) if source.kind() == io::ErrorKind::NotFound => ProbeOutcome::Works,
            Ok(Ok(_)) => {
                ProbeOutcome::Fails("a program that does not exist was started".to_owned())
            }
            Ok(Err(error)) => ProbeOutcome::Fails(error.explained()),
            Err(_) => ProbeOutcome::Fails("timed out".to_owned()),
        }
    }
}

fn probe_command(setup: SandboxSetup) -> CommandSpec {
    CommandSpec {
        program: MISSING_PROGRAM.into(),
        argv: vec![MISSING_PROGRAM.into()],
        cwd: "/".into(),
        sandbox_setup: Some(setup),
        ..CommandSpec::default()
    }
}

/// Host settings that matter for sandboxes.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostInfo {
    /// Kernel release.
    pub kernel: String,
    /// Effective user id of the server.
    pub account: u32,
    /// `user.max_user_namespaces`.
    pub max_user_namespaces: Option<u64>,
    /// `kernel.unprivileged_userns_clone`, on Debian kernels.
    pub unprivileged_userns_clone: Option<u64>,
    /// `kernel.apparmor_restrict_unprivileged_userns`, on Ubuntu kernels.
    pub apparmor_restrict_unprivileged_userns: Option<u64>,
    /// Active Linux security modules. Empty if the kernel does not list them.
    pub security_modules: Vec<String>,
    /// Actions that seccomp filters support.
    pub seccomp_actions: Vec<String>,
    /// The server itself runs under a seccomp filter.
    pub under_a_filter: bool,
    /// Container runtime, as far as it can be detected.
    pub container: Option<String>,
    /// Control group support.
    pub cgroups: CgroupSupport,
}

/// Control groups of the host.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum CgroupSupport {
    /// No control groups are mounted.
    None,
    /// Only cgroup v1 is mounted.
    First,
    /// cgroup v2, not writable by this account.
    Unified,
    /// cgroup v2, writable by this account.
    Writable,
}

impl HostInfo {
    /// Reads the settings of this host.
    pub fn read() -> Self {
        let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
        let words = |path: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let words = text.split([',', ' ', '\n']).filter(|word| !word.is_empty());
            words.map(str::to_owned).collect()
        };
        Self {
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            account: rustix::process::geteuid().as_raw(),
            max_user_namespaces: number("/proc/sys/user/max_user_namespaces"),
            unprivileged_userns_clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
            apparmor_restrict_unprivileged_userns: number(
                "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            ),
            security_modules: words("/sys/kernel/security/lsm"),
            seccomp_actions: words("/proc/sys/kernel/seccomp/actions_avail"),
            under_a_filter: field("/proc/self/status", "Seccomp:").as_deref() == Some("2"),
            container: container(),
            cgroups: cgroups(),
        }
    }
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().to_owned())
}

fn container() -> Option<String> {
    let markers = [
        ("/.dockerenv", "docker"),
        ("/run/.containerenv", "podman"),
        (
            "/var/run/secrets/kubernetes.io/serviceaccount",
            "kubernetes",
        ),
    ];
    let runtime = markers.iter().find(|(path, _)| Path::new(path).exists());
    if let Some((_, name)) = runtime {
        return Some((*name).to_owned());
    }
    // systemd writes the container manager's name to this file.
    let name = fs::read_to_string("/run/systemd/container").ok()?;
    Some(name.trim().chars().take(40).collect())
}

fn cgroups() -> CgroupSupport {
    let root = Path::new("/sys/fs/cgroup");
    if !root.join("cgroup.controllers").exists() {
        let is_v1 = fs::read_dir(root).is_ok_and(|mut entries| entries.next().is_some());
        return if is_v1 {
            CgroupSupport::First
        } else {
            CgroupSupport::None
        };
    }
    let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group.lines().find_map(|line| line.strip_prefix("0::/"));
    let group = root.join(group.unwrap_or_default());
    match rustix::fs::access(&group, rustix::fs::Access::WRITE_OK) {
        Ok(()) => CgroupSupport::Writable,
        Err(_) => CgroupSupport::Unified,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn probe_of_this_host_gives_a_reason_for_each_failure() {
        let spawner = Spawner::default();
        let abilities = probe(&spawner, ProbeDepth::All).await;
        assert!(abilities.seccomp.works(), "{abilities:#?}");
        // Namespaces may be forbidden here, but then the probe gives a reason.
        let namespaces = abilities.namespaces;
        assert!(namespaces.works() || namespaces.reason().is_some_and(|reason| !reason.is_empty()));
    }
}
