//! Tests of links in typed paths and in trees.

use std::{
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
    },
};

use crate::{
    files::{CopyFixture, names, write},
    test_user::{OutputSoon, Server, TestUser},
};

#[tokio::test]
async fn dot_dot_after_a_link_is_the_parent_of_its_target() {
    let fixture = CopyFixture::new().await;
    write(&fixture.remote_path("real/x"), "right");
    write(&fixture.remote_path("x"), "wrong");
    fs::create_dir(fixture.remote_path("real/deep")).unwrap();
    symlink("real/deep", fixture.remote_path("lk")).unwrap();
    let path = format!("{}/lk/../x", fixture.remote_dir.path().display());
    let path = path.as_str();
    assert_eq!(fixture.run("cat", &[path]).await.expect_success(), "right");
    let remote = format!(":{path}");
    fixture.run("cp", &[&remote, "copy"]).await.expect_success();
    assert_eq!(fs::read(fixture.local_path("copy")).unwrap(), b"right");
    write(&fixture.local_path("new"), "new");
    fixture.run("cp", &["new", &remote]).await.expect_success();
    let found = fixture.run("grep", &["new", path]).await.expect_success();
    assert!(found.ends_with(":1:new\n"), "{found}");
    let mut edit = fixture.user.command(fixture.line("edit", &[path]));
    let edited = edit
        .env("EDITOR", "sh -c 'echo edited >\"$0\"'")
        .env_remove("VISUAL");
    edited.output_soon().await.expect_success();
    assert_eq!(
        fs::read(fixture.remote_path("real/x")).unwrap(),
        b"edited\n"
    );
    assert_eq!(fs::read(fixture.remote_path("x")).unwrap(), b"wrong");
    let cwd = path.trim_end_matches("/x");
    let printed = fixture.run("run", &["-C", cwd, "--", "cat", "x"]).await;
    assert_eq!(printed.expect_success(), "edited\n");
    let missing = format!("{}/none/../x", fixture.remote_dir.path().display());
    let ended = fixture.run("cat", &[&missing]).await;
    ended.failed(66, &["none"]);
}

#[tokio::test]
async fn followed_link_to_an_ancestor_is_skipped() {
    let fixture = CopyFixture::new().await;
    write(&fixture.local_path("all/tr/file"), "x");
    write(&fixture.local_path("all/other/file"), "y");
    symlink("..", fixture.local_path("all/tr/up")).unwrap();
    symlink("../dst", fixture.local_path("all/tr/target")).unwrap();
    symlink("../other", fixture.local_path("all/tr/beside")).unwrap();
    fs::create_dir(fixture.local_path("all/dst")).unwrap();
    for target in [":all/new", ":all/dst", ":all/dst"] {
        let ended = fixture.user.run(["cp", "-rL", "all/tr", target]).await;
        assert_eq!(ended.status, Some(0), "{ended:?}");
        assert!(ended.stderr.contains("up` leads back"), "{ended:?}");
    }
    assert_eq!(
        names(&fixture.local_path("all")),
        ["dst", "new", "other", "tr"]
    );
    assert_eq!(names(&fixture.local_path("all/new/beside")), ["file"]);
    assert_eq!(names(&fixture.local_path("all/dst")), ["tr"]);
    // The link target contains the copy's target, which is not copied into itself.
    let tree = names(&fixture.local_path("all/dst/tr"));
    assert_eq!(tree, ["beside", "file", "target"]);
    assert_eq!(names(&fixture.local_path("all/dst/tr/target")), [""; 0]);
}

#[tokio::test]
async fn crossing_links_do_not_multiply_a_tree() {
    let fixture = CopyFixture::new().await;
    const STAGES: usize = 12;
    for stage in 0..STAGES {
        write(&fixture.local_path(&format!("tree/{stage}/file")), "x");
        for link in ["a", "b", "c"] {
            let to = format!("../{}", stage + 1);
            symlink(to, fixture.local_path(&format!("tree/{stage}/{link}"))).unwrap();
        }
    }
    write(&fixture.local_path(&format!("tree/{STAGES}/file")), "x");
    let target = fixture.remote("");
    let ended = fixture.run("cp", &["-rL", "--json", "tree", &target]).await;
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("repeatedly"), "{ended:?}");
    let output: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let files = output["files"].as_u64().unwrap();
    assert!(files <= 17 * (STAGES as u64 + 1), "{output}");
    assert_eq!(
        names(&fixture.remote_path("tree/0/a/a")),
        ["a", "b", "c", "file"]
    );
}

