//! Tests of detaching from a running process and returning to it.

use std::{fs, os::unix::fs::PermissionsExt};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    processes::{RunningCommand, cuttable_link::CuttableLink, terminal_window::TerminalWindow},
    telemetry::http_client::Samples,
    test_user::{TestUser, within_timeout},
};

fn user() -> TestUser {
    TestUser::new()
        .with("TERM", "xterm")
        .with("SHELL", "/bin/sh")
}

/// Starts a detached command on a terminal.
async fn detach(user: &TestUser, script: &str) {
    let run = ["run", "-dt", "--name=job", "sh", "-c", script];
    user.run(run).await.expect_success();
}

/// Returns the only listed process.
async fn listed(user: &TestUser, flags: &[&str]) -> Value {
    let line = ["ps", "--json"].iter().chain(flags);
    let list: Value = serde_json::from_str(&user.run(line).await.expect_success()).unwrap();
    let [process] = &list.as_array().unwrap()[..] else {
        panic!("{list}");
    };
    process.clone()
}

#[tokio::test]
async fn closed_window_leaves_a_detached_shell_running() {
    let user = user();
    detach(&user, "stty -echo; echo ready; exec sh").await;
    let attach = user.command(["attach", "job"]);
    // Under a shell that ignores SIGHUP, no signal reports that the window is closed.
    let mut behind_a_shell = user.command([""; 0]);
    let line = "trap '' HUP; \"$0\" attach job; exit $?";
    let sh = std::path::Path::new("/bin/sh");
    let program = behind_a_shell.as_std().get_program().to_owned();
    behind_a_shell = user.program(sh, ["-c", line]);
    behind_a_shell.arg(program);
    for (number, attach) in [attach, behind_a_shell].iter().enumerate() {
        let mut window = TerminalWindow::open(attach, (24, 80));
        window.types(&format!("echo here-{number}-$((6 * 7))\r"));
        window.shows(&format!("here-{number}-42")).await;
        let mut program = window.close();
        within_timeout(program.wait()).await.unwrap();
        assert_eq!(listed(&user, &[]).await["running"], true, "{number}");
    }
    let mut window = TerminalWindow::open(&user.command(["attach", "job"]), (24, 80));
    window.types("exit 5\r");
    assert_eq!(
        window.end().await.code(),
        Some(5),
        "{}",
        window.remaining_output()
    );
}

#[tokio::test]
async fn detaching_resets_only_enabled_terminal_modes() {
    for (script, switched) in [
        ("stty -echo; echo ready; exec cat", false),
        (
            "stty -echo; printf '\\033[?1049h'; echo ready; exec cat",
            true,
        ),
    ] {
        let user = user();
        detach(&user, script).await;
        let mut window = TerminalWindow::open(&user.command(["attach", "job"]), (24, 80));
        window.shows("ready").await;
        window.types("\x10\x11");
        assert_eq!(window.end().await.code(), Some(0));
        let reset = window.remaining_output().contains("[?1049l");
        assert_eq!(reset, switched, "{}", window.remaining_output());
    }
}

#[tokio::test]
async fn stopped_program_can_be_detached_from() {
    let user = user();
    detach(&user, "stty raw -echo; echo ready; kill -STOP $$").await;
    let mut window = TerminalWindow::open(&user.command(["attach", "job"]), (24, 80));
    window.shows("ready").await;
    window.types_until(&"x".repeat(100), "\x07").await;
    window.types("\x10\x11");
    assert_eq!(
        window.end().await.code(),
        Some(0),
        "{}",
        window.remaining_output()
    );
    let mut window = TerminalWindow::open(&user.command(["attach", "job"]), (24, 80));
    window.types_until(&"x".repeat(100), "\x07").await;
    window.types("\x03\x03\x03");
    assert_eq!(
        window.end().await.code(),
        Some(130),
        "{}",
        window.remaining_output()
    );
    assert_eq!(listed(&user, &[]).await["running"], true);
}

#[tokio::test]
async fn attach_redraws_the_screen() {
    let user = user();
    let script = "stty -echo; printf 'gone\\033[2J\\033[3;5Hat-row-three'; exec cat";
    detach(&user, script).await;
    let mut window = TerminalWindow::open(&user.command(["attach", "job"]), (24, 80));
    let before = window.shows("at-row-three").await;
    assert!(!before.contains("gone"), "{before:?}");
    window.types("\x10\x11");
    assert_eq!(window.end().await.code(), Some(0));
}

