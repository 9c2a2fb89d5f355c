use std::{
    fs,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        net::UnixListener,
    },
    path::Path,
};

use exec_env::filesystem::FileError;
use exec_wire::fs::{CopyPath, RemovePath};

use super::*;
use crate::{
    CancelFlag,
    test_dir::{Outcome, TestDir, names, odd_name, open_directory, outcome, uri, within_seconds},
};

fn request(source: &Path, destination: &Path) -> CopyPath {
    CopyPath {
        source_path: uri(source),
        destination_path: uri(destination),
        recursive: true,
        sandbox: None,
    }
}

fn copy(source: &Path, destination: &Path) -> Result<(), FileError> {
    super::copy(&request(source, destination), &CancelFlag::default())
}

fn copied(source: &Path, destination: &Path) -> Outcome {
    outcome(copy(source, destination))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn file_is_copied_with_its_permission_bits() {
    let scratch = TestDir::new();
    let source = scratch.file(odd_name(), "content");
    let new = scratch.path("new");
    let old = scratch.file("old", "a much longer content");
    // The last file is read-only, and not written again.
    for bits in [0o777, 0o600, 0o4755, 0o440] {
        set_mode(&source, bits);
        for destination in [&new, &old] {
            copy(&source, destination).unwrap();
            assert_eq!(fs::read(destination).unwrap(), b"content");
            assert_eq!(mode(destination), bits);
        }
    }
}

#[test]
fn large_file_is_copied_in_blocks() {
    let scratch = TestDir::new();
    let content: Vec<u8> = (0..40_000_000_u32)
        .map(|index| (index % 251) as u8)
        .collect();
    let source = scratch.file("large", &content);
    let destination = scratch.path("copy");
    copy(&source, &destination).unwrap();
    assert!(fs::read(destination).unwrap() == content);
}

#[test]
fn generated_file_is_copied() {
    let scratch = TestDir::new();
    let destination = scratch.path("copy");
    copy(Path::new("/proc/self/status"), &destination).unwrap();
    assert!(fs::read(destination).unwrap().starts_with(b"Name:"));
}

#[test]
fn destination_link_is_followed() {
    let scratch = TestDir::new();
    let source = scratch.file("source", "new");
    let target = scratch.file("target", "old");
    let link = scratch.link("link", "target");
    copy(&source, &link).unwrap();
    assert!(link.is_symlink());
    assert_eq!(fs::read(target).unwrap(), b"new");
}

#[test]
fn file_copied_onto_itself_keeps_its_content() {
    let scratch = TestDir::new();
    let file = scratch.file("a/file", "content");
    let same = [
        file.clone(),
        scratch.path("b/file"),
        scratch.path("hard"),
        scratch.path("soft"),
    ];
    scratch.link("b", "a");
    fs::hard_link(&file, &same[2]).unwrap();
    scratch.link("soft", "a/file");
    for same in &same {
        assert_eq!(copied(&file, same), Outcome::Invalid, "{same:?}");
        assert_eq!(fs::read(&file).unwrap(), b"content");
    }
}

#[test]
fn file_is_not_copied_onto_another_file_type() {
    let scratch = TestDir::new();
    let source = scratch.file("source", "content");
    let directory = scratch.directory("directory");
    assert_eq!(copied(&source, &directory), Outcome::Host);
    assert_eq!(copied(&source, Path::new("/dev/null")), Outcome::Invalid);
    assert_eq!(copied(&source, &scratch.path("none/x")), Outcome::NotFound);
    assert_eq!(copied(&source, &source.join("x")), Outcome::Host);
    let fifo = scratch.fifo("fifo");
    let blocked = within_seconds(move || copied(&source, &fifo));
    assert_eq!(blocked, Outcome::Host);
}

#[test]
fn missing_source_is_not_found() {
    let scratch = TestDir::new();
    let missing = copied(&scratch.path("none"), &scratch.path("copy"));
    assert_eq!(missing, Outcome::NotFound);
    assert!(names(scratch.root()).is_empty());
}

#[test]
fn special_file_is_rejected_without_blocking() {
    let scratch = TestDir::new();
    let _listener = UnixListener::bind(scratch.path("socket")).unwrap();
    let sources = [
        scratch.fifo("fifo"),
        scratch.path("socket"),
        "/dev/null".into(),
    ];
    for source in sources {
        let destination = scratch.path("copy");
        let refused = within_seconds(move || copied(&source, &destination));
        assert_eq!(refused, Outcome::Invalid);
    }
    assert!(!scratch.path("copy").exists());
}

#[test]
fn link_is_copied_as_a_link() {
    let scratch = TestDir::new();
    scratch.file("file", "content");
    for text in ["file", "nowhere", "."] {
        let link = scratch.link("link", text);
        let destination = scratch.path("copy");
        copy(&link, &destination).unwrap();
        assert_eq!(fs::read_link(&destination).unwrap(), Path::new(text));
        assert_eq!(copied(&link, &destination), Outcome::Host);
        assert_eq!(copied(&link, &link), Outcome::Host);
        fs::remove_file(link).unwrap();
        fs::remove_file(destination).unwrap();
    }
    let link = scratch.link("link", "nowhere");
    let taken = scratch.file("taken", "content");
    assert_eq!(copied(&link, &taken), Outcome::Host);
    assert_eq!(fs::read(taken).unwrap(), b"content");
}

#[test]
fn directory_copy_requires_recursive() {
    let scratch = TestDir::new();
    let source = scratch.directory("source");
    let copy = CopyPath {
        recursive: false,
        ..request(&source, &scratch.path("copy"))
    };
    assert_eq!(
        outcome(super::copy(&copy, &CancelFlag::default())),
        Outcome::Invalid
    );
    assert_eq!(names(scratch.root()), ["source"]);
}

#[test]
fn tree_is_copied_without_special_files() {
    let scratch = TestDir::new();
    let source = scratch.directory("source");
    scratch.file("source/a/b/file", "content");
    set_mode(&scratch.path("source/a/b/file"), 0o751);
    set_mode(&scratch.path("source/a/b"), 0o500);
    set_mode(&scratch.path("source/a"), 0o700);
    scratch.file(Path::new("source").join(odd_name()), "odd");
    scratch.directory("source/empty");
    scratch.link("source/dangling", "nowhere");
    scratch.link("source/up", "..");
    scratch.fifo("source/fifo");
    let destination = scratch.path("new/parents/copy");
    {
        let destination = destination.clone();
        within_seconds(move || copy(&source, &destination)).unwrap();
    }
    assert_eq!(names(&destination).len(), 5);
    let file = destination.join("a/b/file");
    assert_eq!(fs::read(&file).unwrap(), b"content");
    assert_eq!(mode(&file), 0o751);
    assert_eq!(mode(&destination.join("a")), 0o700);
    assert_eq!(mode(&destination.join("a/b")), 0o700);
    assert_eq!(fs::read(destination.join(odd_name())).unwrap(), b"odd");
    assert!(names(&destination.join("empty")).is_empty());
    let link = fs::read_link(destination.join("dangling"));
    assert_eq!(link.unwrap(), Path::new("nowhere"));
    assert_eq!(
        fs::read_link(destination.join("up")).unwrap(),
        Path::new("..")
    );
}

#[test]
fn tree_is_merged_into_an_existing_one() {
    let scratch = TestDir::new();
    let source = scratch.directory("source");
    scratch.file("source/a/both", "new");
    scratch.file("source/a/new", "new");
    let destination = scratch.directory("destination");
    scratch.file("destination/a/both", "old and longer");
    scratch.file("destination/a/old", "old");
    let link = scratch.link("link", "destination");
    copy(&source, &link).unwrap();
    copy(&source, &destination).unwrap();
    assert_eq!(names(&destination.join("a")), ["both", "new", "old"]);
    assert_eq!(fs::read(destination.join("a/both")).unwrap(), b"new");
    assert_eq!(fs::read(destination.join("a/old")).unwrap(), b"old");
}

#[test]
fn tree_is_not_merged_with_a_non_directory() {
    let scratch = TestDir::new();
    let source = scratch.directory("source");
    scratch.file("source/a/file", "new");
    let file = scratch.file("file", "");
    let dangling = scratch.link("dangling", "nowhere");
    for destination in [&file, &dangling] {
        assert_eq!(copied(&source, destination), Outcome::Host);
    }
    scratch.file("one/a", "");
    assert_eq!(copied(&source, &scratch.path("one")), Outcome::Host);
    // A link to a directory below the top leads elsewhere, and is not followed.
    scratch.directory("elsewhere");
    scratch.directory("two");
    scratch.link("two/a", "../elsewhere");
    assert_eq!(copied(&source, &scratch.path("two")), Outcome::Host);
    assert!(names(&scratch.path("elsewhere")).is_empty());
    scratch.file("source/link", "");
    fs::remove_file(scratch.path("source/link")).unwrap();
    scratch.link("source/link", "x");
    scratch.file("three/link", "");
    assert_eq!(copied(&source, &scratch.path("three")), Outcome::Host);
}

#[test]
fn directory_is_not_copied_onto_or_into_itself() {
    let scratch = TestDir::new();
    let source = scratch.directory("real/source");
    scratch.file("real/source/below/file", "content");
    scratch.link("above", "real");
    scratch.link("source", "real/source/below");
    let inside = [
        "real/source",
        "above/source",
        "real/source/new",
        "real/source/below",
        "real/source/new/and/deeper",
        "above/source/below/new",
        "source",
        "source/new",
    ];
    for destination in inside {
        let refused = copied(&source, &scratch.path(destination));
        assert_eq!(refused, Outcome::Invalid, "{destination}");
    }
    assert_eq!(copied(Path::new("/"), scratch.root()), Outcome::Invalid);
    assert_eq!(names(&source), ["below"]);
    assert_eq!(names(&scratch.path("real/source/below")), ["file"]);
    // A name with the same prefix is a sibling, and copying into an ancestor is allowed.
    copy(&source, &scratch.path("real/source2")).unwrap();
    copy(&source, &scratch.path("real")).unwrap();
    assert_eq!(names(&scratch.path("real")), ["below", "source", "source2"]);
}

#[test]
fn tree_deeper_than_the_path_limit_is_copied() {
    let scratch = TestDir::new();
    let source = scratch.deep("source", 3000);
    let destination = scratch.path("destination");
    copy(&source, &destination).unwrap();
    for (path, depth) in [(&source, 3000), (&destination, 3000)] {
        let mut found = 0;
        let mut current = crate::test_dir::open_directory(path);
        while let Ok(below) = crate::resolve::directory_at(&current, "d") {
            (current, found) = (below, found + 1);
        }
        assert_eq!(found, depth);
        let remove = RemovePath {
            path: uri(path),
            recursive: None,
            force: None,
            follow_symlinks: None,
            sandbox: None,
        };
        crate::remove(&remove, &CancelFlag::default()).unwrap();
    }
}

#[test]
fn timestamps_are_not_copied() {
    let scratch = TestDir::new();
    let source = scratch.file("source", "content");
    let past = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    fs::File::open(&source).unwrap().set_modified(past).unwrap();
    let destination = scratch.path("copy");
    copy(&source, &destination).unwrap();
    assert!(fs::metadata(destination).unwrap().mtime() > 1_000_000);
}

#[test]
fn cancelled_operation_stops() {
    let scratch = TestDir::new();
    let file = scratch.file("source/file", "content");
    let stop = CancelFlag::default();
    stop.cancel();
    for source in [file, scratch.path("source")] {
        let copy = request(&source, &scratch.path("copy"));
        assert_eq!(outcome(super::copy(&copy, &stop)), Outcome::Host);
        assert!(!scratch.path("copy/file").exists());
        fs::remove_file(scratch.path("copy")).unwrap_or_default();
    }
}

fn tree<'a>(scratch: &TestDir, stop: &'a CancelFlag) -> TreeCopy<'a> {
    let (source, destination) = (scratch.directory("from"), scratch.directory("to"));
    TreeCopy::new(
        (open_directory(&source), &source),
        (open_directory(&destination), &destination),
        stop,
    )
    .unwrap()
}

