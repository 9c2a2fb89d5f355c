//! The terminal that a person sits at: whether there is one, its size, and its raw mode.
//! Invariant: a terminal that was made raw is given back when its guard goes, also by a panic.
//! Not here: which program the terminal is (`exec-terminal`).

use std::{io, os::fd::BorrowedFd};

use exec_wire::process::TerminalSize;
use rustix::{
    stdio::{stderr, stdin, stdout},
    termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr},
};

/// One of the three descriptors that every program begins with.
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

    /// Tells whether it is a terminal.
    pub(crate) fn is_terminal(self) -> bool {
        isatty(self.fd())
    }
}

/// Returns the size of the person's terminal, if there is one.
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

/// A terminal whose every key is passed on as it is. Dropping it gives the terminal back.
#[derive(Debug)]
pub(crate) struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    /// Makes the terminal on standard input raw; `None` if there is none.
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

    /// Makes it raw again after [`give_back`](Self::give_back).
    pub(crate) fn make_raw(&self) -> io::Result<()> {
        let mut raw = self.before.clone();
        raw.make_raw();
        Ok(tcsetattr(stdin(), OptionalActions::Now, &raw)?)
    }

    /// Puts it back as it was found.
    pub(crate) fn give_back(&self) {
        // A terminal that is gone needs nothing.
        let _gone = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Tells whether text on a descriptor may have colours: on a terminal, unless `NO_COLOR` is set.
pub(crate) fn has_colours(standard: StandardStream) -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && standard.is_terminal()
}
