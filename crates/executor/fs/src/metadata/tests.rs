use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::*;
use crate::test_dir::{Outcome, TestDir, odd_name, outcome, text, uri, within_seconds};

fn request(path: &Path) -> GetMetadata {
    GetMetadata {
        path: uri(path),
        follow_symlinks: None,
        details: false,
        sandbox: None,
    }
}

fn of(path: &Path) -> Result<FileMetadata, FileError> {
    metadata(&request(path))
}

#[test]
fn files_and_directories_are_distinguished() {
    let scratch = TestDir::new();
    let file = of(&scratch.file(odd_name(), "12345")).unwrap();
    assert_eq!(
        (file.is_file, file.is_directory, file.is_symlink),
        (true, false, false)
    );
    assert_eq!(file.size, 5);
    let directory = of(scratch.root()).unwrap();
    assert!(directory.is_directory && !directory.is_file);
    assert!(of(Path::new("/")).unwrap().is_directory);
    let fifo = scratch.fifo("fifo");
    let fifo = within_seconds(move || of(&fifo)).unwrap();
    assert!(!fifo.is_directory && !fifo.is_file && !fifo.is_symlink);
}

#[test]
fn permission_bits_exclude_the_file_type() {
    let scratch = TestDir::new();
    let path = scratch.file("file", "");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o2751)).unwrap();
    assert_eq!(of(&path).unwrap().mode, Some(0o2751));
    let target = of(&scratch.link("link", "file")).unwrap();
    assert_eq!(target.mode, Some(0o2751));
}

#[test]
fn times_are_in_milliseconds() {
    let scratch = TestDir::new();
    let path = scratch.file("file", "");
    let file = File::open(&path).unwrap();
    let modified = UNIX_EPOCH + Duration::new(1_000_000_000, 123_999_999);
    file.set_modified(modified).unwrap();
    let reported = of(&path).unwrap();
    assert_eq!(reported.modified_at_ms, 1_000_000_000_123);
    let created = file.metadata().unwrap().created().unwrap_or(UNIX_EPOCH);
    let created = created.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(
        u128::try_from(reported.created_at_ms),
        Ok(created.as_millis())
    );
}

#[test]
fn time_before_the_epoch_is_negative() {
    let mut before = of_root().stx_mtime;
    (before.tv_sec, before.tv_nsec) = (-2, 500_000_000);
    assert_eq!(milliseconds(&before), -1500);
}

#[test]
fn unknown_birth_time_is_zero() {
    let mut stat = of_root();
    stat.stx_mask &= !StatxFlags::BTIME.bits();
    assert_eq!(from_statx(&stat, false).created_at_ms, 0);
}

fn of_root() -> Statx {
    statx_path(Path::new("/"), AtFlags::empty()).unwrap()
}

#[test]
fn link_is_followed_and_reported_as_link() {
    let scratch = TestDir::new();
    scratch.file("file", "12345");
    let file = of(&scratch.link("to file", "file")).unwrap();
    assert!(file.is_symlink && file.is_file);
    assert_eq!(file.size, 5);
    let directory = of(&scratch.link("to directory", ".")).unwrap();
    assert!(directory.is_symlink && directory.is_directory);
    let dangling = scratch.link("dangling", "nowhere");
    assert_eq!(outcome(of(&dangling)), Outcome::NotFound);
    assert_eq!(outcome(of(&scratch.path("file/x"))), Outcome::Host);
}

#[test]
fn paths_with_links_are_rejected_on_request() {
    let scratch = TestDir::new();
    let root = fs::canonicalize(scratch.root()).unwrap();
    scratch.file("real/file", "");
    scratch.link("last", "real/file");
    scratch.link("above", "real");
    let alone = |path: &Path| {
        metadata(&GetMetadata {
            follow_symlinks: Some(false),
            ..request(path)
        })
    };
    assert!(alone(&root.join("real/file")).unwrap().is_file);
    assert!(alone(Path::new("/")).unwrap().is_directory);
    let last = alone(&root.join("last"));
    assert!(text(last.clone()).contains("path contains a symbolic link"));
    assert_eq!(outcome(last), Outcome::Invalid);
    let above = alone(&root.join("above/file"));
    assert!(text(above.clone()).contains("os error 20"));
    assert_eq!(outcome(above), Outcome::Host);
    assert_eq!(outcome(alone(&root.join("none"))), Outcome::NotFound);
}

mod canonicalize {
    use std::path::Path;

    use super::super::*;
    use crate::test_dir::{self, Outcome, TestDir, odd_name, outcome};

    fn resolved(path: &Path) -> Result<PathUri, FileError> {
        let path = test_dir::uri(path);
        canonicalize(&CanonicalizePath {
            path,
            sandbox: None,
        })
    }

    #[test]
    fn all_links_are_resolved() {
        let scratch = TestDir::new();
        let real = fs::canonicalize(scratch.directory("real")).unwrap();
        let file = scratch.file(Path::new("real").join(odd_name()), "");
        scratch.link("above", "real");
        let link = scratch.link("link", Path::new("above").join(odd_name()));
        let expected = test_dir::uri(real.join(odd_name()));
        for path in [&file, &link, &scratch.path("above").join(odd_name())] {
            assert_eq!(resolved(path), Ok(expected.clone()));
        }
        assert_eq!(resolved(Path::new("/")), Ok(test_dir::uri("/")));
    }

    #[test]
    fn only_existing_paths_can_be_resolved() {
        let scratch = TestDir::new();
        let file = scratch.file("file", "");
        let dangling = scratch.link("dangling", "nowhere");
        let circle = scratch.link("circle", "circle");
        assert_eq!(outcome(resolved(&scratch.path("none"))), Outcome::NotFound);
        assert_eq!(outcome(resolved(&dangling)), Outcome::NotFound);
        assert_eq!(outcome(resolved(&circle)), Outcome::Host);
        assert_eq!(outcome(resolved(&file.join("x"))), Outcome::Host);
    }
}
