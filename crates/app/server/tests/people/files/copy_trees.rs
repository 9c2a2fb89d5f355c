//! Tests of copying trees, and of their modes.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
};

use crate::files::{CopyFixture, names, noise, write};

/// Creates a tree with unusual names; returns its contents with links followed.
fn make_tree(root: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let odd: [(&[u8], &[u8]); 6] = [
        (b"plain", b"1"),
        (b"with space", b"2"),
        (b"new\nline", b"3"),
        ("überall/ß".as_bytes(), b"4"),
        (b"not \xff text", b"5"),
        (b"a/b/c/d%20e?#", b"6"),
    ];
    for (name, content) in odd {
        write(&root.join(OsStr::from_bytes(name)), content);
    }
    let large = noise((2 << 20) + 1);
    write(&root.join("a/large"), &large);
    fs::create_dir(root.join("empty")).unwrap();
    fs::set_permissions(root.join("plain"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("plain", root.join("to file")).unwrap();
    symlink("a/b", root.join("to directory")).unwrap();
    symlink("..", root.join("a/back")).unwrap();
    let mut expected: Vec<_> = odd
        .iter()
        .map(|(name, content)| (name.to_vec(), content.to_vec()))
        .collect();
    expected.push((b"a/large".to_vec(), large));
    expected.push((b"to file".to_vec(), b"1".to_vec()));
    expected.push((b"to directory/c/d%20e?#".to_vec(), b"6".to_vec()));
    expected
}

/// Asserts that a copy has exactly these contents.
fn assert_tree(root: &Path, expected: &[(Vec<u8>, Vec<u8>)]) {
    for (name, content) in expected {
        let path = root.join(OsStr::from_bytes(name));
        assert!(fs::read(&path).unwrap() == *content, "{path:?}");
        assert!(!path.is_symlink(), "{path:?}");
    }
    assert_eq!(names(&root.join("empty")), [""; 0]);
    let top = names(root);
    assert!(top.iter().all(|name| !name.ends_with(".part")), "{top:?}");
    assert_eq!(top.len(), 9, "{top:?}");
    let mode = fs::metadata(root.join("plain"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o755);
}

#[tokio::test]
async fn trees_with_unusual_names_are_copied_in_both_directions() {
    let fixture = CopyFixture::new().await;
    let expected = make_tree(&fixture.here("tree"));
    let line = ["-rL", "--json", "tree", &fixture.remote("")];
    let ended = fixture.run("cp", &line).await;
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("leads back"), "{ended:?}");
    let told: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(told["files"], expected.len());
    assert_eq!(told["skipped"], 1);
    assert_eq!(told["failed"], 0);
    assert_tree(&fixture.there("tree"), &expected);
    let other = tempfile::tempdir().unwrap();
    let expected = make_tree(other.path());
    let source = format!(":{}", other.path().display());
    let ended = fixture.run("cp", &["-rL", &source, "back"]).await;
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_tree(&fixture.here("back"), &expected);
}

#[tokio::test]
async fn tree_ending_in_dot_is_merged_into_the_target() {
    let fixture = CopyFixture::new().await;
    write(&fixture.here("a/b"), "new");
    write(&fixture.there("a/b"), "old");
    write(&fixture.there("a/kept"), "kept");
    fixture
        .run("cp", &["-r", ".", &fixture.remote("")])
        .await
        .well();
    assert_eq!(names(fixture.there.path()), ["a"]);
    assert_eq!(names(&fixture.there("a")), ["b", "kept"]);
    assert_eq!(fs::read(fixture.there("a/b")).unwrap(), b"new");
}

#[tokio::test]
async fn second_copy_nests_and_dot_updates() {
    let fixture = CopyFixture::new().await;
    write(&fixture.here("src/file"), "old");
    let target = fixture.remote("dst");
    fixture.run("cp", &["-r", "src", &target]).await.well();
    assert_eq!(names(&fixture.there("dst")), ["file"]);
    write(&fixture.here("src/file"), "new");
    fixture.run("cp", &["-r", "src/.", &target]).await.well();
    assert_eq!(names(&fixture.there("dst")), ["file"]);
    assert_eq!(fs::read(fixture.there("dst/file")).unwrap(), b"new");
    fixture.run("cp", &["-r", "src", &target]).await.well();
    assert_eq!(names(&fixture.there("dst")), ["file", "src"]);
    assert_eq!(names(&fixture.there("dst/src")), ["file"]);
}

#[tokio::test]
async fn failures_in_a_new_tree_are_reported_and_the_rest_is_renamed() {
    let fixture = CopyFixture::new().await;
    write(&fixture.here("tree/fine"), "fine");
    symlink("nowhere", fixture.here("tree/dangling")).unwrap();
    fs::set_permissions(fixture.here("tree"), fs::Permissions::from_mode(0o750)).unwrap();
    let ended = fixture
        .run("cp", &["-rL", "tree", &fixture.remote("new")])
        .await;
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("is dangling"), "{ended:?}");
    assert_eq!(names(fixture.there.path()), ["new"]);
    assert_eq!(names(&fixture.there("new")), ["fine"]);
}

#[tokio::test]
async fn failures_in_a_tree_are_reported_and_the_rest_is_copied() {
    let fixture = CopyFixture::new().await;
    write(&fixture.here("tree/fine"), "fine");
    write(&fixture.here("tree/taken"), "file");
    symlink("nowhere", fixture.here("tree/dangling")).unwrap();
    write(
        &fixture.there("tree/taken/inside"),
        "a directory in the way",
    );
    let ended = fixture
        .run("cp", &["-rL", "tree", &fixture.remote("")])
        .await;
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("dangling` is dangling"), "{ended:?}");
    assert!(ended.stderr.contains("taken"), "{ended:?}");
    assert!(ended.stderr.contains("1 not copied, 1 copied"), "{ended:?}");
    assert_eq!(names(&fixture.there("tree")), ["fine", "taken"]);
    assert_eq!(fs::read(fixture.there("tree/fine")).unwrap(), b"fine");
}

