//! Tests of `ls`, `cat`, `find` and `grep`.

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

use crate::{
    files::{CopyFixture, noise, write},
    test_user::within_timeout,
};

#[tokio::test]
async fn directory_is_listed_short_and_long() {
    let fixture = CopyFixture::new().await;
    write(&fixture.remote_path("b file"), "12345");
    write(&fixture.remote_path("a/inside"), "");
    write(&fixture.remote_path(".hidden"), "");
    symlink("b file", fixture.remote_path("link")).unwrap();
    fs::set_permissions(
        fixture.remote_path("b file"),
        fs::Permissions::from_mode(0o640),
    )
    .unwrap();
    let root = fixture.remote_path("");
    let root = root.to_str().unwrap().trim_end_matches('/');
    let listed = fixture.run("ls", &[root]).await.expect_success();
    assert_eq!(listed, "a\nb file\nlink\n");
    let listed = fixture.run("ls", &["-a", root]).await.expect_success();
    assert_eq!(listed, ".hidden\na\nb file\nlink\n");
    let long = fixture.run("ls", &["-l", root]).await.expect_success();
    let lines: Vec<_> = long.lines().collect();
    assert!(
        lines[0].starts_with('d') && lines[0].ends_with(" a"),
        "{long}"
    );
    assert!(lines[1].starts_with("-rw-r-----            5 20"), "{long}");
    assert!(lines[2].starts_with('l'), "{long}");
    let rows = fixture.json("ls", &["--json", root]).await;
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
    let file = fixture.remote_path("b file");
    let one = fixture
        .run("ls", &[file.to_str().unwrap()])
        .await
        .expect_success();
    assert_eq!(one, "b file\n");
    let none = fixture.remote_path("none");
    fixture
        .run("ls", &[none.to_str().unwrap()])
        .await
        .failed(66, &["none`", "it does not exist"]);
}

#[tokio::test]
async fn cat_prints_exact_bytes_in_order() {
    let fixture = CopyFixture::new().await;
    let large = noise((9 << 20) + 7);
    write(&fixture.remote_path("large"), &large);
    write(&fixture.remote_path("small"), "small\n");
    write(&fixture.remote_path("empty"), "");
    let paths = ["small", "empty", "large", "small"].map(|name| fixture.remote_path(name));
    let paths = paths.each_ref().map(|path| path.to_str().unwrap());
    let ended = fixture.run("cat", &paths).await;
    assert_eq!((ended.status, &*ended.stderr), (Some(0), ""));
    let expected = [b"small\n", &large[..], b"small\n"].concat();
    assert!(ended.bytes == expected);
}

#[tokio::test]
async fn non_utf8_names_are_piped_unchanged() {
    let fixture = CopyFixture::new().await;
    write(
        &fixture
            .remote_dir
            .path()
            .join(OsStr::from_bytes(b"not \xff text")),
        "",
    );
    let root = fixture.remote_path("");
    let root = root.to_str().unwrap().trim_end_matches('/');
    let listed = fixture.run("ls", &[root]).await;
    assert_eq!(listed.bytes, b"not \xff text\n", "{listed:?}");
    let found = fixture.run("find", &[root]).await;
    let expected = [root.as_bytes(), b"/not \xff text\n"].concat();
    assert_eq!(found.bytes, expected, "{found:?}");
}

#[tokio::test]
async fn directory_of_several_pages_is_copied() {
    const LINKS: usize = 2_500;
    // A page ends at `limits::MAX_PAGE_BYTES`, of which each of these links is a thousandth.
    let target = "x".repeat(4_000);
    let fixture = CopyFixture::new().await;
    fs::create_dir(fixture.remote_path("many")).unwrap();
    for number in 0..LINKS {
        let link = fixture.remote_path(&format!("many/{number}"));
        symlink(&target, link).unwrap();
    }
    let source = fixture.remote("many");
    let line = ["-r", "--json", &source, &fixture.remote("copy")];
    let copied = fixture.json("cp", &line).await;
    assert_eq!(
        (&copied["files"], &copied["failed"]),
        (&LINKS.into(), &0.into())
    );
}

#[tokio::test]
async fn listing_a_missing_directory_names_the_next_step() {
    let fixture = CopyFixture::new().await;
    let none = fixture.remote_path("none");
    let ended = fixture.run("ls", &[none.to_str().unwrap()]).await;
    ended.failed(66, &["it does not exist; ", "its parent directory"]);
}

