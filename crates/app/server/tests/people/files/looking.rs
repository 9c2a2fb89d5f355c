//! What is there: `ls`, `cat`, `find` and `grep`.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{PermissionsExt, symlink},
    },
    process::Stdio,
};

use serde_json::json;
use tokio::io::AsyncReadExt;

use super::{Scene, names, noise, write};
use crate::cast::soon;

#[tokio::test]
async fn a_directory_is_listed_by_name_and_in_full() {
    let scene = Scene::new().await;
    write(&scene.there("b file"), "12345");
    write(&scene.there("a/inside"), "");
    write(&scene.there(".hidden"), "");
    symlink("b file", scene.there("link")).unwrap();
    fs::set_permissions(scene.there("b file"), fs::Permissions::from_mode(0o640)).unwrap();
    let root = scene.there("");
    let root = root.to_str().unwrap().trim_end_matches('/');
    let listed = scene.run("ls", &[root]).await.well();
    assert_eq!(listed, "a\nb file\nlink\n");
    let listed = scene.run("ls", &["-a", root]).await.well();
    assert_eq!(listed, ".hidden\na\nb file\nlink\n");
    let long = scene.run("ls", &["-l", root]).await.well();
    let lines: Vec<_> = long.lines().collect();
    assert!(
        lines[0].starts_with('d') && lines[0].ends_with(" a"),
        "{long}"
    );
    assert!(lines[1].starts_with("-rw-r-----            5 20"), "{long}");
    assert!(lines[2].starts_with('l'), "{long}");
    let rows = scene.json("ls", &["--json", root]).await;
    let row = &rows[1];
    assert_eq!(rows.as_array().unwrap().len(), 3);
    assert_eq!(row["name"], "b file");
    assert_eq!(row["path"], format!("{root}/b file"));
    assert_eq!(row["uri"], format!("file://{root}/b%20file"));
    assert_eq!(row["kind"], "file");
    assert_eq!(row["link"], false);
    assert_eq!(row["size"], 5);
    assert_eq!(row["mode"], 0o640);
    assert!(row["modifiedAtMs"].as_i64().unwrap() > 1_600_000_000_000);
    assert_eq!(rows[2]["link"], true);
    let file = scene.there("b file");
    let one = scene.run("ls", &[file.to_str().unwrap()]).await.well();
    assert_eq!(one, "b file\n");
    let none = scene.there("none");
    scene
        .run("ls", &[none.to_str().unwrap()])
        .await
        .failed(66, &["none`", "it does not exist"]);
}

#[tokio::test]
async fn files_are_printed_byte_by_byte_one_after_the_other() {
    let scene = Scene::new().await;
    let large = noise((9 << 20) + 7);
    write(&scene.there("large"), &large);
    write(&scene.there("small"), "small\n");
    write(&scene.there("empty"), "");
    let paths = ["small", "empty", "large", "small"].map(|name| scene.there(name));
    let paths = paths.each_ref().map(|path| path.to_str().unwrap());
    let ended = scene.run("cat", &paths).await;
    assert_eq!((ended.status, &*ended.stderr), (Some(0), ""));
    let expected = [b"small\n", &large[..], b"small\n"].concat();
    assert!(ended.bytes == expected);
}

#[tokio::test]
async fn names_that_are_no_text_reach_a_pipe_byte_by_byte() {
    let scene = Scene::new().await;
    write(
        &scene.there.path().join(OsStr::from_bytes(b"not \xff text")),
        "",
    );
    let root = scene.there("");
    let root = root.to_str().unwrap().trim_end_matches('/');
    let listed = scene.run("ls", &[root]).await;
    assert_eq!(listed.bytes, b"not \xff text\n", "{listed:?}");
    let found = scene.run("find", &[root]).await;
    let expected = [root.as_bytes(), b"/not \xff text\n"].concat();
    assert_eq!(found.bytes, expected, "{found:?}");
}

#[tokio::test]
async fn a_directory_that_cannot_be_listed_whole_is_told_with_the_next_step() {
    let scene = Scene::new().await;
    fs::create_dir(scene.there("many")).unwrap();
    for number in 0..50_001 {
        fs::write(scene.there(&format!("many/{number}")), "").unwrap();
    }
    let many = scene.there("many");
    let listed = scene.run("ls", &[many.to_str().unwrap()]).await;
    assert_eq!(listed.status, Some(0), "{}", listed.stderr);
    assert!(listed.stdout.lines().count() > 1000);
    assert!(listed.stderr.contains("find --glob"), "{}", listed.stderr);
    let source = scene.remote("many");
    let ended = scene.run("cp", &["-r", &source, "."]).await;
    ended.failed(1, &["many` has too many entries", "tar -C"]);
    assert_eq!(names(&scene.person.work()), [""; 0]);
    let none = scene.there("none");
    let ended = scene.run("ls", &[none.to_str().unwrap()]).await;
    ended.failed(66, &["it does not exist; ", "its parent directory"]);
}

