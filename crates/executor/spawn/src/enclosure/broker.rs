//! The broker: makes files, directories, links and sockets for an enclosed command, unless the name
//! is a guarded one.
//!
//! The command's own Landlock domain lets it make nothing, and its filter notifies of the calls that
//! would. The broker, outside of that domain, makes the same call in its stead.
//!
//! Two invariants carry the protection. Letting a call continue is always safe, whatever the caller
//! writes to its memory meanwhile: the kernel then makes nothing. And what the broker makes itself
//! is named by a descriptor of the directory, which it opened and compared with the guards, and by
//! its own copy of the last part of the path, which it compared, too. A socket is bound to the whole
//! path as it was written, but only at or below that directory, and to a name that is guarded nowhere.
//!
//! It shares the memory of a spawner: it never allocates, locks, panics or touches thread-local
//! state.
//!
//! Not here: which calls notify (`exec-sandbox` writes the filter).

mod bind_call;
mod caller;
mod descriptor;
mod entry_calls;
mod guard_table;
mod notification;
mod open_call;
mod target_entry;
#[cfg(test)]
mod tests;

use std::ffi::c_int;

use self::{
    bind_call::BindCall,
    caller::Caller,
    entry_calls::{CreateCall, EntryKind, TwoPathCall},
    notification::{BrokerReply, SeccompNotification},
    open_call::OpenCall,
    target_entry::PathBuffer,
};
use crate::raw::Errno;

pub(crate) use self::{guard_table::GuardTable, notification::prepare};

/// Buffers for the paths of one call. They are most of what the broker needs of its stack.
#[derive(Debug)]
struct PathBuffers {
    /// The path of the call, or the old one.
    first: PathBuffer,
    /// The new path, or what a link points to.
    second: PathBuffer,
}

impl PathBuffers {
    const EMPTY: Self = Self {
        first: PathBuffer::EMPTY,
        second: PathBuffer::EMPTY,
    };
}

/// Receives one notification, does what it asks for unless the name is guarded, and answers it.
/// Waits if there is none.
///
/// A filter is to be installed with `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`: otherwise a signal
/// makes callers ask again for what was made already. And signals are to be blocked here: one that
/// arrives while a descriptor is handed over could leave its caller without.
///
/// # Errors
/// What the kernel says of the listener. That a caller is gone is no error.
pub(crate) fn answer(listener: c_int, guards: &GuardTable) -> Result<(), Errno> {
    let Some(notice) = SeccompNotification::receive(listener)? else {
        return Ok(());
    };
    let mut buffers = PathBuffers::EMPTY;
    let answer = handle_call(&notice, guards, &mut buffers).unwrap_or(BrokerReply::Continue);
    notice.answer(answer)
}

/// Does what a call asks for. `None`: the kernel has the say.
fn handle_call(
    notice: &SeccompNotification,
    guards: &GuardTable,
    buffers: &mut PathBuffers,
) -> Option<BrokerReply> {
    let caller = Caller::of(notice, guards)?;
    let number = notice.number()?;
    let args = notice.arguments();
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

/// The half of a register that the kernel looks at if it expects an int.
fn int(register: u64) -> c_int {
    let [a, b, c, d, ..] = register.to_le_bytes();
    c_int::from_le_bytes([a, b, c, d])
}

/// The part of a register that the kernel looks at if it expects a mode.
fn mode_of(register: u64) -> usize {
    let [a, b, ..] = register.to_le_bytes();
    usize::from(u16::from_le_bytes([a, b]))
}
