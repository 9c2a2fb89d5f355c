//! What stays unwritable below a writable directory: settings of tools that run outside of the
//! sandbox, and would run what a command wrote into them; and the kernel's own settings.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use super::{
    bounds::MAX_GIT_FILE_BYTES,
    rules::Rules,
    trace::{End, Paths},
};
use crate::plan::{Access, Kind};

/// Names directly below a writable directory: as the stock server.
const METADATA: [&str; 4] = [GIT, ".agents", ".codex", ".aws"];

/// Git's directory, or a file that says where that is.
const GIT: &str = ".git";

/// What the kernel lets uid 0 write without any capability, by the modes alone: sysctls and devices,
/// and what restarts the machine. Only a writable root reaches these.
const KERNEL: [&str; 5] = [
    "/sys",
    "/proc/sys",
    "/proc/sysrq-trigger",
    "/proc/irq",
    "/proc/bus",
];

/// Protects metadata below every directory that entries make writable.
pub(super) fn protect_metadata(rules: &mut Rules, paths: &mut Paths<'_>) {
    for directory in rules.writable_directories() {
        for name in METADATA {
            let trace = paths.trace(&directory.join(name));
            rules.protect(&trace);
            if let (GIT, End::There { path, kind }) = (name, &trace.end)
                && *kind == Kind::File
                && let Some(git) = git_directory(paths, path, &directory)
            {
                protect_git(rules, paths, &git);
            }
        }
    }
}

/// Protects the kernel's settings below a writable root.
pub(super) fn protect_kernel(rules: &mut Rules, paths: &mut Paths<'_>) {
    if rules.access(Path::new("/")) == Access::Write {
        for path in KERNEL {
            let trace = paths.trace(Path::new(path));
            if let End::There { .. } = trace.end {
                rules.protect(&trace);
            }
        }
    }
}

/// Protects a directory that a `.git` file points to, and the one that it shares with others.
fn protect_git(rules: &mut Rules, paths: &mut Paths<'_>, git: &Path) {
    let trace = paths.trace(git);
    rules.protect(&trace);
    let End::There { path: git, .. } = trace.end else {
        return;
    };
    let shared = read_line(paths, &git.join("commondir"));
    if let Some(shared) = shared.filter(|shared| !shared.is_empty()) {
        let trace = paths.trace(&git.join(OsStr::from_bytes(&shared)));
        rules.protect(&trace);
    }
}

/// Returns the directory that a `.git` file in `beside` points to.
fn git_directory(paths: &mut Paths<'_>, file: &Path, beside: &Path) -> Option<PathBuf> {
    let line = read_line(paths, file)?;
    let target = line.strip_prefix(b"gitdir: ")?;
    (!target.is_empty()).then(|| beside.join(OsStr::from_bytes(target)))
}

/// Returns a small file without the end of its line, as git reads it.
fn read_line(paths: &mut Paths<'_>, file: &Path) -> Option<Vec<u8>> {
    let End::There { path, .. } = paths.trace(file).end else {
        return None;
    };
    let mut line = paths.facts().read(&path, MAX_GIT_FILE_BYTES)?;
    while let Some(b'\n' | b'\r') = line.last() {
        line.pop();
    }
    (!line.contains(&0)).then_some(line)
}
