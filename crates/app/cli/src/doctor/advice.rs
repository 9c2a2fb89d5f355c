//! What prevents a mechanism, and how to fix it: a pure function of the probe results.

use exec_sandbox::abilities::{HostAbilities, HostInfo, ProbeOutcome};
use serde::Serialize;

/// One problem.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DoctorAdvice {
    /// What does not work, or only in part.
    pub about: &'static str,
    /// Cause.
    pub problem: String,
    /// Remedies; each is sufficient unless it says otherwise.
    pub remedies: Vec<String>,
}

/// Lists the problems of a machine and their remedies.
pub fn advice(can: &HostAbilities) -> Vec<DoctorAdvice> {
    let mut advice = Vec::new();
    advice.extend(seccomp(can));
    advice.extend(landlock(can));
    if can.namespaces.works() || can.privileged_namespaces.works() {
        advice.extend(processes(can));
        advice.extend(guards(can));
    } else {
        advice.extend(namespaces(can));
        advice.extend(bubblewrap(can));
    }
    advice
}

fn one<T: Into<String>>(
    about: &'static str,
    problem: impl Into<String>,
    remedies: impl IntoIterator<Item = T>,
) -> DoctorAdvice {
    DoctorAdvice {
        about,
        problem: problem.into(),
        remedies: remedies.into_iter().map(Into::into).collect(),
    }
}

fn seccomp(can: &HostAbilities) -> Option<DoctorAdvice> {
    let reason = can.seccomp.reason()?;
    let remedy = if can.host.seccomp_actions.is_empty() {
        "a kernel with CONFIG_SECCOMP_FILTER; gVisor and other user-space kernels lack it"
    } else {
        "allow the server to call seccomp(2) and prctl(2)"
    };
    let problem = format!("no policy can be enforced without seccomp filters: {reason}");
    Some(one("seccomp", problem, [remedy]))
}

/// The Landlock ABI that covers everything we use, and the kernel that introduced it.
const FULL_LANDLOCK: (u32, &str) = (6, "6.12");

fn landlock(can: &HostAbilities) -> Option<DoctorAdvice> {
    let (full, kernel) = FULL_LANDLOCK;
    if can.landlock >= full {
        return None;
    }
    let newer = format!("Linux {kernel} or newer, which has ABI {full}");
    if can.landlock > 0 {
        let problem = match can.landlock {
            1 => "ABI 1 cannot protect missing names, and enforces no policy by itself",
            _ => {
                "ABIs before 6 enforce no policy by themselves; read-only policies also need \
                 namespaces"
            }
        };
        let history =
            "ABI 2 came with Linux 5.19, 3 with 6.2, 4 with 6.7, 5 with 6.10, 6 with 6.12";
        return Some(one("Landlock", problem, [format!("{newer} ({history})")]));
    }
    let host = &can.host;
    if version(&host.kernel).is_some_and(|version| version < (5, 13)) {
        let problem = format!("Linux {} predates Landlock (5.13)", host.kernel);
        return Some(one("Landlock", problem, [newer]));
    }
    if !host.security_modules.is_empty() && !host.security_modules.iter().any(|m| m == "landlock") {
        let modules = host.security_modules.join(",");
        return Some(one(
            "Landlock",
            "it is not among the enabled security modules",
            [format!(
                "boot with lsm=landlock,{modules} on the kernel's command line"
            )],
        ));
    }
    let built = "a kernel built with CONFIG_SECURITY_LANDLOCK, and `landlock` in lsm= of its command \
                 line";
    let allowed = "a seccomp profile of the container that allows landlock_create_ruleset, \
                   landlock_add_rule and landlock_restrict_self, as those of current runtimes do";
    let remedies = match host.under_a_filter {
        true => vec![built, allowed],
        false => vec![built],
    };
    Some(one("Landlock", "the kernel does not offer it", remedies))
}

/// The first kernel with all mount calls for a private file system view.
const MOUNT_CALLS: (u32, u32) = (5, 12);
/// System calls that a seccomp profile must allow.
const CALLS: &str = "clone, unshare, mount, umount2, pivot_root, open_tree, move_mount, \
                     mount_setattr, fsopen, fsconfig and fsmount";

