//! Converts between path URIs and paths of this host, and builds errors that name a path.

use std::{
    fmt::Display,
    io,
    path::{Path, PathBuf},
};

use exec_env::filesystem::FileError;
use exec_wire::path_uri::PathUri;
use rustix::io::Errno;

/// Returns the path on this host. Rejects a path that cannot exist here.
pub(crate) fn native_path(uri: &PathUri) -> Result<PathBuf, FileError> {
    let path = uri
        .to_native()
        .map_err(|error| FileError::Invalid(error.to_string()))?;
    if path.as_os_str().as_encoded_bytes().contains(&0) {
        // An opaque URI can contain it; a path of this host cannot.
        let text = format!("path URI `{uri}` contains a NUL byte");
        return Err(FileError::Invalid(text));
    }
    Ok(path)
}

/// Returns the URI of an absolute path of this host.
pub(crate) fn uri(path: &Path) -> Result<PathUri, FileError> {
    PathUri::from_native(path).map_err(|error| FileError::Host(error.to_string()))
}

/// Describes a failed operation on a path. The error number determines the kind of the error.
pub(crate) fn host_error(what: &str, path: &Path, error: impl Into<io::Error>) -> FileError {
    let error = error.into();
    let text = format!("cannot {what} `{}`: {error}", path.display());
    classify(text, &error)
}

/// Describes a write that failed after the file was truncated.
pub(crate) fn partial_write_error(path: &Path, error: impl Into<io::Error>) -> FileError {
    let error = error.into();
    let text = format!(
        "cannot write `{}`: {error}; the file may hold part of the new content",
        path.display()
    );
    classify(text, &error)
}

/// Rejects an operation that the host would perform wrongly, or not at all.
pub(crate) fn invalid_request(what: &str, path: &Path, reason: impl Display) -> FileError {
    FileError::Invalid(format!("cannot {what} `{}`: {reason}", path.display()))
}

/// Rejects a path that must not contain a link.
pub(crate) fn link_refused(what: &str, path: &Path) -> FileError {
    invalid_request(what, path, "path contains a symbolic link")
}

/// Rejects a path that is not a regular file.
pub(crate) fn not_a_file(path: &Path) -> FileError {
    FileError::Invalid(format!("path `{}` is not a file", path.display()))
}

fn classify(text: String, error: &io::Error) -> FileError {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) => FileError::NotFound(text),
        Some(Errno::INVAL | Errno::ACCESS | Errno::PERM) => FileError::Invalid(text),
        // The standard library rejects some arguments itself.
        None if error.kind() == io::ErrorKind::InvalidInput => FileError::Invalid(text),
        _ => FileError::Host(text),
    }
}

#[cfg(test)]
mod tests {
    use exec_wire::fs::{
        CanonicalizePath, CopyPath, CreateDirectory, CreateSymlink, GetMetadata, OpenMode,
        ReadDirectory, ReadFile, RemovePath, RenamePath, SetMetadata, WriteFile,
    };

    use super::*;
    use crate::{
        BlockFile, CancelFlag, WholeFile,
        test_dir::{Outcome, outcome},
    };

    /// Returns the result of every operation for a path. A rejected operation has no effect.
    fn outcomes(path: &PathUri) -> Vec<Outcome> {
        let (path, stop, sandbox) = (path.clone(), CancelFlag::default(), None);
        let elsewhere = PathUri::parse("file:///nonexistent/elsewhere").unwrap();
        let get = GetMetadata {
            path: path.clone(),
            follow_symlinks: None,
            details: false,
            sandbox: None,
        };
        let read = ReadFile {
            path: path.clone(),
            follow_symlinks: None,
            sandbox: None,
        };
        let write = WriteFile {
            path: path.clone(),
            data_base64: None,
            follow_symlinks: None,
            create_parents: false,
            atomic: false,
            mode: None,
            sandbox: None,
        };
        let create = CreateDirectory {
            path: path.clone(),
            recursive: Some(false),
            follow_symlinks: None,
            sandbox: None,
        };
        let remove = RemovePath {
            path: path.clone(),
            recursive: None,
            force: Some(false),
            follow_symlinks: None,
            sandbox: None,
        };
        let copy = CopyPath {
            source_path: path.clone(),
            destination_path: elsewhere.clone(),
            recursive: true,
            sandbox: None,
        };
        let rename = RenamePath {
            source_path: path.clone(),
            destination_path: elsewhere,
            overwrite: false,
            sandbox: None,
        };
        vec![
            outcome(crate::metadata(&get)),
            outcome(WholeFile::open(&read)),
            outcome(crate::write_file(&write, b"")),
            outcome(crate::create_directory(&create)),
            outcome(crate::remove(&remove, &stop)),
            outcome(crate::copy(&copy, &stop)),
            outcome(crate::rename(&rename)),
            outcome(BlockFile::open(&path, OpenMode::Read)),
            outcome(BlockFile::open(&path, OpenMode::Replace)),
            outcome(crate::read_directory(&ReadDirectory::new(path.clone()))),
            outcome(crate::create_symlink(&CreateSymlink::new(
                path.clone(),
                b"target".to_vec(),
            ))),
            outcome(crate::set_metadata(&SetMetadata {
                path: path.clone(),
                mode: Some(0o600),
                modified_at_ms: None,
                follow_symlinks: None,
                sandbox: None,
            })),
            outcome(crate::canonicalize(&CanonicalizePath { path, sandbox })),
        ]
    }

    #[test]
    fn every_operation_rejects_an_impossible_path() {
        let with_nul = Path::new("/tmp/a\0b");
        let refused = [
            PathUri::parse("file:///C:/windows").unwrap(),
            PathUri::parse("file://server/share/file").unwrap(),
            // An opaque URI for a path that has an ordinary one: `/tmp`.
            PathUri::parse("file:///%00/bad/path/L3RtcA").unwrap(),
            PathUri::from_native(with_nul).unwrap(),
        ];
        for path in refused {
            assert_eq!(outcomes(&path), [Outcome::Invalid; 13], "{path}");
        }
    }

    #[test]
    fn necessary_opaque_path_is_accepted() {
        let path = PathUri::from_native(Path::new("/Q:/nonexistent/x")).unwrap();
        assert!(path.is_opaque());
        assert_eq!(outcomes(&path), [Outcome::NotFound; 13]);
    }
}
