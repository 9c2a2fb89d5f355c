//! Detects the user's terminal and multiplexer from environment variables.
//!
//! [`DetectedTerminal::detect`] only reads variables: it queries no terminal, reads no file and
//! starts no program. Invariant: pure; hostile variables yield short and printable text. Not here:
//! size and modes of a terminal, which its descriptor knows.
//!
//! ```
//! use exec_cli::terminal_detection::DetectedTerminal;
//!
//! let terminal = DetectedTerminal::detect(&|name| match name {
//!     "TERM_PROGRAM" => Some("WezTerm".into()),
//!     "TERM_PROGRAM_VERSION" => Some("20240203".into()),
//!     "TERM" => Some("xterm-256color".into()),
//!     _ => None,
//! });
//! assert_eq!(terminal.token(), "wezterm/20240203");
//! ```

#[cfg(test)]
mod tests;

pub use exec_settings::settings_source::VariableLookup;

/// The user's terminal. Everything may be missing: variables are only hints.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DetectedTerminal {
    /// Known terminal.
    pub kind: Option<TerminalKind>,
    /// Name of an unknown terminal.
    pub program: Option<String>,
    /// Version.
    pub version: Option<String>,
    /// Multiplexer between the terminal and this process.
    pub multiplexer: Option<Multiplexer>,
    /// `TERM`: the terminal description.
    pub term: Option<String>,
    /// `COLORTERM`.
    pub colorterm: Option<String>,
    /// Whether it is reached over ssh.
    pub over_ssh: bool,
}

impl DetectedTerminal {
    /// Returns one line for a log or a header: `kitty/0.35.2 tmux/3.4 ssh`, or `unknown`. It is
    /// printable ASCII without brackets, at most 200 bytes, for any value of the variables.
    pub fn token(&self) -> String {
        let name = match (self.kind, &self.program, &self.term) {
            (Some(kind), _, _) => kind.name().to_owned(),
            (None, Some(program), _) => word(program),
            (None, None, Some(term)) => word(term),
            (None, None, None) => String::new(),
        };
        let mut words = vec![versioned(&name, self.version.as_deref())];
        if let Some(multiplexer) = &self.multiplexer {
            words.push(versioned(multiplexer.name(), multiplexer.version()));
        }
        if self.over_ssh {
            words.push("ssh".to_owned());
        }
        words.join(" ")
    }
}

fn versioned(name: &str, version: Option<&str>) -> String {
    let name = if name.is_empty() { "unknown" } else { name };
    match version.map(word).filter(|version| !version.is_empty()) {
        Some(version) => format!("{name}/{version}"),
        None => name.to_owned(),
    }
}

/// Known terminal.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum TerminalKind {
    /// Alacritty.
    Alacritty,
    /// Terminal of macOS.
    AppleTerminal,
    /// foot.
    Foot,
    /// Ghostty.
    Ghostty,
    /// Terminal based on VTE, such as GNOME Terminal.
    Vte,
    /// iTerm2.
    ITerm2,
    /// Terminal of a JetBrains editor.
    JetBrains,
    /// kitty.
    Kitty,
    /// Konsole.
    Konsole,
    /// Linux console.
    LinuxConsole,
    /// mintty.
    Mintty,
    /// Terminal of Visual Studio Code and its derivatives.
    VsCode,
    /// Warp.
    Warp,
    /// WezTerm.
    WezTerm,
    /// Windows Terminal.
    WindowsTerminal,
    /// xterm.
    Xterm,
    /// Terminal of Zed.
    Zed,
}

impl TerminalKind {
    /// Returns the name used in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alacritty => "alacritty",
            Self::AppleTerminal => "apple-terminal",
            Self::Foot => "foot",
            Self::Ghostty => "ghostty",
            Self::Vte => "vte",
            Self::ITerm2 => "iterm2",
            Self::JetBrains => "jetbrains",
            Self::Kitty => "kitty",
            Self::Konsole => "konsole",
            Self::LinuxConsole => "linux",
            Self::Mintty => "mintty",
            Self::VsCode => "vscode",
            Self::Warp => "warp",
            Self::WezTerm => "wezterm",
            Self::WindowsTerminal => "windows-terminal",
            Self::Xterm => "xterm",
            Self::Zed => "zed",
        }
    }

    /// Returns whether it always supports 24-bit colours.
    pub(crate) fn has_truecolor(self) -> bool {
        !matches!(self, Self::AppleTerminal | Self::LinuxConsole | Self::Xterm)
    }

    /// Finds the terminal with this value of `TERM_PROGRAM`.
    pub(crate) fn of_program(name: &str) -> Option<Self> {
        let name: String = name
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .map(|c| c.to_ascii_lowercase())
            .collect();
        Some(match name.as_str() {
            "alacritty" => Self::Alacritty,
            "appleterminal" => Self::AppleTerminal,
            "foot" => Self::Foot,
            "ghostty" => Self::Ghostty,
            "gnometerminal" | "vte" => Self::Vte,
            "iterm" | "iterm2" | "itermapp" => Self::ITerm2,
            "kitty" => Self::Kitty,
            "konsole" => Self::Konsole,
            "mintty" => Self::Mintty,
            "vscode" => Self::VsCode,
            "warp" | "warpterminal" => Self::Warp,
            "wezterm" => Self::WezTerm,
            "windowsterminal" => Self::WindowsTerminal,
            "zed" => Self::Zed,
            _ => return None,
        })
    }
}

