//! Single files, in either direction.

use std::{
    fs,
    os::unix::fs::{FileExt, PermissionsExt},
    time::{Duration, UNIX_EPOCH},
};

use super::{Scene, names, noise, write};

const MEBI: usize = 1 << 20;

fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn files_of_any_size_arrive_as_they_are_in_both_directions() {
    let scene = Scene::new().await;
    for (name, size) in [
        ("empty", 0),
        ("one", 1),
        ("block", MEBI),
        ("big", 5 * MEBI + 3),
    ] {
        let content = noise(size);
        write(&scene.here(name), &content);
        fs::set_permissions(scene.here(name), fs::Permissions::from_mode(0o751)).unwrap();
        scene.run("cp", &[name, &scene.remote("")]).await.well();
        assert!(
            fs::read(scene.there(name)).unwrap() == content,
            "{name} there"
        );
        assert_eq!(mode(&scene.there(name)), 0o751, "{name}");
        let time = UNIX_EPOCH + Duration::from_secs(1_234_567_890);
        let file = fs::File::options().write(true).open(scene.there(name));
        file.unwrap().set_modified(time).unwrap();
        scene.run("cp", &[&scene.remote(name), "back"]).await.well();
        assert!(
            fs::read(scene.here("back")).unwrap() == content,
            "{name} here"
        );
        assert_eq!(mode(&scene.here("back")), 0o751, "{name}");
        let kept = fs::metadata(scene.here("back"))
            .unwrap()
            .modified()
            .unwrap();
        assert_eq!(kept, time, "{name}");
    }
    assert_eq!(names(scene.there.path()), ["big", "block", "empty", "one"]);
    let here = names(&scene.person.work());
    assert_eq!(here, ["back", "big", "block", "empty", "one"]);
}

#[tokio::test]
async fn a_file_that_no_message_can_hold_goes_by_blocks() {
    let scene = Scene::new().await;
    let size = 100 * MEBI as u64;
    let file = fs::File::create(scene.here("large")).unwrap();
    file.set_len(size).unwrap();
    for offset in [0, 33 << 20, size - 5] {
        file.write_all_at(b"mark!", offset).unwrap();
    }
    let told = scene
        .json("cp", &["--json", "large", &scene.remote("")])
        .await;
    assert_eq!(told["files"], 1);
    assert_eq!(told["bytes"], size);
    assert_eq!(told["writtenBytes"], size);
    assert_eq!(told["resumedBytes"], 0);
    assert_eq!(told["failed"], 0);
    let (remote, back) = (scene.remote("large"), scene.here("back"));
    scene.run("cp", &[&remote, "back"]).await.well();
    let (there, before) = (scene.there("large"), scene.here("large"));
    for copy in [there, back] {
        assert!(fs::read(copy).unwrap() == fs::read(&before).unwrap());
    }
}

#[tokio::test]
async fn a_target_is_replaced_and_a_directory_gets_the_name() {
    let scene = Scene::new().await;
    write(&scene.here("a"), "new a");
    write(&scene.here("b"), "new b");
    write(&scene.there("a"), "an old and longer a");
    write(&scene.there("other"), "old");
    fs::set_permissions(scene.there("other"), fs::Permissions::from_mode(0o444)).unwrap();
    scene.run("cp", &["a", "b", &scene.remote("")]).await.well();
    scene.run("cp", &["b", &scene.remote("other")]).await.well();
    assert_eq!(names(scene.there.path()), ["a", "b", "other"]);
    assert_eq!(fs::read(scene.there("a")).unwrap(), b"new a");
    assert_eq!(fs::read(scene.there("other")).unwrap(), b"new b");
}

#[tokio::test]
async fn environments_copy_to_each_other_and_within_themselves() {
    let scene = Scene::new().await;
    let other = scene.person.server(&[]).await;
    let known = format!(
        "[[environments]]\nid = \"one\"\nurl = \"{}\"\n\n[[environments]]\nid = \"two\"\nurl = \"{}\"\n",
        scene.server.url, other.url
    );
    fs::write(scene.person.codex().join("environments.toml"), known).unwrap();
    let content = noise(3 * MEBI);
    write(&scene.there("file"), &content);
    let at = |name: &str, file: &str| format!("{name}:{}", scene.there(file).display());
    for (from, to, target) in [("one", "two", "other"), ("two", "two", "same")] {
        let (source, target) = (at(from, "file"), at(to, target));
        scene.person.run(["cp", &source, &target]).await.well();
    }
    for copy in ["other", "same"] {
        assert!(fs::read(scene.there(copy)).unwrap() == content, "{copy}");
    }
    assert_eq!(names(scene.there.path()), ["file", "other", "same"]);
}

#[tokio::test]
async fn what_cannot_be_copied_is_one_line_with_the_next_step() {
    let scene = Scene::new().await;
    write(&scene.here("file"), "x");
    write(&scene.here("tree/file"), "x");
    write(&scene.there("taken"), "old");
    let (remote, taken) = (scene.remote(""), scene.remote("taken"));
    let (missing, slash) = (scene.remote("none"), scene.remote("none/"));
    let inside = scene.remote("none/deeper/file");
    for (line, status, says) in [
        (vec!["tree", &remote], 1, vec!["tree` is a directory", "-r"]),
        (vec!["-r", "tree", &taken], 1, vec!["is a file"]),
        (vec!["file", "tree", &taken], 1, vec!["is not a directory"]),
        (
            vec!["absent", &remote],
            66,
            vec!["absent`", "it does not exist"],
        ),
        (vec![&missing, "."], 66, vec!["none`", "it does not exist"]),
        (
            vec!["file", &slash],
            66,
            vec!["does not exist", "create it first"],
        ),
        (vec!["file", &inside], 66, vec!["none/deeper"]),
        (
            vec!["file", "copy"],
            2,
            vec!["every path is on this machine"],
        ),
        (vec!["file", "ws://x/y"], 2, vec!["is a URL", "--env"]),
        (vec!["file", "nowhere:/x"], 78, vec!["nowhere"]),
    ] {
        scene.run("cp", &line).await.failed(status, &says);
    }
    assert_eq!(fs::read(scene.there("taken")).unwrap(), b"old");
    assert_eq!(names(scene.there.path()), ["taken"]);
}

#[tokio::test]
async fn nothing_is_copied_onto_or_into_itself() {
    let scene = Scene::new().await;
    write(&scene.here("tree/file"), "content");
    let line = |paths: [&str; 2]| ["cp", "-r", paths[0], paths[1]].map(str::to_owned);
    for (paths, says) in [
        (["tree/file", ":tree/file"], "are the same"),
        (["tree", ":tree/below"], "is inside"),
        ([":tree", ":tree"], "is inside"),
    ] {
        let ended = scene.person.run(line(paths)).await;
        ended.failed(1, &[says]);
    }
    assert_eq!(fs::read(scene.here("tree/file")).unwrap(), b"content");
    assert_eq!(names(&scene.here("tree")), ["file"]);
}
