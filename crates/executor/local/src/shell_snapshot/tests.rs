//! Tests with real shells: a replayed command behaves as after running the profiles. Also tests
//! when a snapshot applies.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use exec_wire::{
    environment::ShellProgram,
    process::{ProcessMetadata, ShellSnapshot},
};
use tempfile::TempDir;

use super::{
    ShellKind, SnapshotError, applicable_shell,
    captured_state::{
        CapturedState, capture_argv, parse_capture, replay_environment, rewrite_command,
    },
};

const COMMON: &str = r#"
echo ran >> "$HOME/runs"
echo "welcome to 'this' host"
export LINES_VAR="first
second=2'\"\\"
alias shout='echo SHOUT'
alias quoted='printf "%s\n" "it'"'"'s"'
umask 027
"#;

const FUNCTIONS: &str = r#"
greet() {
  shout from greet
  cat <<-END
	hello $1 '"\\x
	END
}
"#;

const PROBES: [&str; 6] = [
    "shout loud; quoted",
    "printf '<%s>' \"$LINES_VAR\"; umask; echo \"$SHLVL\"",
    "if shout in a block; then\nshout later\nfi",
    "echo \"$0|$#|$1|$*\"",
    "set +o; echo $IFS",
    "(shout sub) | cat",
];

const ORDINARY: [&str; 14] = [
    "",
    "true",
    "false",
    "exit 7",
    "(exit 9)",
    "echo out; echo err >&2; exit 3",
    "printf '%s\\n' 'it'\\''s' \"\\\\\" ''",
    "echo one\necho two # comment",
    "cat <<'E'\n$x 'y'\nE",
    "no-such-command",
    "kill -9 $$",
    "trap 'echo bye' EXIT; exit 4",
    "true <&9",
    "# comment\necho $? \"${1-none}\"; shift",
];

#[test]
fn bash_replays_its_profile_state() {
    let Some(shell) = TestShell::find(ShellKind::Bash, "bash") else {
        return;
    };
    let options = "shopt -s expand_aliases extglob nullglob\nset -o noclobber\nCDPATH=/usr\n";
    let exported = "each() { echo \"$1\" !(x*); }\nexport -f each\nexport CDPATH\n";
    shell.write_profile(".bash_profile", &[options, COMMON, FUNCTIONS, exported]);
    let state = shell.capture().unwrap();
    shell.assert_same(&state, &PROBES);
    shell.assert_same(&state, &ORDINARY);
    shell.assert_same(
        &state,
        &[
            "greet you",
            "shopt -p | grep -v login_shell; echo $BASH_COMPAT",
            "each /nothing/*",
            "bash -c 'shopt -s extglob; each exported'",
            "env | grep -c BASH_FUNC_each",
            "cd bin && pwd",
            "env -0 | tr '\\0\\n' '\\n ' | sort",
            "declare -F; alias",
        ],
    );
}

#[test]
fn zsh_replays_its_profile_state() {
    let Some(shell) = TestShell::find(ShellKind::Zsh, "zsh") else {
        return;
    };
    let options = "setopt extendedglob nullglob rcquotes\nfpath+=($HOME/functions)\n";
    let more = "alias -g UP='| tr a-z A-Z'\nalias -s txt='echo text'\nautoload -U later\n\
                each() { echo it''s /(nothing|bin)(#q/N) }\nsetopt nounset\n";
    shell.write_profile(".zprofile", &[options, COMMON, FUNCTIONS, more]);
    fs::create_dir(shell.home.path().join("functions")).unwrap();
    fs::write(
        shell.home.path().join("functions/later"),
        "echo loaded $1\n",
    )
    .unwrap();
    let state = shell.capture().unwrap();
    shell.assert_same(&state, &PROBES[..4]);
    shell.assert_same(&state, &ORDINARY);
    shell.assert_same(
        &state,
        &[
            "greet you",
            "echo up UP; a.txt; later now; each; echo 'it''s'",
            "setopt | grep -v -e login -e norcs",
            "echo $unset_variable; echo not reached",
            "/usr/bin/env -0 | tr '\\0\\n' '\\n ' | sort",
            "alias; print -l ${(ok)functions}",
        ],
    );
}

