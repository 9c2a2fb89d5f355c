//! Arguments of the calls, and the command line and environment variables derived from them.

use std::{collections::BTreeMap, fmt, time::Duration};

use exec_env::environment::StdinMode;
use exec_wire::{environment::ShellProgram, path_uri::PathUri};
use regex::bytes::Regex;

use super::command_table::ProcessNumber;

/// The harness's id of a tool call.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct CallId(pub String);

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `exec_command`: runs a command and shows its output for a while.
#[derive(Clone, Debug)]
pub struct ExecCommand {
    /// Id of this call.
    pub call_id: CallId,
    /// What to run.
    pub program: CommandProgram,
    /// Working directory. Absent: the environment's default directory.
    pub workdir: Option<PathUri>,
    /// Overrides of the environment's variables.
    pub env: BTreeMap<String, String>,
    /// Gives it a terminal instead of pipes.
    pub tty: bool,
    /// Stdin without a terminal. Absent: the default of the settings.
    pub stdin: Option<StdinMode>,
    /// How long to wait. Absent: 10 s; at least 250 ms, and at most the limit of the settings.
    pub yield_time: Option<Duration>,
    /// Condition that ends the wait earlier.
    pub wait: WaitFor,
    /// Maximum number of output tokens. Absent: the default of the settings.
    pub max_output_tokens: Option<usize>,
    /// Format of the output.
    pub view: OutputView,
    /// Reason for running it, for the approver.
    pub justification: Option<String>,
}

/// What to run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CommandProgram {
    /// A command line for a shell.
    Shell {
        /// The command line.
        line: String,
        /// Program of the shell. Absent: the environment's default shell.
        shell: Option<String>,
        /// Runs it as a login shell.
        login: bool,
    },
    /// A program and its arguments.
    Argv(Vec<String>),
}

/// Condition that ends a wait before its time is up. The exit of the process always does.
///
/// Output of the call is: after a start all of it; after a write the output after the write; for a
/// poll also the output since the last call, which it shows.
#[derive(Clone, Debug, Default)]
pub enum WaitFor {
    /// No other condition.
    #[default]
    Exit,
    /// No output for this long, after some came.
    Idle(Duration),
    /// Output of the call that matches. Matched on text without escape codes, including an
    /// unterminated last line, such as a prompt. A match across chunks spans at most 16 KiB.
    Pattern(Regex),
    /// This many bytes of output of the call.
    Bytes(usize),
}

/// Format of the output.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OutputView {
    /// Text without escape codes.
    #[default]
    Plain,
    /// Bytes as written.
    Raw,
    /// The current screen of the terminal. Requires a terminal.
    Screen,
}

/// `write_stdin`: writes to a running command or polls it, and shows its output.
#[derive(Clone, Debug)]
pub struct WriteStdin {
    /// Id of this call.
    pub call_id: CallId,
    /// Number of the command.
    pub number: ProcessNumber,
    /// Input. Empty: only polls. Ctrl-C alone (`"\u{3}"`) also interrupts a command without a
    /// terminal, by a signal.
    pub chars: String,
    /// Closes stdin afterwards.
    pub close: bool,
    /// As in [`ExecCommand`], counted from the acceptance of the write; absent: 250 ms, or 5 s for
    /// a poll.
    pub yield_time: Option<Duration>,
    /// As in [`ExecCommand`].
    pub wait: WaitFor,
    /// As in [`ExecCommand`].
    pub max_output_tokens: Option<usize>,
    /// As in [`ExecCommand`].
    pub view: OutputView,
}

/// Returns program and arguments for a command. `None`: the program is empty.
pub(super) fn argv(program: &CommandProgram, own: &ShellProgram) -> Option<Vec<String>> {
    match program {
        CommandProgram::Argv(argv) if argv.first().is_none_or(String::is_empty) => None,
        CommandProgram::Argv(argv) => Some(argv.clone()),
        CommandProgram::Shell { line, .. } if line.trim().is_empty() => None,
        CommandProgram::Shell { line, shell, login } => {
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
            Some(argv.chain([line.as_str()]).map(str::to_owned).collect())
        }
    }
}

enum ShellMode {
    Login,
    Plain,
}

/// Returns the flags with which a shell runs a command line.
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

/// Returns variables for a command without a user: no pager waits for a key, nothing is coloured
/// without a terminal, and text is UTF-8. `own` overrides them.
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

    fn shell(line: &str, shell: Option<&str>, login: bool) -> CommandProgram {
        CommandProgram::Shell {
            line: line.to_owned(),
            shell: shell.map(str::to_owned),
            login,
        }
    }

    #[test]
    fn shell_flags_match_the_shell() {
        let own = ShellProgram {
            name: "bash".to_owned(),
            path: "/bin/bash".to_owned(),
        };
        let argv = |program: CommandProgram| argv(&program, &own).unwrap().join(" ");
        assert_eq!(argv(shell("ls", None, true)), "/bin/bash -lc ls");
        assert_eq!(argv(shell("ls", Some("zsh"), false)), "zsh -c ls");
        let power = "C:\\Program Files\\PowerShell\\pwsh.exe";
        assert!(argv(shell("ls", Some(power), false)).ends_with("-NoProfile -Command ls"));
        assert_eq!(argv(shell("dir", Some("cmd.exe"), true)), "cmd.exe /c dir");
    }

    #[test]
    fn empty_program_is_rejected() {
        let own = ShellProgram {
            name: "sh".to_owned(),
            path: "/bin/sh".to_owned(),
        };
        for program in [
            shell(" \n", None, true),
            CommandProgram::Argv(Vec::new()),
            CommandProgram::Argv(vec![String::new()]),
        ] {
            assert_eq!(argv(&program, &own), None);
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
