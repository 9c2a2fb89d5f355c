//! What a copy may take the place of.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, symlink},
    path::Path,
};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::{Scene, names, write};

fn make_pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

fn is_pipe(path: &Path) -> bool {
    fs::symlink_metadata(path).unwrap().file_type().is_fifo()
}

#[tokio::test]
async fn a_link_at_the_target_stays_and_its_file_gets_the_content() {
    let scene = Scene::new().await;
    write(&scene.here("new"), "new");
    write(&scene.there("new"), "new");
    for at in [scene.there(""), scene.here("")] {
        write(&at.join("deep/real"), "old");
        symlink("deep/real", at.join("link")).unwrap();
    }
    let (remote, link) = (scene.remote("new"), scene.remote("link"));
    scene.run("cp", &["new", &link]).await.well();
    scene.run("cp", &[&remote, "link"]).await.well();
    for at in [scene.there(""), scene.here("")] {
        assert!(at.join("link").is_symlink(), "{at:?}");
        assert_eq!(fs::read(at.join("deep/real")).unwrap(), b"new", "{at:?}");
        assert_eq!(names(&at.join("deep")), ["real"]);
    }
}

#[tokio::test]
async fn links_and_pipes_in_a_tree_that_is_there_stay_what_they_are() {
    let scene = Scene::new().await;
    for name in ["tree/link", "tree/pipe", "tree/plain"] {
        write(&scene.here(name), "new");
    }
    write(&scene.there("tree/plain"), "old");
    write(&scene.there("real"), "old");
    symlink("../real", scene.there("tree/link")).unwrap();
    make_pipe(&scene.there("tree/pipe"));
    let ended = scene.run("cp", &["-r", "tree", &scene.remote("")]).await;
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("tree/pipe` is neither"), "{ended:?}");
    assert!(is_pipe(&scene.there("tree/pipe")));
    assert!(scene.there("tree/link").is_symlink());
    assert_eq!(fs::read(scene.there("real")).unwrap(), b"new");
    assert_eq!(fs::read(scene.there("tree/plain")).unwrap(), b"new");
}

#[tokio::test]
async fn what_is_no_file_is_not_replaced() {
    let scene = Scene::new().await;
    write(&scene.here("file"), "x");
    write(&scene.there("file"), "x");
    make_pipe(&scene.here("pipe"));
    make_pipe(&scene.there("pipe"));
    symlink("none", scene.here("dead")).unwrap();
    symlink("none", scene.there("dead")).unwrap();
    write(&scene.there("taken/file/inside"), "x");
    let (file, pipe, dead) = (
        scene.remote("file"),
        scene.remote("pipe"),
        scene.remote("dead"),
    );
    let taken = scene.remote("taken");
    for (line, says) in [
        (["file", &pipe], ["neither a file", "choose another target"]),
        ([&file, "pipe"], ["neither a file", "choose another target"]),
        ([&file, "/dev/null"], ["neither a file", "choose another"]),
        (["file", &dead], ["dangling link", "remove it"]),
        ([&file, "dead"], ["dangling link", "remove it"]),
        (
            ["file", &taken],
            ["is a directory", "choose another target"],
        ),
    ] {
        scene.run("cp", &line).await.failed(1, &says);
    }
    for path in [scene.here("pipe"), scene.there("pipe")] {
        assert!(is_pipe(&path), "{path:?}");
    }
    for path in [scene.here("dead"), scene.there("dead")] {
        assert!(path.is_symlink() && !path.exists(), "{path:?}");
    }
    assert_eq!(names(scene.there.path()), ["dead", "file", "pipe", "taken"]);
}

#[tokio::test]
async fn two_sources_of_one_name_are_refused_before_anything_is_copied() {
    let scene = Scene::new().await;
    for name in ["x/f", "y/f", "z"] {
        write(&scene.here(name), name);
    }
    let target = scene.remote("");
    let ended = scene.run("cp", &["z", "x/f", "y/f", &target]).await;
    ended.failed(2, &["x/f`", "y/f`", "have the same target", "one after"]);
    let ended = scene.run("cp", &["-r", "x/.", "y/.", &target]).await;
    ended.failed(2, &["have the same target"]);
    assert_eq!(names(scene.there.path()), [""; 0]);
}

#[tokio::test]
async fn what_is_missing_is_named_with_the_next_step() {
    let scene = Scene::new().await;
    write(&scene.here("one"), "x");
    symlink("none", scene.there("dead")).unwrap();
    let inside = scene.remote("nodir/f");
    let (absent, dead) = (scene.remote("absent"), scene.remote("dead"));
    let nodir = format!("directory `{}", scene.server.url);
    let nowhere = "dangling link";
    for (line, says) in [
        (
            ["one", &inside],
            [&nodir[..], "nodir` does not exist; create"],
        ),
        ([&absent, "."], ["it does not exist; ", "exec-server ls"]),
        (["absent", &absent], ["it does not exist; ", "`:` before"]),
        ([&dead, "."], [nowhere, "exec-server ls"]),
    ] {
        scene.run("cp", &line).await.failed(66, &says);
    }
    assert_eq!(names(scene.there.path()), ["dead"]);
}
