//! Watches guarded names: receives a command's seccomp notifications and passes them to the broker.

use std::ffi::c_int;

use super::{
    EncodedSetup, SetupFailure, StepCode,
    broker::{self, GuardTable},
    mount_view,
};
use crate::raw::{self, Errno};

/// Most guarded directories.
const MAX_DIRECTORIES: usize = 64;

/// The state that watches a sandboxed command from outside its Landlock domain.
#[derive(Debug)]
pub(crate) struct GuardWatch {
    guards: GuardTable,
    /// Guarded directories, kept open so that their inode numbers are not reused.
    directories: [c_int; MAX_DIRECTORIES],
    directory_count: usize,
    /// A procfs that shows the command.
    processes: c_int,
    /// The command's end of the socket pair over which it sends its listener.
    command_socket: c_int,
    own_socket: c_int,
    listener: c_int,
}

impl GuardWatch {
    /// Opens the guarded directories in the view, and a socket pair for the listener. `None`: there
    /// are no guards. `processes` is a procfs that will show the command; it is closed with the
    /// watch.
    pub(crate) fn open(
        parts: &EncodedSetup<'_>,
        processes: c_int,
    ) -> Result<Option<Self>, SetupFailure> {
        if !parts.has_guards() {
            return Ok(None);
        }
        if parts.filter().is_empty() {
            // Without a filter there are no notifications.
            return Err(StepCode::Filter.failure()(libc::EINVAL));
        }
        let mut guards = GuardTable::new(processes);
        let mut directories = [-1; MAX_DIRECTORIES];
        let mut directory_count = 0;
        for (index, (directory, names)) in (0..).zip(parts.guards()) {
            let to_failure = StepCode::Guard(index).failure();
            let directory = mount_view::open_path(directory)
                .map_err(&to_failure)?
                .into_raw();
            let place = directories.get_mut(directory_count);
            *place.ok_or(libc::ENOSPC).map_err(&to_failure)? = directory;
            directory_count += 1;
            for name in names {
                guards.add(directory, name.as_ptr()).map_err(&to_failure)?;
            }
        }
        let [own_socket, command_socket] =
            raw::socket_pair().map_err(StepCode::Guard(u32::MAX).failure())?;
        Ok(Some(Self {
            guards,
            directories,
            directory_count,
            processes,
            command_socket,
            own_socket,
            listener: -1,
        }))
    }

    /// Returns the socket to which the command sends its listener.
    pub(crate) fn command_socket(&self) -> c_int {
        self.command_socket
    }

    /// Receives the listener. Call this when the command has sent it, or has exited.
    pub(crate) fn receive_listener(&mut self) -> Result<(), Errno> {
        let _ = raw::close(self.command_socket);
        self.listener = raw::receive_descriptor(self.own_socket)?;
        let _ = raw::close(self.own_socket);
        broker::prepare(self.listener);
        Ok(())
    }

    /// Closes the watcher's descriptors in the watched process.
    pub(crate) fn close_own_side(&self) {
        let _ = raw::close(self.own_socket);
        let _ = raw::close(self.processes);
        for directory in &self.directories[..self.directory_count] {
            let _ = raw::close(*directory);
        }
    }

    /// Closes all descriptors except its own and `kept`.
    pub(crate) fn close_others<const N: usize>(&self, kept: [c_int; N]) {
        let mut first = 0;
        loop {
            let directories = self.directories[..self.directory_count].iter().copied();
            let own = directories.chain([self.listener, self.processes]);
            let Some(next) = own.chain(kept).filter(|fd| *fd >= first).min() else {
                break;
            };
            if next > first {
                let _ = raw::close_range(first, next - 1);
            }
            first = next + 1;
        }
        let _ = raw::close_range(first, c_int::MAX);
    }

    /// Answers notifications until `done` returns true. `done` is called when `wake` is readable.
    pub(crate) fn serve(&mut self, wake: c_int, mut done: impl FnMut() -> bool) {
        loop {
            let poll = |fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            };
            let mut fds = [poll(wake), poll(self.listener)];
            let _ = raw::poll(&mut fds, None);
            if fds[1].revents & libc::POLLIN != 0 {
                match broker::answer(self.listener, &self.guards) {
                    Ok(()) | Err(libc::ENOENT | libc::EAGAIN | libc::EINTR) => {}
                    // No process can notify any more; the kernel fails calls that would.
                    Err(_) => self.close_listener(),
                }
            } else if fds[1].revents != 0 {
                self.close_listener();
            }
            if fds[0].revents != 0 && done() {
                return;
            }
        }
    }

    fn close_listener(&mut self) {
        let _ = raw::close(self.listener);
        // Excluded from polling.
        self.listener = -1;
    }
}

/// Sends a command's seccomp listener to its watcher.
pub(crate) fn send_listener(listener: c_int, socket: c_int) -> Result<(), SetupFailure> {
    let sent = raw::send_descriptors(socket, &[listener]);
    sent.map_err(StepCode::Guard(u32::MAX).failure())?;
    let _ = raw::close(listener);
    let _ = raw::close(socket);
    Ok(())
}
