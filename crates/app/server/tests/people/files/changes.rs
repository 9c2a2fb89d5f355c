//! Tests of `mkdir`, `rm` and `mv`, and of paths that name their environment.

use std::{fs, os::unix::fs::symlink};

use crate::files::{CopyFixture, names, write};

impl CopyFixture {
    /// Adds this server as the environment `box`.
    async fn add_box(&self) {
        let add = ["env", "add", "box", &self.server.url];
        self.user.run(add).await.expect_success();
    }

    /// Returns a path on the server as `box:PATH`.
    fn boxed(&self, name: &str) -> String {
        format!("box:{}", self.remote_path(name).display())
    }
}

#[tokio::test]
async fn every_file_command_takes_a_path_with_the_name_of_its_environment() {
    let fixture = CopyFixture::new().await;
    fixture.add_box().await;
    write(&fixture.remote_path("d/notes.txt"), "one\ntwo\n");
    let (file, directory) = (fixture.boxed("d/notes.txt"), fixture.boxed("d"));
    let run = async |line: &[&str]| fixture.user.run(line).await;
    assert_eq!(run(&["cat", &file]).await.expect_success(), "one\ntwo\n");
    assert_eq!(
        run(&["ls", &directory]).await.expect_success(),
        "notes.txt\n"
    );
    let found = run(&["find", &directory]).await.expect_success();
    assert_eq!(found, format!("{file}\n"));
    let found = run(&["grep", "two", &directory]).await.expect_success();
    assert_eq!(found, format!("{file}:2:two\n"));
    let mut edit = fixture.user.command(["edit", &file]);
    let edit = edit
        .env("EDITOR", "sed -i s/one/three/")
        .env_remove("VISUAL");
    let edited = crate::test_user::OutputSoon::output_soon(edit).await;
    assert_eq!(edited.status, Some(0), "{edited:?}");
    let content = fs::read_to_string(fixture.remote_path("d/notes.txt")).unwrap();
    assert_eq!(content, "three\ntwo\n");
    // A colon alone is the environment of the command line; an unknown name is an error.
    let colon = fixture.remote("d/notes.txt");
    assert_eq!(
        fixture.run("cat", &[&colon]).await.expect_success(),
        content
    );
    let unknown = run(&["cat", "nowhere:x"]).await;
    unknown.failed(78, &["`nowhere`", "`./nowhere:x`"]);
    write(&fixture.remote_path("a:b"), "colon");
    let colon = fixture.remote_path("a:b");
    let colon = fixture.run("cat", &[colon.to_str().unwrap()]).await;
    assert_eq!(colon.expect_success(), "colon");
}

#[tokio::test]
async fn mkdir_creates_one_directory_or_all_parents() {
    let fixture = CopyFixture::new().await;
    let path = |name: &str| fixture.remote_path(name).to_str().unwrap().to_owned();
    let (a, b, deep) = (path("a"), path("b"), path("x/y/z"));
    fixture.run("mkdir", &[&a, &b]).await.expect_success();
    assert_eq!(names(fixture.remote_dir.path()), ["a", "b"]);
    fixture.run("mkdir", &[&a]).await.failed(1, &["exists"]);
    fixture.run("mkdir", &[&deep]).await.failed(66, &["x/y/z"]);
    fixture
        .run("mkdir", &["-p", &deep, &a])
        .await
        .expect_success();
    assert!(fixture.remote_path("x/y/z").is_dir());
}

#[tokio::test]
async fn rm_removes_files_and_directories_only_recursively() {
    let fixture = CopyFixture::new().await;
    write(&fixture.remote_path("file"), "x");
    write(&fixture.remote_path("dir/deep/file"), "x");
    write(&fixture.remote_path("kept/file"), "x");
    symlink("kept", fixture.remote_path("link")).unwrap();
    symlink("nowhere", fixture.remote_path("dead")).unwrap();
    let path = |name: &str| fixture.remote_path(name).to_str().unwrap().to_owned();
    let (file, dir, none) = (path("file"), path("dir"), path("none"));
    fixture
        .run("rm", &[&dir])
        .await
        .failed(1, &["directory", "rm -r"]);
    fixture.run("rm", &[&none]).await.failed(66, &["none"]);
    fixture.run("rm", &["-f", &none]).await.expect_success();
    for wrong in ["/", ".", "..", &format!("{dir}/..")] {
        let refused = fixture.run("rm", &["-rf", wrong]).await;
        refused.failed(2, &["refusing to remove"]);
    }
    assert!(fixture.remote_path("dir/deep/file").exists());
    let (link, dead) = (path("link"), path("dead"));
    fixture
        .run("rm", &[&file, &link, &dead])
        .await
        .expect_success();
    assert_eq!(names(fixture.remote_dir.path()), ["dir", "kept"]);
    fixture.run("rm", &["-rf", &dir]).await.expect_success();
    assert_eq!(names(&fixture.remote_path("kept")), ["file"]);
}

