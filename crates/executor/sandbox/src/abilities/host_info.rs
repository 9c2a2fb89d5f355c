//! Reads the host settings that explain why a mechanism does not work.

use std::{fs, path::Path};

use serde::Serialize;

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
    let signs = [
        ("/.dockerenv", "docker"),
        ("/run/.containerenv", "podman"),
        (
            "/var/run/secrets/kubernetes.io/serviceaccount",
            "kubernetes",
        ),
    ];
    let runtime = signs.iter().find(|(path, _)| Path::new(path).exists());
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
