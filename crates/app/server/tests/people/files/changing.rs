//! `mkdir`, `rm` and `mv`, and paths that name their environment.

use std::{fs, os::unix::fs::symlink};

use super::{Scene, names, write};

impl Scene {
    /// Adds this server as the environment `box`.
    async fn add_box(&self) {
        let add = ["env", "add", "box", &self.server.url];
        self.person.run(add).await.well();
    }

    /// A path on the server, as the environment `box` has it.
    fn boxed(&self, name: &str) -> String {
        format!("box:{}", self.there(name).display())
    }
}

#[tokio::test]
async fn every_file_command_takes_a_path_with_the_name_of_its_environment() {
    let scene = Scene::new().await;
    scene.add_box().await;
    write(&scene.there("d/notes.txt"), "one\ntwo\n");
    let (file, directory) = (scene.boxed("d/notes.txt"), scene.boxed("d"));
    let run = async |line: &[&str]| scene.person.run(line).await;
    assert_eq!(run(&["cat", &file]).await.well(), "one\ntwo\n");
    assert_eq!(run(&["ls", &directory]).await.well(), "notes.txt\n");
    let found = run(&["find", &directory]).await.well();
    assert_eq!(found, format!("{file}\n"));
    let found = run(&["grep", "two", &directory]).await.well();
    assert_eq!(found, format!("{file}:2:two\n"));
    let mut edit = scene.person.command(["edit", &file]);
    let edit = edit
        .env("EDITOR", "sed -i s/one/three/")
        .env_remove("VISUAL");
    let edited = crate::cast::OutputSoon::output_soon(edit).await;
    assert_eq!(edited.status, Some(0), "{edited:?}");
    let content = fs::read_to_string(scene.there("d/notes.txt")).unwrap();
    assert_eq!(content, "three\ntwo\n");
    // The colon alone is the environment of the line; a name that is none is told.
    let colon = scene.remote("d/notes.txt");
    assert_eq!(scene.run("cat", &[&colon]).await.well(), content);
    let unknown = run(&["cat", "nowhere:x"]).await;
    unknown.failed(78, &["`nowhere`", "`./nowhere:x`"]);
    write(&scene.there("a:b"), "colon");
    let colon = scene.there("a:b");
    let colon = scene.run("cat", &[colon.to_str().unwrap()]).await;
    assert_eq!(colon.well(), "colon");
}

#[tokio::test]
async fn directories_are_made_one_by_one_or_with_those_above() {
    let scene = Scene::new().await;
    let path = |name: &str| scene.there(name).to_str().unwrap().to_owned();
    let (a, b, deep) = (path("a"), path("b"), path("x/y/z"));
    scene.run("mkdir", &[&a, &b]).await.well();
    assert_eq!(names(scene.there.path()), ["a", "b"]);
    scene.run("mkdir", &[&a]).await.failed(1, &["exists"]);
    scene.run("mkdir", &[&deep]).await.failed(66, &["x/y/z"]);
    scene.run("mkdir", &["-p", &deep, &a]).await.well();
    assert!(scene.there("x/y/z").is_dir());
}

#[tokio::test]
async fn files_are_removed_and_directories_only_with_what_is_in_them() {
    let scene = Scene::new().await;
    write(&scene.there("file"), "x");
    write(&scene.there("dir/deep/file"), "x");
    write(&scene.there("kept/file"), "x");
    symlink("kept", scene.there("link")).unwrap();
    symlink("nowhere", scene.there("dead")).unwrap();
    let path = |name: &str| scene.there(name).to_str().unwrap().to_owned();
    let (file, dir, none) = (path("file"), path("dir"), path("none"));
    scene
        .run("rm", &[&dir])
        .await
        .failed(1, &["directory", "rm -r"]);
    scene.run("rm", &[&none]).await.failed(66, &["none"]);
    scene.run("rm", &["-f", &none]).await.well();
    for wrong in ["/", ".", "..", &format!("{dir}/..")] {
        let refused = scene.run("rm", &["-rf", wrong]).await;
        refused.failed(2, &["refusing to remove"]);
    }
    assert!(scene.there("dir/deep/file").exists());
    let (link, dead) = (path("link"), path("dead"));
    scene.run("rm", &[&file, &link, &dead]).await.well();
    assert_eq!(names(scene.there.path()), ["dir", "kept"]);
    scene.run("rm", &["-rf", &dir]).await.well();
    assert_eq!(names(&scene.there("kept")), ["file"]);
}

