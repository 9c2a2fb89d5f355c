//! Rewrites commands to start from a captured shell state instead of running the profiles.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
};

use exec_wire::process::{EnvPolicy, ProcessMetadata};

use super::{ShellKind, capture::CapturedState};
use crate::env_policy;

/// Rewrites a login command to source the state from descriptor `fd` first.
///
/// [`applicable_shell`](super::applicable_shell) must hold for `argv`. `fd` is 3 to 9, which every
/// shell can close. The shell reopens it by name, so that many commands can share it. The command
/// keeps its `$0`, its arguments and its exit code, and does not inherit `fd`.
pub fn rewrite(kind: ShellKind, argv: &[String], fd: i32) -> Vec<String> {
    let [program, _, command, arguments @ ..] = argv else {
        return argv.to_vec();
    };
    let (name, arguments) = arguments.split_first().unwrap_or((program, &[]));
    // Aliases are expanded at parse time, so `eval` parses the command last. The command is a
    // separate argument, because quoting may exceed the kernel's limit for one argument. The script
    // is one line, so that the command's line numbers stay correct.
    let (flags, source, eval) = match kind {
        // Define a function named `builtin` last, because it hides the builtin.
        ShellKind::Bash => ("-pc", "builtin .", EVAL_LAST),
        ShellKind::Zsh => ("-fc", "builtin .", EVAL_LAST),
        // Without `command`, an unreadable state would end the shell. Errors of `eval` must end it,
        // and no function can hide `eval`.
        ShellKind::Sh => ("-c", "command .", r#"eval "\shift; $1""#),
    };
    let script = format!("{{ {source} /dev/fd/{fd}; exec {fd}<&-; }} >/dev/null 2>&1; {eval}");
    let mut rewritten = vec![program.clone(), flags.to_owned(), script];
    rewritten.extend([name.clone(), command.clone()]);
    rewritten.extend_from_slice(arguments);
    rewritten
}

/// Runs the command after defining a function named `builtin`, if the state has one.
const EVAL_LAST: &str = r#"builtin eval "\builtin shift; \builtin unset exec_server_hidden; ${exec_server_hidden:+$exec_server_hidden
}$1""#;

/// Computes the environment of a rewritten command.
///
/// The captured variables replace the host's, because the capturing shell inherited those. Per-run
/// variables still come from the host; otherwise each replay would increment `SHLVL`. The capture
/// must have run without `metadata` and with this `overlay`.
pub fn environment(
    kind: ShellKind,
    captured: &CapturedState,
    policy: Option<&EnvPolicy>,
    host: &BTreeMap<OsString, OsString>,
    overlay: &BTreeMap<String, String>,
    metadata: &ProcessMetadata,
) -> BTreeMap<OsString, OsString> {
    let exports = captured
        .exports
        .iter()
        .filter(|(name, _)| is_replayed(kind, name));
    let base = match policy {
        None => exports
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
        Some(policy) => {
            let per_run = host
                .iter()
                .filter(|(name, _)| is_per_run(name) && env_policy::inherits(policy.inherit, name));
            env_policy::apply_filters(policy, per_run.chain(exports))
        }
    };
    env_policy::apply_overlay(base, overlay, metadata)
}

/// Returns whether a captured variable enters the environment of later commands.
fn is_replayed(kind: ShellKind, name: &OsStr) -> bool {
    // A privileged bash ignores functions in the environment but would export them to its children.
    let is_function = name.as_bytes().starts_with(b"BASH_FUNC_") && kind == ShellKind::Bash;
    !is_function && !is_per_run(name)
}

fn is_per_run(name: &OsStr) -> bool {
    PER_RUN_VARIABLES.iter().any(|per_run| name == *per_run)
}

/// Variables that describe a single run of a shell.
const PER_RUN_VARIABLES: [&str; 6] = [
    "PWD",
    "OLDPWD",
    "SHLVL",
    "_",
    env_policy::THREAD_ID,
    env_policy::TOOL_CALL_ID,
];

#[cfg(test)]
mod tests {
    use exec_wire::process::EnvInherit;

    use super::*;