#[tokio::test]
async fn mv_renames_replaces_and_moves_into_directories() {
    let fixture = CopyFixture::new().await;
    fixture.add_box().await;
    for name in ["a", "b", "c"] {
        write(&fixture.remote_path(name), name);
    }
    fs::create_dir(fixture.remote_path("dir")).unwrap();
    let path = |name: &str| fixture.remote_path(name).to_str().unwrap().to_owned();
    let (a, b, c, dir) = (path("a"), path("b"), path("c"), path("dir"));
    let occupied = fixture.run("mv", &["-n", &a, &b]).await;
    assert_eq!(occupied.status, Some(1), "{occupied:?}");
    fixture.run("mv", &[&a, &b]).await.expect_success();
    assert_eq!(fs::read_to_string(&b).unwrap(), "a");
    let [one, other, into] = ["b", "c", "dir"].map(|name| fixture.boxed(name));
    fixture
        .user
        .run(["mv", &one, &other, &into])
        .await
        .expect_success();
    assert_eq!(names(&fixture.remote_path("dir")), ["b", "c"]);
    fixture.run("mv", &[&a, &b]).await.failed(66, &["/a`"]);
    let inside = path("dir/c");
    let many = fixture.run("mv", &[&inside, &dir, &c]).await;
    many.failed(1, &["not a directory"]);
    let apart = fixture
        .user
        .run(["mv", &fixture.boxed("dir/c"), ":/tmp"])
        .await;
    apart.failed(2, &["`box`", "`local`", "cp -r"]);
    fixture
        .run("mv", &[&dir, &path("renamed")])
        .await
        .expect_success();
    assert_eq!(names(fixture.remote_dir.path()), ["renamed"]);
}

#[tokio::test]
async fn failed_copy_names_the_target_not_the_partial_file() {
    let fixture = CopyFixture::new().await;
    write(&fixture.local_path("file"), "x");
    write(&fixture.local_path("large"), vec![7; 3 << 20]);
    write(&fixture.local_path("tree/file"), "x");
    // No file can be created there.
    for (line, target) in [
        (&["file", ":/proc/exec-server-file"][..], "exec-server-file"),
        (&["large", ":/proc/exec-server-large"], "exec-server-large"),
        (
            &["-r", "tree", ":/proc/exec-server-tree"],
            "exec-server-tree",
        ),
    ] {
        let ended = fixture.run("cp", line).await;
        assert!(!matches!(ended.status, Some(0)), "{ended:?}");
        let named = format!("/proc/{target}");
        assert!(ended.stderr.contains(&named), "{ended:?}");
        assert!(!ended.stderr.contains("part"), "{ended:?}");
    }
}

#[tokio::test]
async fn line_numbers_and_counts_match_other_tools() {
    let fixture = CopyFixture::new().await;
    write(&fixture.remote_path("d/a.txt"), "one\ntwo\ntwo\n");
    write(&fixture.remote_path("d/b.txt"), "two\n");
    write(&fixture.remote_path("d/c.rs"), "three\n");
    let path = |name: &str| fixture.remote_path(name).to_str().unwrap().to_owned();
    let (dir, a, b) = (path("d"), path("d/a.txt"), path("d/b.txt"));
    let numbered = fixture.run("cat", &["-n", &a, &b]).await.expect_success();
    assert_eq!(
        numbered,
        "     1\tone\n     2\ttwo\n     3\ttwo\n     4\ttwo\n"
    );
    let plain = fixture.run("grep", &["two", &dir]).await.expect_success();
    for flags in ["-rn", "-r", "-n", "-R"] {
        let found = fixture
            .run("grep", &[flags, "two", &dir])
            .await
            .expect_success();
        assert_eq!(found, plain, "{flags}");
    }
    let counted = fixture
        .run("grep", &["-rc", "two", &dir])
        .await
        .expect_success();
    assert_eq!(counted, format!("{a}:2\n{b}:1\n"));
    let files = fixture
        .run("grep", &["-rl", "two", &dir])
        .await
        .expect_success();
    assert_eq!(files, format!("{a}\n{b}\n"));
    let none = fixture.run("grep", &["-c", "none", &dir]).await;
    assert_eq!((none.status, none.stdout.as_str()), (Some(1), ""));
    // `-E` after the command: the rewriting must not depend on the order.
    let named = ["find", &dir, "-name", "*.txt", "-E", &fixture.server.url];
    let mut found: Vec<_> = fixture
        .user
        .run(named)
        .await
        .expect_success()
        .lines()
        .map(str::to_owned)
        .collect();
    found.sort();
    assert_eq!(found, [a, b]);
    let wrong = fixture.run("find", &[&dir, "-type", "f"]).await;
    assert_eq!(wrong.status, Some(2), "{wrong:?}");
    for text in ["`-type`", "--glob", "run -- find"] {
        assert!(wrong.stderr.contains(text), "{wrong:?}");
    }
}
