//! Pseudo-terminals.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use exec_wire::process::TerminalSize;
use rustix::{
    fs::{OFlags, fcntl_setfl},
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{SpecialCodeIndex, Winsize, tcgetattr, tcsetwinsize},
};

/// A new terminal of this size: our end, the child's end.
pub(crate) fn open(size: TerminalSize) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let theirs = ioctl_tiocgptpeer(&ours, flags)?;
    resize(&ours, size)?;
    fcntl_setfl(&ours, OFlags::NONBLOCK)?;
    Ok((ours, theirs))
}

/// Sets the size; the foreground process group is told.
pub(crate) fn resize(terminal: impl AsFd, size: TerminalSize) -> io::Result<()> {
    let TerminalSize { rows, cols } = size;
    let size = Winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(tcsetwinsize(terminal, size)?)
}

/// Returns the character that means end of file, as the terminal is set now.
pub(crate) fn end_of_file(terminal: impl AsFd) -> u8 {
    const CONTROL_D: u8 = 4;
    tcgetattr(terminal).map_or(CONTROL_D, |settings| {
        settings.special_codes[SpecialCodeIndex::VEOF]
    })
}
