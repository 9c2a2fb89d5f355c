//! How the executable becomes a hand: by the name it is started under, before `main`.
//!
//! As with the spawner of `exec-process`, every program that links this crate can be its own hand.
#![expect(
    unsafe_code,
    reason = "a function that the loader calls, a descriptor by its number, and ending at once"
)]

use std::{
    ffi::{CStr, OsStr},
    os::fd::{FromRawFd, OwnedFd},
};

use super::serve;

/// The name under which the executable is a hand.
pub(super) const NAME: &CStr = c"exec-server-files";
/// Where a hand finds its socket.
pub(super) const SOCKET: u8 = 3;

/// Serves as a hand, and never returns, if this process was started as one.
pub fn run_if_hand() {
    let name = std::env::args_os().next();
    if name.as_deref().map(OsStr::as_encoded_bytes) != Some(NAME.to_bytes()) {
        return;
    }
    // SAFETY: nothing has run yet that could own a descriptor; whoever starts a hand gives it this
    // one, and if it is not open, the first call on it says so.
    let socket = unsafe { OwnedFd::from_raw_fd(SOCKET.into()) };
    let _ = serve::run(&socket);
    // SAFETY: ends this process, and nothing else.
    unsafe { libc::_exit(0) }
}

/// Gives back memory that was used and is free.
pub(super) fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes free memory from the allocator, which knows what is free.
    unsafe {
        libc::malloc_trim(0);
    }
}

extern "C" fn before_main() {
    run_if_hand();
}

#[used]
// SAFETY: the section holds pointers to functions without arguments; the loader calls each once.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;