#[tokio::test]
async fn thousands_of_small_files_are_copied_and_counted() {
    let fixture = CopyFixture::new().await;
    for number in 0..2000 {
        let path = fixture.here(&format!("tree/{}/{number}", number % 20));
        write(&path, number.to_string());
    }
    let told = fixture
        .json("cp", &["-r", "--json", "tree", &fixture.remote("")])
        .await;
    assert_eq!(
        (&told["files"], &told["directories"]),
        (&2000.into(), &21.into())
    );
    for number in [0, 999, 1999] {
        let path = fixture.there(&format!("tree/{}/{number}", number % 20));
        assert_eq!(fs::read_to_string(path).unwrap(), number.to_string());
    }
}

fn set(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn large_file_keeps_its_mode() {
    let fixture = CopyFixture::new().await;
    for of in [0o444, 0o400, 0o640, 0o755] {
        let name = format!("{of:o}");
        write(&fixture.here(&name), noise((2 << 20) + 1));
        set(&fixture.here(&name), of);
        fixture
            .run("cp", &[&name, &fixture.remote("")])
            .await
            .well();
        assert_eq!(mode(&fixture.there(&name)), of, "{name}");
        let (remote, back) = (fixture.remote(&name), format!("back-{name}"));
        fixture.run("cp", &[&remote, &back]).await.well();
        assert_eq!(mode(&fixture.here(&back)), of, "{name}");
    }
}

/// Creates a tree with unusual directory modes and returns them.
fn make_tree_with_modes(root: &Path) -> Vec<(PathBuf, u32)> {
    let modes = [
        ("private/below", 0o755),
        ("private", 0o700),
        ("shared", 0o777),
        ("sealed/below", 0o555),
        ("sealed", 0o511),
        ("not \u{fffd} plain", 0o750),
        ("", 0o710),
    ];
    for (name, of) in modes {
        write(&root.join(name).join("file"), "x");
        set(&root.join(name), of | 0o700);
    }
    for (name, of) in modes {
        set(&root.join(name), of);
    }
    modes.map(|(name, of)| (PathBuf::from(name), of)).to_vec()
}

#[tokio::test]
async fn directories_keep_their_modes_in_both_directions() {
    let fixture = CopyFixture::new().await;
    let modes = make_tree_with_modes(&fixture.here("tree"));
    let target = fixture.remote("tree");
    fixture.run("cp", &["-r", "tree", &target]).await.well();
    fixture.run("cp", &["-r", &target, "back"]).await.well();
    for (name, of) in &modes {
        let (there, back) = (
            fixture.there("tree").join(name),
            fixture.here("back").join(name),
        );
        assert_eq!(mode(&there), *of, "{there:?}");
        assert_eq!(mode(&back), *of, "{back:?}");
        assert_eq!(fs::read(there.join("file")).unwrap(), b"x");
    }
    assert_eq!(names(fixture.there.path()), ["tree"]);
}

#[tokio::test]
async fn existing_directory_keeps_its_mode() {
    let fixture = CopyFixture::new().await;
    write(&fixture.here("tree/new/file"), "x");
    set(&fixture.here("tree"), 0o700);
    set(&fixture.here("tree/new"), 0o700);
    fs::create_dir(fixture.there("tree")).unwrap();
    set(&fixture.there("tree"), 0o750);
    let target = fixture.remote("tree");
    fixture.run("cp", &["-r", "tree/.", &target]).await.well();
    assert_eq!(mode(&fixture.there("tree")), 0o750);
    assert_eq!(mode(&fixture.there("tree/new")), 0o700);
}
