//! Modes, which are kept.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::{Scene, names, noise, write};

fn set(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn a_large_file_has_the_mode_of_its_source() {
    let scene = Scene::new().await;
    for of in [0o444, 0o400, 0o640, 0o755] {
        let name = format!("{of:o}");
        write(&scene.here(&name), noise((2 << 20) + 1));
        set(&scene.here(&name), of);
        scene.run("cp", &[&name, &scene.remote("")]).await.well();
        assert_eq!(mode(&scene.there(&name)), of, "{name}");
        let (remote, back) = (scene.remote(&name), format!("back-{name}"));
        scene.run("cp", &[&remote, &back]).await.well();
        assert_eq!(mode(&scene.here(&back)), of, "{name}");
    }
}

/// Makes a tree with directories of odd modes, and returns those.
fn grow(root: &Path) -> Vec<(PathBuf, u32)> {
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
async fn directories_have_the_modes_of_their_sources_in_both_directions() {
    let scene = Scene::new().await;
    let modes = grow(&scene.here("tree"));
    let target = scene.remote("tree");
    scene.run("cp", &["-r", "tree", &target]).await.well();
    scene.run("cp", &["-r", &target, "back"]).await.well();
    for (name, of) in &modes {
        let (there, back) = (
            scene.there("tree").join(name),
            scene.here("back").join(name),
        );
        assert_eq!(mode(&there), *of, "{there:?}");
        assert_eq!(mode(&back), *of, "{back:?}");
        assert_eq!(fs::read(there.join("file")).unwrap(), b"x");
    }
    assert_eq!(names(scene.there.path()), ["tree"]);
}

#[tokio::test]
async fn a_directory_that_is_there_keeps_its_own_mode() {
    let scene = Scene::new().await;
    write(&scene.here("tree/new/file"), "x");
    set(&scene.here("tree"), 0o700);
    set(&scene.here("tree/new"), 0o700);
    fs::create_dir(scene.there("tree")).unwrap();
    set(&scene.there("tree"), 0o750);
    let target = scene.remote("tree");
    scene.run("cp", &["-r", "tree/.", &target]).await.well();
    assert_eq!(mode(&scene.there("tree")), 0o750);
    assert_eq!(mode(&scene.there("tree/new")), 0o700);
}
