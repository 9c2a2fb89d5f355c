//! Tests of detached processes.

use std::{fs, process::Stdio};

use rustix::process::Signal;
use tokio::io::AsyncWriteExt;

use crate::{
    processes::{RunningCommand, terminal_window::TerminalWindow, wait_until_gone},
    test_user::TestUser,
};

#[tokio::test]
async fn detached_process_is_listed_and_waited_for() {
    let user = TestUser::new();
    let script = "echo out; echo err >&2; mkfifo fifo; read line < fifo; exit 6";
    let remaining = user
        .run(["run", "-d", "sh", "-c", script])
        .await
        .expect_success();
    let id = remaining.trim();
    assert_eq!(id.len(), 12);
    let table = user.run(["ps"]).await.expect_success();
    let row = table.lines().find(|line| line.starts_with(id)).unwrap();
    assert!(
        row.contains("running") && row.contains("sh -c 'echo out;"),
        "{row}"
    );
    assert!(!table.contains('\x1b'), "{table}");
    let json = user.run(["ps", "--json"]).await.expect_success();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["processId"], id);
    assert_eq!(json[0]["running"], true);
    // Both lines are written when the fifo exists, which takes the third.
    let mut wait = RunningCommand::start(&mut user.command(["wait", &id[..4]]));
    let mut logs = RunningCommand::start(&mut user.command(["logs", "--follow", id]));
    logs.says("out").await;
    let fifo = user.work().join("fifo");
    let shell = ["-c", "while [ ! -p fifo ]; do :; done; echo go > fifo"];
    let mut go = tokio::process::Command::new("sh");
    crate::test_user::within_timeout(go.args(shell).current_dir(fifo.parent().unwrap()).status())
        .await
        .unwrap();
    assert_eq!(wait.end().await.0.code(), Some(6));
    let (status, output) = logs.end().await;
    assert_eq!((status.code(), output.as_str()), (Some(0), "err\n"));
    let logs = user.run(["logs", id]).await;
    assert_eq!(
        (logs.stdout.as_str(), logs.stderr.as_str()),
        ("out\n", "err\n")
    );
    let table = user.run(["ps"]).await.expect_success();
    assert!(table.contains("ended 6"), "{table}");
    // It has exited: nothing to wait for or attach to.
    assert_eq!(user.run(["wait", id]).await.status, Some(6));
    let attached = user.run(["attach", id]).await;
    assert_eq!(attached.status, Some(6), "{attached:?}");
    assert!(attached.stderr.contains("has exited"), "{attached:?}");
}

#[tokio::test]
async fn logs_tail_prints_the_last_lines() {
    let user = TestUser::new();
    let script = "for i in 1 2 3 4 5; do echo $i; done";
    user.run(["run", "-d", "--name", "five", "sh", "-c", script])
        .await
        .expect_success();
    assert_eq!(user.run(["wait", "five"]).await.status, Some(0));
    assert_eq!(
        user.run(["logs", "--tail", "2", "five"])
            .await
            .expect_success(),
        "4\n5\n"
    );
    assert_eq!(
        user.run(["logs", "-n", "9", "-f", "fiv"])
            .await
            .expect_success(),
        "1\n2\n3\n4\n5\n"
    );
}

#[tokio::test]
async fn unknown_processes_are_reported_with_the_next_step() {
    let user = TestUser::new();
    for command in ["logs", "attach", "kill", "wait"] {
        let output = user.run([command, "nothing"]).await;
        output.failed(66, &["`nothing`", "exec-server ps"]);
    }
    for name in ["job-1", "job-2"] {
        let run = ["run", "-d", "--name", name, "sleep", "1000"];
        assert_eq!(user.run(run).await.expect_success(), format!("{name}\n"));
    }
    let again = user.run(["run", "-d", "--name", "job-1", "true"]).await;
    again.failed(2, &["job-1", "--name"]);
    let either = user.run(["kill", "job"]).await;
    either.failed(2, &["`job-1`", "`job-2`"]);
    // If one does not exist, the others are left alone.
    user.run(["kill", "job-1", "job-3"])
        .await
        .failed(66, &["`job-3`"]);
    assert!(!user.run(["ps"]).await.expect_success().contains("ended"));
    let wrong = user.run(["run", "-d", "--name", "a b", "true"]).await;
    wrong.failed(2, &["a b"]);
}

#[tokio::test]
async fn kill_sends_sigterm_then_sigkill() {
    let user = TestUser::new();
    let kind = "echo $$ > kind; trap 'exit 7' TERM; while :; do sleep 0.02; done";
    let stubborn = "echo $$ > stubborn; trap '' TERM; while :; do sleep 0.02; done";
    for (name, script) in [("kind", kind), ("stubborn", stubborn)] {
        let run = ["run", "-d", "--name", name, "sh", "-c", script];
        user.run(run).await.expect_success();
        appears(&user, name).await;
    }
    let ended = user
        .run(["kill", "--timeout", "300ms", "kind", "stubborn"])
        .await;
    assert_eq!(ended.expect_success(), "");
    assert_eq!(user.run(["wait", "kind"]).await.status, Some(7));
    assert_eq!(user.run(["wait", "stubborn"]).await.status, Some(137));
    wait_until_gone(&user.work().join("stubborn"));
}

