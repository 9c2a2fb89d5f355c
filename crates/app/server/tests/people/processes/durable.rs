//! Tests of durable processes, their history and their recordings.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::Value;
use tokio::process::Command;

use crate::{
    processes::{RunningCommand, terminal_window::TerminalWindow},
    test_user::{OutputSoon, TestUser, within_timeout},
};

/// Lets a command go on that waits for a line from this fifo. Each is used once: a command that
/// opens it again could meet the same writer.
async fn go(user: &TestUser, fifo: &str) {
    let script = format!("while [ ! -p {fifo} ]; do :; done; echo go > {fifo}");
    let mut go = Command::new("sh");
    let go = go.args(["-c", &script]).current_dir(user.work());
    let went = go.kill_on_drop(true);
    assert!(within_timeout(went.status()).await.unwrap().success());
}

/// Starts a detached command.
async fn detach(user: &TestUser, flags: &[&str], name: &str, script: &str) {
    let (start, command) = (["run", "-d", "--name", name], ["sh", "-c", script]);
    let line = start.iter().chain(flags).chain(&command);
    user.run(line).await.expect_success();
}

fn numbers(from: u32, to: u32) -> String {
    (from..=to).map(|number| format!("{number}\n")).collect()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[tokio::test]
async fn detached_command_survives_sigkill_of_the_server() {
    let user = TestUser::new();
    let script =
        "mkfifo go-1 go-2; seq 1 3000; read line < go-1; seq 3001 6000; read line < go-2; exit 7";
    detach(&user, &[], "job", script).await;
    user.kill_local_server();
    assert_eq!(user.local_server(), None);
    // The next command starts a server, which adopts the command.
    let mut logs = RunningCommand::start(&mut user.command(["logs", "-f", "job"]));
    for number in 1..=3000 {
        logs.says(&number.to_string()).await;
    }
    go(&user, "go-1").await;
    for number in 3001..=6000 {
        logs.says(&number.to_string()).await;
    }
    user.kill_local_server();
    drop(logs);
    let mut logs = RunningCommand::start(&mut user.command(["logs", "-f", "job"]));
    for number in 1..=6000 {
        logs.says(&number.to_string()).await;
    }
    go(&user, "go-2").await;
    let (status, stderr) = logs.end().await;
    assert_eq!((status.code(), stderr.as_str()), (Some(0), ""));
    assert_eq!(within_timeout(logs.lines.next_line()).await.unwrap(), None);
    assert_eq!(user.run(["wait", "job"]).await.status, Some(7));
    // Nothing changes when it has ended.
    user.kill_local_server();
    let printed = user.run(["logs", "job"]).await.expect_success();
    assert_eq!(printed, numbers(1, 6000));
    let listed = json(&user.run(["history", "--json"]).await.expect_success());
    assert_eq!(listed[0]["exitCode"], 7);
    assert_eq!(listed[0]["outputBytes"], numbers(1, 6000).len());
    assert!(listed[0]["endedAtMs"].is_u64(), "{listed}");
}

#[tokio::test]
async fn history_lists_processes_and_purge_removes_them() {
    let user = TestUser::new();
    for (name, script) in [
        ("build-1", "exit 3"),
        ("build-2", "echo two"),
        ("test", ":"),
    ] {
        detach(&user, &[], name, script).await;
        user.run(["wait", name]).await;
    }
    detach(&user, &[], "serve", "sleep 1000").await;
    let table = user.run(["history"]).await.expect_success();
    let ids: Vec<_> = table.lines().map(|line| line.split(' ').next()).collect();
    let expected = ["ID", "build-1", "build-2", "test", "serve"];
    assert_eq!(ids, expected.map(Some), "{table}");
    assert!(
        table.contains("ended 3") && table.contains("running"),
        "{table}"
    );
    let newest = user.run(["history", "--limit", "1"]).await.expect_success();
    assert!(
        newest.lines().count() == 2 && newest.contains("serve"),
        "{newest}"
    );

    let purge = async |arguments: &[&str]| {
        let line = ["history", "purge"]
            .into_iter()
            .chain(arguments.iter().copied());
        user.run(line).await
    };
    purge(&[])
        .await
        .failed(2, &["exec-server history", "--all"]);
    purge(&["none"])
        .await
        .failed(66, &["`none`", "exec-server history"]);
    purge(&["build"])
        .await
        .failed(2, &["`build-1`", "`build-2`"]);
    let running = purge(&["build-1", "serve"]).await;
    running.failed(1, &["`serve`", "exec-server kill serve"]);
    assert_eq!(
        purge(&["build-1"]).await.expect_success(),
        "removed 1 process\n"
    );
    user.run(["logs", "build-1"])
        .await
        .failed(66, &["`build-1`"]);
    let all = user.run(["ps", "--all"]).await.expect_success();
    assert!(!all.contains("build-1") && all.contains("build-2"), "{all}");
    assert_eq!(
        purge(&["--all"]).await.expect_success(),
        "removed 2 processes\n"
    );
    let table = user.run(["history"]).await.expect_success();
    assert!(
        table.lines().count() == 2 && table.contains("serve"),
        "{table}"
    );
    user.run(["kill", "serve"]).await.expect_success();
}

#[tokio::test]
async fn command_of_a_session_is_in_the_history() {
    let user = TestUser::new();
    let run = ["run", "--durable", "--", "echo", "kept"];
    assert_eq!(user.run(run).await.expect_success(), "kept\n");
    let listed = json(&user.run(["history", "--json"]).await.expect_success());
    let id = listed[0]["processId"].as_str().unwrap().to_owned();
    assert_eq!(listed[0]["exitCode"], 0);
    let all = user.run(["ps", "--all"]).await.expect_success();
    assert_eq!(all.matches(&id).count(), 1, "{all}");
    assert!(!user.run(["ps"]).await.expect_success().contains(&id));
    assert_eq!(user.run(["logs", &id]).await.expect_success(), "kept\n");
    // A later server finds it on disk.
    user.kill_local_server();
    assert_eq!(
        user.run(["logs", &id[..6]]).await.expect_success(),
        "kept\n"
    );
}

#[tokio::test]
async fn durable_is_the_default_of_detached_commands_and_can_be_refused() {
    let user = TestUser::new();
    detach(&user, &[], "kept", ":").await;
    detach(&user, &["--no-durable"], "plain", ":").await;
    let listed = json(&user.run(["ps", "--json"]).await.expect_success());
    assert_eq!(listed[0]["durable"], true, "{listed}");
    assert_eq!(listed[1]["processId"], "plain", "{listed}");
    assert!(listed[1]["durable"].is_null(), "{listed}");
    let untimed = user.run(["replay", "plain"]).await;
    assert_eq!(user.run(["wait", "plain"]).await.status, Some(0));
    assert_eq!(
        untimed.status,
        Some(0),
        "no output has no times: {untimed:?}"
    );
    user.run(["run", "--", "true"]).await.expect_success();
    assert_eq!(
        user.run(["history"]).await.expect_success().lines().count(),
        2
    );

    let server = user.server(&[]).await;
    let line = ["run", "-E", &server.url, "--durable", "--", "true"];
    user.run(line).await.failed(1, &["--state-dir"]);
    let history = user.run(["history", "-E", &server.url]).await;
    history.failed(1, &["no history", "--state-dir"]);
    user.run(["ps", "--all", "-E", &server.url])
        .await
        .expect_success();
}

#[tokio::test]
async fn logs_print_everything_or_the_first_or_last_lines() {
    let user = TestUser::new();
    let (script, all) = ("seq 1 300000; printf end", numbers(1, 300_000) + "end");
    detach(&user, &[], "long", script).await;
    assert_eq!(user.run(["wait", "long"]).await.status, Some(0));
    // More than a server retains in memory.
    assert!(all.len() > 1 << 20);
    for follow in [&[][..], &["-f"]] {
        let line = ["logs", "long"].into_iter().chain(follow.iter().copied());
        assert!(user.run(line).await.expect_success() == all);
    }
    for (option, lines, expected) in [
        ("--head", "0", String::new()),
        ("--head", "3", numbers(1, 3)),
        ("--head", "150000", numbers(1, 150_000)),
        ("--tail", "0", String::new()),
        ("--tail", "1", "end".to_owned()),
        ("--tail", "3", numbers(299_999, 300_000) + "end"),
        ("--tail", "200001", numbers(100_001, 300_000) + "end"),
        ("--tail", "300002", all.clone()),
    ] {
        let printed = user.run(["logs", option, lines, "long"]).await;
        assert!(printed.expect_success() == expected, "{option} {lines}");
    }
    let both = user
        .run(["logs", "--head", "1", "--tail", "1", "long"])
        .await;
    assert_eq!(both.status, Some(2), "{both:?}");
}

#[tokio::test]
async fn logs_since_a_time_skip_earlier_output() {
    let user = TestUser::new();
    let script = "mkfifo go; echo old; read line < go; echo new; echo newer";
    detach(&user, &[], "job", script).await;
    let mut logs = RunningCommand::start(&mut user.command(["logs", "-f", "job"]));
    logs.says("old").await;
    let now_ms = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_millis()
    };
    let since = now_ms() + 1;
    while now_ms() < since {
        std::hint::spin_loop();
    }
    go(&user, "go").await;
    assert_eq!(logs.end().await.0.code(), Some(0));
    let (seconds, millis) = (since / 1000, since % 1000);
    let mut date = Command::new("date");
    let date = date.args(["-u", "-d", &format!("@{seconds}"), "+%Y-%m-%dT%H:%M:%S"]);
    let date = date.output_soon().await.expect_success();
    let time = format!("{}.{millis:03}Z", date.trim());
    for (arguments, expected) in [
        (vec!["--since", time.as_str()], "new\nnewer\n"),
        (vec!["--since", "1h"], "old\nnew\nnewer\n"),
        (vec!["--since", "2100-01-01T00:00:00Z"], ""),
        (vec!["--since", time.as_str(), "--head", "1"], "new\n"),
        (
            vec!["--since", time.as_str(), "--tail", "9"],
            "new\nnewer\n",
        ),
    ] {
        let line = ["logs", "job"].into_iter().chain(arguments.iter().copied());
        assert_eq!(
            user.run(line).await.expect_success(),
            expected,
            "{arguments:?}"
        );
    }
    detach(&user, &["--no-durable"], "plain", "echo one").await;
    assert_eq!(user.run(["wait", "plain"]).await.status, Some(0));
    let untimed = user.run(["logs", "--since", "1h", "plain"]).await;
    untimed.failed(1, &["not recorded", "--durable"]);
}

