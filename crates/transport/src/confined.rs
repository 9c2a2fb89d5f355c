//! Whether the process at the other end of a unix socket may do less than this one.
//!
//! A command in a sandbox has the same account as the server. If its sandbox lets it connect, it could have the
//! server run what the sandbox forbids. What no process can shake off tells it apart: that it gains no privileges
//! any more, and its filters of system calls.
//! Not here: who it is. Accounts are compared by the [listener](crate::listener).

use std::fs;

/// Tells whether a process is under more restrictions than this one. A process that is gone counts as one, since
/// nobody knows; one that cannot be seen from here, in another container, does not: no sandbox of ours hides.
pub(crate) fn is_more_confined(process: Option<i32>) -> bool {
    let Some(process) = process.filter(|process| *process > 0) else {
        return false;
    };
    let Some(ours) = Restrictions::of("self") else {
        return false;
    };
    Restrictions::of(&process.to_string()).is_none_or(|theirs| theirs.exceed(ours))
}

/// What a process can get, but not get rid of.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Restrictions {
    no_new_privileges: u32,
    filters: u32,
}

impl Restrictions {
    fn of(process: &str) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        Some(Self::parse(&status))
    }

    fn parse(status: &str) -> Self {
        let number = |name: &str| {
            let mut lines = status.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.and_then(|value| value.trim().parse().ok())
        };
        Self {
            no_new_privileges: number("NoNewPrivs").unwrap_or_default(),
            filters: number("Seccomp_filters").unwrap_or_default(),
        }
    }

    fn exceed(self, ours: Self) -> bool {
        self.no_new_privileges > ours.no_new_privileges || self.filters > ours.filters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_restriction_more_is_enough() {
        let of = |no_new_privileges, filters| Restrictions {
            no_new_privileges,
            filters,
        };
        for (theirs, ours, exceed) in [
            (of(0, 0), of(0, 0), false),
            (of(1, 0), of(0, 0), true),
            (of(1, 2), of(1, 1), true),
            (of(1, 1), of(1, 1), false),
            (of(0, 0), of(1, 1), false),
        ] {
            assert_eq!(theirs.exceed(ours), exceed, "{theirs:?} {ours:?}");
        }
    }

    #[test]
    fn restrictions_are_read_by_their_whole_names() {
        let status = "Name:\tNoNewPrivs: 0\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\n";
        let read = Restrictions::parse(status);
        assert_eq!((read.no_new_privileges, read.filters), (1, 3));
        assert_eq!(Restrictions::parse(""), Restrictions::default());
    }

    #[test]
    fn this_process_is_not_more_confined_than_itself_and_one_that_is_gone_is() {
        let us = i32::try_from(std::process::id()).ok();
        assert!(!is_more_confined(us));
        assert!(is_more_confined(Some(i32::MAX)));
        assert!(!is_more_confined(Some(0)));
        assert!(!is_more_confined(None));
    }
}
