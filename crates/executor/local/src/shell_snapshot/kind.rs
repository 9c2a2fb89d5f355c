//! Which requests a snapshot is for.

use exec_wire::{limits::MAX_SNAPSHOT_SCOPE_BYTES, process::ShellSnapshot};

/// A shell whose state can be captured.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum ShellKind {
    /// GNU bash.
    Bash,
    /// The Z shell.
    Zsh,
    /// Any POSIX shell, mostly dash.
    Sh,
}

impl ShellKind {
    /// Returns the kind that `shell.name` stands for.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "bash" => Some(Self::Bash),
            "zsh" => Some(Self::Zsh),
            "sh" => Some(Self::Sh),
            _ => None,
        }
    }
}

/// Tells whether the snapshot changes how `argv` runs, and for which kind of shell.
///
/// It does for the login commands of its shell. A shell takes a third word that looks like a flag
/// for one, so that the command is elsewhere: such an `argv` is left alone.
///
/// # Errors
/// A bad scope is refused even if the snapshot does not apply, an unknown shell only if it does.
pub fn applies(
    argv: &[String],
    snapshot: &ShellSnapshot,
) -> Result<Option<ShellKind>, SnapshotError> {
    let scope_bytes = snapshot.scope_id.len();
    if !(1..=MAX_SNAPSHOT_SCOPE_BYTES).contains(&scope_bytes) {
        return Err(SnapshotError::Scope(scope_bytes));
    }
    match argv {
        [program, flags, command, ..]
            if *program == snapshot.shell.path
                && flags == LOGIN_COMMAND
                && !command.starts_with(['-', '+']) =>
        {
            let name = &snapshot.shell.name;
            let kind = ShellKind::from_name(name);
            kind.map(Some)
                .ok_or_else(|| SnapshotError::UnknownShell(name.clone()))
        }
        _ => Ok(None),
    }
}

/// Why a snapshot request is refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Caller: the scope is empty or too long.
    #[error("scopeId has {0} bytes: expected 1 to {MAX_SNAPSHOT_SCOPE_BYTES}")]
    Scope(usize),
    /// Caller: the state of this shell cannot be captured.
    #[error("shell `{0}` is not bash, zsh or sh")]
    UnknownShell(String),
}

/// The flags of the only form of command that is rewritten.
pub(super) const LOGIN_COMMAND: &str = "-lc";

#[cfg(test)]
mod tests {
    use exec_wire::environment::Shell;

    use super::*;

    #[test]
    fn a_snapshot_applies_to_login_commands_of_its_shell() {
        let bash = snapshot("scope", "bash");
        assert_eq!(
            applies(&argv(&["/bin/x", "-lc", "ls"]), &bash),
            Ok(Some(ShellKind::Bash))
        );
        assert_eq!(
            applies(&argv(&["/bin/x", "-lc", "ls", "a"]), &bash),
            Ok(Some(ShellKind::Bash))
        );
        for other in [
            &["/bin/x", "-lc"][..],
            &["/bin/x", "-c", "ls"],
            &["x", "-lc", "ls"],
            &[],
        ] {
            assert_eq!(applies(&argv(other), &bash), Ok(None), "{other:?}");
        }
    }

    #[test]
    fn an_unknown_shell_is_refused_only_if_the_snapshot_applies() {
        let fish = snapshot("scope", "fish");
        assert_eq!(
            applies(&argv(&["/bin/x", "-lc", "ls"]), &fish),
            Err(SnapshotError::UnknownShell("fish".to_owned()))
        );
        assert_eq!(applies(&argv(&["/bin/x", "-c", "ls"]), &fish), Ok(None));
    }

    #[test]
    fn a_bad_scope_is_always_refused() {
        for (scope, expected) in [
            (String::new(), Err(SnapshotError::Scope(0))),
            ("é".repeat(129), Err(SnapshotError::Scope(258))),
            ("é".repeat(128), Ok(None)),
        ] {
            assert_eq!(applies(&argv(&["ls"]), &snapshot(&scope, "fish")), expected);
        }
    }

    fn argv(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    fn snapshot(scope: &str, name: &str) -> ShellSnapshot {
        let shell = Shell {
            name: name.to_owned(),
            path: "/bin/x".to_owned(),
        };
        ShellSnapshot {
            scope_id: scope.to_owned(),
            shell,
        }
    }
}
