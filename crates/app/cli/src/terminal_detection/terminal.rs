//! What is known of the terminal.

use crate::terminal_detection::{Kind, Multiplexer, token::word};

/// The terminal that a person sits in. Everything in it may be missing: a variable is only a hint.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Terminal {
    /// Which one, if it is known by name.
    pub kind: Option<Kind>,
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

impl Terminal {
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
