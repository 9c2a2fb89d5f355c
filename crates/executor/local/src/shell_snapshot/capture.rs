//! The command that makes a login shell print its state.
//!
//! The scripts first source the interactive start-up file, which a login shell that runs a command
//! does not read: `.bashrc` unless `BASH_ENV` was read in its place, `.zshrc`, or the file that `ENV`
//! names. After whatever these print, the scripts print three markers: the environment of a child
//! follows the first, text that restores the rest follows the second. Markers are enclosed in NUL
//! bytes, which neither part can hold.
//!
//! Escaped command names bypass aliases of the profile; `builtin` and `command` bypass its functions.
//! Functions with these two names are removed first and printed apart. Special builtins cannot be
//! hidden by a function; in bash that holds in its POSIX mode only.

use std::{collections::BTreeMap, ffi::OsString, fmt, os::unix::ffi::OsStringExt, time::Duration};

use super::{LOGIN_COMMAND, ShellKind};

/// How long a capture may take.
pub const CAPTURE_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the command that prints the state of the login shell at `path`, for
/// [`captured`].
pub fn argv(kind: ShellKind, path: &str) -> Vec<String> {
    let script = match kind {
        ShellKind::Bash => BASH,
        ShellKind::Zsh => ZSH,
        ShellKind::Sh => SH,
    };
    [path, LOGIN_COMMAND, script].map(str::to_owned).to_vec()
}

/// What precedes the exported variables.
pub(super) const EXPORTS: &[u8] = b"\0exec-server snapshot: exports\0";
/// What precedes the text that restores the rest.
pub(super) const RESTORE: &[u8] = b"\0exec-server snapshot: restore\0";
/// What ends it.
pub(super) const END: &[u8] = b"\0exec-server snapshot: end\0";

/// Options precede functions, which may hide the builtins that set them, and `expand_aliases` is
/// last: printed functions are expanded already. They are parsed with `extglob`, which those that
/// use it need. `declare -p`: a privileged shell ignores these two if it inherits them. `compat*`:
/// even to unset them sets `BASH_COMPAT`.
///
/// Assigning `POSIXLY_CORRECT` turns POSIX mode on, in which `unset` is the builtin. Leaving it
/// resets some options, which are set again from `BASHOPTS`.
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

/// Options precede functions, which are parsed under them and may hide `setopt`; those that only
/// describe this run are left out. Functions that are yet to be loaded need `fpath`. Aliases are
/// last: printed functions are expanded already.
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

/// dash cannot print functions and does without `typeset`; shells that can, do. Aliases are last,
/// and asked for one by one because their values may have many lines.
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

/// The state of a login shell.
#[derive(Clone, Eq, PartialEq)]
pub struct CapturedState {
    /// Its exported variables.
    pub exports: BTreeMap<OsString, OsString>,
    /// Text that restores the rest when the same kind of shell sources it.
    pub restore: Vec<u8>,
}

impl fmt::Debug for CapturedState {
    /// Shows no values: they hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Captured")
            .field("exports", &self.exports.keys())
            .field("restore_bytes", &self.restore.len())
            .finish()
    }
}

/// Reads the state from all that a capture wrote to stdout.
///
/// Returns nothing if that is more than [`MAX_CAPTURE_BYTES`], or if the capture did not get to its
/// end.
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
    // Every shell exports something, so that no variables mean no list of them.
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

/// Returns what is before and after the first `marker`.
fn split<'a>(bytes: &'a [u8], marker: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = bytes
        .windows(marker.len())
        .position(|window| window == marker)?;
    Some((&bytes[..at], &bytes[at + marker.len()..]))
}

/// Most that a capture may print: the state is kept in memory, 16 of them per session.
pub const MAX_CAPTURE_BYTES: usize = 512 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_print_the_markers_that_the_parser_looks_for() {
        for kind in [ShellKind::Bash, ShellKind::Zsh, ShellKind::Sh] {
            let argv = argv(kind, "/bin/shell");
            assert_eq!(argv[..2], ["/bin/shell", "-lc"]);
            for marker in [EXPORTS, RESTORE, END] {
                let name = str::from_utf8(marker).unwrap().trim_matches('\0');
                let printed = format!(r"printf '\000{name}\000'");
                assert_eq!(argv[2].matches(&printed).count(), 1, "{kind:?} {name}");
            }
        }
    }

    #[test]
    fn the_state_is_found_between_noise() {
        let stdout = printed(
            b"Welcome\0!\n",
            b"A=1\0B=x\ny=z\0C=\0",
            b"alias a='b'\n",
            b"\nbye",
        );
        let expected = CapturedState {
            exports: [("A", "1"), ("B", "x\ny=z"), ("C", "")]
                .map(|(name, value)| (name.into(), value.into()))
                .into(),
            restore: b"alias a='b'\n".to_vec(),
        };
        assert_eq!(parse_capture(&stdout), Some(expected));
    }

    #[test]
    fn bytes_that_are_not_text_survive() {
        let state = parse_capture(&printed(b"", b"A=\xff\xfe\0", b"f () { \xff; }", b"")).unwrap();
        assert_eq!(
            state.exports[&OsString::from("A")],
            OsString::from_vec(vec![0xff, 0xfe])
        );
        assert_eq!(state.restore, b"f () { \xff; }");
    }

    #[test]
    fn what_is_no_variable_is_skipped() {
        let state = parse_capture(&printed(b"", b"A=1\0nonsense\0=x\0\0", b"", b"")).unwrap();
        assert_eq!(state.exports.len(), 1);
    }

    #[test]
    fn an_unfinished_capture_is_a_failure() {
        let whole = printed(b"", b"A=1\0", b"x", b"");
        for length in 0..whole.len() {
            assert_eq!(parse_capture(&whole[..length]), None, "{length} bytes");
        }
        assert_eq!(
            parse_capture(&printed(b"", b"", b"x", b"")),
            None,
            "no variables"
        );
    }

    #[test]
    fn too_much_output_is_a_failure() {
        let frame = printed(b"", b"A=1\0", b"", b"").len();
        let fits = vec![b'#'; MAX_CAPTURE_BYTES - frame];
        assert!(parse_capture(&printed(&fits, b"A=1\0", b"", b"")).is_some());
        assert_eq!(parse_capture(&printed(&fits, b"A=1\0", b"#", b"")), None);
    }

    #[test]
    fn values_are_not_shown() {
        let state = parse_capture(&printed(b"", b"API_KEY=hunter2\0", b"", b"")).unwrap();
        assert!(!format!("{state:?}").contains("hunter2"));
    }

    fn printed(before: &[u8], exports: &[u8], restore: &[u8], after: &[u8]) -> Vec<u8> {
        [before, EXPORTS, exports, RESTORE, restore, END, after].concat()
    }
}
