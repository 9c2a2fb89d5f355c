//! Links in paths that are typed, and in trees.

use std::{fs, os::unix::fs::symlink};

use super::{Scene, names, write};
use crate::cast::OutputSoon;

#[tokio::test]
async fn two_dots_behind_a_link_are_the_directory_above_where_it_leads() {
    let scene = Scene::new().await;
    write(&scene.there("real/x"), "right");
    write(&scene.there("x"), "wrong");
    fs::create_dir(scene.there("real/deep")).unwrap();
    symlink("real/deep", scene.there("lk")).unwrap();
    let path = format!("{}/lk/../x", scene.there.path().display());
    let path = path.as_str();
    assert_eq!(scene.run("cat", &[path]).await.well(), "right");
    let remote = format!(":{path}");
    scene.run("cp", &[&remote, "copy"]).await.well();
    assert_eq!(fs::read(scene.here("copy")).unwrap(), b"right");
    write(&scene.here("new"), "new");
    scene.run("cp", &["new", &remote]).await.well();
    let found = scene.run("grep", &["new", path]).await.well();
    assert!(found.ends_with(":1:new\n"), "{found}");
    let mut edit = scene.person.command(scene.line("edit", &[path]));
    let edited = edit
        .env("EDITOR", "sh -c 'echo edited >\"$0\"'")
        .env_remove("VISUAL");
    edited.output_soon().await.well();
    assert_eq!(fs::read(scene.there("real/x")).unwrap(), b"edited\n");
    assert_eq!(fs::read(scene.there("x")).unwrap(), b"wrong");
    let cwd = path.trim_end_matches("/x");
    let printed = scene.run("run", &["-C", cwd, "--", "cat", "x"]).await;
    assert_eq!(printed.well(), "edited\n");
    let missing = format!("{}/none/../x", scene.there.path().display());
    let ended = scene.run("cat", &[&missing]).await;
    ended.failed(66, &["none"]);
}

#[tokio::test]
async fn a_link_up_leads_into_neither_the_target_nor_the_tree_again() {
    let scene = Scene::new().await;
    write(&scene.here("all/tr/file"), "x");
    write(&scene.here("all/other/file"), "y");
    symlink("..", scene.here("all/tr/up")).unwrap();
    symlink("../dst", scene.here("all/tr/target")).unwrap();
    symlink("../other", scene.here("all/tr/beside")).unwrap();
    fs::create_dir(scene.here("all/dst")).unwrap();
    for target in [":all/new", ":all/dst", ":all/dst"] {
        let ended = scene.person.run(["cp", "-r", "all/tr", target]).await;
        assert_eq!(ended.status, Some(0), "{ended:?}");
        assert!(ended.stderr.contains("up` leads back"), "{ended:?}");
    }
    assert_eq!(names(&scene.here("all")), ["dst", "new", "other", "tr"]);
    assert_eq!(names(&scene.here("all/new/beside")), ["file"]);
    assert_eq!(names(&scene.here("all/dst")), ["tr"]);
    // What the link leads to holds the target, and that is not copied into itself.
    let tree = names(&scene.here("all/dst/tr"));
    assert_eq!(tree, ["beside", "file", "target"]);
    assert_eq!(names(&scene.here("all/dst/tr/target")), [""; 0]);
}

#[tokio::test]
async fn links_that_cross_do_not_multiply_a_tree_without_end() {
    let scene = Scene::new().await;
    const STAGES: usize = 12;
    for stage in 0..STAGES {
        write(&scene.here(&format!("tree/{stage}/file")), "x");
        for link in ["a", "b", "c"] {
            let to = format!("../{}", stage + 1);
            symlink(to, scene.here(&format!("tree/{stage}/{link}"))).unwrap();
        }
    }
    write(&scene.here(&format!("tree/{STAGES}/file")), "x");
    let target = scene.remote("");
    let ended = scene.run("cp", &["-r", "--json", "tree", &target]).await;
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("again and again"), "{ended:?}");
    let told: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let files = told["files"].as_u64().unwrap();
    assert!(files <= 17 * (STAGES as u64 + 1), "{told}");
    assert_eq!(names(&scene.there("tree/0/a/a")), ["a", "b", "c", "file"]);
}

#[tokio::test]
async fn links_of_a_tree_that_lead_nowhere_are_told_in_both_directions() {
    let scene = Scene::new().await;
    for root in [scene.here("up"), scene.there("down")] {
        write(&root.join("a/file"), "x");
        symlink("file", root.join("a/fine")).unwrap();
        symlink("none", root.join("a/dead")).unwrap();
    }
    let (source, target) = (scene.remote("down"), scene.remote("new"));
    for line in [
        ["-r", "--json", "up", &target],
        ["-r", "--json", &source, "."],
    ] {
        let ended = scene.run("cp", &line).await;
        assert_eq!(ended.status, Some(0), "{ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
        assert!(ended.stderr.contains("a/dead` leads nowhere"), "{ended:?}");
        let told: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!((&told["files"], &told["skipped"]), (&2.into(), &1.into()));
    }
}

#[tokio::test]
async fn a_link_that_leads_nowhere_is_listed_when_it_is_named() {
    let scene = Scene::new().await;
    symlink("none", scene.there("dead")).unwrap();
    let path = scene.there("dead");
    let listed = scene.run("ls", &["-l", path.to_str().unwrap()]).await;
    let line = listed.well();
    assert!(line.starts_with('l') && line.ends_with(" dead\n"), "{line}");
    let told = scene.json("ls", &["--json", path.to_str().unwrap()]).await;
    assert_eq!(told[0]["kind"], "nowhere", "{told}");
}
