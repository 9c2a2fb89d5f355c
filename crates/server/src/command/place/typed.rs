//! Paths as people type them.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use exec_wire::{environment::EnvironmentInfo, path_uri::PathUri};

use crate::command::failure::{Failure, FailureKind};

/// Reads a path: a `file:` URI, absolute, below the home (`~/x`), or else relative to `base`.
pub(super) fn read(
    typed: &OsStr,
    base: Option<PathBuf>,
    info: &EnvironmentInfo,
) -> Result<PathUri, Failure> {
    let shown = typed.display();
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::new(FailureKind::Usage, format!("path `{shown}`: {why}"))
    };
    if typed.is_empty() {
        return Err(Failure::new(FailureKind::Usage, "a path is empty"));
    }
    if let Some(uri) = typed.to_str().filter(|text| text.starts_with("file:")) {
        return PathUri::parse(uri).map_err(|error| wrong(&error));
    }
    let below_home = match typed.as_bytes() {
        b"~" => Some(&b""[..]),
        bytes => bytes.strip_prefix(b"~/"),
    };
    let (start, rest) = match below_home {
        Some(rest) => {
            let home = info.user_home_dir.as_ref();
            let home = home.ok_or_else(|| wrong(&"the server names no home"))?;
            (home.clone(), OsStr::from_bytes(rest))
        }
        None => (start(base, info).map_err(|why| wrong(&why))?, typed),
    };
    // A path of this kind of host keeps whatever bytes it has; the other kind has text.
    if let Ok(native) = start.to_native() {
        return PathUri::from_native(&joined(&native, rest)).map_err(|error| wrong(&error));
    }
    let rest = rest.to_str().ok_or_else(|| wrong(&"it is not UTF-8"))?;
    start.join(rest).map_err(|error| wrong(&error))
}

/// Returns what a relative path is relative to.
fn start(base: Option<PathBuf>, info: &EnvironmentInfo) -> Result<PathUri, String> {
    if let Some(base) = base {
        return PathUri::from_native(&base).map_err(|error| error.to_string());
    }
    match &info.cwd {
        Some(cwd) => Ok(cwd.clone()),
        None => PathUri::parse("file:///").map_err(|error| error.to_string()),
    }
}

/// An empty rest adds no slash.
fn joined(start: &Path, rest: &OsStr) -> PathBuf {
    match rest.is_empty() {
        true => start.to_owned(),
        false => start.join(rest),
    }
}
