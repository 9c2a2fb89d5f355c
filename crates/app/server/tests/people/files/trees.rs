//! Directories with everything in them.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{PermissionsExt, symlink},
    },
    path::Path,
};

use super::{Scene, names, noise, write};

/// Makes a tree of odd names; returns what is in it, links looked through.
fn grow(root: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
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

/// Asserts that a copy holds this, and nothing else.
fn assert_grown(root: &Path, expected: &[(Vec<u8>, Vec<u8>)]) {
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
async fn trees_with_odd_names_arrive_whole_in_both_directions() {
    let scene = Scene::new().await;
    let expected = grow(&scene.here("tree"));
    let line = ["-rL", "--json", "tree", &scene.remote("")];
    let ended = scene.run("cp", &line).await;
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("leads back"), "{ended:?}");
    let told: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(told["files"], expected.len());
    assert_eq!(told["skipped"], 1);
    assert_eq!(told["failed"], 0);
    assert_grown(&scene.there("tree"), &expected);
    let other = tempfile::tempdir().unwrap();
    let expected = grow(other.path());
    let source = format!(":{}", other.path().display());
    let ended = scene.run("cp", &["-rL", &source, "back"]).await;
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_grown(&scene.here("back"), &expected);
}

#[tokio::test]
async fn a_tree_without_a_name_of_its_own_is_merged_into_the_target() {
    let scene = Scene::new().await;
    write(&scene.here("a/b"), "new");
    write(&scene.there("a/b"), "old");
    write(&scene.there("a/kept"), "kept");
    scene
        .run("cp", &["-r", ".", &scene.remote("")])
        .await
        .well();
    assert_eq!(names(scene.there.path()), ["a"]);
    assert_eq!(names(&scene.there("a")), ["b", "kept"]);
    assert_eq!(fs::read(scene.there("a/b")).unwrap(), b"new");
}

#[tokio::test]
async fn a_tree_copied_again_goes_into_its_target_and_one_without_a_name_updates_it() {
    let scene = Scene::new().await;
    write(&scene.here("src/file"), "old");
    let target = scene.remote("dst");
    scene.run("cp", &["-r", "src", &target]).await.well();
    assert_eq!(names(&scene.there("dst")), ["file"]);
    write(&scene.here("src/file"), "new");
    scene.run("cp", &["-r", "src/.", &target]).await.well();
    assert_eq!(names(&scene.there("dst")), ["file"]);
    assert_eq!(fs::read(scene.there("dst/file")).unwrap(), b"new");
    scene.run("cp", &["-r", "src", &target]).await.well();
    assert_eq!(names(&scene.there("dst")), ["file", "src"]);
    assert_eq!(names(&scene.there("dst/src")), ["file"]);
}

#[tokio::test]
async fn what_fails_in_a_new_tree_is_told_and_the_rest_has_its_name() {
    let scene = Scene::new().await;
    write(&scene.here("tree/fine"), "fine");
    symlink("nowhere", scene.here("tree/dangling")).unwrap();
    fs::set_permissions(scene.here("tree"), fs::Permissions::from_mode(0o750)).unwrap();
    let ended = scene
        .run("cp", &["-rL", "tree", &scene.remote("new")])
        .await;
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("is dangling"), "{ended:?}");
    assert_eq!(names(scene.there.path()), ["new"]);
    assert_eq!(names(&scene.there("new")), ["fine"]);
}

#[tokio::test]
async fn what_fails_in_a_tree_is_told_and_the_rest_is_copied() {
    let scene = Scene::new().await;
    write(&scene.here("tree/fine"), "fine");
    write(&scene.here("tree/taken"), "file");
    symlink("nowhere", scene.here("tree/dangling")).unwrap();
    write(&scene.there("tree/taken/inside"), "a directory in the way");
    let ended = scene.run("cp", &["-rL", "tree", &scene.remote("")]).await;
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("dangling` is dangling"), "{ended:?}");
    assert!(ended.stderr.contains("taken"), "{ended:?}");
    assert!(ended.stderr.contains("1 not copied, 1 copied"), "{ended:?}");
    assert_eq!(names(&scene.there("tree")), ["fine", "taken"]);
    assert_eq!(fs::read(scene.there("tree/fine")).unwrap(), b"fine");
}

#[tokio::test]
async fn thousands_of_small_files_are_copied_and_counted() {
    let scene = Scene::new().await;
    for number in 0..2000 {
        let path = scene.here(&format!("tree/{}/{number}", number % 20));
        write(&path, number.to_string());
    }
    let told = scene
        .json("cp", &["-r", "--json", "tree", &scene.remote("")])
        .await;
    assert_eq!(
        (&told["files"], &told["directories"]),
        (&2000.into(), &21.into())
    );
    for number in [0, 999, 1999] {
        let path = scene.there(&format!("tree/{}/{number}", number % 20));
        assert_eq!(fs::read_to_string(path).unwrap(), number.to_string());
    }
}