#[tokio::test]
async fn signal_is_sent_by_name_and_wait_times_out() {
    let user = TestUser::new();
    let script = "trap 'exit 8' USR1; touch set; while :; do sleep 0.02; done";
    user.run(["run", "-d", "--name", "one", "sh", "-c", script])
        .await
        .expect_success();
    appears(&user, "set").await;
    let waited = user.run(["wait", "--timeout", "50ms", "one"]).await;
    waited.failed(124, &["`one`", "exec-server kill one"]);
    assert_eq!(
        user.run(["kill", "-s", "sigusr1", "one"])
            .await
            .expect_success(),
        ""
    );
    assert_eq!(user.run(["wait", "one"]).await.status, Some(8));
    let wrong = user.run(["kill", "-s", "SEGV", "one"]).await;
    assert_eq!(wrong.status, Some(2), "{wrong:?}");
}

#[tokio::test]
async fn signal_can_be_given_as_an_option() {
    let user = TestUser::new();
    for (signal, status) in [
        ("-9", 137),
        ("-KILL", 137),
        ("-SIGTERM", 143),
        ("-int", 130),
    ] {
        let run = ["run", "-d", "--name", "one", "sleep", "1000"];
        user.run(run).await.expect_success();
        user.run(["kill", signal, "one"]).await.expect_success();
        let ended = user.run(["wait", "one"]).await;
        assert_eq!(ended.status, Some(status), "{signal}");
    }
    let wrong = user.run(["kill", "-SEGV", "one"]).await;
    assert_eq!(wrong.status, Some(2), "{wrong:?}");
}

#[tokio::test]
async fn ps_lists_resource_usage() {
    let user = TestUser::new();
    // A child of the command uses the CPU; the command itself waits for it.
    let script =
        "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; touch burnt; sleep 1000'; :";
    let run = ["run", "-d", "--name", "burner", "sh", "-c", script];
    user.run(run).await.expect_success();
    appears(&user, "burnt").await;
    let listed = user.run(["ps", "--json"]).await.expect_success();
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let usage = &listed[0]["usage"];
    let cpu = usage["userMs"].as_u64().unwrap() + usage["systemMs"].as_u64().unwrap();
    assert!(cpu >= 10, "{listed}");
    assert!(usage["maxRssBytes"].as_u64().unwrap() > 100_000, "{listed}");
    assert!(usage["wallMs"].as_u64().unwrap() > 0, "{listed}");
    let table = user.run(["ps"]).await.expect_success();
    let row: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().collect();
    let (cpu, memory) = (row[4], row[5]);
    assert!(
        cpu.ends_with('s') && memory.ends_with(['K', 'M']),
        "{table}"
    );
}

#[tokio::test]
async fn ps_rm_removes_exited_processes_only() {
    let user = TestUser::new();
    for (name, seconds) in [("done-1", "0"), ("done-2", "0"), ("busy", "1000")] {
        let run = ["run", "-d", "--name", name, "sleep", seconds];
        user.run(run).await.expect_success();
    }
    for name in ["done-1", "done-2"] {
        assert_eq!(user.run(["wait", name]).await.status, Some(0));
    }
    let busy = user.run(["ps", "rm", "done-1", "busy"]).await;
    busy.failed(1, &["`busy`", "exec-server kill busy"]);
    assert_eq!(user.run(["ps"]).await.expect_success().lines().count(), 4);
    user.run(["ps", "rm", "done-1", "done-2"])
        .await
        .expect_success();
    let remaining = user.run(["ps"]).await.expect_success();
    assert!(
        !remaining.contains("done") && remaining.contains("busy"),
        "{remaining}"
    );
    user.run(["logs", "done-1"]).await.failed(66, &["`done-1`"]);
    user.run(["ps", "rm", "done-1"])
        .await
        .failed(66, &["`done-1`"]);
}

