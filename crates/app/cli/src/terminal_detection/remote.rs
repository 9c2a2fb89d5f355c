//! What a pty on another host is told of the terminal here.

use crate::terminal_detection::Terminal;

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

impl Terminal {
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
        self.multiplexer.is_none()
            && self
                .kind
                .is_some_and(crate::terminal_detection::Kind::has_truecolor)
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
