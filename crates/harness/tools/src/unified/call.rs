//! What an agent asks for.

use std::{collections::BTreeMap, fmt, time::Duration};

use exec_env::{command::Stdin, process::ProcessNumber};
use exec_wire::{environment::Shell, path_uri::PathUri};
use regex::bytes::Regex;

/// The harness's name for one call of a tool.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct CallId(pub String);

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `exec_command`: runs a command and shows what it says for a while.
#[derive(Clone, Debug)]
pub struct ExecCommand {
    /// The harness's name for this call.
    pub call_id: CallId,
    /// What to run.
    pub program: Program,
    /// Where. Absent: in the environment's own directory.
    pub workdir: Option<PathUri>,
    /// Laid over the environment's variables.
    pub env: BTreeMap<String, String>,
    /// Gives it a terminal; without one it gets pipes.
    pub tty: bool,
    /// What it reads without a terminal. Absent: as the settings say.
    pub stdin: Option<Stdin>,
    /// How long to wait for the end of what is waited for. Absent: 10 s; at least 250 ms, at most what
    /// the settings allow.
    pub yield_time: Option<Duration>,
    /// What ends the wait before that.
    pub wait: WaitFor,
    /// Most of the output to show, in tokens. Absent: as the settings say.
    pub max_output_tokens: Option<usize>,
    /// How the output is shown.
    pub view: View,
    /// Why it is to be run, for whoever approves it.
    pub justification: Option<String>,
}

/// What to run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Program {
    /// A line for a shell.
    Shell {
        /// The line.
        line: String,
        /// The shell's program. Absent: the environment's own shell.
        shell: Option<String>,
        /// Runs it as a login shell.
        login: bool,
    },
    /// A program and its arguments, as they are.
    Argv(Vec<String>),
}

/// What ends a wait before its time is up. The end of the process always does.
///
/// Output since the call is: after a start all of it; after a write what comes behind the write; of a
/// call that only looks, also what came since the last call, which it shows.
#[derive(Clone, Debug, Default)]
pub enum WaitFor {
    /// Nothing else.
    #[default]
    Exit,
    /// No output for so long, after some came.
    Idle(Duration),
    /// Output that matches, since the call. Matched on text without escape codes, including a last line
    /// that is not ended: a prompt. A match that comes in pieces spans
    /// 16 KiB at most.
    Pattern(Regex),
    /// So many bytes of output, since the call.
    Bytes(usize),
}

/// How output is shown.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum View {
    /// As text, without escape codes.
    #[default]
    Plain,
    /// As it was written.
    Raw,
    /// As the screen of a terminal shows it now. Needs a terminal.
    Screen,
}

/// `write_stdin`: writes to a command that runs on, or only looks at it, and shows what it says.
#[derive(Clone, Debug)]
pub struct WriteStdin {
    /// The harness's name for this call.
    pub call_id: CallId,
    /// Which.
    pub number: ProcessNumber,
    /// What to write. Empty: only looks. Ctrl-C alone (`"\u{3}"`) interrupts also a command without
    /// a terminal, where nothing else would make a signal of it.
    pub chars: String,
    /// Ends its input behind that.
    pub close: bool,
    /// As in [`ExecCommand`], counted from when the write was accepted; absent: 250 ms, or 5 s if nothing
    /// is written.
    pub yield_time: Option<Duration>,
    /// As in [`ExecCommand`].
    pub wait: WaitFor,
    /// As in [`ExecCommand`].
    pub max_output_tokens: Option<usize>,
    /// As in [`ExecCommand`].
    pub view: View,
}

/// Why there is nothing to run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct EmptyProgram;

/// Returns program and arguments.
pub(super) fn argv(program: &Program, own: &Shell) -> Result<Vec<String>, EmptyProgram> {
    match program {
        Program::Argv(argv) if argv.first().is_none_or(String::is_empty) => Err(EmptyProgram),
        Program::Argv(argv) => Ok(argv.clone()),
        Program::Shell { line, .. } if line.trim().is_empty() => Err(EmptyProgram),
        Program::Shell { line, shell, login } => {
            let shell = shell.as_ref().unwrap_or(&own.path);
            let flags = shell_flags(
                shell,
                if *login {
                    ShellMode::Login
                } else {
                    ShellMode::Plain
                },
            );
            let argv = [shell.as_str()].into_iter().chain(flags.iter().copied());
            Ok(argv.chain([line.as_str()]).map(str::to_owned).collect())
        }
    }
}