#[tokio::test]
async fn recording_of_a_terminal_is_replayed_and_exported() {
    let user = TestUser::new().with("TERM", "xterm");
    // The character is written in two parts.
    let script = "mkfifo go-1 go-2; printf '\\033[1mone\\n\\342'; read line < go-1; printf '\\202\\254\\n'; \
                  read line < go-2; printf 'two \\377\\n'";
    detach(&user, &["--tty"], "term", script).await;
    let mut logs = RunningCommand::start(&mut user.command(["logs", "-f", "term"]));
    logs.says("\u{1b}[1mone").await;
    go(&user, "go-1").await;
    logs.says("€").await;
    go(&user, "go-2").await;
    assert_eq!(user.run(["wait", "term"]).await.status, Some(0));
    let replayed = user
        .run(["replay", "--speed", "100", "--max-pause", "10ms", "term"])
        .await;
    assert_eq!(replayed.status, Some(0), "{replayed:?}");
    assert_eq!(
        replayed.bytes,
        b"\x1b[1mone\r\n\xe2\x82\xac\r\ntwo \xff\r\n"
    );

    let line = ["logs", "term", "--asciicast", "term.cast"];
    assert_eq!(user.run(line).await.expect_success(), "");
    let path = user.work().join("term.cast");
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = fs::read_to_string(&path).unwrap();
    check_recording(&text);
    user.run(line).await.failed(1, &["term.cast", "--force"]);
    let replace = line.iter().chain(&["--force"]);
    assert_eq!(user.run(replace).await.expect_success(), "");
    let piped = user
        .run(["logs", "term", "--asciicast", "-"])
        .await
        .expect_success();
    assert_eq!(piped, text);
}

