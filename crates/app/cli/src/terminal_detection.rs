//! Which terminal and multiplexer a person sits in, from the variables of their environment alone.
//!
//! [`DetectedTerminal::detect`] asks for variables and nothing else: no terminal is queried, no file read, no
//! program started. Invariant: pure, and what it makes of hostile variables is short and printable.
//! Not here: sizes and modes of a terminal, which its descriptor knows.
//!
//! ```
//! use exec_cli::terminal_detection::Terminal;
//!
//! let terminal = Terminal::detect(&|name| match name {
//!     "TERM_PROGRAM" => Some("WezTerm".into()),
//!     "TERM_PROGRAM_VERSION" => Some("20240203".into()),
//!     "TERM" => Some("xterm-256color".into()),
//!     _ => None,
//! });
//! assert_eq!(terminal.token(), "wezterm/20240203");
//! ```

#[cfg(test)]
mod tests;

/// Gives the value of an environment variable, as `std::env::var_os` does.
pub type VariableLookup<'a> = &'a dyn Fn(&str) -> Option<std::ffi::OsString>;

/// The terminal that a person sits in. Everything in it may be missing: a variable is only a hint.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DetectedTerminal {
    /// Which one, if it is known by name.
    pub kind: Option<TerminalKind>,
    /// What it calls itself, if it is not.
    pub program: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// What is between it and this process.
    pub multiplexer: Option<Multiplexer>,
    /// `TERM`: how programs are to write to it.
    pub term: Option<String>,
    /// `COLORTERM`, as it is set here.
    pub colorterm: Option<String>,
    /// Whether it is reached over ssh, so that it is on another machine.
    pub over_ssh: bool,
}

impl DetectedTerminal {
    /// Returns one line for a log or a header: `kitty/0.35.2 tmux/3.4 ssh`, or `unknown`. It has
    /// printable ASCII alone, no brackets, and at most 200 bytes, whatever the variables hold.
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

/// A terminal that is known by name.
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
    /// A terminal built on VTE, such as GNOME Terminal.
    Vte,
    /// iTerm2.
    ITerm2,
    /// A terminal of a JetBrains editor.
    JetBrains,
    /// kitty.
    Kitty,
    /// Konsole.
    Konsole,
    /// The console of Linux itself.
    LinuxConsole,
    /// mintty.
    Mintty,
    /// The terminal of Visual Studio Code and of editors made from it.
    VsCode,
    /// Warp.
    Warp,
    /// WezTerm.
    WezTerm,
    /// Windows Terminal.
    WindowsTerminal,
    /// xterm itself.
    Xterm,
    /// The terminal of Zed.
    Zed,
}

impl TerminalKind {
    /// Returns its name, as logs have it.
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

    /// Tells whether it shows 24-bit colours, whatever else is set.
    pub(crate) fn has_truecolor(self) -> bool {
        match self {
            Self::Alacritty
            | Self::Foot
            | Self::Ghostty
            | Self::Vte
            | Self::ITerm2
            | Self::JetBrains
            | Self::Kitty
            | Self::Konsole
            | Self::Mintty
            | Self::VsCode
            | Self::Warp
            | Self::WezTerm
            | Self::WindowsTerminal
            | Self::Zed => true,
            Self::AppleTerminal | Self::LinuxConsole | Self::Xterm => false,
        }
    }

    /// Finds the terminal that calls itself this in `TERM_PROGRAM`.
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

/// A program between the person's terminal and this process.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Multiplexer {
    /// tmux, and its version if it says one.
    Tmux(Option<String>),
    /// GNU screen.
    Screen,
    /// Zellij, and its version if it says one.
    Zellij(Option<String>),
}

impl Multiplexer {
    /// Finds it. The innermost is the one whose variables were set last, which cannot be told; tmux
    /// names itself in more of them than others.
    pub(crate) fn detect(lookup: VariableLookup<'_>) -> Option<Self> {
        let is_set = |name| lookup(name).is_some_and(|value| !value.is_empty());
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

    /// Returns its name, as logs have it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Tmux(_) => "tmux",
            Self::Screen => "screen",
            Self::Zellij(_) => "zellij",
        }
    }

    /// Returns its version.
    pub fn version(&self) -> Option<&str> {
        match self {
            Self::Tmux(version) | Self::Zellij(version) => version.as_deref(),
            Self::Screen => None,
        }
    }
}

/// The variables of a pty on another host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PtyVariables {
    /// `TERM`: a description that the other host knows.
    pub term: String,
    /// `COLORTERM`, if the terminal shows 24-bit colours.
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
    /// Returns the variables for a pty on another host, on which this terminal's output is written.
    ///
    /// `TERM` goes as it is if most hosts have its description. One that came with the terminal
    /// itself, such as `xterm-kitty`, is unknown elsewhere, and programs would refuse to start: those
    /// become `xterm-256color`, which all of them understand.
    pub fn pty_variables(&self) -> PtyVariables {
        let known = self.term.as_deref().filter(|term| COMMON.contains(term));
        let term = match (known, self.term.as_deref()) {
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

    /// Tells whether it shows 24-bit colours.
    pub fn has_truecolor(&self) -> bool {
        let said = self.colorterm.as_deref();
        if matches!(said, Some("truecolor" | "24bit")) {
            return true;
        }
        // Screen reduces colours, whatever is around it.
        self.multiplexer.is_none() && self.kind.is_some_and(TerminalKind::has_truecolor)
    }
}

/// What is sent instead of a description that other hosts lack.
const FALLBACK: &str = "xterm-256color";

/// Descriptions that come with the smallest installations.
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
    /// Finds out, from variables alone.
    pub fn detect(lookup: VariableLookup<'_>) -> Self {
        let multiplexer = Multiplexer::detect(lookup);
        let term = text(lookup, "TERM");
        // A multiplexer puts its own name where its terminal's was.
        let program = text(lookup, "TERM_PROGRAM").filter(|name| name != "tmux");
        let named = program.as_deref().and_then(TerminalKind::of_program);
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

fn is_set(lookup: VariableLookup<'_>, name: &str) -> bool {
    lookup(name).is_some_and(|value| !value.is_empty())
}

fn own_version(lookup: VariableLookup<'_>) -> Option<String> {
    text(lookup, "TERM_PROGRAM_VERSION")
}

/// Returns the version that a terminal says in a variable of its own.
fn version_of(kind: TerminalKind, lookup: VariableLookup<'_>) -> Option<String> {
    let of_its_own = MARKS.iter().find(|(_, marked, _)| *marked == kind);
    of_its_own.and_then(|(_, _, version)| text(lookup, (*version)?))
}

/// Variables that one terminal sets, and the one that has its version.
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

/// Finds the terminal whose description is its own.
fn of_term(term: &str) -> Option<TerminalKind> {
    let family = |name: &str| {
        let rest = term.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
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

/// The longest word that is kept of a variable.
const WORD: usize = 40;

/// Returns the text of a variable that is set to something.
pub(crate) fn text(lookup: VariableLookup<'_>, name: &str) -> Option<String> {
    let value = lookup(name)?.into_string().ok()?;
    let value = value.trim();
    (!value.is_empty()).then(|| value.to_owned())
}

/// Makes a word of any text: letters, digits and `-_.+`, and `_` for everything else, cut where it
/// gets long. Nothing is left of text that has none of them.
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
