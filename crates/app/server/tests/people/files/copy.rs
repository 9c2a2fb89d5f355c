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
        write(&fixture.here(name), &content);
        fs::set_permissions(fixture.here(name), fs::Permissions::from_mode(0o751)).unwrap();
        fixture.run("cp", &[name, &fixture.remote("")]).await.well();
        assert!(
            fs::read(fixture.there(name)).unwrap() == content,
            "{name} there"
        );
        assert_eq!(mode(&fixture.there(name)), 0o751, "{name}");
        let time = UNIX_EPOCH + Duration::from_secs(1_234_567_890);
        let file = fs::File::options().write(true).open(fixture.there(name));
        file.unwrap().set_modified(time).unwrap();
        fixture
            .run("cp", &[&fixture.remote(name), "back"])
            .await
            .well();
        assert!(
            fs::read(fixture.here("back")).unwrap() == content,
            "{name} here"
        );
        assert_eq!(mode(&fixture.here("back")), 0o751, "{name}");
        let kept = fs::metadata(fixture.here("back"))
            .unwrap()
            .modified()
            .unwrap();
        assert_eq!(kept, time, "{name}");
    }
    assert_eq!(
        names(fixture.there.path()),
        ["big", "block", "empty", "one"]
    );
    let here = names(&fixture.user.work());
    assert_eq!(here, ["back", "big", "block", "empty", "one"]);
}

#[tokio::test]
async fn file_larger_than_a_message_is_copied_in_blocks() {
    let fixture = CopyFixture::new().await;
    let size = 100 * MEBI as u64;
    let file = fs::File::create(fixture.here("large")).unwrap();
    file.set_len(size).unwrap();
    for offset in [0, 33 << 20, size - 5] {
        file.write_all_at(b"mark!", offset).unwrap();
    }
    let told = fixture
        .json("cp", &["--json", "large", &fixture.remote("")])
        .await;
    assert_eq!(told["files"], 1);
    assert_eq!(told["bytes"], size);
    assert_eq!(told["writtenBytes"], size);
    assert_eq!(told["resumedBytes"], 0);
    assert_eq!(told["failed"], 0);
    let (remote, back) = (fixture.remote("large"), fixture.here("back"));
    fixture.run("cp", &[&remote, "back"]).await.well();
    let (there, before) = (fixture.there("large"), fixture.here("large"));
    for copy in [there, back] {
        assert!(fs::read(copy).unwrap() == fs::read(&before).unwrap());
    }
}

#[tokio::test]
async fn target_file_is_replaced_and_target_directory_receives_the_file() {
    let fixture = CopyFixture::new().await;
    write(&fixture.here("a"), "new a");
    write(&fixture.here("b"), "new b");
    write(&fixture.there("a"), "an old and longer a");
    write(&fixture.there("other"), "old");
    fs::set_permissions(fixture.there("other"), fs::Permissions::from_mode(0o444)).unwrap();
    fixture
        .run("cp", &["a", "b", &fixture.remote("")])
        .await
        .well();
    fixture
        .run("cp", &["b", &fixture.remote("other")])
        .await
        .well();
    assert_eq!(names(fixture.there.path()), ["a", "b", "other"]);
    assert_eq!(fs::read(fixture.there("a")).unwrap(), b"new a");
    assert_eq!(fs::read(fixture.there("other")).unwrap(), b"new b");
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
    write(&fixture.there("file"), &content);
    let at = |name: &str, file: &str| format!("{name}:{}", fixture.there(file).display());
    for (from, to, target) in [("one", "two", "other"), ("two", "two", "same")] {
        let (source, target) = (at(from, "file"), at(to, target));
        fixture.user.run(["cp", &source, &target]).await.well();
    }
    for copy in ["other", "same"] {
        assert!(fs::read(fixture.there(copy)).unwrap() == content, "{copy}");
    }
    assert_eq!(names(fixture.there.path()), ["file", "other", "same"]);
}

#[tokio::test]
async fn copy_errors_are_one_line_with_the_next_step() {
    let fixture = CopyFixture::new().await;
    write(&fixture.here("file"), "x");
    write(&fixture.here("tree/file"), "x");
    write(&fixture.there("taken"), "old");
    let (remote, taken) = (fixture.remote(""), fixture.remote("taken"));
    let (missing, slash) = (fixture.remote("none"), fixture.remote("none/"));
    let inside = fixture.remote("none/deeper/file");
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
        fixture.run("cp", &line).await.failed(status, &says);
    }
    assert_eq!(fs::read(fixture.there("taken")).unwrap(), b"old");
    assert_eq!(names(fixture.there.path()), ["taken"]);
}

