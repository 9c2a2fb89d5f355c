//! The broker: creates files, directories, links and sockets on behalf of a sandboxed command,
//! unless the name is guarded.
//!
//! The command's own Landlock domain forbids creating anything, and its seccomp filter notifies the
//! broker of the calls that would. The broker, outside that domain, makes the same call for the
//! command.
//!
//! Two invariants protect the guarded names. First, letting a call continue is always safe, even if
//! the caller changes its memory meanwhile: the kernel then creates nothing. Second, the
//! broker names a new entry by a descriptor of the directory, which it opened and compared with
//! the guards, and by its own copy of the last path component, which it compared, too. A socket is
//! bound to the whole path as written, but only at or below that directory, and only to a name that
//! is guarded nowhere.
//!
//! The broker shares the spawner's memory: it never allocates, locks, panics or touches
//! thread-local state. Elsewhere: which calls notify (`exec-sandbox` writes the filter).

mod bind_call;
mod entry_calls;
mod guard_table;
mod open_call;
mod seccomp_notification;
mod target_entry;
#[cfg(test)]
mod tests;

use std::ffi::c_int;

use self::{
    bind_call::BindCall,
    entry_calls::{CreateCall, EntryKind, TwoPathCall},
    guard_table::GuardTable,
    open_call::OpenCall,
    seccomp_notification::{BrokerReply, Caller, SeccompNotification, prepare},
    target_entry::PathBuffer,
};
use super::{EncodedSetup, SetupFailure, StepCode, mount_view};
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
            let slot = directories.get_mut(directory_count);
            *slot.ok_or(libc::ENOSPC).map_err(&to_failure)? = directory;
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
        prepare(self.listener);
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

    /// Closes all descriptors except its own and `others`.
    pub(crate) fn close_others<const N: usize>(&self, others: [c_int; N]) {
        let directories = self.directories[..self.directory_count].iter().copied();
        let own = directories.chain([self.listener, self.processes]);
        let _ = raw::close_from_except(0, own.chain(others));
    }

    /// Answers notifications until `is_done` returns true. `is_done` is called when `wake` is readable.
    pub(crate) fn serve(&mut self, wake: c_int, mut is_done: impl FnMut() -> bool) {
        loop {
            let mut fds = [wake, self.listener].map(raw::poll_in);
            let _ = raw::poll(&mut fds, None);
            if fds[1].revents & libc::POLLIN != 0 {
                match answer(self.listener, &self.guards) {
                    Ok(()) | Err(libc::ENOENT | libc::EAGAIN | libc::EINTR) => {}
                    // No process can notify any more; the kernel fails calls that would.
                    Err(_) => self.close_listener(),
                }
            } else if fds[1].revents != 0 {
                self.close_listener();
            }
            if fds[0].revents != 0 && is_done() {
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

/// Buffers for the paths of one call, which make up most of the broker's stack.
#[derive(Debug)]
struct PathBuffers {
    /// The path of the call, or the old path.
    first: PathBuffer,
    /// The new path, or the target of a link.
    second: PathBuffer,
}

impl PathBuffers {
    const EMPTY: Self = Self {
        first: PathBuffer::EMPTY,
        second: PathBuffer::EMPTY,
    };
}

/// Receives one notification, makes the call unless the name is guarded, and replies. Waits for
/// a notification if none is pending.
///
/// The filter must be installed with `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`; otherwise a signal
/// makes callers repeat a call that was already made. Signals must be blocked here: one that
/// arrives while a descriptor is transferred could leave the caller without it.
///
/// # Errors
/// Returns errors of the listener. A caller that has exited is not an error.
fn answer(listener: c_int, guards: &GuardTable) -> Result<(), Errno> {
    let Some(notification) = SeccompNotification::receive(listener)? else {
        return Ok(());
    };
    let mut buffers = PathBuffers::EMPTY;
    let answer = handle_call(&notification, guards, &mut buffers).unwrap_or(BrokerReply::Continue);
    notification.answer(answer)
}

/// Makes the call of a notification. `None`: let the kernel handle it.
fn handle_call(
    notification: &SeccompNotification,
    guards: &GuardTable,
    buffers: &mut PathBuffers,
) -> Option<BrokerReply> {
    let caller = Caller::of(notification, guards)?;
    let number = notification.number()?;
    let args = notification.arguments();
    if let Some(open_call) = open_call(&caller, number, args) {
        return open_call.answer(&caller, guards, buffers);
    }
    if let Some(create_call) = create_call(number, args) {
        return create_call.answer(&caller, guards, buffers);
    }
    if let Some(call) = link_call(number, args) {
        return call.link(&caller, guards, buffers);
    }
    if let Some(bind_call) = bind_call(number, args) {
        return bind_call.answer(&caller, guards, buffers);
    }
    rename_call(number, args)?.rename(&caller, guards, buffers)
}

fn open_call(caller: &Caller<'_>, number: i64, args: [u64; 6]) -> Option<OpenCall> {
    let [a, b, c, d, ..] = args;
    let (directory, path, flags, mode) = match number {
        libc::SYS_openat => (int(a), b, int(c), d),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => (libc::AT_FDCWD, a, int(b), c),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_creat => {
            let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
            (libc::AT_FDCWD, a, flags, b)
        }
        libc::SYS_openat2 => return OpenCall::read(caller, int(a), b, c, d),
        _ => return None,
    };
    Some(OpenCall {
        directory,
        path,
        flags,
        mode: mode_of(mode),
        resolve: 0,
    })
}

fn create_call(number: i64, args: [u64; 6]) -> Option<CreateCall> {
    let [a, b, c, ..] = args;
    let (directory, path, what) = match number {
        libc::SYS_mkdirat => (int(a), b, EntryKind::Directory { mode: mode_of(c) }),
        libc::SYS_mknodat => (int(a), b, EntryKind::Node { mode: mode_of(c) }),
        libc::SYS_symlinkat => (int(b), c, EntryKind::Link { target: a }),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_mkdir => (libc::AT_FDCWD, a, EntryKind::Directory { mode: mode_of(b) }),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_mknod => (libc::AT_FDCWD, a, EntryKind::Node { mode: mode_of(b) }),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_symlink => (libc::AT_FDCWD, b, EntryKind::Link { target: a }),
        _ => return None,
    };
    Some(CreateCall {
        directory,
        path,
        what,
    })
}

fn link_call(number: i64, args: [u64; 6]) -> Option<TwoPathCall> {
    let [a, b, c, d, e, _] = args;
    match number {
        libc::SYS_linkat => Some(TwoPathCall::of(int(a), b, int(c), d, int(e))),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_link => Some(TwoPathCall::of(libc::AT_FDCWD, a, libc::AT_FDCWD, b, 0)),
        _ => None,
    }
}

fn rename_call(number: i64, args: [u64; 6]) -> Option<TwoPathCall> {
    let [a, b, c, d, e, _] = args;
    match number {
        libc::SYS_renameat2 => Some(TwoPathCall::of(int(a), b, int(c), d, int(e))),
        libc::SYS_renameat => Some(TwoPathCall::of(int(a), b, int(c), d, 0)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename => Some(TwoPathCall::of(libc::AT_FDCWD, a, libc::AT_FDCWD, b, 0)),
        _ => None,
    }
}

fn bind_call(number: i64, args: [u64; 6]) -> Option<BindCall> {
    let [socket, address, length, ..] = args;
    (number == libc::SYS_bind).then_some(BindCall {
        socket: int(socket),
        address,
        length: int(length),
    })
}

/// Returns the half of a register that the kernel uses for an int.
fn int(register: u64) -> c_int {
    let [a, b, c, d, ..] = register.to_le_bytes();
    c_int::from_le_bytes([a, b, c, d])
}

/// Returns the part of a register that the kernel uses for a mode.
fn mode_of(register: u64) -> usize {
    let [a, b, ..] = register.to_le_bytes();
    usize::from(u16::from_le_bytes([a, b]))
}
