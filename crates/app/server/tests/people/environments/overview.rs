//! Tests of `exec-server` without arguments.

use tokio::io::{AsyncBufReadExt, BufReader};

use crate::{
    processes::terminal_window::TerminalWindow,
    test_user::{TestUser, within_timeout},
};

/// Shows the overview on a terminal of this width, and returns it.
async fn shown(user: &TestUser, columns: u16) -> String {
    let nothing: [&str; 0] = [];
    let mut window = TerminalWindow::open(&user.command(nothing), (40, columns));
    let text = window.shows("--help lists everything.\r\n").await;
    assert_eq!(window.end().await.code(), Some(0));
    assert_eq!(window.remaining_output(), "");
    text.replace("\x1b[1m", "").replace("\x1b[0m", "")
}

#[tokio::test]
async fn program_without_arguments_on_a_terminal_shows_what_runs_and_what_to_try() {
    let user = TestUser::new();
    let text = shown(&user, 100).await;
    for line in [
        concat!("exec-server ", env!("CARGO_PKG_VERSION"), "\r\n"),
        "On this machine\r\n  nothing runs; the first command starts a server\r\n",
        "  local  local  unix://",
        "  exec-server run -- make test ",
        "  exec-server run -E ssh:HOST -- make test ",
        "  exec-server use box ",
        "  exec-server --listen ws://",
    ] {
        assert!(text.contains(line), "{line:?} in {text}");
    }
    assert_eq!(user.local_server(), None, "nothing was started");

    user.run(["env", "add", "box", "ws://127.0.0.1:1"])
        .await
        .expect_success();
    user.run(["use", "box"]).await.expect_success();
    let job = ["run", "-E", "local", "-d", "--name", "job", "sleep", "1000"];
    user.run(job).await.expect_success();
    let text = shown(&user, 120).await;
    let row = |start: &str| text.lines().find(|line| line.starts_with(start));
    let job = row("  job  running").unwrap();
    assert!(job.contains("sleep 1000"), "{text}");
    assert!(row("  box ").unwrap().contains("this directory"), "{text}");
}

#[tokio::test]
async fn program_without_arguments_serves_if_told_where_or_without_a_terminal() {
    let user = TestUser::new();
    let nothing: [&str; 0] = [];
    let mut command = user.command(nothing);
    command.env("EXEC_SERVER_LISTEN", "ws://127.0.0.1:0");
    let mut window = TerminalWindow::open(&command, (24, 80));
    window.shows("ws://127.0.0.1:").await;
    drop(window.close());

    let mut piped = user.command(nothing);
    let mut child = piped.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let url = within_timeout(lines.next_line()).await.unwrap().unwrap();
    assert!(url.starts_with("ws://127.0.0.1:"), "{url}");
}