#[track_caller]
fn check_recording(text: &str) {
    let mut lines = text.lines().map(json);
    let header = lines.next().unwrap();
    assert_eq!(
        (&header["version"], &header["title"]),
        (&2.into(), &"term".into())
    );
    assert_eq!(
        (&header["width"], &header["height"]),
        (&80.into(), &24.into())
    );
    assert!(
        header["timestamp"].as_u64().unwrap() > 1_600_000_000,
        "{header}"
    );
    assert!(
        header["command"].as_str().unwrap().starts_with("sh -c "),
        "{header}"
    );
    let (mut shown, mut last) = (String::new(), 0.0);
    for event in lines {
        assert_eq!(event[1], "o");
        let time = event[0].as_f64().unwrap();
        assert!(time >= last, "{text}");
        last = time;
        shown.push_str(event[2].as_str().unwrap());
    }
    assert_eq!(shown, "\u{1b}[1mone\r\n€\r\ntwo \u{fffd}\r\n");
}

#[tokio::test]
async fn replay_in_a_terminal_ends_on_q() {
    let user = TestUser::new().with("TERM", "xterm");
    let script = "printf 'first\\033[?25l\\n'; sleep 0.3; echo second";
    detach(&user, &["--tty"], "term", script).await;
    assert_eq!(user.run(["wait", "term"]).await.status, Some(0));
    let replay = user.command(["replay", "--speed", "0.01", "term"]);
    for key in ["q", "\x03"] {
        let mut window = TerminalWindow::open(&replay, (24, 80));
        let before = window.settings();
        window.shows("first").await;
        window.types(key);
        assert_eq!(window.end().await.code(), Some(0));
        assert_eq!(window.settings(), before);
        let shown = window.remaining_output();
        assert!(
            !shown.contains("second") && shown.contains("[?25h"),
            "{shown}"
        );
    }
}

