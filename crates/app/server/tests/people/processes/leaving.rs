//! Leaving a process that runs on, and coming back to it.

use std::{fs, os::unix::fs::PermissionsExt};

use rustix::process::Signal;
use serde_json::Value;

use super::{Running, window::Window, wire::Wire};
use crate::{
    cast::{Person, soon},
    watching::http::Samples,
};

fn person() -> Person {
    Person::new().with("TERM", "xterm").with("SHELL", "/bin/sh")
}

/// Starts a detached command on a terminal.
async fn detach(person: &Person, script: &str) {
    let run = ["run", "-dt", "--name=job", "sh", "-c", script];
    person.run(run).await.well();
}

/// Returns the one process that is listed.
async fn listed(person: &Person, flags: &[&str]) -> Value {
    let line = ["ps", "--json"].iter().chain(flags);
    let list: Value = serde_json::from_str(&person.run(line).await.well()).unwrap();
    let [process] = &list.as_array().unwrap()[..] else {
        panic!("{list}");
    };
    process.clone()
}

#[tokio::test]
async fn closing_the_window_leaves_a_detached_shell_running() {
    let person = person();
    detach(&person, "stty -echo; echo ready; exec sh").await;
    let attach = person.command(["attach", "job"]);
    // Behind a shell that ignores it, no signal tells that the window is closed.
    let mut behind_a_shell = person.command([""; 0]);
    let line = "trap '' HUP; \"$0\" attach job; exit $?";
    let sh = std::path::Path::new("/bin/sh");
    let program = behind_a_shell.as_std().get_program().to_owned();
    behind_a_shell = person.program(sh, ["-c", line]);
    behind_a_shell.arg(program);
    for (number, attach) in [attach, behind_a_shell].iter().enumerate() {
        let mut window = Window::open(attach, (24, 80));
        window.types(&format!("echo here-{number}-$((6 * 7))\r"));
        window.shows(&format!("here-{number}-42")).await;
        let mut program = window.close();
        soon(program.wait()).await.unwrap();
        assert_eq!(listed(&person, &[]).await["running"], true, "{number}");
    }
    let mut window = Window::open(&person.command(["attach", "job"]), (24, 80));
    window.types("exit 5\r");
    assert_eq!(window.end().await.code(), Some(5), "{}", window.rest());
}

#[tokio::test]
async fn only_modes_that_the_program_switched_on_are_reset_when_it_is_left() {
    for (script, switched) in [
        ("stty -echo; echo ready; exec cat", false),
        (
            "stty -echo; printf '\\033[?1049h'; echo ready; exec cat",
            true,
        ),
    ] {
        let person = person();
        detach(&person, script).await;
        let mut window = Window::open(&person.command(["attach", "job"]), (24, 80));
        window.shows("ready").await;
        window.types("\x10\x11");
        assert_eq!(window.end().await.code(), Some(0));
        let reset = window.rest().contains("[?1049l");
        assert_eq!(reset, switched, "{}", window.rest());
    }
}

#[tokio::test]
async fn a_program_that_is_stopped_and_takes_no_keys_can_be_left() {
    let person = person();
    detach(&person, "stty raw -echo; echo ready; kill -STOP $$").await;
    let mut window = Window::open(&person.command(["attach", "job"]), (24, 80));
    window.shows("ready").await;
    window.types_until(&"x".repeat(100), "\x07").await;
    window.types("\x10\x11");
    assert_eq!(window.end().await.code(), Some(0), "{}", window.rest());
    let mut window = Window::open(&person.command(["attach", "job"]), (24, 80));
    window.types_until(&"x".repeat(100), "\x07").await;
    window.types("\x03\x03\x03");
    assert_eq!(window.end().await.code(), Some(130), "{}", window.rest());
    assert_eq!(listed(&person, &[]).await["running"], true);
}

#[tokio::test]
async fn attaching_shows_the_screen_as_it_is() {
    let person = person();
    let script = "stty -echo; printf 'gone\\033[2J\\033[3;5Hat-row-three'; exec cat";
    detach(&person, script).await;
    let mut window = Window::open(&person.command(["attach", "job"]), (24, 80));
    let before = window.shows("at-row-three").await;
    assert!(!before.contains("gone"), "{before:?}");
    window.types("\x10\x11");
    assert_eq!(window.end().await.code(), Some(0));
}

