//! Seatbelt profiles for macOS: the text of a profile, and the command that applies it.
//!
//! The last matching rule of a profile applies, so layers become rules in their own order, parents
//! before children. Not yet run on macOS: tests check only the text.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use crate::plan::{FileAccess, FileView, NetworkScope, PathAccess, PathKind, SandboxPlan};

#[cfg(test)]
mod tests;

/// Program that applies a profile and then executes the command.
const SANDBOX_EXEC: &str = "/usr/bin/sandbox-exec";

/// Operations for reading and executing a file.
const READ_OPERATIONS: &str = "file-read* file-map-executable process-exec*";

/// Permissions that commands need beside files: child processes, system information, account names,
/// terminals, and semaphores that several language runtimes use.
const BASE_RULES: &str = r#"(allow process-fork)
(allow process-info* (target same-sandbox))
(allow signal (target same-sandbox))
(allow sysctl-read)
(allow mach-lookup
  (global-name "com.apple.system.opendirectoryd.libinfo")
  (global-name "com.apple.system.opendirectoryd.membership"))
(allow ipc-posix-sem)
(allow pseudo-tty)
"#;

/// Paths that every program needs to start, for plans with a hidden base.
const LOADER_PATHS: &str = r#"  (literal "/")
  (subpath "/System/Library")
  (subpath "/System/Volumes/Preboot/Cryptexes")
  (subpath "/usr/lib")
  (subpath "/private/var/db/dyld"))
"#;

/// Devices without persistent data.
const DEVICE_RULES: &str = r#"(allow file-read* file-write* file-ioctl
  (literal "/dev/null")
  (literal "/dev/zero")
  (literal "/dev/random")
  (literal "/dev/urandom")
  (literal "/dev/tty")
  (literal "/dev/ptmx")
  (regex #"^/dev/fd/")
  (regex #"^/dev/ttys[0-9]+$"))
"#;

/// Permissions that the host's network needs beside sockets: name resolution and trusted
/// certificates.
const NETWORK_RULES: &str = r#"(allow network*)
(allow system-socket)
(allow mach-lookup
  (global-name "com.apple.SystemConfiguration.configd")
  (global-name "com.apple.SystemConfiguration.DNSConfiguration")
  (global-name "com.apple.dnssd.service")
  (global-name "com.apple.trustd")
  (global-name "com.apple.trustd.agent"))
"#;

/// Why a plan has no profile.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SeatbeltError {
    /// Host: profiles and file names of macOS are UTF-8, but this path is not.
    #[error("path {0:?} is not UTF-8 and cannot be written into a profile")]
    NotText(PathBuf),
}

/// Returns the profile of a plan.
///
/// # Errors
/// Fails if a path of the plan is not UTF-8.
pub fn profile(plan: &SandboxPlan) -> Result<String, SeatbeltError> {
    let mut text = String::from("(version 1)\n");
    match &plan.files {
        FileAccess::All => {
            text.push_str("(allow default)\n");
            if plan.network == NetworkScope::None {
                text.push_str("(deny network*)\n");
            }
        }
        FileAccess::View(view) => {
            text.push_str("(deny default)\n");
            text.push_str(BASE_RULES);
            push_view(&mut text, view)?;
            text.push_str(DEVICE_RULES);
            if plan.network == NetworkScope::Host {
                text.push_str(NETWORK_RULES);
            }
        }
    }
    Ok(text)
}

/// Returns the command line that runs a command under a profile.
pub fn command<A: AsRef<OsStr>>(profile: &str, argv: impl IntoIterator<Item = A>) -> Vec<OsString> {
    let launch = [SANDBOX_EXEC, "-p", profile, "--"].map(OsString::from);
    let argv = argv.into_iter().map(|arg| arg.as_ref().to_owned());
    launch.into_iter().chain(argv).collect()
}

fn push_view(text: &mut String, view: &FileView) -> Result<(), SeatbeltError> {
    match view.base {
        PathAccess::Read | PathAccess::Write => {
            push_line(text, &format!("(allow {READ_OPERATIONS})"))
        }
        PathAccess::Hidden => {
            push_line(text, &format!("(allow {READ_OPERATIONS}"));
            text.push_str(LOADER_PATHS);
            for path in traversed_directories(view) {
                let path = quote(path)?;
                push_line(
                    text,
                    &format!("(allow file-read-metadata (literal {path}))"),
                );
            }
            for (link, _) in &view.links {
                let link = quote(link)?;
                push_line(text, &format!("(allow file-read* (literal {link}))"));
            }
        }
    }
    for layer in &view.layers {
        let path = quote(&layer.path)?;
        let filter = match layer.kind {
            PathKind::Directory => format!("(subpath {path})"),
            PathKind::File => format!("(literal {path})"),
        };
        match layer.access {
            PathAccess::Hidden => push_line(
                text,
                &format!("(deny {READ_OPERATIONS} file-write* {filter})"),
            ),
            PathAccess::Read => {
                push_line(text, &format!("(allow {READ_OPERATIONS} {filter})"));
                push_line(text, &format!("(deny file-write* {filter})"));
            }
            PathAccess::Write => push_line(
                text,
                &format!("(allow {READ_OPERATIONS} file-write* {filter})"),
            ),
        }
    }
    for name in &view.forbidden {
        let path = quote(&name.directory.join(&name.name))?;
        push_line(
            text,
            &format!("(deny file-write* (literal {path}) (subpath {path}))"),
        );
    }
    // Rules match names. Parent directories must not be renamed, or a protected path would get a
    // name that no rule matches.
    for path in pinned_directories(view) {
        let path = quote(path)?;
        push_line(text, &format!("(deny file-write-unlink (literal {path}))"));
    }
    Ok(())
}

/// Returns the directories on the way to layers that are not visible otherwise.
fn traversed_directories(view: &FileView) -> BTreeSet<&Path> {
    let layers = view.layers.iter().map(|layer| layer.path.as_path());
    let links = view.links.iter().map(|(link, _)| link.as_path());
    layers
        .chain(links)
        .flat_map(|path| path.ancestors().skip(1))
        .filter(|ancestor| view.access(ancestor) == PathAccess::Hidden)
        .collect()
}

/// Returns the writable directories above a path that is not writable.
fn pinned_directories(view: &FileView) -> BTreeSet<&Path> {
    let layers = view.layers.iter();
    let narrower = layers
        .filter(|layer| layer.access != PathAccess::Write)
        .flat_map(|layer| layer.path.ancestors().skip(1));
    let forbidden = view.forbidden.iter();
    let guarded = forbidden.flat_map(|name| name.directory.ancestors());
    narrower
        .chain(guarded)
        .filter(|ancestor| view.access(ancestor) == PathAccess::Write)
        .collect()
}

/// Quotes a path as a string literal of the profile language.
fn quote(path: &Path) -> Result<String, SeatbeltError> {
    let text = path.to_str();
    let text = text.ok_or_else(|| SeatbeltError::NotText(path.to_owned()))?;
    let mut quote = String::with_capacity(text.len() + 2);
    quote.push('"');
    for character in text.chars() {
        if matches!(character, '\\' | '"') {
            quote.push('\\');
        }
        quote.push(character);
    }
    quote.push('"');
    Ok(quote)
}

fn push_line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}
