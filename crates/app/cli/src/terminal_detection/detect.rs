//! From variables to a terminal.
//!
//! `TERM_PROGRAM` decides if it names a terminal. Otherwise a variable that only one terminal sets does,
//! and then `TERM`. Such a variable is left over in a terminal that was started from another one, which
//! is why what a terminal says of itself goes first.

use crate::terminal_detection::{Kind, Lookup, Multiplexer, Terminal, token::text};

impl Terminal {
    /// Finds out, from variables alone.
    pub fn detect(lookup: Lookup<'_>) -> Self {
        let multiplexer = Multiplexer::detect(lookup);
        let term = text(lookup, "TERM");
        // A multiplexer puts its own name where its terminal's was.
        let program = text(lookup, "TERM_PROGRAM").filter(|name| name != "tmux");
        let named = program.as_deref().and_then(Kind::of_program);
        let marked = || MARKS.iter().find(|(name, _, _)| is_set(lookup, name));
        let (kind, version) = match (named, &program) {
            (Some(kind), _) => (Some(kind), own_version(lookup)),
            (None, Some(_)) => (None, own_version(lookup)),
            (None, None) => match marked() {
                Some((_, kind, version)) => {
                    (Some(*kind), version.and_then(|name| text(lookup, name)))
                }
                None => (term.as_deref().and_then(of_term), None),
            },
        };
        Self {
            program: program.filter(|_| kind.is_none()),
            version: version.or_else(|| version_of(kind?, lookup)),
            kind,
            multiplexer,
            term,
            colorterm: text(lookup, "COLORTERM"),
            over_ssh: ["SSH_TTY", "SSH_CONNECTION", "SSH_CLIENT"]
                .iter()
                .any(|name| is_set(lookup, name)),
        }
    }
}

fn is_set(lookup: Lookup<'_>, name: &str) -> bool {
    lookup(name).is_some_and(|value| !value.is_empty())
}

fn own_version(lookup: Lookup<'_>) -> Option<String> {
    text(lookup, "TERM_PROGRAM_VERSION")
}

/// Returns the version that a terminal says in a variable of its own.
fn version_of(kind: Kind, lookup: Lookup<'_>) -> Option<String> {
    let of_its_own = MARKS.iter().find(|(_, marked, _)| *marked == kind);
    of_its_own.and_then(|(_, _, version)| text(lookup, (*version)?))
}

/// Variables that one terminal sets, and the one that has its version.
const MARKS: [(&str, Kind, Option<&str>); 18] = [
    ("WEZTERM_VERSION", Kind::WezTerm, Some("WEZTERM_VERSION")),
    ("WEZTERM_PANE", Kind::WezTerm, Some("WEZTERM_VERSION")),
    (
        "ITERM_SESSION_ID",
        Kind::ITerm2,
        Some("LC_TERMINAL_VERSION"),
    ),
    ("GHOSTTY_RESOURCES_DIR", Kind::Ghostty, None),
    ("GHOSTTY_BIN_DIR", Kind::Ghostty, None),
    ("KITTY_WINDOW_ID", Kind::Kitty, None),
    ("KITTY_PID", Kind::Kitty, None),
    ("ALACRITTY_SOCKET", Kind::Alacritty, None),
    ("ALACRITTY_WINDOW_ID", Kind::Alacritty, None),
    ("KONSOLE_VERSION", Kind::Konsole, Some("KONSOLE_VERSION")),
    ("WARP_IS_LOCAL_SHELL_SESSION", Kind::Warp, None),
    ("VSCODE_INJECTION", Kind::VsCode, None),
    ("VSCODE_GIT_IPC_HANDLE", Kind::VsCode, None),
    ("ZED_TERM", Kind::Zed, None),
    ("WT_SESSION", Kind::WindowsTerminal, None),
    ("VTE_VERSION", Kind::Vte, Some("VTE_VERSION")),
    ("XTERM_VERSION", Kind::Xterm, Some("XTERM_VERSION")),
    ("TERMINAL_EMULATOR", Kind::JetBrains, None),
];

/// Finds the terminal whose description is its own.
fn of_term(term: &str) -> Option<Kind> {
    let family = |name: &str| {
        let rest = term.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let own = [
        ("alacritty", Kind::Alacritty),
        ("foot", Kind::Foot),
        ("ghostty", Kind::Ghostty),
        ("xterm-ghostty", Kind::Ghostty),
        ("konsole", Kind::Konsole),
        ("linux", Kind::LinuxConsole),
        ("mintty", Kind::Mintty),
        ("vte", Kind::Vte),
        ("wezterm", Kind::WezTerm),
        ("xterm-kitty", Kind::Kitty),
    ];
    own.into_iter()
        .find_map(|(name, kind)| family(name).then_some(kind))
}
