//! Whether the process at the other end of a unix socket may do less than this one.
//!
//! A command in a sandbox has the same account as the server. If its sandbox lets it connect, it could have the
//! server run what the sandbox forbids; if it can listen where a client expects the server, it would be given what
//! the client runs. What no process can shake off tells it apart: `no_new_privs`, seccomp filters, the capability
//! bounding set, and namespaces of users and processes below ours.
//! Not here: who it is. Accounts are compared by the [listener](crate::listener) and by
//! [`ListenerTrust`](crate::connect::ListenerTrust).

use std::{fs, io, path::PathBuf};

use tokio::net::UnixStream;

/// How the restrictions of another process compare with ours.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Confinement {
    /// It is under no restriction that we are not under.
    NotStricter,
    /// It is under one more.
    Stricter,
    /// It has ended.
    Gone,
    /// It cannot be seen from here. It is in a container around ours or beside it: a sandbox that was started from
    /// here can be seen.
    Invisible,
}

impl Confinement {
    /// Looks at a process, by the number that the kernel gave for the peer of a socket.
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

/// Tells whether a process is under more restrictions than this one. A process that is gone counts as one, since
/// nobody knows.
pub(crate) fn is_more_confined(process: Option<i32>) -> bool {
    match Confinement::of(process) {
        Confinement::Stricter | Confinement::Gone => true,
        Confinement::NotStricter | Confinement::Invisible => false,
    }
}

/// What a process can get, but not get rid of.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct ProcessRestrictions {
    no_new_privileges: u32,
    seccomp_filters: u32,
    /// Process namespaces from the one that is looked from down to its own.
    process_namespaces: usize,
    /// Capabilities that it cannot gain.
    dropped_capabilities: u64,
    /// Its user namespace. Absent: we may not look, as at a process outside of ours.
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
    /// Whoever listens there. The path says who that is.
    #[default]
    Any,
    /// A process of this account that is under no more restrictions than this one. Otherwise a
    /// sandboxed command that put its own socket there would be given whatever the client runs.
    OwnAccount,
}

/// Peer: what listens on the socket is not what the client may talk to.
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
    /// Checks who listens at the other end of a connection.
    ///
    /// # Errors
    /// When the kernel cannot tell, or the listener has ended meanwhile.
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