#[tokio::test]
async fn foreground_command_can_be_detached_and_reattached() {
    let user = user();
    let script = "stty -echo; echo ready; read line; echo got $line; exit 6";
    let run = user.command(["run", "-t", "sh", "-c", script]);
    let mut window = TerminalWindow::open(&run, (24, 80));
    window.shows("ready").await;
    window.types("\x1d\x1d");
    assert_eq!(
        window.end().await.code(),
        Some(0),
        "{}",
        window.remaining_output()
    );
    let process = listed(&user, &[]).await;
    assert_eq!(
        (&process["running"], &process["detached"]),
        (&true.into(), &true.into())
    );
    let id = process["processId"].as_str().unwrap();
    assert!(
        window.remaining_output().contains(&format!("attach {id}")),
        "{}",
        window.remaining_output()
    );
    let mut window = TerminalWindow::open(&user.command(["attach", id]), (24, 80));
    window.types("it\r");
    window.shows("got it").await;
    assert_eq!(window.end().await.code(), Some(6));
}

#[tokio::test]
async fn command_of_another_session_is_listed_and_adopted() {
    let user = user();
    let server = user.server(&["--session-ttl", "0.2"]).await;
    let env_flags = ["-E", &server.url];
    let script = "mkfifo fifo; echo ready; read line < fifo; echo $line; exit 6";
    let run = ["run", "-E", &server.url, "sh", "-c", script];
    let mut running = RunningCommand::start(&mut user.command(run));
    running.says("ready").await;
    let ps = user.run(["ps", "-E", &server.url]).await.expect_success();
    assert_eq!(ps.lines().count(), 1, "{ps}");
    let table = user.run(["ps", "-aE", &server.url]).await.expect_success();
    assert!(table.contains("foreground"), "{table}");
    let process = listed(&user, &["--all", env_flags[0], env_flags[1]]).await;
    assert_eq!(process["owner"], "session");
    let id = process["processId"].as_str().unwrap();
    let attach = ["attach", "-E", &server.url, "--no-stdin", id];
    let mut attached = RunningCommand::start(&mut user.command(attach));
    let owner = async || loop {
        let process = listed(&user, &["--all", env_flags[0], env_flags[1]]).await;
        if process["owner"] == "server" {
            return;
        }
    };
    within_timeout(owner()).await;
    running.signal(Signal::KILL);
    within_timeout(running.child.wait()).await.unwrap();
    // Its session ends, and the process keeps running.
    let authority = server.url.strip_prefix("ws://").unwrap();
    let expired = async || {
        while Samples::of(authority)
            .await
            .value("exec_server_sessions{state=\"detached\"}")
            > 0.0
        {}
    };
    within_timeout(expired()).await;
    let fifo = user.work().join("fifo");
    let write = tokio::task::spawn_blocking(move || fs::write(fifo, "on\n").unwrap());
    attached.says("on").await;
    within_timeout(write).await.unwrap();
    assert_eq!(attached.end().await.0.code(), Some(6));
}

#[tokio::test]
async fn error_after_a_reconnect_notice_has_its_own_line() {
    let user = user();
    let server = user.server(&[]).await;
    let wire = CuttableLink::to(&server).await;
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
    let mut window = TerminalWindow::open(&user.command(line), (24, 80));
    window.shows("ready\r\n").await;
    wire.end();
    window.shows("reconnecting…").await;
    assert_eq!(window.end().await.code(), Some(75));
    let rest = window.remaining_output();
    let (erased, error) = (rest.find("[K").unwrap(), rest.find("error:").unwrap());
    assert!(erased < error, "{rest}");
    assert!(rest.contains("attach"), "{rest}");
}

#[tokio::test]
async fn local_shell_is_the_users_shell() {
    let user = user();
    let shell = user.keep("my-shell", "#!/bin/sh\necho mine $*\n");
    fs::set_permissions(&shell, fs::Permissions::from_mode(0o700)).unwrap();
    let user = user.with("SHELL", shell.to_str().unwrap());
    assert_eq!(user.run(["shell"]).await.expect_success(), "mine -l\n");
    // A shell that does not exist is ignored.
    let user = user.with("SHELL", "/no/such/shell");
    assert_eq!(user.run(["shell"]).await.status, Some(0));
}
