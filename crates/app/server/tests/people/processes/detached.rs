//! Processes that are left running, and found again.

use std::{fs, process::Stdio};

use rustix::process::Signal;
use tokio::io::AsyncWriteExt;

use super::{Running, gone, window::Window};
use crate::cast::Person;

#[tokio::test]
async fn a_process_that_is_left_is_listed_and_its_status_waited_for() {
    let person = Person::new();
    let script = "echo out; echo err >&2; mkfifo fifo; read line < fifo; exit 6";
    let left = person.run(["run", "-d", "sh", "-c", script]).await.well();
    let id = left.trim();
    assert_eq!(id.len(), 12);
    let table = person.run(["ps"]).await.well();
    let row = table.lines().find(|line| line.starts_with(id)).unwrap();
    assert!(
        row.contains("running") && row.contains("sh -c 'echo out;"),
        "{row}"
    );
    assert!(!table.contains('\x1b'), "{table}");
    let json = person.run(["ps", "--json"]).await.well();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["processId"], id);
    assert_eq!(json[0]["running"], true);
    // It has written both lines when the fifo is there, and takes the third.
    let mut wait = Running::start(&mut person.command(["wait", &id[..4]]));
    let mut logs = Running::start(&mut person.command(["logs", "--follow", id]));
    logs.says("out").await;
    let fifo = person.work().join("fifo");
    let shell = ["-c", "while [ ! -p fifo ]; do :; done; echo go > fifo"];
    let mut go = tokio::process::Command::new("sh");
    crate::cast::soon(go.args(shell).current_dir(fifo.parent().unwrap()).status())
        .await
        .unwrap();
    assert_eq!(wait.end().await.0.code(), Some(6));
    let (status, said) = logs.end().await;
    assert_eq!((status.code(), said.as_str()), (Some(0), "err\n"));
    let logs = person.run(["logs", id]).await;
    assert_eq!(
        (logs.stdout.as_str(), logs.stderr.as_str()),
        ("out\n", "err\n")
    );
    let table = person.run(["ps"]).await.well();
    assert!(table.contains("ended 6"), "{table}");
    // It has ended: nothing is waited for, or attached to.
    assert_eq!(person.run(["wait", id]).await.status, Some(6));
    let attached = person.run(["attach", id]).await;
    assert_eq!(attached.status, Some(6), "{attached:?}");
    assert!(attached.stderr.contains("has exited"), "{attached:?}");
}

#[tokio::test]
async fn the_last_lines_of_a_log_can_be_asked_for() {
    let person = Person::new();
    let script = "for i in 1 2 3 4 5; do echo $i; done";
    person
        .run(["run", "-d", "--name", "five", "sh", "-c", script])
        .await
        .well();
    assert_eq!(person.run(["wait", "five"]).await.status, Some(0));
    assert_eq!(
        person.run(["logs", "--tail", "2", "five"]).await.well(),
        "4\n5\n"
    );
    assert_eq!(
        person.run(["logs", "-n", "9", "-f", "fiv"]).await.well(),
        "1\n2\n3\n4\n5\n"
    );
}

#[tokio::test]
async fn processes_that_are_not_there_are_told_with_what_to_do() {
    let person = Person::new();
    for command in ["logs", "attach", "kill", "wait"] {
        let told = person.run([command, "nothing"]).await;
        told.failed(66, &["`nothing`", "exec-server ps"]);
    }
    for name in ["job-1", "job-2"] {
        let run = ["run", "-d", "--name", name, "sleep", "1000"];
        assert_eq!(person.run(run).await.well(), format!("{name}\n"));
    }
    let again = person.run(["run", "-d", "--name", "job-1", "true"]).await;
    again.failed(2, &["job-1", "--name"]);
    let either = person.run(["kill", "job"]).await;
    either.failed(2, &["`job-1`", "`job-2`"]);
    // If one is not there, nothing happens to the others.
    person
        .run(["kill", "job-1", "job-3"])
        .await
        .failed(66, &["`job-3`"]);
    assert!(!person.run(["ps"]).await.well().contains("ended"));
    let wrong = person.run(["run", "-d", "--name", "a b", "true"]).await;
    wrong.failed(2, &["a b"]);
}