fn namespaces(can: &HostAbilities) -> Vec<DoctorAdvice> {
    const ABOUT: &str = "user namespaces";
    let host = &can.host;
    let ordinary = host.account != 0;
    let mut advice = Vec::new();
    if version(&host.kernel).is_some_and(|version| version < MOUNT_CALLS) {
        let problem = format!(
            "Linux {} lacks system calls for a private file system view",
            host.kernel
        );
        return vec![one(ABOUT, problem, ["Linux 5.12 or newer"])];
    }
    if host.max_user_namespaces == Some(0) {
        advice.push(one(
            ABOUT,
            "user.max_user_namespaces is 0",
            [sysctl("user.max_user_namespaces=15000", host)],
        ));
    }
    if host.unprivileged_userns_clone == Some(0) && ordinary {
        advice.push(one(
            ABOUT,
            "kernel.unprivileged_userns_clone is 0",
            [sysctl("kernel.unprivileged_userns_clone=1", host)],
        ));
    }
    if host.apparmor_restrict_unprivileged_userns == Some(1) && ordinary {
        advice.push(one(
            ABOUT,
            "kernel.apparmor_restrict_unprivileged_userns is 1: AppArmor denies them capabilities",
            [
                "an AppArmor profile for exec-server, in /etc/apparmor.d/exec-server: `abi <abi/4.0>, \
                 profile exec-server /path/to/exec-server flags=(unconfined) { userns, }`, loaded by \
                 `apparmor_parser -r /etc/apparmor.d/exec-server`"
                    .to_owned(),
                "bubblewrap with its own profile (packages bubblewrap and apparmor-profiles); it \
                 enforces most policies of commands, but not of file operations"
                    .to_owned(),
                sysctl("kernel.apparmor_restrict_unprivileged_userns=0", host),
            ],
        ));
    }
    if let Some(container) = host.container.as_ref().filter(|_| host.under_a_filter) {
        let problem = format!("the container ({container}) has a filter that may forbid them");
        advice.push(one(ABOUT, problem, container_remedies(container)));
    } else if host.under_a_filter {
        advice.push(one(
            ABOUT,
            "the server runs under a seccomp filter, which may forbid them",
            [
                "in a systemd unit: RestrictNamespaces=no, and a SystemCallFilter= with @mount in it"
                    .to_owned(),
                format!("any other profile must allow {CALLS}"),
            ],
        ));
    }
    if advice.is_empty() {
        let reason = can.namespaces.reason().unwrap_or("they were not probed");
        let mut remedies = vec![
            "a policy of SELinux or another security module may forbid them: see the kernel's audit \
             log",
            "the kernel creates none in a chroot: start the server outside",
        ];
        if host.container.is_some() {
            remedies.insert(
                0,
                "a container without an AppArmor profile, where the host has AppArmor",
            );
        }
        if host.max_user_namespaces.is_none() {
            remedies.insert(0, "a kernel with CONFIG_USER_NS");
        }
        advice.push(one(ABOUT, reason, remedies));
    }
    advice
}

fn container_remedies(container: &str) -> Vec<String> {
    let own = |option: &str| format!("{option}, or a profile of your own that allows {CALLS}");
    match container {
        "kubernetes" => vec![
            own("securityContext.seccompProfile.type: Unconfined"),
            "as well, where nodes have AppArmor: securityContext.appArmorProfile.type: Unconfined"
                .to_owned(),
        ],
        "docker" | "podman" => vec![
            own(&format!(
                "{container} run --security-opt seccomp=unconfined"
            )),
            "as well, where the host has AppArmor: --security-opt apparmor=unconfined".to_owned(),
        ],
        _ => vec![
            own("no seccomp profile for the container (--security-opt seccomp=unconfined)"),
            "as well, where the host has AppArmor: no AppArmor profile for the container"
                .to_owned(),
        ],
    }
}

fn processes(can: &HostAbilities) -> Option<DoctorAdvice> {
    let reason = can.processes.reason()?;
    let effect = if can.landlock >= FULL_LANDLOCK.0 {
        "commands see the host's processes, though they cannot signal or trace them"
    } else {
        "commands could signal the host's processes, so no policy is enforced by namespaces"
    };
    let remedies = match can.host.container.as_deref() {
        Some("docker") => vec!["docker run --security-opt systempaths=unconfined"],
        Some("podman") => vec!["podman run --security-opt unmask=ALL"],
        Some("kubernetes") => {
            vec!["securityContext.procMount: Unmasked, together with hostUsers: false"]
        }
        Some(_) => vec!["a container in which no part of /proc is masked"],
        None => vec![
            "the kernel lets /proc be mounted again only where nothing is mounted over parts of it: \
             `findmnt -R /proc` shows them",
        ],
    };
    let problem = format!("no private /proc ({reason}): {effect}");
    Some(one("pid namespace", problem, remedies))
}

fn guards(can: &HostAbilities) -> Option<DoctorAdvice> {
    let reason = can.guards.reason()?;
    if can.landlock < 2 {
        // The advice about Landlock covers this.
        return None;
    }
    let notifies = |action: &String| action == "user_notif";
    let remedies = if !can.host.seccomp_actions.iter().any(notifies) {
        vec!["a kernel with seccomp user notification: Linux 5.0 or newer"]
    } else if can.host.under_a_filter {
        vec![
            "a container filter without a listener: the kernel allows only one \
             (LXD's system call interception uses it, for example)",
        ]
    } else {
        vec![]
    };
    let problem = format!("missing names cannot be protected: {reason}");
    Some(one("guarded names", problem, remedies))
}

fn bubblewrap(can: &HostAbilities) -> Option<DoctorAdvice> {
    if can.bubblewrap_path.is_some() || can.bubblewrap == ProbeOutcome::Works {
        return None;
    }
    Some(one(
        "bubblewrap",
        "it is not installed; it serves commands where a profile or its setuid bit grants it \
         namespaces",
        ["install the package bubblewrap"],
    ))
}

fn sysctl(setting: &str, host: &HostInfo) -> String {
    let host_kind = match host.container {
        Some(_) => " on the host",
        None => "",
    };
    format!("sysctl -w {setting}{host_kind}, and the same line in /etc/sysctl.d/ to keep it")
}

/// Parses major and minor version of a kernel release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