#[tokio::test]
async fn attached_terminal_keeps_running_after_detach_keys() {
    let user = TestUser::new().with("TERM", "xterm");
    let script = "(trap 'stty size < /dev/tty' WINCH; while :; do sleep 0.02; done) & \
                  while read line; do echo \"got $line\"; done";
    user.run(["run", "-dt", "--name", "talk", "sh", "-c", script])
        .await
        .expect_success();
    let attach = user.command(["attach", "talk"]);
    let mut window = TerminalWindow::open(&attach, (30, 90));
    let before = window.settings();
    // The size is the local one, and the program received SIGWINCH.
    window.shows("30 90\r\n").await;
    window.types("one\r");
    window.shows("got one\r\n").await;
    window.resize((31, 91));
    window.shows("31 91\r\n").await;
    window.types("\x10");
    window.types("\x11");
    window.shows("exec-server attach talk").await;
    assert_eq!(window.end().await.code(), Some(0));
    assert_eq!(window.settings(), before);
    assert!(user.run(["ps"]).await.expect_success().contains("running"));
    let attach = user.command(["attach", "--detach-keys", "ctrl-x,d", "talk"]);
    let mut window = TerminalWindow::open(&attach, (24, 80));
    window.shows("24 80\r\n").await;
    // The remote terminal keeps Ctrl-Q, and Ctrl-P is deleted again.
    window.types("two\x10\x11\x7f\r");
    window.shows("got two").await;
    window.types("\x18d");
    assert_eq!(window.end().await.code(), Some(0));
    let logs = user.run(["logs", "talk"]).await.expect_success();
    assert!(
        logs.contains("got one\r\n") && logs.contains("got two"),
        "{logs}"
    );
}

#[tokio::test]
async fn piped_input_is_not_matched_against_detach_keys() {
    let user = TestUser::new();
    let script = "stty raw -echo; echo ready; dd bs=1 count=5 2>/dev/null | od -An -tx1; exit 5";
    user.run(["run", "-dt", "--name", "keys", "sh", "-c", script])
        .await
        .expect_success();
    let mut logs = RunningCommand::start(&mut user.command(["logs", "-f", "keys"]));
    logs.says("ready").await;
    let attached = user.run_with(["attach", "keys"], b"a\x10\x11b\x10").await;
    assert_eq!(attached.status, Some(5), "{attached:?}");
    assert!(attached.stdout.contains(" 61 10 11 62 10"), "{attached:?}");
}

#[tokio::test]
async fn attach_writes_lines_without_a_terminal_and_ctrl_c_detaches() {
    let user = TestUser::new();
    let script = "while read line; do echo \"got $line\"; done; exit 5";
    user.run(["run", "-di", "--name", "lines", "sh", "-c", script])
        .await
        .expect_success();
    let mut attach = user.command(["attach", "lines"]);
    let mut first = RunningCommand::start(attach.stdin(Stdio::piped()));
    let mut stdin = first.child.stdin.take().unwrap();
    stdin.write_all(b"one\n").await.unwrap();
    first.says("got one").await;
    first.signal(Signal::INT);
    assert_eq!(first.end().await.0.code(), Some(130));
    assert!(user.run(["ps"]).await.expect_success().contains("running"));
    let second = user.run_with(["attach", "lines"], b"two\n").await;
    assert_eq!(
        (second.status, second.stdout.as_str()),
        (Some(5), "got two\n")
    );
}

/// Waits until a command has created a file, using a local process.
async fn appears(user: &TestUser, name: &str) {
    let script = format!("while [ ! -e {name} ]; do sleep 0.01; done");
    let watch = user.run(["run", "sh", "-c", &script]).await;
    assert_eq!(watch.status, Some(0));
    assert!(fs::exists(user.work().join(name)).unwrap());
}

#[tokio::test]
async fn logs_of_an_endless_writer_end_at_the_start_position() {
    let user = TestUser::new();
    user.run(["run", "-d", "--name=y", "yes"])
        .await
        .expect_success();
    for line in [&["logs", "y"][..], &["logs", "-n", "3", "y"]] {
        let logs = user.run(line.iter().copied()).await;
        assert_eq!(logs.status, Some(0), "{}", logs.stderr);
        assert!(logs.stdout.starts_with("y\n"), "{}", logs.stdout.len());
    }
    user.run(["kill", "--timeout=0s", "y"]).await;
}

#[tokio::test]
async fn wait_reports_a_process_that_timed_out() {
    let user = TestUser::new();
    let line = ["run", "-d", "--timeout=50ms", "sleep", "1000"];
    let id = user.run(line).await.expect_success();
    let waited = user.run(["wait", id.trim()]).await;
    waited.failed(124, &["in time"]);
}

#[tokio::test]
async fn suggested_commands_name_the_environment() {
    let user = TestUser::new();
    let server = user.unix_server(&[]).await;
    let env_flags = ["-E", &server.url];
    let line = ["run", "-d", "--name=job"];
    let job = line.iter().chain(&env_flags).chain(&["sleep", "1000"]);
    user.run(job).await.expect_success();
    let wait = ["wait", "--timeout=1ms", "job"];
    let waited = user.run(wait.iter().chain(&env_flags)).await;
    let hint = format!("`exec-server kill -E {} job` ends it", server.url);
    waited.failed(124, &[&hint]);
}
