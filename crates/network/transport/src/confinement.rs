//! Compares the restrictions of a local peer process with those of this one, and decides which
//! listeners on a unix socket a client trusts.
//!
//! A sandboxed command runs under the same account as the server. If its sandbox lets it connect,
//! it could make the server run what the sandbox forbids; if it can listen where a client expects
//! the server, it would receive what the client runs. Restrictions that no process can shed
//! identify it: `no_new_privs`, seccomp filters, the capability bounding set, and nested user and
//! PID namespaces.
//! Elsewhere: the account of a peer, which the [listener](crate::listener) compares.

use std::{fs, io, path::PathBuf};

use tokio::net::UnixStream;

/// How the restrictions of another process compare with those of this one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Confinement {
    /// It has no restriction that this process does not have.
    NotStricter,
    /// It has at least one restriction more.
    Stricter,
    /// It has exited.
    Gone,
    /// It is not visible from here: it runs in an outer or sibling container. A sandbox started
    /// from here is visible.
    Invisible,
}

impl Confinement {
    /// Compares a process, given by the pid that the kernel reported for the peer of a socket.
    pub(crate) fn of(process: Option<i32>) -> Self {
        let Some(process) = process.filter(|process| *process > 0) else {
            return Self::Invisible;
        };
        let Some(ours) = ProcessRestrictions::of("self") else {
            return Self::Invisible;
        };
        match ProcessRestrictions::of(&process.to_string()) {
            Some(theirs) if theirs.exceeds(&ours) => Self::Stricter,
            Some(_) => Self::NotStricter,
            None => Self::Gone,
        }
    }
}

/// Returns whether a process is more restricted than this one. An exited process counts as more
/// restricted, because its restrictions are unknown.
pub(crate) fn is_more_confined(process: Option<i32>) -> bool {
    match Confinement::of(process) {
        Confinement::Stricter | Confinement::Gone => true,
        Confinement::NotStricter | Confinement::Invisible => false,
    }
}

/// Restrictions that a process can gain but not shed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct ProcessRestrictions {
    no_new_privileges: u32,
    seccomp_filters: u32,
    /// Number of nested PID namespaces, counted from the one of the mounted procfs.
    process_namespaces: usize,
    /// Capabilities missing from the bounding set.
    dropped_capabilities: u64,
    /// User namespace. `None` if this process may not inspect it, as for a process outside its
    /// namespace.
    user_namespace: Option<PathBuf>,
}

impl ProcessRestrictions {
    fn of(process: &str) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        Some(Self {
            user_namespace: fs::read_link(format!("/proc/{process}/ns/user")).ok(),
            ..Self::parse(&status)
        })
    }

    fn parse(status: &str) -> Self {
        let value = |name: &str| {
            let mut lines = status.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.map_or("", str::trim)
        };
        let capabilities = u64::from_str_radix(value("CapBnd"), 16).unwrap_or(u64::MAX);
        Self {
            no_new_privileges: value("NoNewPrivs").parse().unwrap_or_default(),
            seccomp_filters: value("Seccomp_filters").parse().unwrap_or_default(),
            process_namespaces: value("NSpid").split_whitespace().count(),
            dropped_capabilities: !capabilities,
            user_namespace: None,
        }
    }

    fn exceeds(&self, ours: &Self) -> bool {
        let is_other_namespace =
            |theirs, ours| matches!((theirs, ours), (Some(theirs), Some(ours)) if theirs != ours);
        self.no_new_privileges > ours.no_new_privileges
            || self.seccomp_filters > ours.seccomp_filters
            || self.process_namespaces > ours.process_namespaces
            || self.dropped_capabilities & !ours.dropped_capabilities != 0
            || is_other_namespace(self.user_namespace.as_ref(), ours.user_namespace.as_ref())
    }
}

