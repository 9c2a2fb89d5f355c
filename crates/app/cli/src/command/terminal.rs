//! The user's terminal: detection, size, raw mode, and the modes that a program has enabled, so
//! that leaving it resets those and no others.
//!
//! Invariant: a terminal in raw mode is restored when its guard is dropped, also on a panic. Not
//! here: which terminal program it is (`terminal_detection`).

use std::{io, os::fd::BorrowedFd};

use exec_wire::process::TerminalSize;
use rustix::{
    stdio::{stderr, stdin, stdout},
    termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr},
};

/// One of the three standard streams.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum StandardStream {
    /// Standard input.
    Input,
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

impl StandardStream {
    /// Returns the descriptor.
    pub(crate) fn fd(self) -> BorrowedFd<'static> {
        match self {
            Self::Input => stdin(),
            Self::Output => stdout(),
            Self::Error => stderr(),
        }
    }

    /// Returns whether it is a terminal.
    pub(crate) fn is_terminal(self) -> bool {
        isatty(self.fd())
    }
}

/// Returns the size of the user's terminal, if there is one.
pub(crate) fn size() -> Option<TerminalSize> {
    [
        StandardStream::Output,
        StandardStream::Input,
        StandardStream::Error,
    ]
    .into_iter()
    .filter_map(|standard| tcgetwinsize(standard.fd()).ok())
    .map(|size| TerminalSize {
        rows: size.ws_row,
        cols: size.ws_col,
    })
    .find(|size| size.rows > 0 && size.cols > 0)
}

/// Terminal in raw mode. Dropping it restores the terminal.
#[derive(Debug)]
pub(crate) struct RawTerminal {
    original: Termios,
}

impl RawTerminal {
    /// Switches the terminal on stdin to raw mode; `None` if stdin is not a terminal.
    pub(crate) fn take() -> io::Result<Option<Self>> {
        if !StandardStream::Input.is_terminal() {
            return Ok(None);
        }
        let raw = Self {
            original: tcgetattr(stdin())?,
        };
        raw.make_raw()?;
        Ok(Some(raw))
    }

    /// Switches to raw mode again after [`restore`](Self::restore).
    pub(crate) fn make_raw(&self) -> io::Result<()> {
        let mut raw = self.original.clone();
        raw.make_raw();
        Ok(tcsetattr(stdin(), OptionalActions::Now, &raw)?)
    }

    /// Restores the original mode.
    pub(crate) fn restore(&self) {
        // A terminal that is gone needs no restoring.
        let _gone = tcsetattr(stdin(), OptionalActions::Now, &self.original);
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        self.restore();
    }
}

/// How text of servers is printed to stdout.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum OutputStyle {
    /// With colours and without control characters.
    Colours,
    /// Without colours and control characters.
    Printable,
    /// Unchanged.
    Plain,
}

impl OutputStyle {
    /// Returns the style that suits stdout.
    pub(crate) fn of_stdout() -> Self {
        match StandardStream::Output.is_terminal() {
            true if has_colours(StandardStream::Output) => Self::Colours,
            true => Self::Printable,
            false => Self::Plain,
        }
    }
}

/// Returns whether to use colours: on a terminal, unless `NO_COLOR` is set.
pub(crate) fn has_colours(standard: StandardStream) -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && standard.is_terminal()
}

/// Maximum length of control sequence parameters. Longer ones set none of the tracked modes.
const MAX_PARAMETER_BYTES: usize = 64;

/// Private modes that a full-screen program leaves enabled when interrupted: the numbers of `CSI ?
/// … h` and `CSI ? … l`.
const MODES: [u16; 12] = [
    // Alternate screen.
    47, 1047, 1049, //
    // Mouse and focus reports.
    9, 1000, 1002, 1003, 1004, 1005, 1006, 1015, //
    // Bracketed paste.
    2004,
];
/// Modes that show the alternate screen.
const ALTERNATE_SCREEN: [u16; 3] = [47, 1047, 1049];
/// Cursor visibility, for which disabled is the unusual state.
const CURSOR: u16 = 25;

/// Modes of a terminal, derived from its output.
#[derive(Clone, Debug, Default)]
pub(crate) struct TerminalModeTracker {
    state: ParserState,
    parameters: Vec<u8>,
    on: [bool; MODES.len()],
    hidden_cursor: bool,
    styled: bool,
}

/// Parser state.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum ParserState {
    #[default]
    Text,
    /// After ESC.
    Escape,
    /// After `ESC [`.
    Sequence,
}

