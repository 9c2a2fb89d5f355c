//! What is run for a program: a shell and its line, or the arguments as they are.

use exec_wire::environment::Shell;

use super::call::Program;

/// Why there is nothing to run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Empty;

/// Returns program and arguments.
pub(super) fn argv(program: &Program, own: &Shell) -> Result<Vec<String>, Empty> {
    match program {
        Program::Argv(argv) if argv.first().is_none_or(String::is_empty) => Err(Empty),
        Program::Argv(argv) => Ok(argv.clone()),
        Program::Shell { line, .. } if line.trim().is_empty() => Err(Empty),
        Program::Shell { line, shell, login } => {
            let shell = shell.as_ref().unwrap_or(&own.path);
            let flags = flags(shell, if *login { Kind::Login } else { Kind::Plain });
            let argv = [shell.as_str()].into_iter().chain(flags.iter().copied());
            Ok(argv.chain([line.as_str()]).map(str::to_owned).collect())
        }
    }
}

enum Kind {
    Login,
    Plain,
}

/// Returns what makes a shell take a line, by the name of its program.
fn flags(shell: &str, kind: Kind) -> &'static [&'static str] {
    let file = shell.rsplit(['/', '\\']).next().unwrap_or(shell);
    let name = file.strip_suffix(".exe").unwrap_or(file);
    match (name.to_ascii_lowercase().as_str(), kind) {
        ("pwsh" | "powershell", Kind::Login) => &["-Command"],
        ("pwsh" | "powershell", Kind::Plain) => &["-NoProfile", "-Command"],
        ("cmd", _) => &["/c"],
        (_, Kind::Login) => &["-lc"],
        (_, Kind::Plain) => &["-c"],
    }
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
    fn a_line_is_given_to_the_shell_in_its_own_way() {
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
    fn nothing_to_run_is_told() {
        let own = Shell {
            name: "sh".to_owned(),
            path: "/bin/sh".to_owned(),
        };
        for program in [
            shell(" \n", None, true),
            Program::Argv(Vec::new()),
            Program::Argv(vec![String::new()]),
        ] {
            assert_eq!(argv(&program, &own), Err(Empty));
        }
    }
}
