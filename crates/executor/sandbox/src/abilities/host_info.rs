//! What the host says of itself: settings that explain why something does not work.

use std::{fs, path::Path};

use serde::Serialize;

/// What the host says of itself.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Host {
    /// The kernel's release.
    pub kernel: String,
    /// The account's number.
    pub account: u32,
    /// `user.max_user_namespaces`.
    pub max_user_namespaces: Option<u64>,
    /// `kernel.unprivileged_userns_clone`, on Debian's kernels.
    pub unprivileged_userns_clone: Option<u64>,
    /// `kernel.apparmor_restrict_unprivileged_userns`, on Ubuntu's.
    pub apparmor_restrict_unprivileged_userns: Option<u64>,
    /// Security modules of the kernel that are switched on. Empty: it does not say.
    pub security_modules: Vec<String>,
    /// Actions that seccomp filters can take.
    pub seccomp_actions: Vec<String>,
    /// The server itself runs under a seccomp filter.
    pub under_a_filter: bool,
    /// Signs of a container.
    pub container: Option<String>,
    /// Control groups.
    pub cgroups: Cgroups,
}

/// Control groups of the host.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Cgroups {
    /// None are mounted.
    None,
    /// Those of the first version only.
    First,
    /// The unified hierarchy, which the account may not change.
    Unified,
    /// The unified hierarchy, in which the account may make groups.
    Writable,
}

impl Host {
    /// Reads what the host says.
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
    let signs = [
        ("/.dockerenv", "docker"),
        ("/run/.containerenv", "podman"),
        (
            "/var/run/secrets/kubernetes.io/serviceaccount",
            "kubernetes",
        ),
    ];
    let found = signs.iter().find(|(path, _)| Path::new(path).exists());
    if let Some((_, name)) = found {
        return Some((*name).to_owned());
    }
    // systemd writes there what it runs in.
    let name = fs::read_to_string("/run/systemd/container").ok()?;
    Some(name.trim().chars().take(40).collect())
}

fn cgroups() -> Cgroups {
    let root = Path::new("/sys/fs/cgroup");
    if !root.join("cgroup.controllers").exists() {
        let first = fs::read_dir(root).is_ok_and(|mut entries| entries.next().is_some());
        return if first { Cgroups::First } else { Cgroups::None };
    }
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let own = root.join(own.unwrap_or_default());
    match rustix::fs::access(&own, rustix::fs::Access::WRITE_OK) {
        Ok(()) => Cgroups::Writable,
        Err(_) => Cgroups::Unified,
    }
}
