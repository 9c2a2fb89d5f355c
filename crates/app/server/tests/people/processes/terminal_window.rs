//! A terminal window with a program in it.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::{
    fs::{OFlags, fcntl_setfl},
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcgetpgrp, tcsetwinsize},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    process::{Child, Command},
    time::timeout,
};

use crate::test_user::{TIMEOUT, within_timeout};

/// Program on a pty, which is its controlling terminal.
pub(crate) struct TerminalWindow {
    controller: AsyncFd<OwnedFd>,
    peer: OwnedFd,
    pub(crate) child: Child,
    /// Output that no test has consumed yet.
    unread: Vec<u8>,
}

impl TerminalWindow {
    /// Opens a window of this size and starts the program in it.
    pub(crate) fn open(command: &Command, (rows, columns): (u16, u16)) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let controller = openpt(flags).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let peer = ioctl_tiocgptpeer(&controller, flags).unwrap();
        resize(&controller, (rows, columns));
        fcntl_setfl(&controller, OFlags::NONBLOCK).unwrap();
        // Becomes a session leader before it executes the program.
        let mut on_terminal = Command::new("setsid");
        let command = command.as_std();
        on_terminal
            .arg("--ctty")
            .arg(command.get_program())
            .args(command.get_args());
        on_terminal.current_dir(command.get_current_dir().unwrap());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => on_terminal.env(name, value),
                None => on_terminal.env_remove(name),
            };
        }
        let theirs_too = || Stdio::from(peer.try_clone().unwrap());
        on_terminal
            .stdin(theirs_too())
            .stdout(theirs_too())
            .stderr(theirs_too())
            .kill_on_drop(true);
        Self {
            controller: exec_process::register(controller, Interest::READABLE).unwrap(),
            child: on_terminal.spawn().unwrap(),
            peer,
            unread: Vec::new(),
        }
    }

    /// Closes the window. Returns the program, which is notified only by the terminal.
    pub(crate) fn close(self) -> Child {
        self.child
    }

    /// Types until `text` is shown.
    pub(crate) async fn types_until(&mut self, keys: &str, text: &str) {
        let printed = timeout(TIMEOUT, async {
            while find(&self.unread, text.as_bytes()).is_none() {
                self.types(keys);
                // The next keys may be typed before these are read.
                drop(timeout(Duration::from_millis(2), self.read()).await);
            }
        });
        let printed = printed.await;
        assert!(printed.is_ok(), "no {text:?}: {}", self.remaining_output());
    }

    pub(crate) fn resize(&self, size: (u16, u16)) {
        resize(self.controller.get_ref(), size);
    }

    pub(crate) fn types(&self, keys: &str) {
        let written = rustix::io::write(self.controller.get_ref(), keys.as_bytes()).unwrap();
        assert_eq!(written, keys.len());
    }

    /// Returns whether the terminal is in raw mode.
    pub(crate) fn is_raw(&self) -> bool {
        let settings = tcgetattr(&self.peer).unwrap();
        !settings.local_modes.contains(LocalModes::ICANON)
    }

    /// Returns the terminal settings.
    pub(crate) fn settings(&self) -> String {
        format!("{:?}", tcgetattr(&self.peer).unwrap())
    }

    /// Waits until another process group than the program's is in the foreground.
    pub(crate) async fn is_lent(&self) {
        let own = self.child.id().map(u32::cast_signed);
        within_timeout(async {
            loop {
                let foreground = tcgetpgrp(self.controller.get_ref()).unwrap();
                if Some(foreground.as_raw_nonzero().get()) != own {
                    return;
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Waits until `text` is shown, and returns the output before it.
    pub(crate) async fn shows(&mut self, text: &str) -> String {
        let printed = timeout(TIMEOUT, self.until(text)).await;
        let printed = printed.unwrap_or_else(|late| Err(late.into()));
        printed.unwrap_or_else(|error| {
            let printed = String::from_utf8_lossy(&self.unread);
            panic!("{error} before {text:?}: {printed:?}")
        })
    }

    async fn until(&mut self, text: &str) -> io::Result<String> {
        loop {
            if let Some(at) = find(&self.unread, text.as_bytes()) {
                let remaining_output = self.unread.split_off(at + text.len());
                let before = std::mem::replace(&mut self.unread, remaining_output);
                return Ok(String::from_utf8_lossy(&before[..at]).into_owned());
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        let read = self.controller.async_io(Interest::READABLE, |controller| {
            Ok(rustix::io::read(controller.as_fd(), &mut buffer)?)
        });
        let read = read.await?;
        self.unread.extend_from_slice(&buffer[..read]);
        Ok(())
    }

    /// Returns the unconsumed output.
    pub(crate) fn remaining_output(&self) -> String {
        String::from_utf8_lossy(&self.unread)
            .escape_debug()
            .to_string()
    }

    /// Waits for the exit of the program, and reads its output meanwhile.
    pub(crate) async fn end(&mut self) -> ExitStatus {
        let ended = within_timeout(async {
            loop {
                tokio::select! {
                    ended = self.child.wait() => return ended.unwrap(),
                    read = self.controller.readable() => read.unwrap().clear_ready(),
                }
                self.drain();
            }
        });
        let ended = ended.await;
        self.drain();
        ended
    }

    /// Reads available output.
    fn drain(&mut self) {
        let mut buffer = [0; 4096];
        while let Ok(read) = rustix::io::read(self.controller.get_ref(), &mut buffer) {
            self.unread.extend_from_slice(&buffer[..read]);
        }
    }
}

fn resize(terminal: impl AsFd, (rows, columns): (u16, u16)) {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal, size).unwrap();
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}
