//! Captured state of a login shell: the scripts that print it, the parser of their output, and the
//! commands rewritten to start from it instead of running the profiles.
//!
//! The scripts first source the interactive start-up file, which a non-interactive login shell does
//! not read: `.bashrc` unless `BASH_ENV` was read instead, `.zshrc`, or the file in `ENV`. After
//! the output of these files, the scripts print three markers. The environment of a child follows
//! the first, text that restores the rest follows the second. Markers are enclosed in NUL bytes,
//! which neither part can contain.
//!
//! Escaped command names bypass aliases of the profile; `builtin` and `command` bypass its
//! functions. Functions with these two names are removed first and printed separately. Functions
//! cannot hide special builtins; in bash that holds in POSIX mode only.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fmt,
    os::unix::ffi::{OsStrExt, OsStringExt},
    time::Duration,
};

use exec_wire::process::{EnvPolicy, ProcessMetadata};

use super::{LOGIN_COMMAND, ShellKind};
use crate::env_policy;

/// Time limit of a capture.
pub const CAPTURE_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the command that prints the state of the login shell at `path`, for [`parse_capture`].
pub fn capture_argv(kind: ShellKind, path: &str) -> Vec<String> {
    let script = match kind {
        ShellKind::Bash => BASH,
        ShellKind::Zsh => ZSH,
        ShellKind::Sh => SH,
    };
    [path, LOGIN_COMMAND, script].map(str::to_owned).to_vec()
}

/// Marker before the exported variables.
const EXPORTS: &[u8] = b"\0exec-server snapshot: exports\0";
/// Marker before the text that restores the rest.
const RESTORE: &[u8] = b"\0exec-server snapshot: restore\0";
/// Marker at the end.
const END: &[u8] = b"\0exec-server snapshot: end\0";

/// Prints the state of bash. Options precede functions, which may hide the builtins that set them.
/// `expand_aliases` is last, because printed functions are already expanded. Functions are parsed
/// with `extglob`, which some need. `declare -p`: a privileged shell ignores these two variables if
/// they are inherited. `compat*`: even unsetting them sets `BASH_COMPAT`.
///
/// Assigning `POSIXLY_CORRECT` enables POSIX mode, in which `unset` is the builtin. Leaving that
/// mode resets some options, which are restored from `BASHOPTS`.
const BASH: &str = r#"
if [[ ! ${BASH_ENV-} && -r ${HOME-}/.bashrc ]]; then
  \. "$HOME/.bashrc" || [[ 1 ]]
fi
exec_server_hidden=
if [[ $(\builtin printf ok 2>&1) != ok && ! ${POSIXLY_CORRECT+set} ]]; then
  exec_server_options=:$BASHOPTS:
  POSIXLY_CORRECT=1
  exec_server_hidden=$(\unset -f declare; \declare -f builtin)
  \unset -f builtin
  \unset POSIXLY_CORRECT
  if [[ $exec_server_options == *:expand_aliases:* ]]; then \builtin shopt -s expand_aliases; fi
  if [[ $exec_server_options != *:inherit_errexit:* ]]; then \builtin shopt -u inherit_errexit; fi
  \builtin unset exec_server_options
fi
if [[ $(\builtin printf ok 2>&1) == ok ]]; then
\builtin printf '\000exec-server snapshot: exports\000'
/usr/bin/env -0
\builtin printf '\000exec-server snapshot: restore\000'
\builtin printf 'umask %s\n' "$(\builtin umask)"
\builtin declare -p CDPATH GLOBIGNORE 2>/dev/null || \builtin :
\builtin shopt -p | while IFS= \builtin read -r line; do
  case $line in
    *compat*|*login_shell|*restricted_shell|*expand_aliases|*extglob) ;;
    *) \builtin printf '%s\n' "$line" ;;
  esac
done
\builtin set +o
\builtin printf 'shopt -s extglob\n'
\builtin declare -f
\builtin declare -Fx
\builtin alias -p
\builtin shopt -p extglob expand_aliases || \builtin :
if [[ $exec_server_hidden ]]; then
  \builtin printf 'exec_server_hidden=%q\n' "$exec_server_hidden"
fi
\builtin printf '\000exec-server snapshot: end\000'
fi
"#;

/// Prints the state of zsh. Options precede functions, which are parsed under them and may hide
/// `setopt`; options that describe only this run are omitted. Autoloaded functions need `fpath`.
/// Aliases are last, because printed functions are already expanded.
const ZSH: &str = r#"
if [[ -r ${ZDOTDIR:-${HOME-}}/.zshrc ]]; then
  \. ${ZDOTDIR:-$HOME}/.zshrc || [[ 1 -eq 1 ]]
fi
exec_server_hidden=
if (( ${+functions[builtin]} )); then
  exec_server_hidden="builtin () {
${functions[builtin]}
}"
  \unfunction builtin
