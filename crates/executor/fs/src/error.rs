//! What the host says, as an error that is the same everywhere.

use std::{fmt::Display, io, path::Path};

use exec_env::filesystem::FileError;
use rustix::io::Errno;

/// Says what could not be done to which path, and why. The errno decides the kind.
pub(crate) fn failed(what: &str, path: &Path, error: impl Into<io::Error>) -> FileError {
    let error = error.into();
    let text = format!("cannot {what} `{}`: {error}", path.display());
    of_kind(text, &error)
}

/// Says that a file was emptied and could not be filled.
pub(crate) fn half_written(path: &Path, error: impl Into<io::Error>) -> FileError {
    let error = error.into();
    let text = format!(
        "cannot write `{}`: {error}; the file may hold part of the new content",
        path.display()
    );
    of_kind(text, &error)
}

/// Refuses what the host would do, or do badly.
pub(crate) fn invalid(what: &str, path: &Path, reason: impl Display) -> FileError {
    FileError::Invalid(format!("cannot {what} `{}`: {reason}", path.display()))
}

/// Refuses what is no regular file.
pub(crate) fn not_a_file(path: &Path) -> FileError {
    FileError::Invalid(format!("path `{}` is not a file", path.display()))
}

fn of_kind(text: String, error: &io::Error) -> FileError {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) => FileError::NotFound(text),
        Some(Errno::INVAL | Errno::ACCESS | Errno::PERM) => FileError::Invalid(text),
        // The standard library refuses some arguments before the host sees them.
        None if error.kind() == io::ErrorKind::InvalidInput => FileError::Invalid(text),
        _ => FileError::Host(text),
    }
}