#[tokio::test]
async fn a_process_is_asked_to_end_and_killed_when_it_does_not() {
    let person = Person::new();
    let kind = "echo $$ > kind; trap 'exit 7' TERM; while :; do sleep 0.02; done";
    let stubborn = "echo $$ > stubborn; trap '' TERM; while :; do sleep 0.02; done";
    for (name, script) in [("kind", kind), ("stubborn", stubborn)] {
        let run = ["run", "-d", "--name", name, "sh", "-c", script];
        person.run(run).await.well();
        appears(&person, name).await;
    }
    let ended = person
        .run(["kill", "--timeout", "300ms", "kind", "stubborn"])
        .await;
    assert_eq!(ended.well(), "");
    assert_eq!(person.run(["wait", "kind"]).await.status, Some(7));
    assert_eq!(person.run(["wait", "stubborn"]).await.status, Some(137));
    gone(&person.work().join("stubborn"));
}

#[tokio::test]
async fn a_signal_is_sent_by_its_name_and_waiting_has_an_end() {
    let person = Person::new();
    let script = "trap 'exit 8' USR1; touch set; while :; do sleep 0.02; done";
    person
        .run(["run", "-d", "--name", "one", "sh", "-c", script])
        .await
        .well();
    appears(&person, "set").await;
    let waited = person.run(["wait", "--timeout", "50ms", "one"]).await;
    waited.failed(124, &["`one`", "exec-server kill one"]);
    assert_eq!(
        person.run(["kill", "-s", "sigusr1", "one"]).await.well(),
        ""
    );
    assert_eq!(person.run(["wait", "one"]).await.status, Some(8));
    let wrong = person.run(["kill", "-s", "SEGV", "one"]).await;
    assert_eq!(wrong.status, Some(2), "{wrong:?}");
}

#[tokio::test]
async fn a_signal_can_be_an_option_as_with_other_tools() {
    let person = Person::new();
    for (signal, status) in [
        ("-9", 137),
        ("-KILL", 137),
        ("-SIGTERM", 143),
        ("-int", 130),
    ] {
        let run = ["run", "-d", "--name", "one", "sleep", "1000"];
        person.run(run).await.well();
        person.run(["kill", signal, "one"]).await.well();
        let ended = person.run(["wait", "one"]).await;
        assert_eq!(ended.status, Some(status), "{signal}");
    }
    let wrong = person.run(["kill", "-SEGV", "one"]).await;
    assert_eq!(wrong.status, Some(2), "{wrong:?}");
}

#[tokio::test]
async fn what_a_running_process_uses_is_listed() {
    let person = Person::new();
    // A child of the command burns; the command itself waits for it.
    let script =
        "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; touch burnt; sleep 1000'; :";
    let run = ["run", "-d", "--name", "burner", "sh", "-c", script];
    person.run(run).await.well();
    appears(&person, "burnt").await;
    let listed = person.run(["ps", "--json"]).await.well();
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let usage = &listed[0]["usage"];
    let cpu = usage["userMs"].as_u64().unwrap() + usage["systemMs"].as_u64().unwrap();
    assert!(cpu >= 10, "{listed}");
    assert!(usage["maxRssBytes"].as_u64().unwrap() > 100_000, "{listed}");
    assert!(usage["wallMs"].as_u64().unwrap() > 0, "{listed}");
    let table = person.run(["ps"]).await.well();
    let row: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().collect();
    let (cpu, memory) = (row[4], row[5]);
    assert!(
        cpu.ends_with('s') && memory.ends_with(['K', 'M']),
        "{table}"
    );
}

#[tokio::test]
async fn finished_processes_are_removed_from_the_list_and_running_ones_are_not() {
    let person = Person::new();
    for (name, seconds) in [("done-1", "0"), ("done-2", "0"), ("busy", "1000")] {
        let run = ["run", "-d", "--name", name, "sleep", seconds];
        person.run(run).await.well();
    }
    for name in ["done-1", "done-2"] {
        assert_eq!(person.run(["wait", name]).await.status, Some(0));
    }
    let busy = person.run(["ps", "rm", "done-1", "busy"]).await;
    busy.failed(1, &["`busy`", "exec-server kill busy"]);
    assert_eq!(person.run(["ps"]).await.well().lines().count(), 4);
    person.run(["ps", "rm", "done-1", "done-2"]).await.well();
    let left = person.run(["ps"]).await.well();
    assert!(!left.contains("done") && left.contains("busy"), "{left}");
    person
        .run(["logs", "done-1"])
        .await
        .failed(66, &["`done-1`"]);
    person
        .run(["ps", "rm", "done-1"])
        .await
        .failed(66, &["`done-1`"]);
}