#[tokio::test]
async fn files_are_renamed_replaced_and_put_into_directories() {
    let scene = Scene::new().await;
    scene.add_box().await;
    for name in ["a", "b", "c"] {
        write(&scene.there(name), name);
    }
    fs::create_dir(scene.there("dir")).unwrap();
    let path = |name: &str| scene.there(name).to_str().unwrap().to_owned();
    let (a, b, c, dir) = (path("a"), path("b"), path("c"), path("dir"));
    let taken = scene.run("mv", &["-n", &a, &b]).await;
    assert_eq!(taken.status, Some(1), "{taken:?}");
    scene.run("mv", &[&a, &b]).await.well();
    assert_eq!(fs::read_to_string(&b).unwrap(), "a");
    let [one, other, into] = ["b", "c", "dir"].map(|name| scene.boxed(name));
    scene.person.run(["mv", &one, &other, &into]).await.well();
    assert_eq!(names(&scene.there("dir")), ["b", "c"]);
    scene.run("mv", &[&a, &b]).await.failed(66, &["/a`"]);
    let inside = path("dir/c");
    let many = scene.run("mv", &[&inside, &dir, &c]).await;
    many.failed(1, &["not a directory"]);
    let apart = scene
        .person
        .run(["mv", &scene.boxed("dir/c"), ":/tmp"])
        .await;
    apart.failed(2, &["`box`", "`local`", "cp -r"]);
    scene.run("mv", &[&dir, &path("renamed")]).await.well();
    assert_eq!(names(scene.there.path()), ["renamed"]);
}

#[tokio::test]
async fn a_copy_that_fails_names_its_target_and_not_the_part() {
    let scene = Scene::new().await;
    write(&scene.here("file"), "x");
    write(&scene.here("large"), vec![7; 3 << 20]);
    write(&scene.here("tree/file"), "x");
    // Nobody can make a file there.
    for (line, target) in [
        (&["file", ":/proc/exec-server-file"][..], "exec-server-file"),
        (&["large", ":/proc/exec-server-large"], "exec-server-large"),
        (
            &["-r", "tree", ":/proc/exec-server-tree"],
            "exec-server-tree",
        ),
    ] {
        let ended = scene.run("cp", line).await;
        assert!(!matches!(ended.status, Some(0)), "{ended:?}");
        let named = format!("/proc/{target}");
        assert!(ended.stderr.contains(&named), "{ended:?}");
        assert!(!ended.stderr.contains("part"), "{ended:?}");
    }
}

#[tokio::test]
async fn lines_are_numbered_and_counted_as_other_tools_do() {
    let scene = Scene::new().await;
    write(&scene.there("d/a.txt"), "one\ntwo\ntwo\n");
    write(&scene.there("d/b.txt"), "two\n");
    write(&scene.there("d/c.rs"), "three\n");
    let path = |name: &str| scene.there(name).to_str().unwrap().to_owned();
    let (dir, a, b) = (path("d"), path("d/a.txt"), path("d/b.txt"));
    let numbered = scene.run("cat", &["-n", &a, &b]).await.well();
    assert_eq!(
        numbered,
        "     1\tone\n     2\ttwo\n     3\ttwo\n     4\ttwo\n"
    );
    let plain = scene.run("grep", &["two", &dir]).await.well();
    for flags in ["-rn", "-r", "-n", "-R"] {
        let found = scene.run("grep", &[flags, "two", &dir]).await.well();
        assert_eq!(found, plain, "{flags}");
    }
    let counted = scene.run("grep", &["-rc", "two", &dir]).await.well();
    assert_eq!(counted, format!("{a}:2\n{b}:1\n"));
    let files = scene.run("grep", &["-rl", "two", &dir]).await.well();
    assert_eq!(files, format!("{a}\n{b}\n"));
    let none = scene.run("grep", &["-c", "none", &dir]).await;
    assert_eq!((none.status, none.stdout.as_str()), (Some(1), ""));
    // The environment behind the command, as the rewriting expects it first.
    let named = ["find", &dir, "-name", "*.txt", "-E", &scene.server.url];
    let mut found: Vec<_> = scene
        .person
        .run(named)
        .await
        .well()
        .lines()
        .map(str::to_owned)
        .collect();
    found.sort();
    assert_eq!(found, [a, b]);
    let wrong = scene.run("find", &[&dir, "-type", "f"]).await;
    assert_eq!(wrong.status, Some(2), "{wrong:?}");
    for text in ["`-type`", "--glob", "run -- find"] {
        assert!(wrong.stderr.contains(text), "{wrong:?}");
    }
}