#[test]
fn entries_that_disappear_are_skipped() {
    let (scratch, stop) = (TestDir::new(), CancelFlag::default());
    let mut tree = tree(&scratch, &stop);
    let gone = OsStr::new("gone");
    for kind in [FileType::RegularFile, FileType::Symlink, FileType::Fifo] {
        assert_eq!(tree.copy_entry(gone, kind), Ok(()));
    }
    assert_eq!(tree.enter(gone), Ok(false));
    fs::remove_dir(scratch.path("from")).unwrap();
    assert_eq!(tree.copy_files(), Ok(Vec::new()));
    assert!(names(&scratch.path("to")).is_empty());
}

#[test]
fn entry_that_became_a_link_is_not_followed() {
    let (scratch, stop) = (TestDir::new(), CancelFlag::default());
    scratch.file("secret/file", "");
    let mut tree = tree(&scratch, &stop);
    scratch.link("from/directory", "../secret");
    scratch.link("from/file", "../secret/file");
    let entered = tree.enter(OsStr::new("directory"));
    assert_eq!(outcome(entered), Outcome::Host);
    let copied = tree.copy_entry(OsStr::new("file"), FileType::RegularFile);
    assert_eq!(outcome(copied), Outcome::Host);
    assert!(names(&scratch.path("to")).is_empty());
}

#[test]
fn entry_that_became_special_is_skipped() {
    let (scratch, stop) = (TestDir::new(), CancelFlag::default());
    let tree = tree(&scratch, &stop);
    scratch.fifo("from/fifo");
    let copied = tree.copy_entry(OsStr::new("fifo"), FileType::RegularFile);
    assert_eq!(copied, Ok(()));
    assert!(names(&scratch.path("to")).is_empty());
}

#[test]
fn destination_moved_into_the_source_is_not_entered() {
    let (scratch, stop) = (TestDir::new(), CancelFlag::default());
    let tree = tree(&scratch, &stop);
    scratch.file("from/file", "");
    fs::rename(scratch.path("to"), scratch.path("from/to")).unwrap();
    assert_eq!(outcome(tree.copy()), Outcome::Invalid);
}
