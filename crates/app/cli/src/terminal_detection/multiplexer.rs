//! Multiplexers: terminals in which terminals are.

use crate::terminal_detection::{Lookup, token};

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
    pub(crate) fn detect(lookup: Lookup<'_>) -> Option<Self> {
        let is_set = |name| lookup(name).is_some_and(|value| !value.is_empty());
        let program = token::text(lookup, "TERM_PROGRAM");
        let is_tmux = program.as_deref() == Some("tmux");
        if is_tmux || is_set("TMUX") || is_set("TMUX_PANE") {
            let version = token::text(lookup, "TERM_PROGRAM_VERSION").filter(|_| is_tmux);
            return Some(Self::Tmux(version));
        }
        if is_set("ZELLIJ") || is_set("ZELLIJ_SESSION_NAME") || is_set("ZELLIJ_VERSION") {
            return Some(Self::Zellij(token::text(lookup, "ZELLIJ_VERSION")));
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