#[tokio::test]
async fn a_terminal_is_attached_to_and_left_with_keys_and_goes_on() {
    let person = Person::new().with("TERM", "xterm");
    let script = "(trap 'stty size < /dev/tty' WINCH; while :; do sleep 0.02; done) & \
                  while read line; do echo \"got $line\"; done";
    person
        .run(["run", "-dt", "--name", "talk", "sh", "-c", script])
        .await
        .well();
    let attach = person.command(["attach", "talk"]);
    let mut window = Window::open(&attach, (30, 90));
    let before = window.settings();
    // The size is ours, and the program heard of it.
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
    assert!(person.run(["ps"]).await.well().contains("running"));
    let attach = person.command(["attach", "--detach-keys", "ctrl-x,d", "talk"]);
    let mut window = Window::open(&attach, (24, 80));
    window.shows("24 80\r\n").await;
    // Their terminal keeps Ctrl-Q for itself, and takes back Ctrl-P.
    window.types("two\x10\x11\x7f\r");
    window.shows("got two").await;
    window.types("\x18d");
    assert_eq!(window.end().await.code(), Some(0));
    let logs = person.run(["logs", "talk"]).await.well();
    assert!(
        logs.contains("got one\r\n") && logs.contains("got two"),
        "{logs}"
    );
}

#[tokio::test]
async fn what_is_piped_to_a_terminal_holds_no_keys() {
    let person = Person::new();
    let script = "stty raw -echo; echo ready; dd bs=1 count=5 2>/dev/null | od -An -tx1; exit 5";
    person
        .run(["run", "-dt", "--name", "keys", "sh", "-c", script])
        .await
        .well();
    let mut logs = Running::start(&mut person.command(["logs", "-f", "keys"]));
    logs.says("ready").await;
    let attached = person.run_with(["attach", "keys"], b"a\x10\x11b\x10").await;
    assert_eq!(attached.status, Some(5), "{attached:?}");
    assert!(attached.stdout.contains(" 61 10 11 62 10"), "{attached:?}");
}

#[tokio::test]
async fn lines_reach_a_process_without_a_terminal_and_ctrl_c_leaves_it() {
    let person = Person::new();
    let script = "while read line; do echo \"got $line\"; done; exit 5";
    person
        .run(["run", "-di", "--name", "lines", "sh", "-c", script])
        .await
        .well();
    let mut attach = person.command(["attach", "lines"]);
    let mut first = Running::start(attach.stdin(Stdio::piped()));
    let mut stdin = first.child.stdin.take().unwrap();
    stdin.write_all(b"one\n").await.unwrap();
    first.says("got one").await;
    first.signal(Signal::INT);
    assert_eq!(first.end().await.0.code(), Some(130));
    assert!(person.run(["ps"]).await.well().contains("running"));
    let second = person.run_with(["attach", "lines"], b"two\n").await;
    assert_eq!(
        (second.status, second.stdout.as_str()),
        (Some(5), "got two\n")
    );
}

/// Waits until a command has made a file: a process of this machine watches for it.
async fn appears(person: &Person, name: &str) {
    let script = format!("while [ ! -e {name} ]; do sleep 0.01; done");
    let watch = person.run(["run", "sh", "-c", &script]).await;
    assert_eq!(watch.status, Some(0));
    assert!(fs::exists(person.work().join(name)).unwrap());
}

#[tokio::test]
async fn the_log_of_what_never_stops_writing_ends_where_it_is() {
    let person = Person::new();
    person.run(["run", "-d", "--name=y", "yes"]).await.well();
    for line in [&["logs", "y"][..], &["logs", "-n", "3", "y"]] {
        let logs = person.run(line.iter().copied()).await;
        assert_eq!(logs.status, Some(0), "{}", logs.stderr);
        assert!(logs.stdout.starts_with("y\n"), "{}", logs.stdout.len());
    }
    person.run(["kill", "--timeout=0s", "y"]).await;
}

#[tokio::test]
async fn waiting_for_one_whose_time_was_up_tells_so() {
    let person = Person::new();
    let line = ["run", "-d", "--timeout=50ms", "sleep", "1000"];
    let id = person.run(line).await.well();
    let waited = person.run(["wait", id.trim()]).await;
    waited.failed(124, &["in time"]);
}

#[tokio::test]
async fn hints_name_the_environment_that_was_asked_for() {
    let person = Person::new();
    let server = person.unix_server(&[]).await;
    let asked = ["-E", &server.url];
    let line = ["run", "-d", "--name=job"];
    let job = line.iter().chain(&asked).chain(&["sleep", "1000"]);
    person.run(job).await.well();
    let wait = ["wait", "--timeout=1ms", "job"];
    let waited = person.run(wait.iter().chain(&asked)).await;
    let hint = format!("`exec-server kill -E {} job` ends it", server.url);
    waited.failed(124, &[&hint]);
}
