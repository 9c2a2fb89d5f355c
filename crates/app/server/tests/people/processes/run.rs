//! Tests of how commands start, stream, receive signals and exit.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Stdio};

use rustix::process::Signal;
use tokio::io::AsyncReadExt;

use crate::{
    processes::{RunningCommand, noise, wait_until_gone},
    test_user::{CommandResult, TestUser, within_timeout},
};

#[tokio::test]
async fn exit_status_is_that_of_the_command() {
    let user = TestUser::new();
    for (script, status) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
    ] {
        let ended = user.run(["run", "--", "sh", "-c", script]).await;
        assert_eq!(ended.status, Some(status), "{script}");
        assert_eq!(ended.stderr, "", "{script}");
    }
}

#[tokio::test]
async fn arguments_after_the_command_belong_to_it() {
    let user = TestUser::new();
    let output = user.run(["run", "printf", "%s,", "-t", "--detach", "--", "-C"]);
    assert_eq!(output.await.expect_success(), "-t,--detach,--,-C,");
}

#[tokio::test]
async fn not_executable_and_missing_commands_are_distinguished() {
    let user = TestUser::new();
    let plain = user.work().join("plain");
    fs::write(&plain, "text").unwrap();
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
    let run = |words: &'static [&str]| user.run([&["run"], words].concat());
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
async fn local_command_inherits_directory_and_variables() {
    let user = TestUser::new().with("COLOUR", "blue");
    let script = "pwd; echo $COLOUR $SHAPE";
    let here = fs::canonicalize(user.work()).unwrap();
    let output = user.run(["run", "-e", "SHAPE=round", "sh", "-c", script]);
    assert_eq!(
        output.await.expect_success(),
        format!("{}\nblue round\n", here.display())
    );
    fs::create_dir(user.work().join("below")).unwrap();
    let output = user
        .run(["run", "-C", "below", "pwd"])
        .await
        .expect_success();
    assert_eq!(Path::new(output.trim()), here.join("below"));
}

#[tokio::test]
async fn remote_command_has_server_variables_and_passed_ones() {
    let user = TestUser::new().with("COLOUR", "blue");
    let server = user.server(&[]).await;
    let guest = TestUser::new().with("COLOUR", "red").with("SHAPE", "round");
    let script = "pwd; echo $COLOUR $SHAPE; echo $SIZE";
    let line = ["run", "-E", &server.url, "-e", "SIZE=1", "sh", "-c", script];
    let there = fs::canonicalize(user.work()).unwrap();
    let output = guest.run(line).await.expect_success();
    assert_eq!(output, format!("{}\nblue\n1\n", there.display()));
    let passed = ["run", "-E", &server.url, "-e", "SHAPE", "sh", "-c", script];
    assert!(
        guest
            .run(passed)
            .await
            .expect_success()
            .contains("blue round")
    );
}

#[tokio::test]
async fn timed_out_command_gets_sigterm_then_sigkill() {
    let user = TestUser::new();
    let script = "exec 2>/dev/null; trap 'echo asked; exit 3' TERM; echo ready; while :; do sleep 0.02; done";
    let ended = user.run(["run", "--timeout", "300ms", "sh", "-c", script]);
    let ended = ended.await;
    assert_eq!(ended.stdout, "ready\nasked\n");
    ended.failed(124, &["in time", "--timeout"]);
    let in_time = user.run(["run", "--timeout", "1m", "sh", "-c", "exit 4"]);
    assert_eq!(in_time.await.status, Some(4));
    // Its descendant is not the command, whose status is known.
    let remaining = [
        "run",
        "--timeout",
        "200ms",
        "sh",
        "-c",
        "sleep 1000 & exit 5",
    ];
    assert_eq!(user.run(remaining).await.status, Some(5));
    let wrong = user.run(["run", "--timeout", "soon", "true"]).await;
    assert_eq!(wrong.status, Some(2), "{wrong:?}");
}

#[tokio::test]
async fn sandbox_denies_disallowed_access() {
    let user = TestUser::new();
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    let workspace = tempfile::tempdir_in("/var/tmp").unwrap();
    let target = outside.path().join("file");
    let script = format!(
        "echo a > inside; echo b > {}; cat /etc/passwd",
        target.display()
    );
    let run = |policy| {
        let mut run = user.command(["run", "--sandbox", policy, "sh", "-c", &script]);
        run.current_dir(workspace.path());
        async move {
            crate::test_user::within_timeout(run.output())
                .await
                .unwrap()
        }
    };
    let result = run("read-only").await;
    assert!(!result.stdout.is_empty(), "{result:?}");
    assert!(!workspace.path().join("inside").exists());
    assert!(!target.exists());
    let result = run("workspace-write").await;
    assert!(!result.stdout.is_empty(), "{result:?}");
    assert_eq!(fs::read(workspace.path().join("inside")).unwrap(), b"a\n");
    assert!(!target.exists());
    let wrong = user.run(["run", "--network", "true"]).await;
    assert_eq!(wrong.status, Some(2), "{wrong:?}");
}

#[tokio::test]
async fn exit_status_is_set_even_if_stderr_is_closed() {
    let user = TestUser::new();
    let mut run = user.command(["run", "no-such-program-here"]);
    let full = fs::OpenOptions::new().write(true).open("/dev/full");
    let child = run.stderr(full.unwrap()).status();
    let ended = crate::test_user::within_timeout(child).await.unwrap();
    assert_eq!(ended.code(), Some(127));
}

const MEBI: usize = 1 << 20;

#[tokio::test]
async fn both_streams_are_copied_exactly() {
    let user = TestUser::new();
    let (out, err) = (noise(10 * MEBI, 1), noise(10 * MEBI, 2));
    fs::write(user.work().join("out"), &out).unwrap();
    fs::write(user.work().join("err"), &err).unwrap();
    let mut run = user.command(["run", "sh", "-c", "cat out & cat err >&2; wait"]);
    let result = within_timeout(run.output()).await.unwrap();
    assert_eq!(result.status.code(), Some(0));
    assert!(
        result.stdout == out,
        "stdout has {} bytes",
        result.stdout.len()
    );
    assert!(
        result.stderr == err,
        "stderr has {} bytes",
        result.stderr.len()
    );
}

#[tokio::test]
async fn interleaved_streams_keep_their_order() {
    let user = TestUser::new();
    let script = "i=0; while [ $i -lt 300 ]; do echo o$i; echo e$i >&2; i=$((i + 1)); done";
    let exact = r#"exec "$0" run sh -c "$1" 2>&1"#;
    let mut both = tokio::process::Command::new("sh");
    let product = user.command(["--version"]);
    for (name, value) in product.as_std().get_envs() {
        match value {
            Some(value) => both.env(name, value),
            None => both.env_remove(name),
        };
    }
    both.args(["-c", exact])
        .arg(crate::test_user::product())
        .arg(script);
    let result = within_timeout(both.stdin(Stdio::null()).output())
        .await
        .unwrap();
    let lines = String::from_utf8(result.stdout).unwrap();
    let of = |letter: char| lines.lines().filter(move |line| line.starts_with(letter));
    for letter in ['o', 'e'] {
        let result: Vec<_> = of(letter).collect();
        let wrote: Vec<_> = (0..300).map(|i| format!("{letter}{i}")).collect();
        assert_eq!(result, wrote);
    }
}

#[tokio::test]
async fn stopped_reader_applies_backpressure_without_loss() {
    let user = TestUser::new();
    let piece = noise(MEBI, 3);
    fs::write(user.work().join("piece"), &piece).unwrap();
    let script = "i=0; while [ $i -lt 48 ]; do cat piece; i=$((i + 1)); done; touch done";
    let mut run = user.command(["run", "sh", "-c", script]);
    let mut child = run.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = vec![0; 4096];
    within_timeout(stdout.read_exact(&mut first)).await.unwrap();
    // Enough time to write everything, if it were read.
    for _ in 0..10 {
        user.run(["run", "cat", "piece"]).await;
    }
    assert!(!user.work().join("done").exists());
    let mut rest = Vec::new();
    within_timeout(stdout.read_to_end(&mut rest)).await.unwrap();
    assert!(within_timeout(child.wait()).await.unwrap().success());
    assert!(user.work().join("done").exists());
    let whole = [first, rest].concat();
    assert_eq!(whole.len(), 48 * MEBI);
    assert!(whole.chunks(MEBI).all(|chunk| chunk == piece));
}

#[tokio::test]
async fn stdin_and_its_end_are_forwarded() {
    let user = TestUser::new();
    let input = noise(5 * MEBI, 4);
    let CommandResult { status, bytes, .. } = user.run_with(["run", "cat"], &input).await;
    assert_eq!(status, Some(0));
    assert!(bytes == input, "{} bytes", bytes.len());
    let counted = user.run_with(["run", "wc", "-c"], b"abc").await;
    assert_eq!(counted.expect_success().trim(), "3");
    fs::write(user.work().join("input"), &input).unwrap();
    let file = fs::File::open(user.work().join("input")).unwrap();
    let mut from_file = user.command(["run", "cat"]);
    let result = within_timeout(from_file.stdin(file).output())
        .await
        .unwrap();
    assert!(result.stdout == input, "{} bytes", result.stdout.len());
}

#[tokio::test]
async fn command_that_ignores_stdin_exits_while_input_continues() {
    let user = TestUser::new();
    let mut run = user.command(["run", "sh", "-c", "exit 3"]);
    let mut running = RunningCommand::start(run.stdin(Stdio::piped()));
    let held_open = running.child.stdin.take().unwrap();
    assert_eq!(running.end().await.0.code(), Some(3));
    drop(held_open);
    // More than any queue holds.
    let output = user.run_with(["run", "true"], &noise(4 * MEBI, 5)).await;
    assert_eq!(output.expect_success(), "");
}

#[tokio::test]
async fn closed_stdout_ends_the_command_quietly() {
    let user = TestUser::new();
    let script = "echo $$ > number; exec yes";
    let mut running = RunningCommand::start(&mut user.command(["run", "sh", "-c", script]));
    running.says("y").await;
    let RunningCommand { child, lines } = running;
    drop(lines);
    let ended = within_timeout(child.wait_with_output()).await.unwrap();
    assert_eq!(ended.status.code(), Some(141));
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    crate::processes::wait_until_gone(&user.work().join("number"));
}

#[tokio::test]
async fn signals_are_forwarded() {
    let user = TestUser::new();
    for (name, signal) in [
        ("INT", Signal::INT),
        ("TERM", Signal::TERM),
        ("HUP", Signal::HUP),
        ("QUIT", Signal::QUIT),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
    ] {
        let trap = format!("trap 'echo got {name}; exit 9' {name}; echo ready");
        let script = format!("{trap}; while :; do sleep 0.02; done");
        let mut running = RunningCommand::start(&mut user.command(["run", "sh", "-c", &script]));
        running.says("ready").await;
        running.signal(signal);
        running.says(&format!("got {name}")).await;
        let (status, output) = running.end().await;
        assert_eq!(status.code(), Some(9), "{name}: {output}");
    }
}

#[tokio::test]
async fn command_ends_with_its_session_when_the_client_is_killed() {
    // On this machine, whose server waits for running processes before it exits.
    let user = TestUser::new().with("EXEC_SERVER_SESSION_TTL", "0.3");
    let script = "echo $$ > number; echo ready; exec sleep 1000";
    let mut running = RunningCommand::start(&mut user.command(["run", "sh", "-c", script]));
    running.says("ready").await;
    running.signal(Signal::KILL);
    wait_until_gone(&user.work().join("number"));
}

#[tokio::test]
async fn third_quick_interrupt_ends_a_stubborn_command() {
    let user = TestUser::new();
    let script =
        "echo $$ > number; trap 'echo again' INT; echo ready; while :; do sleep 0.02; done";
    let mut running = RunningCommand::start(&mut user.command(["run", "sh", "-c", script]));
    running.says("ready").await;
    for _ in 0..2 {
        running.signal(Signal::INT);
        running.says("again").await;
    }
    running.signal(Signal::INT);
    let (status, _) = running.end().await;
    assert_eq!(status.code(), Some(130));
    wait_until_gone(&user.work().join("number"));
}

#[tokio::test]
async fn second_sigterm_ends_a_stubborn_command() {
    let user = TestUser::new();
    let script = "echo $$ > number; trap 'echo no' TERM; echo ready; while :; do sleep 0.02; done";
    let mut running = RunningCommand::start(&mut user.command(["run", "sh", "-c", script]));
    running.says("ready").await;
    running.signal(Signal::TERM);
    running.says("no").await;
    running.signal(Signal::TERM);
    let (status, _) = running.end().await;
    assert_eq!(status.code(), Some(143));
    wait_until_gone(&user.work().join("number"));
}

#[tokio::test]
async fn ctrl_z_suspends_and_resumes_both() {
    let user = TestUser::new();
    let script = "echo $$ > number; echo ready; read line; echo $line";
    let mut run = user.command(["run", "sh", "-c", script]);
    let mut running = RunningCommand::start(run.stdin(std::process::Stdio::piped()));
    running.says("ready").await;
    running.signal(Signal::TSTP);
    let own = crate::processes::pid(&running.child);
    let stopped = move || {
        let options = rustix::process::WaitIdOptions::STOPPED;
        let id = rustix::process::WaitId::Pid(own);
        rustix::process::waitid(id, options).unwrap().unwrap()
    };
    let stopped = crate::test_user::within_timeout(tokio::task::spawn_blocking(stopped)).await;
    assert!(stopped.unwrap().stopped());
    let number = fs::read_to_string(user.work().join("number")).unwrap();
    let status = format!("/proc/{}/status", number.trim());
    // The signal is in flight when we suspend.
    let its = async || {
        while !fs::read_to_string(&status)
            .unwrap()
            .contains("State:\tT (stopped)")
        {
            tokio::task::yield_now().await;
        }
    };
    crate::test_user::within_timeout(its()).await;
    running.signal(Signal::CONT);
    let mut stdin = running.child.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stdin, b"on\n")
        .await
        .unwrap();
    running.says("on").await;
    assert_eq!(running.end().await.0.code(), Some(0));
}