enum ShellMode {
    Login,
    Plain,
}

/// Returns what makes a shell take a line, by the name of its program.
fn shell_flags(shell: &str, kind: ShellMode) -> &'static [&'static str] {
    let file = shell.rsplit(['/', '\\']).next().unwrap_or(shell);
    let name = file.strip_suffix(".exe").unwrap_or(file);
    match (name.to_ascii_lowercase().as_str(), kind) {
        ("pwsh" | "powershell", ShellMode::Login) => &["-Command"],
        ("pwsh" | "powershell", ShellMode::Plain) => &["-NoProfile", "-Command"],
        ("cmd", _) => &["/c"],
        (_, ShellMode::Login) => &["-lc"],
        (_, ShellMode::Plain) => &["-c"],
    }
}

/// Returns what is laid over the host's variables, and `own` over that.
pub(super) fn noninteractive_env(
    terminal: TerminalMode,
    own: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let always = [
        ("PAGER", "cat"),
        ("GIT_PAGER", "cat"),
        ("GH_PAGER", "cat"),
        ("LANG", "C.UTF-8"),
        ("LC_ALL", "C.UTF-8"),
    ];
    let by_terminal: &[_] = match terminal {
        TerminalMode::None => &[("TERM", "dumb"), ("NO_COLOR", "1")],
        TerminalMode::Given => &[("TERM", "xterm-256color")],
    };
    let pairs = always.iter().chain(by_terminal);
    let mut variables: BTreeMap<String, String> = pairs
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    variables.extend(own.clone());
    variables
}

/// Whether a command has a terminal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TerminalMode {
    None,
    Given,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str, shell: Option<&str>, login: bool) -> Program {
        Program::Shell {
            line: line.to_owned(),
            shell: shell.map(str::to_owned),
            login,
        }
    }

    #[test]
    fn shell_flags_match_the_shell() {
        let own = Shell {
            name: "bash".to_owned(),
            path: "/bin/bash".to_owned(),
        };
        let argv = |program: Program| argv(&program, &own).unwrap().join(" ");
        assert_eq!(argv(shell("ls", None, true)), "/bin/bash -lc ls");
        assert_eq!(argv(shell("ls", Some("zsh"), false)), "zsh -c ls");
        let power = "C:\\Program Files\\PowerShell\\pwsh.exe";
        assert!(argv(shell("ls", Some(power), false)).ends_with("-NoProfile -Command ls"));
        assert_eq!(argv(shell("dir", Some("cmd.exe"), true)), "cmd.exe /c dir");
    }

    #[test]
    fn empty_program_is_rejected() {
        let own = Shell {
            name: "sh".to_owned(),
            path: "/bin/sh".to_owned(),
        };
        for program in [
            shell(" \n", None, true),
            Program::Argv(Vec::new()),
            Program::Argv(vec![String::new()]),
        ] {
            assert_eq!(argv(&program, &own), Err(EmptyProgram));
        }
    }
}

#[cfg(test)]
mod variables_tests {
    use super::*;

    #[test]
    fn call_variables_override_and_terminals_have_colours() {
        let own = BTreeMap::from([("PAGER".to_owned(), "less".to_owned())]);
        let dumb = noninteractive_env(TerminalMode::None, &own);
        assert_eq!(dumb["PAGER"], "less");
        assert_eq!(dumb["GIT_PAGER"], "cat");
        assert_eq!(
            (dumb["TERM"].as_str(), dumb["NO_COLOR"].as_str()),
            ("dumb", "1")
        );
        let terminal = noninteractive_env(TerminalMode::Given, &own);
        assert_eq!(terminal["TERM"], "xterm-256color");
        assert!(!terminal.contains_key("NO_COLOR"));
    }
}
