//! Tests of connections that are lost for a while or for good.

use std::{fs, process::Stdio};

use tokio::io::AsyncReadExt;

use crate::{
    processes::{
        RunningCommand, cuttable_link::CuttableLink, noise, terminal_window::TerminalWindow,
    },
    telemetry::http_client::Samples,
    test_user::{Hub, TestUser, within_timeout},
};

const MEBI: usize = 1 << 20;

#[tokio::test]
async fn output_is_complete_after_disconnects_and_they_are_reported() {
    let user = TestUser::new();
    let server = user.server(&[]).await;
    let wire = CuttableLink::to(&server).await;
    let wrote = noise(24 * MEBI, 6);
    fs::write(user.work().join("big"), &wrote).unwrap();
    let mut run = user.command(["run", "-E", &wire.url, "cat", "big"]);
    let mut child = run
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut came = vec![0; wrote.len()];
    for (number, part) in came.chunks_mut(6 * MEBI).enumerate() {
        within_timeout(stdout.read_exact(part)).await.unwrap();
        if number < 3 {
            wire.cut();
        }
    }
    let mut rest = Vec::new();
    within_timeout(stdout.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.is_empty(), "{} bytes more", rest.len());
    assert!(came == wrote);
    let ended = within_timeout(child.wait_with_output()).await.unwrap();
    assert_eq!(ended.status.code(), Some(0));
    let output = String::from_utf8(ended.stderr).unwrap();
    let outage = "exec-server: reconnecting…\nexec-server: reconnected\n";
    assert_eq!(output, outage.repeat(3));
}

#[tokio::test]
async fn reconnect_notice_is_shown_and_erased_on_a_terminal() {
    let user = TestUser::new().with("TERM", "xterm");
    let server = user.server(&[]).await;
    let wire = CuttableLink::to(&server).await;
    let script = "echo ready; read line; echo got $line";
    let line = ["run", "-E", &wire.url, "-t", "sh", "-c", script];
    let mut window = TerminalWindow::open(&user.command(line), (24, 80));
    window.shows("ready\r\n").await;
    wire.cut();
    window.shows("\x1b7reconnecting…").await;
    window.shows("\x1b8\x1b[K").await;
    window.types("it\r");
    window.shows("got it\r\n").await;
    assert_eq!(window.end().await.code(), Some(0));
}

#[tokio::test]
async fn lost_session_ends_the_client_and_restores_the_terminal() {
    let user = TestUser::new().with("TERM", "xterm");
    let (server, other) = (user.server(&[]).await, user.server(&[]).await);
    let wire = CuttableLink::to(&server).await;
    let script = "echo ready; sleep 1000";
    let line = ["run", "-E", &wire.url, "sh", "-c", script];
    let mut running = RunningCommand::start(&mut user.command(line));
    let on_terminal = ["run", "-E", &wire.url, "-t", "sh", "-c", script];
    let mut window = TerminalWindow::open(&user.command(on_terminal), (24, 80));
    let before = window.settings();
    running.says("ready").await;
    window.shows("ready").await;
    assert!(window.is_raw());
    wire.relay_to(&other);
    let (status, output) = running.end().await;
    assert_eq!(status.code(), Some(75), "{output}");
    let last = output.lines().last().unwrap();
    assert!(
        last.contains("session") && last.contains("--detach"),
        "{output}"
    );
    assert_eq!(window.end().await.code(), Some(75));
    assert_eq!(window.settings(), before);
    assert!(!window.is_raw());
}

#[tokio::test]
async fn detached_process_is_followed_across_disconnects() {
    let user = TestUser::new();
    let server = user.server(&[]).await;
    let wire = CuttableLink::to(&server).await;
    let fifo = user.work().join("fifo");
    let script = "mkfifo fifo; echo ready; read line < fifo; echo $line; exit 6";
    let line = [
        "run",
        "-E",
        &wire.url,
        "-d",
        "--name=job",
        "sh",
        "-c",
        script,
    ];
    assert_eq!(user.run(line).await.expect_success(), "job\n");
    let logs = ["logs", "-E", &wire.url, "-f", "job"];
    let mut logs = RunningCommand::start(&mut user.command(logs));
    let wait = ["wait", "-E", &wire.url, "job"];
    let mut wait = RunningCommand::start(&mut user.command(wait));
    logs.says("ready").await;
    // A client that is not connected yet would be refused.
    let authority = server.url.strip_prefix("ws://").unwrap();
    let waits = async || {
        let waiting = "exec_server_requests_in_flight";
        while Samples::of(authority).await.value(waiting) < 1.0 {}
    };
    within_timeout(waits()).await;
    wire.cut();
    let write = tokio::task::spawn_blocking(move || fs::write(fifo, "on\n").unwrap());
    logs.says("on").await;
    within_timeout(write).await.unwrap();
    let (status, output) = logs.end().await;
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(output.contains("reconnecting…"), "{output}");
    assert_eq!(wait.end().await.0.code(), Some(6));
}

#[tokio::test]
async fn user_can_detach_while_disconnected() {
    let user = TestUser::new().with("TERM", "xterm");
    let server = user.server(&[]).await;
    let wire = CuttableLink::to(&server).await;
    let line = ["run", "-E", &wire.url, "-dt", "--name=job", "cat"];
    user.run(line).await.expect_success();
    let attach = ["attach", "-E", &wire.url, "job"];
    let mut attached = TerminalWindow::open(&user.command(attach), (24, 80));
    let shell = ["run", "-E", &wire.url, "-t", "sh", "-c", "echo ready; cat"];
    let mut shell = TerminalWindow::open(&user.command(shell), (24, 80));
    attached.types("there\r");
    // The second time, the echo does not come from the local terminal.
    for _ in 0..2 {
        attached.shows("there\r\n").await;
    }
    shell.shows("ready\r\n").await;
    wire.end();
    for window in [&mut attached, &mut shell] {
        window.shows("reconnecting…").await;
        // More than is buffered for the reconnect.
        for _ in 0..100 {
            window.types("x");
        }
    }
    attached.types("\x10\x11");
    let remaining = attached.end().await;
    assert_eq!(remaining.code(), Some(0), "{}", attached.remaining_output());
    shell.types("\x03\x03\x03");
    assert_eq!(shell.end().await.code(), Some(130));
}

#[tokio::test]
async fn command_survives_a_hub_restart_with_a_notice() {
    let user = TestUser::new();
    let mut hub = Hub::start(&user).await;
    let _executor = hub.executor(&user, "box");
    let token = hub.token_file.to_str().unwrap();
    let add = ["env", "add", "box", "--hub", &hub.server.url];
    let add = add.into_iter().chain(["--token-file", token]);
    user.run(add).await.expect_success();
    let script = "mkfifo fifo; echo ready; read line < fifo; echo $line; exit 6";
    let line = ["run", "-E", "box", "sh", "-c", script];
    let mut running = RunningCommand::start(&mut user.command(line));
    running.says("ready").await;
    hub.restart(&user).await;
    let fifo = user.work().join("fifo");
    let write = tokio::task::spawn_blocking(move || fs::write(fifo, "on\n").unwrap());
    running.says("on").await;
    within_timeout(write).await.unwrap();
    let (status, output) = running.end().await;
    assert_eq!(status.code(), Some(6), "{output}");
    assert!(
        output.starts_with("exec-server: reconnecting…\n"),
        "{output}"
    );
    assert!(output.ends_with("exec-server: reconnected\n"), "{output}");
}