#[test]
fn sh_replays_its_profile_state() {
    let Some(shell) = TestShell::find(ShellKind::Sh, "dash") else {
        return;
    };
    shell.write_profile(".profile", &["set -o noclobber\n", COMMON]);
    let state = shell.capture().unwrap();
    shell.assert_same(&state, &PROBES);
    shell.assert_same(&state, &ORDINARY);
    shell.assert_same(&state, &["if", "echo ${", "alias", "env | sort"]);
}

#[test]
fn bash_invoked_as_sh_keeps_its_functions() {
    let Some(mut shell) = TestShell::find(ShellKind::Sh, "bash") else {
        return;
    };
    let named_sh = shell.home.path().join("sh");
    symlink(&shell.path, &named_sh).unwrap();
    shell.path = named_sh;
    shell.write_profile(".profile", &[COMMON, FUNCTIONS]);
    let state = shell.capture().unwrap();
    shell.assert_same(&state, &PROBES);
    shell.assert_same(&state, &ORDINARY);
    shell.assert_same(&state, &["greet you", "env | sort"]);
}

#[test]
fn syntax_errors_behave_as_without_a_snapshot() {
    for (kind, name) in [
        (ShellKind::Bash, "bash"),
        (ShellKind::Zsh, "zsh"),
        (ShellKind::Sh, "dash"),
    ] {
        let Some(shell) = TestShell::find(kind, name) else {
            continue;
        };
        let state = shell.capture().unwrap();
        for command in ["if", "echo 'open", "echo )", "echo ran\nfi\necho not"] {
            let (login, replayed) = (
                shell.login(command, &[]),
                shell.replay(&state, command, &[]),
            );
            assert_eq!(replayed.status, login.status, "{name}: {command}");
            assert_eq!(replayed.stdout, login.stdout, "{name}: {command}");
            assert!(!replayed.stderr.is_empty(), "{name}: {command}");
        }
    }
}

#[test]
fn errors_keep_their_line_numbers() {
    let Some(shell) = TestShell::find(ShellKind::Bash, "bash") else {
        return;
    };
    let state = shell.capture().unwrap();
    let command = "echo one\nno-such-command 'it'\necho $LINENO";
    let (login, replayed) = (
        shell.login(command, &["zero"]),
        shell.replay(&state, command, &["zero"]),
    );
    assert_eq!(
        (replayed.stdout, replayed.stderr),
        (login.stdout, login.stderr)
    );
}

#[test]
fn very_long_commands_can_be_replayed() {
    let Some(shell) = TestShell::find(ShellKind::Bash, "bash") else {
        return;
    };
    let state = shell.capture().unwrap();
    let command = format!(": {}; echo ran", "''".repeat(60_000));
    assert_eq!(shell.replay(&state, &command, &[]).stdout, b"ran\n");
}

#[test]
fn inactive_bash_aliases_stay_inactive() {
    let Some(shell) = TestShell::find(ShellKind::Bash, "bash") else {
        return;
    };
    shell.write_profile(".bash_profile", &["alias true=false\n"]);
    let state = shell.capture().unwrap();
    shell.assert_same(&state, &["true", "alias"]);
}

#[test]
fn profiles_run_once() {
    for (kind, name, profile) in SHELLS {
        let Some(shell) = TestShell::find(kind, name) else {
            continue;
        };
        shell.write_profile(profile, &[COMMON]);
        let state = shell.capture().unwrap();
        for _ in 0..3 {
            assert_eq!(shell.replay(&state, "echo hi", &[]).stdout, b"hi\n");
        }
        assert_eq!(
            fs::read_to_string(shell.home.path().join("runs")).unwrap(),
            "ran\n"
        );
    }
}

