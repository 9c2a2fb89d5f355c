//! Whether the process at the other end of a socket is trusted: same account, and no restriction
//! that this process does not have.
//!
//! A sandboxed command has the account of its server. If it could reach the keeper, it would
//! receive the control sockets of commands without a sandbox; if it could listen in the keeper's
//! place, it would receive what a server hands over.

use std::{fs, io, mem::MaybeUninit, os::fd::AsRawFd, path::PathBuf};

use rustix::{
    fd::OwnedFd,
    process::{Pid, PidfdFlags, geteuid, pidfd_open},
};

/// The process at the other end of a unix socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerProcess {
    /// Pid, or 0 if the process is in an outer PID namespace.
    pub(super) pid: i32,
    account: u32,
}

impl PeerProcess {
    /// Returns the process that connected to `socket`, or listens on it.
    pub(super) fn of(socket: &OwnedFd) -> io::Result<Self> {
        let mut credentials = MaybeUninit::<libc::ucred>::zeroed();
        let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or_default();
        // SAFETY: the buffer has the given length, and both pointers are valid during the call.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                credentials.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the record consists of integers, for which zero is valid.
        let credentials = unsafe { credentials.assume_init() };
        Ok(Self {
            pid: credentials.pid,
            account: credentials.uid,
        })
    }

    /// Opens a pidfd.
    pub(super) fn pidfd(self) -> io::Result<OwnedFd> {
        let pid = Pid::from_raw(self.pid).ok_or(io::ErrorKind::NotFound)?;
        Ok(pidfd_open(pid, PidfdFlags::empty())?)
    }

    /// Returns whether the process has this account, or is root, and is not more restricted than
    /// this process. An exited process is not trusted, because its restrictions are unknown.
    pub(super) fn is_trusted(self) -> bool {
        if self.account != 0 && self.account != geteuid().as_raw() {
            return false;
        }
        if self.pid == 0 {
            // A sandbox started from here would be visible.
            return true;
        }
        let ours = PeerRestrictions::read("self");
        let theirs = PeerRestrictions::read(&self.pid.to_string());
        matches!((theirs, ours), (Some(theirs), Some(ours)) if !theirs.exceed(&ours))
    }
}

/// Restrictions that a process can gain but not shed.
#[derive(Debug)]
struct PeerRestrictions {
    no_new_privileges: u32,
    seccomp_filters: u32,
    /// Number of nested PID namespaces.
    process_namespaces: usize,
    /// Capabilities missing from the bounding set.
    dropped_capabilities: u64,
    /// User namespace, if this process may inspect it.
    user_namespace: Option<PathBuf>,
}

impl PeerRestrictions {
    fn read(process: &str) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let value = |name: &str| {
            let mut lines = status.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.map_or("", str::trim)
        };
        let capabilities = u64::from_str_radix(value("CapBnd"), 16).unwrap_or(u64::MAX);
        Some(Self {
            no_new_privileges: value("NoNewPrivs").parse().unwrap_or_default(),
            seccomp_filters: value("Seccomp_filters").parse().unwrap_or_default(),
            process_namespaces: value("NSpid").split_whitespace().count(),
            dropped_capabilities: !capabilities,
            user_namespace: fs::read_link(format!("/proc/{process}/ns/user")).ok(),
        })
    }

    fn exceed(&self, ours: &Self) -> bool {
        let is_other_namespace = matches!(
            (&self.user_namespace, &ours.user_namespace),
            (Some(theirs), Some(ours)) if theirs != ours
        );
        is_other_namespace
            || self.no_new_privileges > ours.no_new_privileges
            || self.seccomp_filters > ours.seccomp_filters
            || self.process_namespaces > ours.process_namespaces
            || self.dropped_capabilities & !ours.dropped_capabilities != 0
    }
}