/// Which listeners a client accepts on a unix socket.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ListenerTrust {
    /// Any listener: the caller trusts the path.
    #[default]
    Any,
    /// A process of this account with no more restrictions than this one. Otherwise a sandboxed
    /// command could place its own socket there and receive what the client runs.
    OwnAccount,
}

/// Peer: the client does not trust the process that listens on the socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum UntrustedListener {
    /// It belongs to another account.
    #[error("it belongs to account {account}, and this process to account {ours}")]
    OtherAccount {
        /// The account of the listener.
        account: u32,
        /// The account of this process.
        ours: u32,
    },
    /// It runs in a sandbox.
    #[error("process {process} listens there in a stricter sandbox than this process runs in")]
    Confined {
        /// The listener.
        process: i32,
    },
}

impl ListenerTrust {
    /// Checks the process that listens at the other end of a connection.
    ///
    /// # Errors
    /// Fails if the kernel does not report credentials, or if the listener has exited meanwhile.
    pub(crate) fn check(self, stream: &UnixStream) -> io::Result<Result<(), UntrustedListener>> {
        if self == Self::Any {
            return Ok(Ok(()));
        }
        let listener = stream.peer_cred()?;
        let (account, ours) = (listener.uid(), rustix::process::geteuid().as_raw());
        if account != ours {
            return Ok(Err(UntrustedListener::OtherAccount { account, ours }));
        }
        match Confinement::of(listener.pid()) {
            Confinement::NotStricter | Confinement::Invisible => Ok(Ok(())),
            Confinement::Stricter => Ok(Err(UntrustedListener::Confined {
                process: listener.pid().unwrap_or_default(),
            })),
            Confinement::Gone => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_additional_restriction_counts_as_stricter() {
        let of = |no_new_privileges, seccomp_filters| ProcessRestrictions {
            no_new_privileges,
            seccomp_filters,
            ..ProcessRestrictions::default()
        };
        let nested = |process_namespaces| ProcessRestrictions {
            process_namespaces,
            ..ProcessRestrictions::default()
        };
        let without = |dropped_capabilities| ProcessRestrictions {
            dropped_capabilities,
            ..ProcessRestrictions::default()
        };
        let users = |namespace: Option<&str>| ProcessRestrictions {
            user_namespace: namespace.map(PathBuf::from),
            ..ProcessRestrictions::default()
        };
        for (theirs, ours, exceeds) in [
            (of(0, 0), of(0, 0), false),
            (of(1, 0), of(0, 0), true),
            (of(1, 2), of(1, 1), true),
            (of(1, 1), of(1, 1), false),
            (of(0, 0), of(1, 1), false),
            (nested(2), nested(1), true),
            (nested(1), nested(1), false),
            (without(0b110), without(0b100), true),
            (without(0b100), without(0b110), false),
            (users(Some("user:[1]")), users(Some("user:[2]")), true),
            (users(Some("user:[1]")), users(Some("user:[1]")), false),
            (users(None), users(Some("user:[2]")), false),
        ] {
            assert_eq!(theirs.exceeds(&ours), exceeds, "{theirs:?} {ours:?}");
        }
    }

    #[test]
    fn restrictions_are_parsed_by_exact_field_name() {
        let status = "Name:\tNoNewPrivs: 0\nNSpid:\t70\t2\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\n\
                      CapBnd:\tfffffffffffffffe\n";
        let read = ProcessRestrictions::parse(status);
        assert_eq!((read.no_new_privileges, read.seccomp_filters), (1, 3));
        assert_eq!((read.process_namespaces, read.dropped_capabilities), (2, 1));
        assert_eq!(
            ProcessRestrictions::parse(""),
            ProcessRestrictions::default()
        );
    }

    #[test]
    fn only_an_ended_process_counts_as_more_confined_than_this_one() {
        let us = i32::try_from(std::process::id()).ok();
        assert!(!is_more_confined(us));
        assert!(is_more_confined(Some(i32::MAX)));
        assert!(!is_more_confined(Some(0)));
        assert!(!is_more_confined(None));
    }
}