#[test]
fn hostile_profiles_do_not_break_a_capture() {
    let hostile = "printf '\\000noise\\000'\nIFS=o\ntrap 'echo late noise' EXIT\nset -eu\n\
                   export PATH=/nonexistent\nalias printf=false read=false set=false umask=false\n";
    for (kind, name, profile) in SHELLS {
        let Some(shell) = TestShell::find(kind, name) else {
            continue;
        };
        let extra = match kind {
            ShellKind::Bash => "shopt -s expand_aliases\nset -o pipefail\nprintf() { false; }\n",
            ShellKind::Zsh => "setopt pipefail\nfunction setopt { false }\n",
            ShellKind::Sh => "alias many='a\nb=c\nd'\n",
        };
        shell.write_profile(profile, &[extra, hostile]);
        let state = shell
            .capture()
            .unwrap_or_else(|| panic!("{name} was disturbed"));
        assert_eq!(state.exports[&OsString::from("PATH")], "/nonexistent");
        let replayed = shell.replay(&state, "echo on; false; echo not reached", &[]);
        assert_eq!(
            (replayed.status.code(), &replayed.stdout[..]),
            (Some(1), &b"on\n"[..]),
            "{name}"
        );
    }
}

#[test]
fn interactive_startup_file_is_read_after_the_profile() {
    let rc = "export SET_BY=rc\nalias from_rc='echo ALIAS'\n";
    for (kind, name, profile, file) in [
        (ShellKind::Bash, "bash", ".bash_profile", ".bashrc"),
        (ShellKind::Zsh, "zsh", ".zprofile", ".zshrc"),
        (ShellKind::Sh, "dash", ".profile", "interactive"),
    ] {
        let Some(mut shell) = TestShell::find(kind, name) else {
            continue;
        };
        shell.write_profile(profile, &["export SET_BY=profile FROM_PROFILE=1\n"]);
        let functions = if kind == ShellKind::Sh {
            ""
        } else {
            "f() { echo f $1; }\n"
        };
        shell.write_profile(file, &["echo noise; echo noise >&2\n", rc, functions]);
        shell.set("ENV", "$HOME/interactive");
        let state = shell.capture().unwrap();
        let replayed = shell.replay(&state, "echo $SET_BY $FROM_PROFILE", &[]);
        assert_eq!(replayed.stdout, b"rc 1\n", "{name}");
        if kind != ShellKind::Sh {
            assert_eq!(shell.replay(&state, "f x", &[]).stdout, b"f x\n", "{name}");
        }
        // A file that returns in non-interactive shells keeps the profile's settings.
        shell.write_profile(file, &["case $- in *i*) ;; *) return ;; esac\n", rc]);
        let state = shell.capture().unwrap();
        let replayed = shell.replay(&state, "echo $SET_BY $FROM_PROFILE", &[]);
        assert_eq!(replayed.stdout, b"profile 1\n", "{name}");
        shell.write_profile(file, &["exit 3\n"]);
        assert_eq!(shell.capture(), None, "{name}");
    }
}

#[test]
fn bash_reads_bash_env_instead_of_bashrc_and_only_once() {
    let Some(mut shell) = TestShell::find(ShellKind::Bash, "bash") else {
        return;
    };
    shell.write_profile(".bashrc", &["export FROM_RC=1\n"]);
    shell.write_profile(
        "non-interactive",
        &["echo ran >> \"$HOME/runs\"; export FROM_ENV=1\n"],
    );
    let file = shell.home.path().join("non-interactive");
    shell.set("BASH_ENV", file.to_str().unwrap());
    let state = shell.capture().unwrap();
    let replayed = shell.replay(&state, "echo ${FROM_RC-unset} $FROM_ENV", &[]);
    assert_eq!(replayed.stdout, b"unset 1\n");
    let runs = fs::read_to_string(shell.home.path().join("runs")).unwrap();
    assert_eq!(runs, "ran\n");
}

