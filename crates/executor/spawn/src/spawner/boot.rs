//! How the executable becomes a spawner: by the name it is started under, before `main`.
//!
//! Every program that links this crate can be its own spawner, test binaries included; none needs
//! to know. A program on a C library that does not pass arguments to initialisers calls
//! [`run_if_spawner`] at the top of `main` instead.

use std::ffi::OsStr;

use super::serve;

/// The name under which the executable is a spawner.
pub(super) const SPAWNER_NAME: &str = "exec-server-spawner";

/// Serves as a spawner, and never returns, if this process was started as one.
pub fn run_if_spawner() {
    if std::env::args_os().next().as_deref() == Some(OsStr::new(SPAWNER_NAME)) {
        serve::run();
    }
}

extern "C" fn before_main() {
    run_if_spawner();
}

#[used]
// SAFETY: the section holds pointers to functions without arguments; the loader calls each once.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;
