//! A shell with a profile, and commands run with and without a snapshot of it.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use exec_wire::process::Metadata;
use tempfile::TempDir;

use crate::shell_snapshot::{
    ShellKind, capture,
    parse::{self, Captured},
    replay,
};

/// A shell with a home of its own.
pub(super) struct Fixture {
    kind: ShellKind,
    pub(super) path: PathBuf,
    pub(super) home: TempDir,
    variables: BTreeMap<String, String>,
}

impl Fixture {
    pub(super) fn find(kind: ShellKind, name: &str) -> Option<Self> {
        let folders = ["/bin", "/usr/bin", "/usr/local/bin"].map(Path::new);
        let found = folders
            .iter()
            .map(|folder| folder.join(name))
            .find(|path| path.exists());
        if found.is_none() {
            eprintln!("{name} is not installed here: not tested");
        }
        Some(Self {
            kind,
            path: found?,
            home: TempDir::new().unwrap(),
            variables: BTreeMap::new(),
        })
    }

    pub(super) fn write_profile(&self, name: &str, parts: &[&str]) {
        fs::write(self.home.path().join(name), parts.concat()).unwrap();
    }

    /// Sets a variable of the shell's environment.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.variables.insert(name.to_owned(), value.to_owned());
    }

    pub(super) fn capture(&self) -> Option<Captured> {
        let argv = capture::argv(self.kind, self.path.to_str().unwrap());
        // A capture that stalls is cut off, as the server does it, only sooner.
        let mut bounded = ["/usr/bin/timeout", "5"].map(str::to_owned).to_vec();
        bounded.extend(argv);
        parse::captured(&run(&bounded, &os(&self.environment())).stdout)
    }

    /// Compares the outcome of commands with and without the snapshot.
    pub(super) fn assert_same(&self, state: &Captured, commands: &[&str]) {
        for command in commands {
            for arguments in [&[][..], &["zero", "one", "t w o"]] {
                let login = self.login(command, arguments);
                let replayed = self.replay(state, command, arguments);
                assert_eq!(
                    essence(&replayed),
                    essence(&login),
                    "{:?}: {command}",
                    self.path
                );
            }
        }
    }

    pub(super) fn login(&self, command: &str, arguments: &[&str]) -> Output {
        run(&self.argv(command, arguments), &os(&self.environment()))
    }

    pub(super) fn replay(&self, state: &Captured, command: &str, arguments: &[&str]) -> Output {
        let file = self.home.path().join("state");
        fs::write(&file, &state.restore).unwrap();
        let open = [
            "/bin/sh",
            "-c",
            "exec 9<\"$0\"; exec \"$@\"",
            file.to_str().unwrap(),
        ];
        let mut argv = open.map(str::to_owned).to_vec();
        argv.extend(replay::rewrite(
            self.kind,
            &self.argv(command, arguments),
            9,
        ));
        let (host, metadata) = (BTreeMap::new(), Metadata::default());
        let environment = replay::environment(
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

/// Returns status, stdout without what the profile printed, and the errors without their places:
/// these name the profile in one case and the state in the other.
fn essence(output: &Output) -> (Option<i32>, String, Vec<&str>) {
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