#[test]
fn functions_that_hide_builtins_do_not_break_a_capture() {
    let all = "for name in printf command declare alias shopt set umask eval env read exec export \
               typeset echo test trap unset builtin; do eval \"$name() { :; }\"; done\n";
    let hidden = "unset() { echo my unset; }\nbuiltin() { echo my builtin; }\n";
    for (kind, name, profile, functions, probe) in [
        (
            ShellKind::Bash,
            "bash",
            ".bash_profile",
            hidden,
            "unset; builtin",
        ),
        (ShellKind::Bash, "bash", ".bashrc", hidden, "unset; builtin"),
        (ShellKind::Bash, "bash", ".bash_profile", all, "builtin; f"),
        (ShellKind::Zsh, "zsh", ".zprofile", hidden, "unset; builtin"),
        (ShellKind::Zsh, "zsh", ".zshrc", hidden, "unset; builtin"),
        (ShellKind::Sh, "dash", ".profile", "command() { :; }\n", ""),
        (
            ShellKind::Sh,
            "bash",
            ".profile",
            "command() { echo my command; }\n",
            "command",
        ),
    ] {
        let Some(mut shell) = TestShell::find(kind, name) else {
            continue;
        };
        if (kind, name) == (ShellKind::Sh, "bash") {
            let named_sh = shell.home.path().join("sh");
            symlink(&shell.path, &named_sh).unwrap();
            shell.path = named_sh;
        }
        let exported = "export A=1\nf() { echo f; }\n";
        shell.write_profile(profile, &[exported, functions]);
        let start = std::time::Instant::now();
        let state = shell.capture();
        assert!(start.elapsed() < STALL_LIMIT, "{name} {profile}: stalled");
        let state = state.unwrap_or_else(|| panic!("{name} {profile} {functions}: disturbed"));
        assert_eq!(state.exports[&OsString::from("A")], "1", "{name}");
        let expected = match functions {
            _ if functions == hidden => &b"my unset\nmy builtin\n"[..],
            _ if functions == all => b"f\n",
            _ if probe == "command" => b"my command\n",
            _ => b"",
        };
        let replayed = shell.replay(&state, probe, &[]);
        assert_eq!(
            str::from_utf8(&replayed.stdout),
            str::from_utf8(expected),
            "{name} {profile} {functions}"
        );
    }
}

/// Far below the capture timeout and far above the time that a capture needs.
const STALL_LIMIT: std::time::Duration = std::time::Duration::from_secs(4);

#[test]
fn exiting_profile_fails_the_capture() {
    for (kind, name, profile) in SHELLS {
        let Some(shell) = TestShell::find(kind, name) else {
            continue;
        };
        shell.write_profile(profile, &["exit 3\n"]);
        assert_eq!(shell.capture(), None, "{name}");
    }
}

const SHELLS: [(ShellKind, &str, &str); 3] = [
    (ShellKind::Bash, "bash", ".bash_profile"),
    (ShellKind::Zsh, "zsh", ".zprofile"),
    (ShellKind::Sh, "dash", ".profile"),
];

/// A shell with a temporary home and profile.
struct TestShell {
    kind: ShellKind,
    path: PathBuf,
    home: TempDir,
    variables: BTreeMap<String, String>,
}

impl TestShell {
    fn find(kind: ShellKind, name: &str) -> Option<Self> {
        let folders = ["/bin", "/usr/bin", "/usr/local/bin"].map(Path::new);
        let found = folders
            .iter()
            .map(|folder| folder.join(name))
            .find(|path| path.exists());
        if found.is_none() {
            eprintln!("skipped: {name} is not installed");
        }
        Some(Self {
            kind,
            path: found?,
            home: TempDir::new().unwrap(),
            variables: BTreeMap::new(),
        })
    }

    fn write_profile(&self, name: &str, parts: &[&str]) {
        fs::write(self.home.path().join(name), parts.concat()).unwrap();
    }

    /// Sets an environment variable of the shell.
    fn set(&mut self, name: &str, value: &str) {
        self.variables.insert(name.to_owned(), value.to_owned());
    }

    fn capture(&self) -> Option<CapturedState> {
        let argv = capture_argv(self.kind, self.path.to_str().unwrap());
        // Cuts off a stalled capture earlier than the server does.
        let mut bounded = ["/usr/bin/timeout", "5"].map(str::to_owned).to_vec();
        bounded.extend(argv);
        parse_capture(&run(&bounded, &os(&self.environment())).stdout)
    }

    /// Compares the outcome of commands with and without the snapshot.
    fn assert_same(&self, state: &CapturedState, commands: &[&str]) {
        for command in commands {
            for arguments in [&[][..], &["zero", "one", "t w o"]] {
                let login = self.login(command, arguments);
                let replayed = self.replay(state, command, arguments);
                assert_eq!(
                    comparable(&replayed),
                    comparable(&login),
                    "{:?}: {command}",
                    self.path
                );
            }
        }
    }

    fn login(&self, command: &str, arguments: &[&str]) -> Output {
        run(&self.argv(command, arguments), &os(&self.environment()))
    }

