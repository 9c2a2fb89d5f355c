//! Paths as people type them.
//! Invariant: `..` is the directory above the one that the host comes to, also behind a link.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

use exec_env::filesystem::{ExecutorFileSystem, FileError};
use exec_wire::{environment::EnvironmentInfo, fs::Canonicalize, path_uri::PathUri};

use crate::command::{
    failure::{Failure, FailureKind},
    files::{file_failure, persist},
};

/// Reads a path: a `file:` URI, absolute, below the home (`~/x`), or else relative to `base`. The host is
/// asked only where a `..` stands behind a name.
pub(super) async fn read(
    typed: &OsStr,
    base: Option<PathBuf>,
    info: &EnvironmentInfo,
    files: &dyn ExecutorFileSystem,
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
        let native = joined(&native, rest);
        let goes_up = native.components().any(|part| part == Component::ParentDir);
        return match goes_up {
            true => climb(&native, files).await.map_err(|failure| Failure {
                what: format!("path `{shown}`: {}", failure.what),
                ..failure
            }),
            false => PathUri::from_native(&native).map_err(|error| wrong(&error)),
        };
    }
    // Hosts of the other kind go up by the text, and so does this.
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

/// Follows an absolute path as the kernel does: what stands before a `..` may be a link.
async fn climb(native: &Path, files: &dyn ExecutorFileSystem) -> Result<PathUri, Failure> {
    let wrong = |error: &dyn std::fmt::Display| Failure::new(FailureKind::Usage, error);
    let mut path = PathUri::from_native(Path::new("/")).map_err(|error| wrong(&error))?;
    let mut is_real = true;
    for part in native.components() {
        match part {
            Component::Normal(name) => {
                let below = path.child(name);
                path = below.ok_or_else(|| wrong(&"a name in it cannot be used"))?;
                is_real = false;
            }
            Component::ParentDir => {
                if !is_real {
                    path = real(&path, files)
                        .await
                        .map_err(|error| file_failure(&error))?;
                }
                // Above the root is the root.
                path = path.parent().unwrap_or(path);
                is_real = true;
            }
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    Ok(path)
}

async fn real(path: &PathUri, files: &dyn ExecutorFileSystem) -> Result<PathUri, FileError> {
    let request = Canonicalize {
        path: path.clone(),
        sandbox: None,
    };
    persist(|| files.canonicalize(request.clone())).await
}

/// An empty rest adds no slash.
fn joined(start: &Path, rest: &OsStr) -> PathBuf {
    match rest.is_empty() {
        true => start.to_owned(),
        false => start.join(rest),
    }
}