/// Program between the terminal and this process.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Multiplexer {
    /// tmux, with its version if known.
    Tmux(Option<String>),
    /// GNU screen.
    Screen,
    /// Zellij, with its version if known.
    Zellij(Option<String>),
}

impl Multiplexer {
    /// Detects the multiplexer. Which one is innermost cannot be determined; tmux sets the most
    /// variables.
    pub(crate) fn detect(lookup: VariableLookup<'_>) -> Option<Self> {
        let is_set = |name| is_set(lookup, name);
        let program = text(lookup, "TERM_PROGRAM");
        let is_tmux = program.as_deref() == Some("tmux");
        if is_tmux || is_set("TMUX") || is_set("TMUX_PANE") {
            let version = text(lookup, "TERM_PROGRAM_VERSION").filter(|_| is_tmux);
            return Some(Self::Tmux(version));
        }
        if is_set("ZELLIJ") || is_set("ZELLIJ_SESSION_NAME") || is_set("ZELLIJ_VERSION") {
            return Some(Self::Zellij(text(lookup, "ZELLIJ_VERSION")));
        }
        is_set("STY").then_some(Self::Screen)
    }

    /// Returns the name used in logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Tmux(_) => "tmux",
            Self::Screen => "screen",
            Self::Zellij(_) => "zellij",
        }
    }

    /// Returns the version.
    pub fn version(&self) -> Option<&str> {
        match self {
            Self::Tmux(version) | Self::Zellij(version) => version.as_deref(),
            Self::Screen => None,
        }
    }
}

/// Variables for a pty on another host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PtyVariables {
    /// `TERM`: a description that the other host knows.
    pub term: String,
    /// `COLORTERM`, if the terminal supports 24-bit colours.
    pub colorterm: Option<&'static str>,
}

impl PtyVariables {
    /// Returns names and values.
    pub fn pairs(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let colorterm = self.colorterm.map(|value| ("COLORTERM", value));
        [("TERM", self.term.as_str())].into_iter().chain(colorterm)
    }
}

impl DetectedTerminal {
    /// Returns the variables for a pty on another host that is shown on this terminal.
    ///
    /// Common values of `TERM` are passed unchanged. Descriptions that come with a terminal itself,
    /// such as `xterm-kitty`, are unknown on other hosts and become `xterm-256color`, which all of
    /// these terminals understand.
    pub fn pty_variables(&self) -> PtyVariables {
        let common = self.term.as_deref().filter(|term| COMMON.contains(term));
        let term = match (common, self.term.as_deref()) {
            (Some(term), _) => term,
            (None, Some("dumb")) => "dumb",
            (None, Some(term)) if term.starts_with("screen") || term.starts_with("tmux") => {
                "screen-256color"
            }
            (None, _) => FALLBACK,
        };
        PtyVariables {
            term: term.to_owned(),
            colorterm: (term != "dumb" && self.has_truecolor()).then_some("truecolor"),
        }
    }

    /// Returns whether it supports 24-bit colours.
    pub fn has_truecolor(&self) -> bool {
        let colorterm = self.colorterm.as_deref();
        if matches!(colorterm, Some("truecolor" | "24bit")) {
            return true;
        }
        // Screen reduces colours.
        self.multiplexer.is_none() && self.kind.is_some_and(TerminalKind::has_truecolor)
    }
}

/// Fallback for descriptions that other hosts lack.
const FALLBACK: &str = "xterm-256color";

/// Descriptions in minimal installations.
const COMMON: [&str; 12] = [
    "ansi",
    "cygwin",
    "linux",
    "rxvt",
    "screen",
    "screen-256color",
    "vt100",
    "vt102",
    "vt220",
    "xterm",
    "xterm-256color",
    "xterm-color",
];