#[tokio::test]
async fn copying_onto_or_into_itself_is_rejected() {
    let fixture = CopyFixture::new().await;
    write(&fixture.here("tree/file"), "content");
    let line = |paths: [&str; 2]| ["cp", "-r", paths[0], paths[1]].map(str::to_owned);
    for (paths, says) in [
        (["tree/file", ":tree/file"], "are the same"),
        (["tree", ":tree/below"], "is inside"),
        ([":tree", ":tree"], "is inside"),
    ] {
        let ended = fixture.user.run(line(paths)).await;
        ended.failed(1, &[says]);
    }
    assert_eq!(fs::read(fixture.here("tree/file")).unwrap(), b"content");
    assert_eq!(names(&fixture.here("tree")), ["file"]);
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
    write(&fixture.here("new"), "new");
    write(&fixture.there("new"), "new");
    for at in [fixture.there(""), fixture.here("")] {
        write(&at.join("deep/real"), "old");
        symlink("deep/real", at.join("link")).unwrap();
    }
    let (remote, link) = (fixture.remote("new"), fixture.remote("link"));
    fixture.run("cp", &["new", &link]).await.well();
    fixture.run("cp", &[&remote, "link"]).await.well();
    for at in [fixture.there(""), fixture.here("")] {
        assert!(at.join("link").is_symlink(), "{at:?}");
        assert_eq!(fs::read(at.join("deep/real")).unwrap(), b"new", "{at:?}");
        assert_eq!(names(&at.join("deep")), ["real"]);
    }
}

#[tokio::test]
async fn links_and_pipes_in_an_existing_tree_are_kept() {
    let fixture = CopyFixture::new().await;
    for name in ["tree/link", "tree/pipe", "tree/plain"] {
        write(&fixture.here(name), "new");
    }
    write(&fixture.there("tree/plain"), "old");
    write(&fixture.there("real"), "old");
    symlink("../real", fixture.there("tree/link")).unwrap();
    make_pipe(&fixture.there("tree/pipe"));
    let ended = fixture
        .run("cp", &["-r", "tree", &fixture.remote("")])
        .await;
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("tree/pipe` is neither"), "{ended:?}");
    assert!(is_pipe(&fixture.there("tree/pipe")));
    assert!(fixture.there("tree/link").is_symlink());
    assert_eq!(fs::read(fixture.there("real")).unwrap(), b"new");
    assert_eq!(fs::read(fixture.there("tree/plain")).unwrap(), b"new");
}

#[tokio::test]
async fn only_regular_files_are_replaced() {
    let fixture = CopyFixture::new().await;
    write(&fixture.here("file"), "x");
    write(&fixture.there("file"), "x");
    make_pipe(&fixture.here("pipe"));
    make_pipe(&fixture.there("pipe"));
    symlink("none", fixture.here("dead")).unwrap();
    symlink("none", fixture.there("dead")).unwrap();
    write(&fixture.there("taken/file/inside"), "x");
    let (file, pipe, dead) = (
        fixture.remote("file"),
        fixture.remote("pipe"),
        fixture.remote("dead"),
    );
    let taken = fixture.remote("taken");
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
        fixture.run("cp", &line).await.failed(1, &says);
    }
    for path in [fixture.here("pipe"), fixture.there("pipe")] {
        assert!(is_pipe(&path), "{path:?}");
    }
    for path in [fixture.here("dead"), fixture.there("dead")] {
        assert!(path.is_symlink() && !path.exists(), "{path:?}");
    }
    assert_eq!(
        names(fixture.there.path()),
        ["dead", "file", "pipe", "taken"]
    );
}

#[tokio::test]
async fn sources_with_the_same_target_are_rejected_before_copying() {
    let fixture = CopyFixture::new().await;
    for name in ["x/f", "y/f", "z"] {
        write(&fixture.here(name), name);
    }
    let target = fixture.remote("");
    let ended = fixture.run("cp", &["z", "x/f", "y/f", &target]).await;
    ended.failed(2, &["x/f`", "y/f`", "have the same target", "one after"]);
    let ended = fixture.run("cp", &["-r", "x/.", "y/.", &target]).await;
    ended.failed(2, &["have the same target"]);
    assert_eq!(names(fixture.there.path()), [""; 0]);
}

#[tokio::test]
async fn missing_paths_are_reported_with_the_next_step() {
    let fixture = CopyFixture::new().await;
    write(&fixture.here("one"), "x");
    symlink("none", fixture.there("dead")).unwrap();
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
    assert_eq!(names(fixture.there.path()), ["dead"]);
}
