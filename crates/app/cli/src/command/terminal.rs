//! The user's terminal: detection, size and raw mode.
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
    before: Termios,
}

impl RawTerminal {
    /// Switches the terminal on stdin to raw mode; `None` if stdin is not a terminal.
    pub(crate) fn take() -> io::Result<Option<Self>> {
        if !StandardStream::Input.is_terminal() {
            return Ok(None);
        }
        let raw = Self {
            before: tcgetattr(stdin())?,
        };
        raw.make_raw()?;
        Ok(Some(raw))
    }

    /// Switches to raw mode again after [`give_back`](Self::give_back).
    pub(crate) fn make_raw(&self) -> io::Result<()> {
        let mut raw = self.before.clone();
        raw.make_raw();
        Ok(tcsetattr(stdin(), OptionalActions::Now, &raw)?)
    }

    /// Restores the original mode.
    pub(crate) fn give_back(&self) {
        // A terminal that is gone needs no restoring.
        let _gone = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Returns whether to use colours: on a terminal, unless `NO_COLOR` is set.
pub(crate) fn has_colours(standard: StandardStream) -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && standard.is_terminal()
}