fi
\builtin printf '\000exec-server snapshot: exports\000'
/usr/bin/env -0
\builtin printf '\000exec-server snapshot: restore\000'
\builtin printf 'unalias -a\nemulate %s\n' "$(\builtin emulate)"
\builtin printf 'umask %s\n' "$(\builtin umask)"
\builtin setopt | while IFS= \builtin read -r line; do
  case $line in
    login|interactive|shinstdin|monitor|zle|privileged|restricted|norcs|noglobalrcs) ;;
    *) \builtin printf 'setopt %s\n' "$line" ;;
  esac
done
\builtin printf 'fpath=('
\builtin printf ' %s' "${(@q)fpath}"
\builtin printf ')\n'
\builtin typeset -f
\builtin alias -L
\builtin alias -sL
if [[ -n $exec_server_hidden ]]; then
  \builtin printf 'exec_server_hidden=%s\n' "${(q)exec_server_hidden}"
fi
\builtin printf '\000exec-server snapshot: end\000'
"#;

/// Prints the state of a POSIX shell. dash has no `typeset` and cannot print functions; other
/// shells can. Aliases are last, and printed one by one because their values may have several
/// lines.
const SH: &str = r#"
exec_server_hidden=$(\unset -f typeset; \typeset -f command 2>/dev/null) || \:
\unset -f command
if \command [ -n "${ENV-}" ]; then
  exec_server_file=$ENV
  case $ENV in
    *[\"\`\\]*|*'$('*) ;;
    *'$'*) \eval "exec_server_file=\"$ENV\"" ;;
  esac
  case $exec_server_file in
    */*) ;;
    *) exec_server_file=./$exec_server_file ;;
  esac
  if \command [ -r "$exec_server_file" ]; then
    \. "$exec_server_file" || \:
  fi
  \unset -f command || \:
  \unset exec_server_file
fi
\command printf '\000exec-server snapshot: exports\000'
/usr/bin/env -0
\command printf '\000exec-server snapshot: restore\000'
\command printf 'umask %s\n' "$(\command umask)"
\command set +o
\command typeset -f 2>/dev/null || \command :
\command printf '%s\n' "$exec_server_hidden"
\command alias | while IFS= \command read -r line; do
  name=${line%%=*}
  name=${name#alias }
  line=$(\command alias "$name" 2>/dev/null) && \command printf 'alias %s\n' "${line#alias }"
done || \command :
\command printf '\000exec-server snapshot: end\000'
"#;

/// Captured state of a login shell.
#[derive(Clone, Eq, PartialEq)]
pub struct CapturedState {
    /// Exported variables.
    pub exports: BTreeMap<OsString, OsString>,
    /// Text that restores the rest when the same kind of shell sources it.
    pub restore: Vec<u8>,
}

impl fmt::Debug for CapturedState {
    /// Omits values, which hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapturedState")
            .field("exports", &self.exports.keys())
            .field("restore_bytes", &self.restore.len())
            .finish()
    }
}

/// Parses the state from the whole standard output of a capture.
///
/// Returns `None` if the output exceeds [`MAX_CAPTURE_BYTES`] or is incomplete.
pub fn parse_capture(stdout: &[u8]) -> Option<CapturedState> {
    if stdout.len() > MAX_CAPTURE_BYTES {
        return None;
    }
    let (_, state) = split(stdout, EXPORTS)?;
    let (exports, state) = split(state, RESTORE)?;
    let (restore, _) = split(state, END)?;
    let exports: BTreeMap<_, _> = exports
        .split(|&byte| byte == 0)
        .filter_map(variable)
        .collect();
    // Every shell exports something, so an empty list means a failed capture.
    (!exports.is_empty()).then(|| CapturedState {
        exports,
        restore: restore.to_vec(),
    })
}

fn variable(entry: &[u8]) -> Option<(OsString, OsString)> {
    let equals = entry
        .iter()
        .position(|&byte| byte == b'=')
        .filter(|&at| at > 0)?;
    let (name, value) = (&entry[..equals], &entry[equals + 1..]);
    Some((
        OsString::from_vec(name.to_vec()),
        OsString::from_vec(value.to_vec()),
    ))
}

/// Splits at the first `marker`.
fn split<'a>(bytes: &'a [u8], marker: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = bytes
        .windows(marker.len())
        .position(|window| window == marker)?;
    Some((&bytes[..at], &bytes[at + marker.len()..]))
}

/// Maximum output of a capture. The state stays in memory, up to 16 per session.
pub const MAX_CAPTURE_BYTES: usize = 512 << 10;

/// Rewrites a login command to source the state from descriptor `fd` first.
///
/// [`applicable_shell`](super::applicable_shell) must hold for `argv`. `fd` is 3 to 9, which every
/// shell can close. The shell reopens it by name, so that many commands can share it. The command
/// keeps its `$0`, its arguments and its exit code, and does not inherit `fd`.
pub fn rewrite_command(kind: ShellKind, argv: &[String], fd: i32) -> Vec<String> {
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
pub fn replay_environment(
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