    fn replay(&self, state: &CapturedState, command: &str, arguments: &[&str]) -> Output {
        let file = self.home.path().join("state");
        fs::write(&file, &state.restore).unwrap();
        let open = [
            "/bin/sh",
            "-c",
            "exec 9<\"$0\"; exec \"$@\"",
            file.to_str().unwrap(),
        ];
        let mut argv = open.map(str::to_owned).to_vec();
        argv.extend(rewrite_command(
            self.kind,
            &self.argv(command, arguments),
            9,
        ));
        let (host, metadata) = (BTreeMap::new(), ProcessMetadata::default());
        let environment = replay_environment(
            self.kind,
            state,
            None,
            &host,
            &self.environment(),
            &metadata,
        );
        run(&argv, &environment)
    }

    fn argv(&self, command: &str, arguments: &[&str]) -> Vec<String> {
        let program = [self.path.to_str().unwrap(), "-lc", command];
        program
            .iter()
            .chain(arguments)
            .map(|&word| word.to_owned())
            .collect()
    }

    fn environment(&self) -> BTreeMap<String, String> {
        let home = self.home.path().to_str().unwrap();
        let own = [("HOME", home), ("LC_ALL", "C")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        let mut variables = self.variables.clone();
        variables.extend(own);
        variables
    }
}

fn run(argv: &[String], environment: &BTreeMap<OsString, OsString>) -> Output {
    let mut command = Command::new(&argv[0]);
    command
        .args(&argv[1..])
        .env_clear()
        .envs(environment)
        .stdin(Stdio::null());
    command.current_dir("/").output().unwrap()
}

/// Returns the status, stdout without the profile's output, and error messages without their
/// location, which differs between profile and state.
fn comparable(output: &Output) -> (Option<i32>, String, Vec<&str>) {
    let stdout = str::from_utf8(&output.stdout).unwrap();
    let errors = str::from_utf8(&output.stderr).unwrap().lines();
    (
        output.status.code(),
        stdout.replace("welcome to 'this' host\n", ""),
        errors.filter_map(|line| line.rsplit(": ").next()).collect(),
    )
}

fn os(pairs: &BTreeMap<String, String>) -> BTreeMap<OsString, OsString> {
    pairs
        .iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

#[test]
fn snapshot_applies_to_login_commands_of_its_shell() {
    let bash = snapshot("scope", "bash");
    assert_eq!(
        applicable_shell(&argv(&["/bin/x", "-lc", "ls"]), &bash),
        Ok(Some(ShellKind::Bash))
    );
    assert_eq!(
        applicable_shell(&argv(&["/bin/x", "-lc", "ls", "a"]), &bash),
        Ok(Some(ShellKind::Bash))
    );
    for other in [
        &["/bin/x", "-lc"][..],
        &["/bin/x", "-c", "ls"],
        &["x", "-lc", "ls"],
        &[],
    ] {
        assert_eq!(applicable_shell(&argv(other), &bash), Ok(None), "{other:?}");
    }
}

#[test]
fn unknown_shell_is_rejected_only_if_the_snapshot_applies() {
    let fish = snapshot("scope", "fish");
    assert_eq!(
        applicable_shell(&argv(&["/bin/x", "-lc", "ls"]), &fish),
        Err(SnapshotError::UnknownShell("fish".to_owned()))
    );
    assert_eq!(
        applicable_shell(&argv(&["/bin/x", "-c", "ls"]), &fish),
        Ok(None)
    );
}

#[test]
fn invalid_scope_is_always_rejected() {
    for (scope, expected) in [
        (String::new(), Err(SnapshotError::Scope(0))),
        ("é".repeat(129), Err(SnapshotError::Scope(258))),
        ("é".repeat(128), Ok(None)),
    ] {
        assert_eq!(
            applicable_shell(&argv(&["ls"]), &snapshot(&scope, "fish")),
            expected
        );
    }
}

fn argv(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn snapshot(scope: &str, name: &str) -> ShellSnapshot {
    let shell = ShellProgram {
        name: name.to_owned(),
        path: "/bin/x".to_owned(),
    };
    ShellSnapshot {
        scope_id: scope.to_owned(),
        shell,
    }
}