#[tokio::test]
async fn a_foreground_command_can_be_left_running_and_returned_to() {
    let person = person();
    let script = "stty -echo; echo ready; read line; echo got $line; exit 6";
    let run = person.command(["run", "-t", "sh", "-c", script]);
    let mut window = Window::open(&run, (24, 80));
    window.shows("ready").await;
    window.types("\x1d\x1d");
    assert_eq!(window.end().await.code(), Some(0), "{}", window.rest());
    let process = listed(&person, &[]).await;
    assert_eq!(
        (&process["running"], &process["detached"]),
        (&true.into(), &true.into())
    );
    let id = process["processId"].as_str().unwrap();
    assert!(
        window.rest().contains(&format!("attach {id}")),
        "{}",
        window.rest()
    );
    let mut window = Window::open(&person.command(["attach", id]), (24, 80));
    window.types("it\r");
    window.shows("got it").await;
    assert_eq!(window.end().await.code(), Some(6));
}

#[tokio::test]
async fn a_command_of_another_session_is_listed_and_taken_over() {
    let person = person();
    let server = person.server(&["--session-ttl", "0.2"]).await;
    let there = ["-E", &server.url];
    let script = "mkfifo fifo; echo ready; read line < fifo; echo $line; exit 6";
    let run = ["run", "-E", &server.url, "sh", "-c", script];
    let mut running = Running::start(&mut person.command(run));
    running.says("ready").await;
    let ps = person.run(["ps", "-E", &server.url]).await.well();
    assert_eq!(ps.lines().count(), 1, "{ps}");
    let table = person.run(["ps", "-aE", &server.url]).await.well();
    assert!(table.contains("foreground"), "{table}");
    let process = listed(&person, &["--all", there[0], there[1]]).await;
    assert_eq!(process["owner"], "session");
    let id = process["processId"].as_str().unwrap();
    let attach = ["attach", "-E", &server.url, "--no-stdin", id];
    let mut attached = Running::start(&mut person.command(attach));
    let owner = async || loop {
        let process = listed(&person, &["--all", there[0], there[1]]).await;
        if process["owner"] == "server" {
            return;
        }
    };
    soon(owner()).await;
    running.signal(Signal::KILL);
    soon(running.child.wait()).await.unwrap();
    // Its session ends, and it goes on.
    let authority = server.url.strip_prefix("ws://").unwrap();
    let expired = async || {
        while Samples::of(authority)
            .await
            .value("exec_server_sessions{state=\"detached\"}")
            > 0.0
        {}
    };
    soon(expired()).await;
    let fifo = person.work().join("fifo");
    let write = tokio::task::spawn_blocking(move || fs::write(fifo, "on\n").unwrap());
    attached.says("on").await;
    soon(write).await.unwrap();
    assert_eq!(attached.end().await.0.code(), Some(6));
}

#[tokio::test]
async fn an_error_stands_on_a_line_of_its_own_behind_the_notice_of_an_outage() {
    let person = person();
    let server = person.server(&[]).await;
    let wire = Wire::to(&server).await;
    let script = "echo ready; sleep 1000";
    let line = [
        "run",
        "-E",
        &wire.url,
        "--reconnect-timeout=0.3s",
        "-t",
        "sh",
        "-c",
        script,
    ];
    let mut window = Window::open(&person.command(line), (24, 80));
    window.shows("ready\r\n").await;
    wire.end();
    window.shows("reconnecting…").await;
    assert_eq!(window.end().await.code(), Some(75));
    let rest = window.rest();
    let (erased, error) = (rest.find("[K").unwrap(), rest.find("error:").unwrap());
    assert!(erased < error, "{rest}");
    assert!(rest.contains("attach"), "{rest}");
}

#[tokio::test]
async fn a_shell_on_this_machine_is_the_one_that_the_person_chose() {
    let person = person();
    let shell = person.keep("my-shell", "#!/bin/sh\necho mine $*\n");
    fs::set_permissions(&shell, fs::Permissions::from_mode(0o700)).unwrap();
    let person = person.with("SHELL", shell.to_str().unwrap());
    assert_eq!(person.run(["shell"]).await.well(), "mine -l\n");
    // One that is not there is no choice.
    let person = person.with("SHELL", "/no/such/shell");
    assert_eq!(person.run(["shell"]).await.status, Some(0));
}
