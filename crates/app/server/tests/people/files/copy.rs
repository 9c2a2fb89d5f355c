//! Tests of copying single files, and of what a copy may replace.

use std::{
    fs,
    os::unix::fs::{FileExt, FileTypeExt, PermissionsExt, symlink},
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::files::{CopyFixture, names, noise, write};

const MEBI: usize = 1 << 20;

fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn files_of_any_size_are_copied_in_both_directions() {
    let fixture = CopyFixture::new().await;
    for (name, size) in [
        ("empty", 0),
        ("one", 1),
        ("block", MEBI),
        ("big", 5 * MEBI + 3),
    ] {
        let content = noise(size);
        write(&fixture.local_path(name), &content);
        fs::set_permissions(fixture.local_path(name), fs::Permissions::from_mode(0o751)).unwrap();
        fixture
            .run("cp", &[name, &fixture.remote("")])
            .await
            .expect_success();
        assert!(
            fs::read(fixture.remote_path(name)).unwrap() == content,
            "{name} there"
        );
        assert_eq!(mode(&fixture.remote_path(name)), 0o751, "{name}");
        let time = UNIX_EPOCH + Duration::from_secs(1_234_567_890);
        let file = fs::File::options()
            .write(true)
            .open(fixture.remote_path(name));
        file.unwrap().set_modified(time).unwrap();
        fixture
            .run("cp", &[&fixture.remote(name), "back"])
            .await
            .expect_success();
        assert!(
            fs::read(fixture.local_path("back")).unwrap() == content,
            "{name} here"
        );
        assert_eq!(mode(&fixture.local_path("back")), 0o751, "{name}");
        let retained = fs::metadata(fixture.local_path("back"))
            .unwrap()
            .modified()
            .unwrap();
        assert_eq!(retained, time, "{name}");
    }
    assert_eq!(
        names(fixture.remote_dir.path()),
        ["big", "block", "empty", "one"]
    );
    let here = names(&fixture.user.work());
    assert_eq!(here, ["back", "big", "block", "empty", "one"]);
}

#[tokio::test]
async fn file_larger_than_a_message_is_copied_in_blocks() {
    let fixture = CopyFixture::new().await;
    let size = 100 * MEBI as u64;
    let file = fs::File::create(fixture.local_path("large")).unwrap();
    file.set_len(size).unwrap();
    for offset in [0, 33 << 20, size - 5] {
        file.write_all_at(b"mark!", offset).unwrap();
    }
    let output = fixture
        .json("cp", &["--json", "large", &fixture.remote("")])
        .await;
    assert_eq!(output["files"], 1);
    assert_eq!(output["bytes"], size);
    assert_eq!(output["writtenBytes"], size);
    assert_eq!(output["resumedBytes"], 0);
    assert_eq!(output["failed"], 0);
    let (remote, back) = (fixture.remote("large"), fixture.local_path("back"));
    fixture.run("cp", &[&remote, "back"]).await.expect_success();
    let (there, before) = (fixture.remote_path("large"), fixture.local_path("large"));
    for copy in [there, back] {
        assert!(fs::read(copy).unwrap() == fs::read(&before).unwrap());
    }
}

#[tokio::test]
async fn target_file_is_replaced_and_target_directory_receives_the_file() {
    let fixture = CopyFixture::new().await;
    write(&fixture.local_path("a"), "new a");
    write(&fixture.local_path("b"), "new b");
    write(&fixture.remote_path("a"), "an old and longer a");
    write(&fixture.remote_path("other"), "old");
    fs::set_permissions(
        fixture.remote_path("other"),
        fs::Permissions::from_mode(0o444),
    )
    .unwrap();
    fixture
        .run("cp", &["a", "b", &fixture.remote("")])
        .await
        .expect_success();
    fixture
        .run("cp", &["b", &fixture.remote("other")])
        .await
        .expect_success();
    assert_eq!(names(fixture.remote_dir.path()), ["a", "b", "other"]);
    assert_eq!(fs::read(fixture.remote_path("a")).unwrap(), b"new a");
    assert_eq!(fs::read(fixture.remote_path("other")).unwrap(), b"new b");
}

#[tokio::test]
async fn copies_between_and_within_environments() {
    let fixture = CopyFixture::new().await;
    let other = fixture.user.server(&[]).await;
    let known = format!(
        "[[environments]]\nid = \"one\"\nurl = \"{}\"\n\n[[environments]]\nid = \"two\"\nurl = \"{}\"\n",
        fixture.server.url, other.url
    );
    fs::write(fixture.user.codex().join("environments.toml"), known).unwrap();
    let content = noise(3 * MEBI);
    write(&fixture.remote_path("file"), &content);
    let at = |name: &str, file: &str| format!("{name}:{}", fixture.remote_path(file).display());
    for (from, to, target) in [("one", "two", "other"), ("two", "two", "same")] {
        let (source, target) = (at(from, "file"), at(to, target));
        fixture
            .user
            .run(["cp", &source, &target])
            .await
            .expect_success();
    }
    for copy in ["other", "same"] {
        assert!(
            fs::read(fixture.remote_path(copy)).unwrap() == content,
            "{copy}"
        );
    }
    assert_eq!(names(fixture.remote_dir.path()), ["file", "other", "same"]);
}

#[tokio::test]
async fn copy_errors_are_one_line_with_the_next_step() {
    let fixture = CopyFixture::new().await;
    write(&fixture.local_path("file"), "x");
    write(&fixture.local_path("tree/file"), "x");
    write(&fixture.remote_path("taken"), "old");
    let (remote, occupied) = (fixture.remote(""), fixture.remote("taken"));
    let (missing, slash) = (fixture.remote("none"), fixture.remote("none/"));
    let inside = fixture.remote("none/deeper/file");
    for (line, status, says) in [
        (vec!["tree", &remote], 1, vec!["tree` is a directory", "-r"]),
        (vec!["-r", "tree", &occupied], 1, vec!["is a file"]),
        (
            vec!["file", "tree", &occupied],
            1,
            vec!["is not a directory"],
        ),
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
        fixture.run("cp", &line).await.failed(status, &says);
    }
    assert_eq!(fs::read(fixture.remote_path("taken")).unwrap(), b"old");
    assert_eq!(names(fixture.remote_dir.path()), ["taken"]);
}

#[tokio::test]
async fn copying_onto_or_into_itself_is_rejected() {
    let fixture = CopyFixture::new().await;
    write(&fixture.local_path("tree/file"), "content");
    let line = |paths: [&str; 2]| ["cp", "-r", paths[0], paths[1]].map(str::to_owned);
    for (paths, says) in [
        (["tree/file", ":tree/file"], "are the same"),
        (["tree", ":tree/below"], "is inside"),
        ([":tree", ":tree"], "is inside"),
    ] {
        let ended = fixture.user.run(line(paths)).await;
        ended.failed(1, &[says]);
    }
    assert_eq!(
        fs::read(fixture.local_path("tree/file")).unwrap(),
        b"content"
    );
    assert_eq!(names(&fixture.local_path("tree")), ["file"]);
}

fn make_pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

fn is_pipe(path: &Path) -> bool {
    fs::symlink_metadata(path).unwrap().file_type().is_fifo()
}

#[tokio::test]
async fn target_link_is_kept_and_its_file_replaced() {
    let fixture = CopyFixture::new().await;
    write(&fixture.local_path("new"), "new");
    write(&fixture.remote_path("new"), "new");
    for at in [fixture.remote_path(""), fixture.local_path("")] {
        write(&at.join("deep/real"), "old");
        symlink("deep/real", at.join("link")).unwrap();
    }
    let (remote, link) = (fixture.remote("new"), fixture.remote("link"));
    fixture.run("cp", &["new", &link]).await.expect_success();
    fixture.run("cp", &[&remote, "link"]).await.expect_success();
    for at in [fixture.remote_path(""), fixture.local_path("")] {
        assert!(at.join("link").is_symlink(), "{at:?}");
        assert_eq!(fs::read(at.join("deep/real")).unwrap(), b"new", "{at:?}");
        assert_eq!(names(&at.join("deep")), ["real"]);
    }
}

#[tokio::test]
async fn links_and_pipes_in_an_existing_tree_are_kept() {
    let fixture = CopyFixture::new().await;
    for name in ["tree/link", "tree/pipe", "tree/plain"] {
        write(&fixture.local_path(name), "new");
    }
    write(&fixture.remote_path("tree/plain"), "old");
    write(&fixture.remote_path("real"), "old");
    symlink("../real", fixture.remote_path("tree/link")).unwrap();
    make_pipe(&fixture.remote_path("tree/pipe"));
    let ended = fixture
        .run("cp", &["-r", "tree", &fixture.remote("")])
        .await;
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("tree/pipe` is neither"), "{ended:?}");
    assert!(is_pipe(&fixture.remote_path("tree/pipe")));
    assert!(fixture.remote_path("tree/link").is_symlink());
    assert_eq!(fs::read(fixture.remote_path("real")).unwrap(), b"new");
    assert_eq!(fs::read(fixture.remote_path("tree/plain")).unwrap(), b"new");
}

