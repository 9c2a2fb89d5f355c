//! How commands start, or do not, and how they end.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use crate::cast::Person;

#[tokio::test]
async fn the_status_is_the_commands() {
    let person = Person::new();
    for (script, status) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
    ] {
        let ended = person.run(["run", "--", "sh", "-c", script]).await;
        assert_eq!(ended.status, Some(status), "{script}");
        assert_eq!(ended.stderr, "", "{script}");
    }
}

#[tokio::test]
async fn what_follows_the_command_is_its_own() {
    let person = Person::new();
    let told = person.run(["run", "printf", "%s,", "-t", "--detach", "--", "-C"]);
    assert_eq!(told.await.well(), "-t,--detach,--,-C,");
}

#[tokio::test]
async fn a_command_that_cannot_be_run_is_told_from_one_that_is_not_there() {
    let person = Person::new();
    let plain = person.work().join("plain");
    fs::write(&plain, "text").unwrap();
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
    let run = |words: &'static [&str]| person.run([&["run"], words].concat());
    run(&["no-such-program"])
        .await
        .failed(127, &["`no-such-program`", "No such file", "PATH"]);
    run(&["./nothing-here"])
        .await
        .failed(127, &["nothing-here"]);
    run(&["./plain"])
        .await
        .failed(126, &["`./plain`", "Permission denied", "executable"]);
    run(&["-C", "/no/such/directory", "true"])
        .await
        .failed(66, &["/no/such/directory", "-C"]);
    run(&["-d", "no-such-program"]).await.failed(127, &["PATH"]);
}

#[tokio::test]
async fn a_command_of_this_machine_has_our_directory_and_our_variables() {
    let person = Person::new().with("COLOUR", "blue");
    let script = "pwd; echo $COLOUR $SHAPE";
    let here = fs::canonicalize(person.work()).unwrap();
    let told = person.run(["run", "-e", "SHAPE=round", "sh", "-c", script]);
    assert_eq!(
        told.await.well(),
        format!("{}\nblue round\n", here.display())
    );
    fs::create_dir(person.work().join("below")).unwrap();
    let told = person.run(["run", "-C", "below", "pwd"]).await.well();
    assert_eq!(Path::new(told.trim()), here.join("below"));
}

#[tokio::test]
async fn a_command_elsewhere_has_the_servers_variables_and_those_that_are_passed_on() {
    let person = Person::new().with("COLOUR", "blue");
    let server = person.server(&[]).await;
    let guest = Person::new().with("COLOUR", "red").with("SHAPE", "round");
    let script = "pwd; echo $COLOUR $SHAPE; echo $SIZE";
    let line = ["run", "-E", &server.url, "-e", "SIZE=1", "sh", "-c", script];
    let there = fs::canonicalize(person.work()).unwrap();
    let told = guest.run(line).await.well();
    assert_eq!(told, format!("{}\nblue\n1\n", there.display()));
    let passed = ["run", "-E", &server.url, "-e", "SHAPE", "sh", "-c", script];
    assert!(guest.run(passed).await.well().contains("blue round"));
}

#[tokio::test]
async fn a_command_whose_time_is_up_is_asked_to_end_and_then_killed() {
    let person = Person::new();
    let script = "exec 2>/dev/null; trap 'echo asked; exit 3' TERM; echo ready; while :; do sleep 0.02; done";
    let ended = person.run(["run", "--timeout", "300ms", "sh", "-c", script]);
    let ended = ended.await;
    assert_eq!(ended.stdout, "ready\nasked\n");
    ended.failed(124, &["in time", "--timeout"]);
    let in_time = person.run(["run", "--timeout", "1m", "sh", "-c", "exit 4"]);
    assert_eq!(in_time.await.status, Some(4));
    // What it left behind is not the command, whose status is known.
    let left = [
        "run",
        "--timeout",
        "200ms",
        "sh",
        "-c",
        "sleep 1000 & exit 5",
    ];
    assert_eq!(person.run(left).await.status, Some(5));
    let wrong = person.run(["run", "--timeout", "soon", "true"]).await;
    assert_eq!(wrong.status, Some(2), "{wrong:?}");
}

#[tokio::test]
async fn a_sandbox_refuses_what_it_does_not_allow() {
    let person = Person::new();
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    let workspace = tempfile::tempdir_in("/var/tmp").unwrap();
    let target = outside.path().join("file");
    let script = format!(
        "echo a > inside; echo b > {}; cat /etc/passwd",
        target.display()
    );
    let run = |policy| {
        let mut run = person.command(["run", "--sandbox", policy, "sh", "-c", &script]);
        run.current_dir(workspace.path());
        async move { crate::cast::soon(run.output()).await.unwrap() }
    };
    let told = run("read-only").await;
    assert!(!told.stdout.is_empty(), "{told:?}");
    assert!(!workspace.path().join("inside").exists());
    assert!(!target.exists());
    let told = run("workspace-write").await;
    assert!(!told.stdout.is_empty(), "{told:?}");
    assert_eq!(fs::read(workspace.path().join("inside")).unwrap(), b"a\n");
    assert!(!target.exists());
    let wrong = person.run(["run", "--network", "true"]).await;
    assert_eq!(wrong.status, Some(2), "{wrong:?}");
}

#[tokio::test]
async fn the_status_is_told_when_nobody_hears_the_reason() {
    let person = Person::new();
    let mut run = person.command(["run", "no-such-program-here"]);
    let full = fs::OpenOptions::new().write(true).open("/dev/full");
    let child = run.stderr(full.unwrap()).status();
    let ended = crate::cast::soon(child).await.unwrap();
    assert_eq!(ended.code(), Some(127));
}