#[tokio::test]
async fn what_cannot_be_printed_is_one_line() {
    let scene = Scene::new().await;
    let (none, root) = (scene.there("none"), scene.there(""));
    let ended = scene.run("cat", &[none.to_str().unwrap()]).await;
    ended.failed(66, &["none`", "does not exist"]);
    let ended = scene.run("cat", &[root.to_str().unwrap()]).await;
    ended.failed(1, &["is a directory", "ls"]);
}

#[tokio::test]
async fn printing_ends_when_nobody_reads() {
    let scene = Scene::new().await;
    write(&scene.there("large"), noise(32 << 20));
    let path = scene.there("large");
    let mut command = scene
        .person
        .command(scene.line("cat", &[path.to_str().unwrap()]));
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut begun = [0; 10];
    let mut stdout = child.stdout.take().unwrap();
    soon(stdout.read_exact(&mut begun)).await.unwrap();
    drop(stdout);
    let ended = soon(child.wait_with_output()).await.unwrap();
    assert_eq!(String::from_utf8(ended.stderr).unwrap(), "");
    assert_eq!(ended.status.code(), Some(141));
}

#[tokio::test]
async fn names_are_found_by_glob_and_by_their_letters() {
    let scene = Scene::new().await;
    for name in [
        "src/main.rs",
        "src/deep/lib.rs",
        "notes.txt",
        ".git/x.rs",
        "out/y.rs",
    ] {
        write(&scene.there(name), "");
    }
    write(&scene.there(".gitignore"), "out/\n");
    let root = scene.there("");
    let root = root.to_str().unwrap().trim_end_matches('/');
    let found = scene.run("find", &["--glob", "*.rs", root]).await.well();
    assert_eq!(
        found,
        format!("{root}/src/deep/lib.rs\n{root}/src/main.rs\n")
    );
    let found = scene
        .json("find", &["--name", "smain", "--json", root])
        .await;
    let path = format!("{root}/src/main.rs");
    let expected = json!({
        "paths": [{"path": path, "uri": format!("file://{path}")}],
        "truncated": false,
    });
    assert_eq!(found, expected);
    let ended = scene.run("find", &["--limit", "1", root]).await;
    assert_eq!(ended.stdout.lines().count(), 1);
    assert!(ended.stderr.contains("--limit"), "{ended:?}");
    let none = scene.there("none");
    let ended = scene.run("find", &[none.to_str().unwrap()]).await;
    ended.failed(66, &["none"]);
}

#[tokio::test]
async fn lines_are_found_and_the_status_says_whether() {
    let scene = Scene::new().await;
    write(&scene.there("a.txt"), "one\ntwo\nThree.\nfour\n");
    write(&scene.there("b.md"), "three\n");
    let root = scene.there("");
    let root = root.to_str().unwrap().trim_end_matches('/');
    let found = scene.run("grep", &["t[wh]", root]).await.well();
    assert_eq!(found, format!("{root}/a.txt:2:two\n{root}/b.md:1:three\n"));
    let line = ["-i", "-F", "-C", "1", "--glob", "*.txt", "three.", root];
    let found = scene.run("grep", &line).await.well();
    let expected = format!("{root}/a.txt-2-two\n{root}/a.txt:3:Three.\n{root}/a.txt-4-four\n");
    assert_eq!(found, expected);
    let found = scene.json("grep", &["--json", "two", root]).await;
    assert_eq!(found["truncated"], false);
    let path = format!("{root}/a.txt");
    let expected = json!([{
        "path": path, "uri": format!("file://{path}"), "line": 2, "column": 1, "text": "two",
        "before": [], "after": [],
    }]);
    assert_eq!(found["matches"], expected);
    let none = scene.run("grep", &["nothing like it", root]).await;
    assert_eq!(
        (none.status, &*none.stdout, &*none.stderr),
        (Some(1), "", "")
    );
    scene
        .run("grep", &["(", root])
        .await
        .failed(2, &["pattern"]);
}