    #[test]
    fn rewritten_command_has_shell_flags_and_keeps_its_arguments() {
        let argv = ["/bin/x", "-lc", "echo 'a b'", "zero", "one"].map(str::to_owned);
        let bash = format!("{{ builtin . /dev/fd/9; exec 9<&-; }} >/dev/null 2>&1; {EVAL_LAST}");
        let bash = bash.as_str();
        let sh = r#"{ command . /dev/fd/9; exec 9<&-; } >/dev/null 2>&1; eval "\shift; $1""#;
        for (kind, flags, script) in [
            (ShellKind::Bash, "-pc", bash),
            (ShellKind::Zsh, "-fc", bash),
            (ShellKind::Sh, "-c", sh),
        ] {
            let bare = rewrite(kind, &argv[..3], 9);
            assert_eq!(bare, ["/bin/x", flags, script, "/bin/x", "echo 'a b'"]);
            let full = rewrite(kind, &argv, 9);
            assert_eq!(full, ["/bin/x", flags, script, "zero", "echo 'a b'", "one"]);
        }
    }

    #[test]
    fn argv_without_a_command_is_unchanged() {
        let argv = ["/bin/x", "-lc"].map(str::to_owned);
        assert_eq!(rewrite(ShellKind::Bash, &argv, 9), argv);
    }

    #[test]
    fn request_variables_override_captured_ones() {
        let captured = state(&[
            ("A", "profile"),
            ("B", "profile"),
            ("PWD", "/x"),
            ("SHLVL", "7"),
        ]);
        let overlay = BTreeMap::from([("B".to_owned(), "request".to_owned())]);
        let environment = replayed(ShellKind::Sh, &captured, None, &overlay);
        assert_eq!(environment, os(&[("A", "profile"), ("B", "request")]));
    }

    #[test]
    fn policy_filters_captured_variables_regardless_of_inherit() {
        let captured = state(&[("A", "1"), ("MY_TOKEN", "t"), ("B", "1"), ("NVM_DIR", "n")]);
        let policy = EnvPolicy {
            inherit: EnvInherit::None,
            ignore_default_excludes: false,
            exclude: vec!["B".to_owned()],
            set: [("CI".to_owned(), "1".to_owned())].into(),
            include_only: Vec::new(),
        };
        let environment = replayed(ShellKind::Zsh, &captured, Some(&policy), &BTreeMap::new());
        assert_eq!(
            environment,
            os(&[("A", "1"), ("CI", "1"), ("NVM_DIR", "n")])
        );
    }

    #[test]
    fn only_per_run_variables_come_from_the_host() {
        let captured = state(&[
            ("A", "1"),
            ("SHLVL", "3"),
            ("OPENAI_IDENTITY_TOKEN_FILE", "f"),
        ]);
        let policy = EnvPolicy {
            inherit: EnvInherit::All,
            ignore_default_excludes: true,
            exclude: Vec::new(),
            set: BTreeMap::new(),
            include_only: Vec::new(),
        };
        let environment = replayed(ShellKind::Bash, &captured, Some(&policy), &BTreeMap::new());
        assert_eq!(environment, os(&[("A", "1"), ("SHLVL", "2")]));
    }

    #[test]
    fn exported_functions_reach_bash_only_through_the_state() {
        let function = ("BASH_FUNC_f%%", "() { :; }");
        let captured = state(&[function]);
        assert_eq!(
            replayed(ShellKind::Bash, &captured, None, &BTreeMap::new()),
            os(&[])
        );
        assert_eq!(
            replayed(ShellKind::Zsh, &captured, None, &BTreeMap::new()),
            os(&[function])
        );
    }

    fn replayed(
        kind: ShellKind,
        captured: &CapturedState,
        policy: Option<&EnvPolicy>,
        overlay: &BTreeMap<String, String>,
    ) -> BTreeMap<OsString, OsString> {
        let host = os(&[("SHLVL", "2"), ("UNSET_BY_PROFILE", "1")]);
        environment(
            kind,
            captured,
            policy,
            &host,
            overlay,
            &ProcessMetadata::default(),
        )
    }

    fn state(exports: &[(&str, &str)]) -> CapturedState {
        CapturedState {
            exports: os(exports),
            restore: Vec::new(),
        }
    }

    fn os(pairs: &[(&str, &str)]) -> BTreeMap<OsString, OsString> {
        pairs
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    }
}