#[tokio::test]
async fn cat_errors_are_one_line() {
    let fixture = CopyFixture::new().await;
    let (none, root) = (fixture.remote_path("none"), fixture.remote_path(""));
    let ended = fixture.run("cat", &[none.to_str().unwrap()]).await;
    ended.failed(66, &["none`", "does not exist"]);
    let ended = fixture.run("cat", &[root.to_str().unwrap()]).await;
    ended.failed(1, &["is a directory", "ls"]);
}

#[tokio::test]
async fn cat_ends_when_stdout_is_closed() {
    let fixture = CopyFixture::new().await;
    write(&fixture.remote_path("large"), noise(32 << 20));
    let path = fixture.remote_path("large");
    let mut command = fixture
        .user
        .command(fixture.line("cat", &[path.to_str().unwrap()]));
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut started = [0; 10];
    let mut stdout = child.stdout.take().unwrap();
    within_timeout(stdout.read_exact(&mut started))
        .await
        .unwrap();
    drop(stdout);
    let ended = within_timeout(child.wait_with_output()).await.unwrap();
    assert_eq!(String::from_utf8(ended.stderr).unwrap(), "");
    assert_eq!(ended.status.code(), Some(141));
}

#[tokio::test]
async fn find_matches_globs_and_fuzzy_names() {
    let fixture = CopyFixture::new().await;
    for name in [
        "src/main.rs",
        "src/deep/lib.rs",
        "notes.txt",
        ".git/x.rs",
        "out/y.rs",
    ] {
        write(&fixture.remote_path(name), "");
    }
    write(&fixture.remote_path(".gitignore"), "out/\n");
    let root = fixture.remote_path("");
    let root = root.to_str().unwrap().trim_end_matches('/');
    let found = fixture
        .run("find", &["--glob", "*.rs", root])
        .await
        .expect_success();
    assert_eq!(
        found,
        format!("{root}/src/deep/lib.rs\n{root}/src/main.rs\n")
    );
    let found = fixture
        .json("find", &["--name", "smain", "--json", root])
        .await;
    let path = format!("{root}/src/main.rs");
    let expected = json!({
        "paths": [{"path": path, "uri": format!("file://{path}")}],
        "truncated": false,
    });
    assert_eq!(found, expected);
    let ended = fixture.run("find", &["--limit", "1", root]).await;
    assert_eq!(ended.stdout.lines().count(), 1);
    assert!(ended.stderr.contains("--limit"), "{ended:?}");
    let none = fixture.remote_path("none");
    let ended = fixture.run("find", &[none.to_str().unwrap()]).await;
    ended.failed(66, &["none"]);
}

#[tokio::test]
async fn grep_status_reports_matches() {
    let fixture = CopyFixture::new().await;
    write(&fixture.remote_path("a.txt"), "one\ntwo\nThree.\nfour\n");
    write(&fixture.remote_path("b.md"), "three\n");
    let root = fixture.remote_path("");
    let root = root.to_str().unwrap().trim_end_matches('/');
    let found = fixture.run("grep", &["t[wh]", root]).await.expect_success();
    assert_eq!(found, format!("{root}/a.txt:2:two\n{root}/b.md:1:three\n"));
    let line = ["-i", "-F", "-C", "1", "--glob", "*.txt", "three.", root];
    let found = fixture.run("grep", &line).await.expect_success();
    let expected = format!("{root}/a.txt-2-two\n{root}/a.txt:3:Three.\n{root}/a.txt-4-four\n");
    assert_eq!(found, expected);
    let found = fixture.json("grep", &["--json", "two", root]).await;
    assert_eq!(found["truncated"], false);
    let path = format!("{root}/a.txt");
    let expected = json!([{
        "path": path, "uri": format!("file://{path}"), "line": 2, "column": 1, "text": "two",
        "before": [], "after": [],
    }]);
    assert_eq!(found["matches"], expected);
    let none = fixture.run("grep", &["nothing like it", root]).await;
    assert_eq!(
        (none.status, &*none.stdout, &*none.stderr),
        (Some(1), "", "")
    );
    fixture
        .run("grep", &["(", root])
        .await
        .failed(2, &["pattern"]);
}
