//! Creates symbolic links.

use exec_env::filesystem::FileError;
use exec_wire::fs::CreateSymlink;
use rustix::{
    fs::{AtFlags, renameat, symlinkat, unlinkat},
    io::{self, Errno},
};

use crate::{
    host_path::{host_error, native_path},
    resolve::{EntryLocation, LinkPolicy},
    write_file::with_temporary_name,
};

/// Creates a symbolic link. With `overwrite`, it replaces a file or a link atomically.
///
/// # Errors
/// Fails if the path exists and may not be replaced, which a directory never is, or if its parent
/// does not exist. Rejects an empty target.
pub fn create_symlink(create: &CreateSymlink) -> Result<(), FileError> {
    let target = create.target_bytes();
    if target.is_empty() {
        return Err(FileError::Refused("target must not be empty".to_owned()));
    }
    let path = native_path(&create.path)?;
    let created =
        EntryLocation::open_parent(&path, LinkPolicy::Follow).and_then(|location| match symlinkat(
            target,
            location.directory(),
            location.name(),
        ) {
            Err(Errno::EXIST) if create.overwrite => replace(&location, target),
            created => created,
        });
    created.map_err(|error| host_error("create link", &path, error))
}

fn replace(location: &EntryLocation, target: &[u8]) -> io::Result<()> {
    let directory = location.directory();
    let (name, ()) = with_temporary_name(|name| symlinkat(target, directory, name))?;
    let renamed = renameat(directory, &name, directory, location.name());
    if renamed.is_err() {
        unlinkat(directory, &name, AtFlags::empty())?;
    }
    renamed
}

#[cfg(test)]
mod tests {
    use std::{
        ffi::OsStr,
        fs,
        os::unix::ffi::OsStrExt,
        path::{Path, PathBuf},
    };

    use super::*;
    use crate::test_dir::{Outcome, TestDir, outcome, uri};

    fn link(path: &Path, target: &[u8]) -> Outcome {
        outcome(create_symlink(&CreateSymlink::new(
            uri(path),
            target.to_vec(),
        )))
    }

    fn relink(path: &Path, target: &[u8]) -> Outcome {
        outcome(create_symlink(&CreateSymlink {
            overwrite: true,
            ..CreateSymlink::new(uri(path), target.to_vec())
        }))
    }

    #[test]
    fn link_has_the_bytes_of_its_target() {
        let scratch = TestDir::new();
        for (number, target) in [&b"../none"[..], b"not \xff text", b" "].iter().enumerate() {
            let path = scratch.root().join(number.to_string());
            assert_eq!(link(&path, target), Outcome::Done);
            let expected = PathBuf::from(OsStr::from_bytes(target));
            assert_eq!(fs::read_link(&path).unwrap(), expected);
        }
    }

    #[test]
    fn only_files_and_links_are_replaced_and_only_on_request() {
        let scratch = TestDir::new();
        let file = scratch.file("file", "content");
        let old = scratch.link("old", "file");
        let directory = scratch.directory("directory");
        for path in [&file, &old, &directory] {
            assert_eq!(link(path, b"new"), Outcome::Host, "{path:?}");
        }
        assert_eq!(relink(&directory, b"new"), Outcome::Host);
        for path in [&file, &old] {
            assert_eq!(relink(path, b"new"), Outcome::Done, "{path:?}");
            assert_eq!(fs::read_link(path).unwrap(), Path::new("new"));
        }
        // No temporary link is left.
        assert_eq!(fs::read_dir(scratch.root()).unwrap().count(), 3);
    }

    #[test]
    fn unusable_paths_and_targets_are_rejected() {
        let scratch = TestDir::new();
        let below_nothing = scratch.root().join("none/link");
        assert_eq!(link(&below_nothing, b"a"), Outcome::NotFound);
        let path = scratch.root().join("link");
        assert_eq!(link(&path, b""), Outcome::Other);
        assert_eq!(link(&path, b"a\0b"), Outcome::Invalid);
        assert_eq!(link(&path, &[b'a'; 5000]), Outcome::Host);
        assert!(!path.is_symlink());
    }
}
