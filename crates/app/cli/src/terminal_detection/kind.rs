//! Terminals that are told apart.

/// A terminal that is known by name.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Kind {
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

impl Kind {
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
