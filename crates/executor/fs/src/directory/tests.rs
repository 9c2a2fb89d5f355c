use std::{fs, os::unix::fs::PermissionsExt};

use super::*;
use crate::test_dir::{
    Outcome, TestDir, odd_name, open_directory, outcome, text, uri, within_seconds,
};

fn request(path: &Path) -> CreateDirectory {
    CreateDirectory {
        path: uri(path),
        recursive: None,
        follow_symlinks: None,
        sandbox: None,
    }
}

fn alone(path: &Path) -> CreateDirectory {
    CreateDirectory {
        recursive: Some(false),
        ..request(path)
    }
}

fn list(path: &Path) -> Result<Vec<DirectoryEntry>, FileError> {
    let mut entries = read_directory(&ReadDirectory::new(uri(path)))?.entries;
    entries.sort();
    Ok(entries)
}

fn entry(name: &str, kind: FileType) -> DirectoryEntry {
    DirectoryEntry {
        file_name: name.to_owned(),
        is_directory: kind == FileType::Directory,
        is_file: kind == FileType::RegularFile,
        ..DirectoryEntry::default()
    }
}

#[test]
fn directory_is_created_with_its_parents() {
    let scratch = TestDir::new();
    let path = scratch.path("a/b").join(odd_name());
    create_directory(&request(&path)).unwrap();
    create_directory(&request(&path)).unwrap();
    assert!(path.is_dir());
    let usual = scratch.directory("usual");
    let mode = |path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&path), mode(&usual));
    create_directory(&request(Path::new("/"))).unwrap();
}

#[test]
fn file_in_place_of_a_directory_is_an_error() {
    let scratch = TestDir::new();
    scratch.file("file", "");
    scratch.link("dangling", "nowhere");
    for name in ["file", "file/a", "dangling", "dangling/a"] {
        let refused = create_directory(&request(&scratch.path(name)));
        assert_eq!(outcome(refused), Outcome::Host, "{name}");
    }
    assert!(!scratch.path("nowhere").exists());
}

#[test]
fn single_directory_is_created_only_if_missing() {
    let scratch = TestDir::new();
    let path = scratch.path("a");
    create_directory(&alone(&path)).unwrap();
    assert!(path.is_dir());
    assert_eq!(outcome(create_directory(&alone(&path))), Outcome::Host);
    assert_eq!(
        outcome(create_directory(&alone(Path::new("/")))),
        Outcome::Host
    );
    let deep = create_directory(&alone(&scratch.path("b/c")));
    assert_eq!(outcome(deep), Outcome::NotFound);
}

#[test]
fn links_are_followed_unless_refused() {
    let scratch = TestDir::new();
    let root = fs::canonicalize(scratch.root()).unwrap();
    scratch.directory("real");
    scratch.link("link", "real");
    create_directory(&request(&root.join("link/a/b"))).unwrap();
    create_directory(&request(&root.join("link"))).unwrap();
    assert!(scratch.path("real/a/b").is_dir());
    for recursive in [Some(true), Some(false)] {
        let create = |name| {
            create_directory(&CreateDirectory {
                recursive,
                follow_symlinks: Some(false),
                ..request(&root.join(name))
            })
        };
        assert_eq!(outcome(create("link")), Outcome::Host);
        let above = create("link/c");
        assert!(text(above.clone()).contains("os error 20"), "{above:?}");
        assert_eq!(outcome(create("real/c")), Outcome::Done);
        fs::remove_dir(root.join("real/c")).unwrap();
    }
}

#[test]
fn links_are_listed_with_the_type_of_their_target() {
    let scratch = TestDir::new();
    scratch.file("file", "");
    scratch.directory("directory");
    scratch.fifo("fifo");
    scratch.link("to file", "file");
    scratch.link("to directory", "directory");
    scratch.link("to fifo", "fifo");
    scratch.link("dangling", "nowhere");
    scratch.link("through file", "file/x");
    scratch.link("loop", "loop");
    scratch.link("long", "l".repeat(300));
    let entries = within_seconds({
        let root = scratch.root().to_owned();
        move || list(&root)
    });
    let expected = vec![
        entry("directory", FileType::Directory),
        entry("fifo", FileType::Fifo),
        entry("file", FileType::RegularFile),
        entry("to directory", FileType::Directory),
        entry("to fifo", FileType::Fifo),
        entry("to file", FileType::RegularFile),
    ];
    assert_eq!(entries, Ok(expected));
}

#[test]
fn non_utf8_names_are_replaced() {
    let scratch = TestDir::new();
    scratch.file(odd_name(), "");
    let expected = vec![entry("odd \u{fffd}?#%", FileType::RegularFile)];
    assert_eq!(list(scratch.root()), Ok(expected));
}

#[test]
fn only_directories_are_listed() {
    let scratch = TestDir::new();
    let file = scratch.file("file", "");
    let fifo = scratch.fifo("fifo");
    assert_eq!(outcome(list(&file)), Outcome::Host);
    assert_eq!(within_seconds(move || outcome(list(&fifo))), Outcome::Host);
    assert_eq!(outcome(list(&scratch.path("none"))), Outcome::NotFound);
    let link = scratch.link("link", ".");
    assert_eq!(outcome(list(&link)), Outcome::Done);
}

#[test]
fn too_many_entries_are_an_error() {
    let scratch = TestDir::new();
    let first = scratch.file("first", "");
    // Hard links are much cheaper than files.
    for index in 1..limits::MAX_DIRECTORY_ENTRIES {
        fs::hard_link(&first, scratch.path(index.to_string())).unwrap();
    }
    let listed = list(scratch.root()).unwrap();
    assert_eq!(listed.len(), limits::MAX_DIRECTORY_ENTRIES);
    scratch.file("one more", "");
    assert_eq!(outcome(list(scratch.root())), Outcome::Host);
}

fn down(levels: &mut DirectoryStack, names: usize) {
    for _ in 0..names {
        let below = resolve::directory_at(levels.current(), "d").unwrap();
        levels.enter(below).unwrap();
    }
}

#[test]
fn leaving_retraces_the_entered_directories_with_few_descriptors() {
    let scratch = TestDir::new();
    let top = scratch.deep("top", 100);
    let mut levels = DirectoryStack::new(open_directory(&top));
    let mut seen = vec![InodeId::of(levels.current())];
    for _ in 0..100 {
        down(&mut levels, 1);
        seen.push(InodeId::of(levels.current()));
        let open = |level: &&StackLevel| matches!(level, StackLevel::Open(_));
        assert!(levels.above.iter().filter(open).count() <= OPEN_LEVELS);
    }
    while let Some(identity) = seen.pop() {
        assert_eq!(InodeId::of(levels.current()), identity);
        levels.leave().unwrap();
    }
}

#[test]
fn moved_tree_does_not_redirect() {
    let scratch = TestDir::new();
    let top = scratch.deep("top", 40);
    let elsewhere = scratch.directory("elsewhere");
    let mut levels = DirectoryStack::new(open_directory(&top));
    down(&mut levels, 40);
    fs::rename(top.join("d/d/d"), elsewhere.join("d")).unwrap();
    let left = std::iter::repeat_with(|| levels.leave()).take_while(Result::is_ok);
    assert_eq!(left.count(), 37);
}
