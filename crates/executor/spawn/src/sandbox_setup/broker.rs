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
mod descriptor;
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
    open_call::OpenCall,
    seccomp_notification::Caller,
    seccomp_notification::{BrokerReply, SeccompNotification},
    target_entry::PathBuffer,
};
use crate::raw::Errno;

pub(crate) use self::{guard_table::GuardTable, seccomp_notification::prepare};

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
pub(crate) fn answer(listener: c_int, guards: &GuardTable) -> Result<(), Errno> {
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
    if let Some(opening) = opening(&caller, number, args) {
        return opening.answer(&caller, guards, buffers);
    }
    if let Some(making) = making(number, args) {
        return making.answer(&caller, guards, buffers);
    }
    if let Some(pair) = link(number, args) {
        return pair.link(&caller, guards, buffers);
    }
    if let Some(binding) = binding(number, args) {
        return binding.answer(&caller, guards, buffers);
    }
    rename(number, args)?.rename(&caller, guards, buffers)
}

fn opening(caller: &Caller<'_>, number: i64, args: [u64; 6]) -> Option<OpenCall> {
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

fn making(number: i64, args: [u64; 6]) -> Option<CreateCall> {
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

fn link(number: i64, args: [u64; 6]) -> Option<TwoPathCall> {
    let [a, b, c, d, e, _] = args;
    match number {
        libc::SYS_linkat => Some(TwoPathCall::of(int(a), b, int(c), d, int(e))),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_link => Some(TwoPathCall::of(libc::AT_FDCWD, a, libc::AT_FDCWD, b, 0)),
        _ => None,
    }
}

fn rename(number: i64, args: [u64; 6]) -> Option<TwoPathCall> {
    let [a, b, c, d, e, _] = args;
    match number {
        libc::SYS_renameat2 => Some(TwoPathCall::of(int(a), b, int(c), d, int(e))),
        libc::SYS_renameat => Some(TwoPathCall::of(int(a), b, int(c), d, 0)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename => Some(TwoPathCall::of(libc::AT_FDCWD, a, libc::AT_FDCWD, b, 0)),
        _ => None,
    }
}

fn binding(number: i64, args: [u64; 6]) -> Option<BindCall> {
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