impl TerminalModeTracker {
    /// Parses output.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.state == ParserState::Text {
                let Some(at) = bytes.iter().position(|byte| *byte == 0x1b) else {
                    return;
                };
                self.state = ParserState::Escape;
                bytes = &bytes[at + 1..];
                continue;
            }
            self.take(bytes[0]);
            bytes = &bytes[1..];
        }
    }

    fn take(&mut self, byte: u8) {
        self.state = match (self.state, byte) {
            (_, 0x1b) => ParserState::Escape,
            (ParserState::Escape, b'[') => {
                self.parameters.clear();
                ParserState::Sequence
            }
            // Full reset.
            (ParserState::Escape, b'c') => {
                *self = Self::default();
                ParserState::Text
            }
            (ParserState::Sequence, 0x20..=0x3f) => {
                if self.parameters.len() < MAX_PARAMETER_BYTES {
                    self.parameters.push(byte);
                }
                ParserState::Sequence
            }
            (ParserState::Sequence, 0x40..=0x7e) => {
                self.end_sequence(byte);
                ParserState::Text
            }
            (ParserState::Sequence, _) => ParserState::Sequence,
            (ParserState::Escape | ParserState::Text, _) => ParserState::Text,
        };
    }

    fn end_sequence(&mut self, kind: u8) {
        let parameters = std::mem::take(&mut self.parameters);
        let Ok(parameters) = str::from_utf8(&parameters) else {
            return;
        };
        match (kind, parameters.strip_prefix('?')) {
            (b'h' | b'l', Some(modes)) => {
                for mode in modes.split(';').filter_map(|mode| mode.parse().ok()) {
                    self.set(mode, kind == b'h');
                }
            }
            (b'm', None) => self.styled = !matches!(parameters, "" | "0"),
            _ => {}
        }
    }

    fn set(&mut self, mode: u16, on: bool) {
        if mode == CURSOR {
            self.hidden_cursor = !on;
        } else if let Some(index) = MODES.iter().position(|tracked| *tracked == mode) {
            self.on[index] = on;
        }
    }

    /// Returns whether a full-screen program has the screen.
    pub(crate) fn is_alternate_screen(&self) -> bool {
        let is_on = |mode| {
            MODES
                .iter()
                .zip(self.on)
                .any(|(one, on)| *one == mode && on)
        };
        ALTERNATE_SCREEN.into_iter().any(is_on)
    }

    /// Returns the sequences that disable every enabled mode.
    pub(crate) fn reset(&self) -> Vec<u8> {
        let mut reset = String::new();
        for (mode, on) in MODES.iter().zip(self.on) {
            if on {
                reset.push_str(&format!("\x1b[?{mode}l"));
            }
        }
        if self.hidden_cursor {
            reset.push_str("\x1b[?25h");
        }
        if self.styled {
            reset.push_str("\x1b[0m");
        }
        reset.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reset_after(output: &[u8]) -> String {
        let mut modes = TerminalModeTracker::default();
        modes.feed(output);
        String::from_utf8(modes.reset()).unwrap()
    }

    #[test]
    fn no_reset_without_enabled_modes() {
        for output in [
            &b"plain text\r\n"[..],
            b"\x1b[31mred\x1b[0m \x1b[2J\x1b[1;1H",
            b"\x1b[?1049h\x1b[?25l top \x1b[?25h\x1b[?1049l",
            b"\x1b[?2004h\x1bc",
            b"\x1b]0;title ?1049h\x07",
        ] {
            assert_eq!(reset_after(output), "", "{}", output.escape_ascii());
        }
    }

    #[test]
    fn enabled_modes_are_reset() {
        assert_eq!(
            reset_after(b"\x1b[?1049h\x1b[?1002;1006h\x1b[?25l\x1b[1;32mx"),
            "\x1b[?1049l\x1b[?1002l\x1b[?1006l\x1b[?25h\x1b[0m"
        );
    }

    #[test]
    fn alternate_screen_is_tracked() {
        let mut modes = TerminalModeTracker::default();
        for (output, is_on) in [
            (&b"\x1b[?2004h"[..], false),
            (b"\x1b[?1049h", true),
            (b"\x1b[?1049l", false),
            (b"\x1b[?47h\x1bc", false),
        ] {
            modes.feed(output);
            assert_eq!(modes.is_alternate_screen(), is_on);
        }
    }

    #[test]
    fn control_sequences_are_parsed_across_chunks() {
        let mut modes = TerminalModeTracker::default();
        for byte in b"\x1b[?2004h" {
            modes.feed(&[*byte]);
        }
        assert_eq!(modes.reset(), b"\x1b[?2004l");
    }

    #[test]
    fn overlong_parameters_are_dropped() {
        let mut modes = TerminalModeTracker::default();
        modes.feed(b"\x1b[?");
        modes.feed(&[b'1'; 100_000]);
        assert!(modes.parameters.len() <= MAX_PARAMETER_BYTES);
        modes.feed(b"h");
        assert_eq!(modes.reset(), b"");
    }
}