#[tokio::test]
async fn dangling_links_are_reported_in_both_directions() {
    let fixture = CopyFixture::new().await;
    for root in [fixture.local_path("up"), fixture.remote_path("down")] {
        write(&root.join("a/file"), "x");
        symlink("file", root.join("a/fine")).unwrap();
        symlink("none", root.join("a/dead")).unwrap();
    }
    let (source, target) = (fixture.remote("down"), fixture.remote("new"));
    for line in [
        ["-rL", "--json", "up", &target],
        ["-rL", "--json", &source, "."],
    ] {
        let ended = fixture.run("cp", &line).await;
        assert_eq!(ended.status, Some(0), "{ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
        assert!(ended.stderr.contains("a/dead` is dangling"), "{ended:?}");
        let output: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(
            (&output["files"], &output["skipped"]),
            (&2.into(), &1.into())
        );
    }
}

#[tokio::test]
async fn named_dangling_link_is_listed() {
    let fixture = CopyFixture::new().await;
    symlink("none", fixture.remote_path("dead")).unwrap();
    let path = fixture.remote_path("dead");
    let listed = fixture.run("ls", &["-l", path.to_str().unwrap()]).await;
    let line = listed.expect_success();
    assert!(line.starts_with('l') && line.ends_with(" dead\n"), "{line}");
    let output = fixture
        .json("ls", &["--json", path.to_str().unwrap()])
        .await;
    assert_eq!(output[0]["kind"], "nowhere", "{output}");
}

/// Returns the target of a link.
fn leads_to(path: &std::path::Path) -> String {
    let target = fs::read_link(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    target.to_string_lossy().into_owned()
}

#[tokio::test]
async fn links_are_copied_as_links_in_both_directions() {
    let fixture = CopyFixture::new().await;
    for root in [fixture.local_path("up"), fixture.remote_path("down")] {
        write(&root.join("a/file"), "x");
        symlink("file", root.join("a/fine")).unwrap();
        symlink("none", root.join("a/dead")).unwrap();
        symlink("..", root.join("a/above")).unwrap();
        symlink("/odd name\nwith $signs", root.join("a/odd\nlink")).unwrap();
    }
    let (source, target) = (fixture.remote("down"), fixture.remote("new"));
    for line in [
        &["-r", "up", &target][..],
        &["-r", &source, "."],
        // Into an existing directory, a second time, within an environment.
        &["-r", "up/.", &target],
        &["-a", &source, "."],
        &["-r", &source, &fixture.remote("within")],
    ] {
        fixture.run("cp", line).await.expect_success();
    }
    for root in [
        fixture.remote_path("new"),
        fixture.local_path("down"),
        fixture.remote_path("within"),
    ] {
        let found = names(&root.join("a"));
        assert_eq!(
            found,
            ["above", "dead", "file", "fine", "odd\nlink"],
            "{root:?}"
        );
        assert_eq!(leads_to(&root.join("a/fine")), "file");
        assert_eq!(leads_to(&root.join("a/dead")), "none");
        assert_eq!(leads_to(&root.join("a/above")), "..");
        let odd = leads_to(&root.join("a/odd\nlink"));
        assert_eq!(odd, "/odd name\nwith $signs");
        assert!(!root.join("a/file").is_symlink());
    }
}

#[tokio::test]
async fn archive_mode_keeps_times_modes_and_links_in_both_directions() {
    use std::time::{Duration, UNIX_EPOCH};
    let fixture = CopyFixture::new().await;
    let time = UNIX_EPOCH + Duration::from_millis(1_234_567_890_250);
    for root in [fixture.local_path("up"), fixture.remote_path("down")] {
        write(&root.join("sub/file"), "x");
        write(&root.join("large"), vec![7; 3 << 20]);
        symlink("large", root.join("link")).unwrap();
        let mode = fs::Permissions::from_mode(0o640);
        fs::set_permissions(root.join("sub/file"), mode).unwrap();
        for name in ["sub/file", "large", "sub", "."] {
            let file = fs::File::open(root.join(name)).unwrap();
            file.set_modified(time).unwrap();
        }
    }
    let (source, target) = (fixture.remote("down"), fixture.remote("new"));
    fixture
        .run("cp", &["-a", "up", &target])
        .await
        .expect_success();
    fixture
        .run("cp", &["-a", &source, "."])
        .await
        .expect_success();
    for root in [fixture.remote_path("new"), fixture.local_path("down")] {
        for name in ["sub/file", "large", "sub", "."] {
            let found = fs::metadata(root.join(name)).unwrap().modified().unwrap();
            assert_eq!(found, time, "{root:?} {name}");
        }
        let mode = fs::metadata(root.join("sub/file")).unwrap();
        assert_eq!(mode.permissions().mode() & 0o777, 0o640);
        assert_eq!(leads_to(&root.join("link")), "large");
    }
    // A single file keeps its time, too.
    fixture
        .run("cp", &["-a", "up/large", &fixture.remote("one")])
        .await
        .expect_success();
    let one = fs::metadata(fixture.remote_path("one")).unwrap();
    assert_eq!(one.modified().unwrap(), time);
}

#[tokio::test]
async fn copied_link_does_not_redirect_the_next_copy() {
    let fixture = CopyFixture::new().await;
    write(&fixture.local_path("home/secret"), "mine");
    let (home, secret) = (
        fixture.local_path("home"),
        fixture.local_path("home/secret"),
    );
    fs::create_dir(fixture.remote_path("tree")).unwrap();
    symlink(&home, fixture.remote_path("tree/dir")).unwrap();
    symlink(&secret, fixture.remote_path("tree/file")).unwrap();
    let source = fixture.remote("tree");
    fixture
        .run("cp", &["-r", &source, "."])
        .await
        .expect_success();
    assert!(fixture.local_path("tree/dir").is_symlink());
    // Now the server has files in place of the links.
    fs::remove_file(fixture.remote_path("tree/dir")).unwrap();
    fs::remove_file(fixture.remote_path("tree/file")).unwrap();
    write(&fixture.remote_path("tree/dir/planted"), "evil");
    write(&fixture.remote_path("tree/file"), "evil");
    for flags in ["-r", "-rL", "-a"] {
        let ended = fixture.run("cp", &[flags, &source, "."]).await;
        assert_eq!(ended.status, Some(1), "{ended:?}");
        assert!(ended.stderr.contains("is a link"), "{ended:?}");
        assert_eq!(names(&home), ["secret"]);
        assert_eq!(fs::read_to_string(&secret).unwrap(), "mine");
    }
}

#[tokio::test]
async fn copy_starts_no_programs_on_the_server() {
    let user = TestUser::new();
    // No program can be found there.
    let mut command = user.command(["--listen", "ws://127.0.0.1:0"]);
    let command = command.env("PATH", "/nonexistent");
    let server = Server::of(command.env_remove("EXEC_SERVER_IDLE_EXIT")).await;
    let remote = tempfile::tempdir().unwrap();
    write(&user.work().join("tree/sub/file"), "x");
    write(&user.work().join("tree/large"), vec![7; 3 << 20]);
    for (name, mode) in [("tree/large", 0o440), ("tree/sub", 0o700)] {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(user.work().join(name), mode).unwrap();
    }
    let odd = std::ffi::OsStr::from_bytes(b"not \xff text");
    symlink(odd, user.work().join("tree").join(odd)).unwrap();
    let there = format!(":{}/tree", remote.path().display());
    for line in [
        ["cp", "-a", "-E", &server.url, "tree", &there],
        ["cp", "-a", "-E", &server.url, &there, "back"],
    ] {
        user.run(line).await.expect_success();
    }
    let followed = ["cp", "-rL", "-E", &server.url, &there, "followed"];
    let followed = user.run(followed).await;
    assert_eq!(followed.status, Some(0), "{followed:?}");
    assert!(followed.stderr.contains("is dangling"), "{followed:?}");
    for root in [remote.path().join("tree"), user.work().join("back")] {
        let mode = |name: &str| fs::metadata(root.join(name)).unwrap().mode() & 0o777;
        assert_eq!((mode("large"), mode("sub")), (0o440, 0o700), "{root:?}");
        assert_eq!(fs::read_link(root.join(odd)).unwrap().as_os_str(), odd);
        assert_eq!(fs::read(root.join("sub/file")).unwrap(), b"x");
    }
}
