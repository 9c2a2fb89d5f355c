//! Tests of commands on a terminal.

use rustix::process::{Signal, kill_process};

use crate::{processes::terminal_window::TerminalWindow, test_user::TestUser};

fn user() -> TestUser {
    TestUser::new()
        .with("TERM", "xterm")
        .with("SHELL", "/bin/sh")
}

#[tokio::test]
async fn remote_terminal_follows_the_local_size() {
    let user = user();
    let script = "trap 'stty size' WINCH; stty size; echo $TERM; while :; do sleep 0.02; done";
    let run = user.command(["run", "--tty", "sh", "-c", script]);
    let mut window = TerminalWindow::open(&run, (40, 100));
    let before = window.settings();
    window.shows("40 100\r\nxterm\r\n").await;
    assert!(window.is_raw());
    window.resize((50, 120));
    window.shows("50 120\r\n").await;
    // Ctrl-C; the remote terminal converts it into a signal.
    window.types("\x03");
    assert_eq!(window.end().await.code(), Some(130));
    assert_eq!(window.settings(), before);
}

#[tokio::test]
async fn keys_are_delivered_individually() {
    let user = user();
    let script = "stty raw -echo; echo ready; dd bs=1 count=3 2>/dev/null | od -An -tx1";
    let run = user.command(["run", "-t", "sh", "-c", script]);
    let mut window = TerminalWindow::open(&run, (24, 80));
    window.shows("ready").await;
    // Ctrl-Z, Ctrl-S and Escape.
    window.types("\x1a\x13\x1b");
    window.shows("1a 13 1b").await;
    assert_eq!(window.end().await.code(), Some(0));
}

#[tokio::test]
async fn terminal_is_restored_when_a_signal_ends_the_client() {
    let user = user();
    let script = "trap 'echo no' TERM; echo ready; while :; do sleep 0.02; done";
    let run = user.command(["run", "-t", "sh", "-c", script]);
    let mut window = TerminalWindow::open(&run, (24, 80));
    let before = window.settings();
    window.shows("ready").await;
    assert!(window.is_raw());
    kill_process(super::pid(&window.child), Signal::TERM).unwrap();
    window.shows("no").await;
    kill_process(super::pid(&window.child), Signal::TERM).unwrap();
    assert_eq!(window.end().await.code(), Some(143));
    assert_eq!(window.settings(), before);
}

#[tokio::test]
async fn failed_start_leaves_the_terminal_unchanged() {
    let user = user();
    let run = user.command(["run", "-t", "no-such-program"]);
    let mut window = TerminalWindow::open(&run, (24, 80));
    let before = window.settings();
    window.shows("no-such-program").await;
    assert_eq!(window.end().await.code(), Some(127));
    assert_eq!(window.settings(), before);
}

#[tokio::test]
async fn shell_is_the_login_shell_with_terminal_or_pipe() {
    let user = user();
    let mut window = TerminalWindow::open(&user.command(["shell"]), (24, 80));
    window.types("echo $((6 * 7)); tty; exit 5\r");
    window.shows("42\r\n/dev/pts/").await;
    assert_eq!(window.end().await.code(), Some(5));
    let piped = user.run_with(["shell"], b"echo $((6 * 7))\nexit 4\n").await;
    assert_eq!((piped.status, piped.stdout.as_str()), (Some(4), "42\n"));
}

#[tokio::test]
async fn terminal_without_a_local_one_has_a_size_and_end_of_input() {
    let user = user();
    let script = "stty -echo; stty size; wc -l";
    let output = user
        .run_with(["run", "-t", "sh", "-c", script], b"a\nb\n")
        .await;
    assert_eq!(output.status, Some(0), "{output:?}");
    assert!(output.stdout.contains("24 80\r\n"), "{output:?}");
    assert!(output.stdout.trim_end().ends_with('2'), "{output:?}");
}
