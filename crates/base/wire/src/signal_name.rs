//! Names of signals, as `signal` of `process/exited` has them.

/// Signals with their numbers on Linux, except the real-time ones.
const SIGNALS: &[(i32, &str)] = &[
    (1, "SIGHUP"),
    (2, "SIGINT"),
    (3, "SIGQUIT"),
    (4, "SIGILL"),
    (5, "SIGTRAP"),
    (6, "SIGABRT"),
    (7, "SIGBUS"),
    (8, "SIGFPE"),
    (9, "SIGKILL"),
    (10, "SIGUSR1"),
    (11, "SIGSEGV"),
    (12, "SIGUSR2"),
    (13, "SIGPIPE"),
    (14, "SIGALRM"),
    (15, "SIGTERM"),
    (16, "SIGSTKFLT"),
    (24, "SIGXCPU"),
    (25, "SIGXFSZ"),
    (26, "SIGVTALRM"),
    (27, "SIGPROF"),
    (29, "SIGIO"),
    (30, "SIGPWR"),
    (31, "SIGSYS"),
];

/// Any real-time signal.
const REAL_TIME: &str = "SIGRT";

/// A signal that this version does not know.
const UNKNOWN: &str = "SIGUNKNOWN";

/// Returns the name of a signal by its number.
pub fn signal_name(number: i32) -> &'static str {
    let known = SIGNALS.iter().find(|(known, _)| *known == number);
    match known {
        Some((_, name)) => name,
        None if (34..=64).contains(&number) => REAL_TIME,
        None => UNKNOWN,
    }
}

/// Returns the static form of a name that arrived as text.
pub fn known_signal_name(name: &str) -> &'static str {
    let mut known = SIGNALS.iter().map(|(_, known)| *known).chain([REAL_TIME]);
    known.find(|known| *known == name).unwrap_or(UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_agree() {
        assert_eq!(signal_name(9), "SIGKILL");
        assert_eq!(signal_name(36), "SIGRT");
        assert_eq!(signal_name(17), "SIGUNKNOWN");
        for (number, name) in SIGNALS {
            assert_eq!(known_signal_name(signal_name(*number)), *name);
        }
        assert_eq!(known_signal_name("SIGRT"), "SIGRT");
        assert_eq!(known_signal_name("SIGEMT"), "SIGUNKNOWN");
    }
}
