//! Renames a file, a link or a directory atomically.

use std::path::Path;

use exec_env::filesystem::FileError;
use exec_wire::fs::RenamePath;
use rustix::{
    fs::{AtFlags, CWD, RenameFlags, linkat, renameat, renameat_with, unlinkat},
    io::{self, Errno},
};

use crate::host_path::native_path;

/// Renames a file, a link or a directory. Without `overwrite` nothing is ever replaced, not even in
/// a race.
///
/// # Errors
/// Fails if the source does not exist, if the destination exists, or if it is on another file
/// system.
pub fn rename(rename: &RenamePath) -> Result<(), FileError> {
    let source = native_path(&rename.source_path)?;
    let destination = native_path(&rename.destination_path)?;
    let renamed = if rename.overwrite {
        renameat(CWD, &source, CWD, &destination)
    } else {
        rename_without_replacing(&source, &destination)
    };
    renamed.map_err(|error| host_error(&source, &destination, error))
}

fn rename_without_replacing(source: &Path, destination: &Path) -> io::Result<()> {
    match renameat_with(CWD, source, CWD, destination, RenameFlags::NOREPLACE) {
        // The file system does not support the flag, or the destination is inside the source.
        Err(error @ (Errno::INVAL | Errno::NOSYS)) => rename_by_link(source, destination, error),
        renamed => renamed,
    }
}

/// Links the new name before removing the old one. Fails with `refused` for directories, which
/// cannot have two names.
fn rename_by_link(source: &Path, destination: &Path, refused: Errno) -> io::Result<()> {
    match linkat(CWD, source, CWD, destination, AtFlags::empty()) {
        Ok(()) => {}
        // It is a directory, or the file system has no hard links either.
        Err(Errno::PERM | Errno::NOTSUP | Errno::NOSYS | Errno::MLINK) => return Err(refused),
        Err(error) => return Err(error),
    }
    let removed = unlinkat(CWD, source, AtFlags::empty());
    if removed.is_err() {
        // The old name could not be removed: remove the new one again.
        unlinkat(CWD, destination, AtFlags::empty())?;
    }
    removed
}

fn host_error(source: &Path, destination: &Path, error: Errno) -> FileError {
    let what = format!("rename `{}` to", source.display());
    let described = crate::host_path::host_error(&what, destination, error);
    match error {
        Errno::XDEV => FileError::Host(format!("{described}; a copy is needed to move it there")),
        _ => described,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::test_dir::{Outcome, TestDir, names, odd_name, outcome, text, uri};

    fn request(source: &Path, destination: &Path) -> RenamePath {
        RenamePath {
            source_path: uri(source),
            destination_path: uri(destination),
            overwrite: false,
            sandbox: None,
        }
    }

    fn renamed(source: &Path, destination: &Path) -> Outcome {
        outcome(rename(&request(source, destination)))
    }

    fn overwritten(source: &Path, destination: &Path) -> Outcome {
        let overwrite = true;
        outcome(rename(&RenamePath {
            overwrite,
            ..request(source, destination)
        }))
    }

    #[test]
    fn files_directories_and_links_are_renamed() {
        let scratch = TestDir::new();
        scratch.file("below/file", "");
        let sources = [
            scratch.file("file", ""),
            scratch.path("below"),
            scratch.link("link", "nowhere"),
        ];
        for source in sources {
            let destination = scratch.path(odd_name());
            assert_eq!(renamed(&source, &destination), Outcome::Done);
            assert_eq!(
                overwritten(&destination, &scratch.path("again")),
                Outcome::Done
            );
            assert!(!source.exists() && !source.is_symlink());
            crate::remove(
                &exec_wire::fs::RemovePath {
                    path: uri(scratch.path("again")),
                    recursive: None,
                    force: Some(false),
                    follow_symlinks: None,
                    sandbox: None,
                },
                &crate::CancelFlag::default(),
            )
            .unwrap();
        }
    }

    #[test]
    fn nothing_is_replaced_without_overwrite() {
        let scratch = TestDir::new();
        let source = scratch.file("source", "new");
        let taken = [
            scratch.file("taken", "old"),
            scratch.directory("directory"),
            scratch.link("dangling", "nowhere"),
            source.clone(),
        ];
        for taken in &taken {
            assert_eq!(renamed(&source, taken), Outcome::Host, "{taken:?}");
            let refused = rename_by_link(&source, taken, Errno::INVAL);
            assert_eq!(refused, Err(Errno::EXIST), "{taken:?}");
        }
        assert_eq!(fs::read(&taken[0]).unwrap(), b"old");
        assert_eq!(overwritten(&source, &taken[1]), Outcome::Host);
        assert_eq!(overwritten(&source, &taken[0]), Outcome::Done);
        assert_eq!(fs::read(&taken[0]).unwrap(), b"new");
        assert!(!source.exists());
    }

    #[test]
    fn only_an_empty_directory_is_replaced() {
        let scratch = TestDir::new();
        let source = scratch.directory("source");
        scratch.file("full/file", "");
        let empty = scratch.directory("empty");
        assert_eq!(overwritten(&source, &scratch.path("full")), Outcome::Host);
        assert_eq!(overwritten(&source, &empty), Outcome::Done);
    }

    #[test]
    fn missing_source_is_not_found() {
        let scratch = TestDir::new();
        let file = scratch.file("file", "");
        let none = scratch.path("none");
        assert_eq!(renamed(&none, &scratch.path("x")), Outcome::NotFound);
        assert_eq!(overwritten(&none, &scratch.path("x")), Outcome::NotFound);
        assert_eq!(renamed(&file, &none.join("x")), Outcome::NotFound);
    }

    #[test]
    fn directory_cannot_be_moved_into_itself() {
        let scratch = TestDir::new();
        let source = scratch.directory("source");
        assert_eq!(renamed(&source, &source.join("x")), Outcome::Invalid);
        assert_eq!(overwritten(&source, &source.join("x")), Outcome::Invalid);
    }

    #[test]
    fn rename_across_file_systems_fails() {
        let scratch = TestDir::new();
        let source = scratch.file("source", "");
        let refused = rename(&request(&source, Path::new("/proc/source")));
        assert!(text(refused.clone()).ends_with("a copy is needed to move it there"));
        assert_eq!(outcome(refused), Outcome::Host);
        assert!(source.exists());
    }

    #[test]
    fn hard_link_is_used_without_noreplace_support() {
        let scratch = TestDir::new();
        let source = scratch.file("source", "content");
        let destination = scratch.path("destination");
        assert_eq!(rename_by_link(&source, &destination, Errno::INVAL), Ok(()));
        assert_eq!(fs::read(&destination).unwrap(), b"content");
        let link = scratch.link("link", "nowhere");
        assert_eq!(
            rename_by_link(&link, &scratch.path("moved"), Errno::INVAL),
            Ok(())
        );
        assert!(scratch.path("moved").is_symlink());
        let directory = scratch.directory("directory");
        for refused in [Errno::INVAL, Errno::NOSYS] {
            let moved = rename_by_link(&directory, &scratch.path("x"), refused);
            assert_eq!(moved, Err(refused));
        }
        assert_eq!(names(scratch.root()), ["destination", "directory", "moved"]);
    }
}
