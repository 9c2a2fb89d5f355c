//! Which executables a server starts beside itself.

use std::path::PathBuf;

/// The executables that run commands and work on files for a server, or for a local environment.
///
/// There is one: it becomes the spawner of commands, and the helper that works on files under a
/// sandbox policy, when it is started under their names. Every program that links this crate can be
/// it, because it looks at its name before `main`. So an embedder passes
/// [`ExecServerRuntimePaths::default`], unless its code is a library in somebody else's program, such
/// as an interpreter's extension: then it passes the path of an `exec-server` of the same version.
///
/// Where the C library passes no arguments to initialisers, as musl, the program calls
/// [`run_if_helper`] first thing in `main`.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct ExecServerRuntimePaths {
    /// What is started as spawner and as helper.
    pub helper: PathBuf,
}

impl ExecServerRuntimePaths {
    /// Makes another program the helper.
    pub fn with_helper(helper: impl Into<PathBuf>) -> Self {
        Self {
            helper: helper.into(),
        }
    }
}

impl Default for ExecServerRuntimePaths {
    /// Makes this program its own helper, also when its file is replaced or removed meanwhile.
    fn default() -> Self {
        Self::with_helper(THIS_PROGRAM)
    }
}

/// Serves as spawner or as helper, and never returns, if this process was started as one. Programs on
/// glibc need not call it: it has run before their `main`.
pub fn run_if_helper() {
    exec_process::spawner::run_if_spawner();
    exec_sandbox::files::run_if_hand();
}

/// The executable of this process.
const THIS_PROGRAM: &str = "/proc/self/exe";
