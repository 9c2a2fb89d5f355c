//! Shared parts of the file commands: error messages, metadata lookup and retries after a
//! disconnect.

mod display_path;
mod entries;

use exec_env::filesystem::{ExecutorFileSystem, FileError, FileFuture};
use exec_wire::{
    fs::{CanonicalizePath, FileMetadata, GetMetadata},
    path_uri::PathUri,
};

use crate::command::failure::{CommandFailure, FailureKind};

pub(crate) use self::{
    display_path::{child_path, display_path, display_relative, path_bytes, relative_path_bytes},
    entries::{DirectoryListing, ListedEntry, ListedEntryKind, entries, list_local_directory},
};

/// Maximum retries of a request after lost connections. The client waits for a connection each
/// time.
pub(crate) const MAX_RETRIES: u32 = 8;

/// Repeats an idempotent request while the connection is lost during it.
pub(crate) async fn retry_disconnected<T>(
    mut ask: impl FnMut() -> FileFuture<T>,
) -> Result<T, FileError> {
    let mut left = MAX_RETRIES;
    loop {
        match ask().await {
            Err(FileError::Disconnected(_)) if left > 0 => left -= 1,
            outcome => return outcome,
        }
    }
}

/// Converts a file error. The text names the file; OS error numbers are removed.
pub(crate) fn file_failure(error: &FileError) -> CommandFailure {
    let text = one_line(&error.to_string());
    let failure = |kind| CommandFailure::new(kind, plain(&text));
    match error {
        FileError::NotFound(_) => failure(FailureKind::NotFound),
        FileError::Disconnected(_) => {
            failure(FailureKind::Lost).next("run the same command again to resume")
        }
        FileError::Refused(_) => failure(FailureKind::Usage),
        FileError::Invalid(_) | FileError::Host(_) | FileError::Remote(_) | _ => {
            failure(FailureKind::Failed)
        }
    }
}

/// Joins the lines of a text: pattern errors have several.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

/// Removes the trailing OS error number, which follows its text.
fn plain(text: &str) -> &str {
    match text.rsplit_once(" (os error ") {
        Some((plain, number)) if number.trim_end_matches(')').parse::<u32>().is_ok() => plain,
        _ => text,
    }
}

/// Identifies the state of a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct FileFingerprint {
    /// Size in bytes.
    pub(crate) size: u64,
    /// Modification time in milliseconds since the Unix epoch.
    pub(crate) modified_at_ms: i64,
}

impl From<FileMetadata> for FileFingerprint {
    fn from(found: FileMetadata) -> Self {
        Self {
            size: found.size,
            modified_at_ms: found.modified_at_ms,
        }
    }
}

/// Returns metadata, following links; `None` if the path does not exist.
pub(crate) async fn metadata_if_exists(
    files: &dyn ExecutorFileSystem,
    path: &PathUri,
) -> Result<Option<FileMetadata>, FileError> {
    let get = GetMetadata {
        path: path.clone(),
        follow_symlinks: None,
        sandbox: None,
    };
    match retry_disconnected(|| files.metadata(get.clone())).await {
        Ok(found) => Ok(Some(found)),
        Err(FileError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether a path at which nothing was found is a dangling link.
pub(crate) async fn is_dangling_link(
    files: &dyn ExecutorFileSystem,
    path: &PathUri,
) -> Result<bool, FileError> {
    // Only the last component matters: others may be valid links.
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(false);
    };
    let canonicalize = CanonicalizePath {
        path: parent,
        sandbox: None,
    };
    let parent = match retry_disconnected(|| files.canonicalize(canonicalize.clone())).await {
        Ok(parent) => parent,
        Err(error @ FileError::Disconnected(_)) => return Err(error),
        Err(_) => return Ok(false),
    };
    let Some(path) = child_path(&parent, &name) else {
        return Ok(false);
    };
    let get = GetMetadata {
        path,
        follow_symlinks: Some(false),
        sandbox: None,
    };
    match retry_disconnected(|| files.metadata(get.clone())).await {
        // The server rejects links that it does not follow.
        Err(FileError::Invalid(_)) => Ok(true),
        Err(error @ FileError::Disconnected(_)) => Err(error),
        Ok(_) | Err(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, os::unix::fs::symlink};

    use exec_env::environment::DisconnectReason;
    use exec_local::filesystem::LocalFileSystem;
    use futures_util::future::{FutureExt, ready};

    use super::*;

    fn cut() -> FileError {
        FileError::Disconnected(DisconnectReason::Transport("cut".to_owned()))
    }

    #[tokio::test]
    async fn disconnected_requests_are_retried() {
        let asked = Cell::new(0);
        let outcome = retry_disconnected(|| {
            asked.set(asked.get() + 1);
            let outcome = if asked.get() < 3 { Err(cut()) } else { Ok(7) };
            ready(outcome).boxed()
        })
        .await;
        assert_eq!((outcome, asked.get()), (Ok(7), 3));
    }

    #[tokio::test]
    async fn retries_are_limited_and_other_errors_fail_at_once() {
        let asked = Cell::new(0);
        let outcome = retry_disconnected(|| {
            asked.set(asked.get() + 1);
            ready(Err::<(), _>(cut())).boxed()
        })
        .await;
        assert_eq!((outcome, asked.get()), (Err(cut()), MAX_RETRIES + 1));
        let refused = FileError::Refused("no".to_owned());
        let outcome = retry_disconnected(|| ready(Err::<(), _>(refused.clone())).boxed()).await;
        assert_eq!(outcome, Err(refused));
    }

    #[test]
    fn missing_file_has_its_own_kind_and_no_error_number() {
        let text = "cannot open `/none`: No such file or directory (os error 2)".to_owned();
        let failure = file_failure(&FileError::NotFound(text));
        assert_eq!(failure.kind, FailureKind::NotFound);
        assert_eq!(
            failure.what,
            "cannot open `/none`: No such file or directory"
        );
        let text = "cannot open `/x`: Permission denied (os error 13)".to_owned();
        let failure = file_failure(&FileError::Invalid(text));
        assert_eq!(failure.kind, FailureKind::Failed);
        assert_eq!(failure.what, "cannot open `/x`: Permission denied");
    }

    #[test]
    fn multi_line_error_is_joined() {
        let text = "pattern cannot be used:\n    (\n    ^\nunclosed group".to_owned();
        let failure = file_failure(&FileError::Refused(text));
        assert_eq!(failure.kind, FailureKind::Usage);
        assert_eq!(failure.what, "pattern cannot be used: ( ^ unclosed group");
    }

    #[test]
    fn text_without_error_number_is_unchanged() {
        for text in ["odd (os error", "odd (os error x)", "plain"] {
            assert_eq!(plain(text), text);
        }
    }

    #[tokio::test]
    async fn dangling_link_is_distinguished_from_a_missing_path() {
        let directory = tempfile::tempdir().unwrap();
        symlink("none", directory.path().join("dead")).unwrap();
        symlink(".", directory.path().join("way")).unwrap();
        std::fs::write(directory.path().join("file"), "").unwrap();
        let files = LocalFileSystem::default();
        for (name, dead) in [
            ("dead", true),
            ("way/dead", true),
            ("none", false),
            ("none/dead", false),
            ("file", false),
        ] {
            let path = PathUri::from_native(&directory.path().join(name)).unwrap();
            assert_eq!(is_dangling_link(&files, &path).await, Ok(dead), "{name}");
        }
    }
}