#[tokio::test]
async fn only_regular_files_are_replaced() {
    let fixture = CopyFixture::new().await;
    write(&fixture.local_path("file"), "x");
    write(&fixture.remote_path("file"), "x");
    make_pipe(&fixture.local_path("pipe"));
    make_pipe(&fixture.remote_path("pipe"));
    symlink("none", fixture.local_path("dead")).unwrap();
    symlink("none", fixture.remote_path("dead")).unwrap();
    write(&fixture.remote_path("taken/file/inside"), "x");
    let (file, pipe, dead) = (
        fixture.remote("file"),
        fixture.remote("pipe"),
        fixture.remote("dead"),
    );
    let occupied = fixture.remote("taken");
    for (line, says) in [
        (["file", &pipe], ["neither a file", "choose another target"]),
        ([&file, "pipe"], ["neither a file", "choose another target"]),
        ([&file, "/dev/null"], ["neither a file", "choose another"]),
        (["file", &dead], ["dangling link", "remove it"]),
        ([&file, "dead"], ["dangling link", "remove it"]),
        (
            ["file", &occupied],
            ["is a directory", "choose another target"],
        ),
    ] {
        fixture.run("cp", &line).await.failed(1, &says);
    }
    for path in [fixture.local_path("pipe"), fixture.remote_path("pipe")] {
        assert!(is_pipe(&path), "{path:?}");
    }
    for path in [fixture.local_path("dead"), fixture.remote_path("dead")] {
        assert!(path.is_symlink() && !path.exists(), "{path:?}");
    }
    assert_eq!(
        names(fixture.remote_dir.path()),
        ["dead", "file", "pipe", "taken"]
    );
}

#[tokio::test]
async fn sources_with_the_same_target_are_rejected_before_copying() {
    let fixture = CopyFixture::new().await;
    for name in ["x/f", "y/f", "z"] {
        write(&fixture.local_path(name), name);
    }
    let target = fixture.remote("");
    let ended = fixture.run("cp", &["z", "x/f", "y/f", &target]).await;
    ended.failed(2, &["x/f`", "y/f`", "have the same target", "one after"]);
    let ended = fixture.run("cp", &["-r", "x/.", "y/.", &target]).await;
    ended.failed(2, &["have the same target"]);
    assert_eq!(names(fixture.remote_dir.path()), [""; 0]);
}

#[tokio::test]
async fn missing_paths_are_reported_with_the_next_step() {
    let fixture = CopyFixture::new().await;
    write(&fixture.local_path("one"), "x");
    symlink("none", fixture.remote_path("dead")).unwrap();
    let inside = fixture.remote("nodir/f");
    let (absent, dead) = (fixture.remote("absent"), fixture.remote("dead"));
    let nodir = format!("directory `{}", fixture.server.url);
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
        fixture.run("cp", &line).await.failed(66, &says);
    }
    assert_eq!(names(fixture.remote_dir.path()), ["dead"]);
}
