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
    let expected = make_tree(&fixture.local_path("tree"));
    let line = ["-rL", "--json", "tree", &fixture.remote("")];
    let ended = fixture.run("cp", &line).await;
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("leads back"), "{ended:?}");
    let output: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(output["files"], expected.len());
    assert_eq!(output["skipped"], 1);
    assert_eq!(output["failed"], 0);
    assert_tree(&fixture.remote_path("tree"), &expected);
    let other = tempfile::tempdir().unwrap();
    let expected = make_tree(other.path());
    let source = format!(":{}", other.path().display());
    let ended = fixture.run("cp", &["-rL", &source, "back"]).await;
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_tree(&fixture.local_path("back"), &expected);
}

#[tokio::test]
async fn tree_ending_in_dot_is_merged_into_the_target() {
    let fixture = CopyFixture::new().await;
    write(&fixture.local_path("a/b"), "new");
    write(&fixture.remote_path("a/b"), "old");
    write(&fixture.remote_path("a/kept"), "kept");
    fixture
        .run("cp", &["-r", ".", &fixture.remote("")])
        .await
        .expect_success();
    assert_eq!(names(fixture.remote_dir.path()), ["a"]);
    assert_eq!(names(&fixture.remote_path("a")), ["b", "kept"]);
    assert_eq!(fs::read(fixture.remote_path("a/b")).unwrap(), b"new");
}

#[tokio::test]
async fn second_copy_nests_and_dot_updates() {
    let fixture = CopyFixture::new().await;
    write(&fixture.local_path("src/file"), "old");
    let target = fixture.remote("dst");
    fixture
        .run("cp", &["-r", "src", &target])
        .await
        .expect_success();
    assert_eq!(names(&fixture.remote_path("dst")), ["file"]);
    write(&fixture.local_path("src/file"), "new");
    fixture
        .run("cp", &["-r", "src/.", &target])
        .await
        .expect_success();
    assert_eq!(names(&fixture.remote_path("dst")), ["file"]);
    assert_eq!(fs::read(fixture.remote_path("dst/file")).unwrap(), b"new");
    fixture
        .run("cp", &["-r", "src", &target])
        .await
        .expect_success();
    assert_eq!(names(&fixture.remote_path("dst")), ["file", "src"]);
    assert_eq!(names(&fixture.remote_path("dst/src")), ["file"]);
}

#[tokio::test]
async fn failures_in_a_new_tree_are_reported_and_the_rest_is_renamed() {
    let fixture = CopyFixture::new().await;
    write(&fixture.local_path("tree/fine"), "fine");
    symlink("nowhere", fixture.local_path("tree/dangling")).unwrap();
    fs::set_permissions(
        fixture.local_path("tree"),
        fs::Permissions::from_mode(0o750),
    )
    .unwrap();
    let ended = fixture
        .run("cp", &["-rL", "tree", &fixture.remote("new")])
        .await;
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("is dangling"), "{ended:?}");
    assert_eq!(names(fixture.remote_dir.path()), ["new"]);
    assert_eq!(names(&fixture.remote_path("new")), ["fine"]);
}

#[tokio::test]
async fn failures_in_a_tree_are_reported_and_the_rest_is_copied() {
    let fixture = CopyFixture::new().await;
    write(&fixture.local_path("tree/fine"), "fine");
    write(&fixture.local_path("tree/taken"), "file");
    symlink("nowhere", fixture.local_path("tree/dangling")).unwrap();
    write(
        &fixture.remote_path("tree/taken/inside"),
        "a directory in the way",
    );
    let ended = fixture
        .run("cp", &["-rL", "tree", &fixture.remote("")])
        .await;
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("dangling` is dangling"), "{ended:?}");
    assert!(ended.stderr.contains("taken"), "{ended:?}");
    assert!(ended.stderr.contains("1 not copied, 1 copied"), "{ended:?}");
    assert_eq!(names(&fixture.remote_path("tree")), ["fine", "taken"]);
    assert_eq!(fs::read(fixture.remote_path("tree/fine")).unwrap(), b"fine");
}

#[tokio::test]
async fn thousands_of_small_files_are_copied_and_counted() {
    let fixture = CopyFixture::new().await;
    for number in 0..2000 {
        let path = fixture.local_path(&format!("tree/{}/{number}", number % 20));
        write(&path, number.to_string());
    }
    let output = fixture
        .json("cp", &["-r", "--json", "tree", &fixture.remote("")])
        .await;
    assert_eq!(
        (&output["files"], &output["directories"]),
        (&2000.into(), &21.into())
    );
    for number in [0, 999, 1999] {
        let path = fixture.remote_path(&format!("tree/{}/{number}", number % 20));
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
        write(&fixture.local_path(&name), noise((2 << 20) + 1));
        set(&fixture.local_path(&name), of);
        fixture
            .run("cp", &[&name, &fixture.remote("")])
            .await
            .expect_success();
        assert_eq!(mode(&fixture.remote_path(&name)), of, "{name}");
        let (remote, back) = (fixture.remote(&name), format!("back-{name}"));
        fixture.run("cp", &[&remote, &back]).await.expect_success();
        assert_eq!(mode(&fixture.local_path(&back)), of, "{name}");
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
    let modes = make_tree_with_modes(&fixture.local_path("tree"));
    let target = fixture.remote("tree");
    fixture
        .run("cp", &["-r", "tree", &target])
        .await
        .expect_success();
    fixture
        .run("cp", &["-r", &target, "back"])
        .await
        .expect_success();
    for (name, of) in &modes {
        let (there, back) = (
            fixture.remote_path("tree").join(name),
            fixture.local_path("back").join(name),
        );
        assert_eq!(mode(&there), *of, "{there:?}");
        assert_eq!(mode(&back), *of, "{back:?}");
        assert_eq!(fs::read(there.join("file")).unwrap(), b"x");
    }
    assert_eq!(names(fixture.remote_dir.path()), ["tree"]);
}

#[tokio::test]
async fn existing_directory_keeps_its_mode() {
    let fixture = CopyFixture::new().await;
    write(&fixture.local_path("tree/new/file"), "x");
    set(&fixture.local_path("tree"), 0o700);
    set(&fixture.local_path("tree/new"), 0o700);
    fs::create_dir(fixture.remote_path("tree")).unwrap();
    set(&fixture.remote_path("tree"), 0o750);
    let target = fixture.remote("tree");
    fixture
        .run("cp", &["-r", "tree/.", &target])
        .await
        .expect_success();
    assert_eq!(mode(&fixture.remote_path("tree")), 0o750);
    assert_eq!(mode(&fixture.remote_path("tree/new")), 0o700);
}