#[tokio::test]
async fn doctor_reports_directory_and_keeper() {
    let user = TestUser::new();
    let report = async || {
        let output = user.run(["doctor", "--json"]).await;
        json(&output.stdout)["durableState"].clone()
    };
    let before = report().await;
    assert_eq!(
        (&before["exists"], &before["records"]),
        (&false.into(), &0.into())
    );
    detach(&user, &[], "job", "sleep 1000").await;
    let state = report().await;
    assert_eq!(
        Path::new(state["directory"].as_str().unwrap()),
        user.durable_directory()
    );
    assert_eq!(
        (&state["exists"], &state["records"]),
        (&true.into(), &1.into())
    );
    assert!(state["bytes"].as_u64().unwrap() > 0, "{state}");
    assert!(state["error"].is_null(), "{state}");
    let keeper = user.keeper().unwrap().as_raw_nonzero().get();
    assert_eq!(state["keeperPid"], keeper);
    // The keeper outlives the server.
    user.kill_local_server();
    let text = user.run(["doctor"]).await.stdout;
    let line = format!("their keeper runs as process {keeper}");
    assert!(
        text.contains("1 process recorded") && text.contains(&line),
        "{text}"
    );
    fs::set_permissions(user.durable_directory(), PermissionsExt::from_mode(0o755)).unwrap();
    let state = report().await;
    assert!(
        state["error"].as_str().unwrap().contains("chmod 700"),
        "{state}"
    );
    fs::set_permissions(user.durable_directory(), PermissionsExt::from_mode(0o700)).unwrap();
    user.run(["kill", "job"]).await.expect_success();
}