impl DetectedTerminal {
    /// Detects the terminal from variables.
    pub fn detect(lookup: VariableLookup<'_>) -> Self {
        let multiplexer = Multiplexer::detect(lookup);
        let term = text(lookup, "TERM");
        // A multiplexer overwrites `TERM_PROGRAM`.
        let program = text(lookup, "TERM_PROGRAM").filter(|name| name != "tmux");
        let program_kind = program.as_deref().and_then(TerminalKind::of_program);
        let marked = || MARKS.iter().find(|(name, _, _)| is_set(lookup, name));
        let (kind, version) = match &program {
            Some(_) => (program_kind, text(lookup, "TERM_PROGRAM_VERSION")),
            None => match marked() {
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

fn is_set(lookup: VariableLookup<'_>, name: &str) -> bool {
    lookup(name).is_some_and(|value| !value.is_empty())
}

/// Returns the version from a terminal's own variable.
fn version_of(kind: TerminalKind, lookup: VariableLookup<'_>) -> Option<String> {
    let of_its_own = MARKS.iter().find(|(_, marked, _)| *marked == kind);
    of_its_own.and_then(|(_, _, version)| text(lookup, (*version)?))
}

/// Variables that identify a terminal, and the one with its version.
const MARKS: [(&str, TerminalKind, Option<&str>); 18] = [
    (
        "WEZTERM_VERSION",
        TerminalKind::WezTerm,
        Some("WEZTERM_VERSION"),
    ),
    (
        "WEZTERM_PANE",
        TerminalKind::WezTerm,
        Some("WEZTERM_VERSION"),
    ),
    (
        "ITERM_SESSION_ID",
        TerminalKind::ITerm2,
        Some("LC_TERMINAL_VERSION"),
    ),
    ("GHOSTTY_RESOURCES_DIR", TerminalKind::Ghostty, None),
    ("GHOSTTY_BIN_DIR", TerminalKind::Ghostty, None),
    ("KITTY_WINDOW_ID", TerminalKind::Kitty, None),
    ("KITTY_PID", TerminalKind::Kitty, None),
    ("ALACRITTY_SOCKET", TerminalKind::Alacritty, None),
    ("ALACRITTY_WINDOW_ID", TerminalKind::Alacritty, None),
    (
        "KONSOLE_VERSION",
        TerminalKind::Konsole,
        Some("KONSOLE_VERSION"),
    ),
    ("WARP_IS_LOCAL_SHELL_SESSION", TerminalKind::Warp, None),
    ("VSCODE_INJECTION", TerminalKind::VsCode, None),
    ("VSCODE_GIT_IPC_HANDLE", TerminalKind::VsCode, None),
    ("ZED_TERM", TerminalKind::Zed, None),
    ("WT_SESSION", TerminalKind::WindowsTerminal, None),
    ("VTE_VERSION", TerminalKind::Vte, Some("VTE_VERSION")),
    ("XTERM_VERSION", TerminalKind::Xterm, Some("XTERM_VERSION")),
    ("TERMINAL_EMULATOR", TerminalKind::JetBrains, None),
];

/// Finds a terminal by its own description.
fn of_term(term: &str) -> Option<TerminalKind> {
    let family = |name: &str| {
        let suffix = term.strip_prefix(name);
        suffix.is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('-'))
    };
    let own = [
        ("alacritty", TerminalKind::Alacritty),
        ("foot", TerminalKind::Foot),
        ("ghostty", TerminalKind::Ghostty),
        ("xterm-ghostty", TerminalKind::Ghostty),
        ("konsole", TerminalKind::Konsole),
        ("linux", TerminalKind::LinuxConsole),
        ("mintty", TerminalKind::Mintty),
        ("vte", TerminalKind::Vte),
        ("wezterm", TerminalKind::WezTerm),
        ("xterm-kitty", TerminalKind::Kitty),
    ];
    own.into_iter()
        .find_map(|(name, kind)| family(name).then_some(kind))
}

/// Maximum length of a word.
const WORD: usize = 40;

/// Returns the text of a non-empty variable.
pub(crate) fn text(lookup: VariableLookup<'_>, name: &str) -> Option<String> {
    let value = lookup(name)?.into_string().ok()?;
    let value = value.trim();
    (!value.is_empty()).then(|| value.to_owned())
}

/// Reduces a text to letters, digits and `-_.+`, with `_` for everything else, and truncates it.
/// Returns an empty string if nothing is left.
pub(crate) fn word(text: &str) -> String {
    let word: String = text
        .chars()
        .take(WORD)
        .map(|c| match c {
            c if c.is_ascii_alphanumeric() => c,
            '-' | '_' | '.' | '+' => c,
            _ => '_',
        })
        .collect();
    match word.contains(|c: char| c.is_ascii_alphanumeric()) {
        true => word,
        false => String::new(),
    }
}
