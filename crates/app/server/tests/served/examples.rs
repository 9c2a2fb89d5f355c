//! Tests of the examples.

use std::process::Output;

use crate::program::{Server, clean, example, product, run_example, text, within_timeout};

/// Returns the output of a successful example.
#[track_caller]
fn written(output: &Output) -> &str {
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stderr), "");
    text(&output.stdout)
}

#[tokio::test]
async fn run_command_prints_output_and_exits_with_the_status() {
    let server = Server::start(&[]).await;
    let output = run_example("run_command", &[&server.url, "echo", "a b"]).await;
    assert_eq!(written(&output), "a b\n");
    let script = "echo out; echo err >&2; exit 7";
    let output = run_example("run_command", &[&server.url, "sh", "-c", script]).await;
    let streams = (text(&output.stdout), text(&output.stderr));
    assert_eq!(streams, ("out\n", "err\n"));
    assert_eq!(output.status.code(), Some(7));
}

#[tokio::test]
async fn embed_client_runs_a_command_with_the_client_alone() {
    let server = Server::start(&[]).await;
    let output = run_example("embed_client", &[&server.url]).await;
    assert!(written(&output).starts_with("Linux "), "{output:?}");
}

#[tokio::test]
async fn run_command_explains_errors() {
    let server = Server::start(&[]).await;
    let output = run_example("run_command", &[&server.url, "/nonexistent"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/nonexistent"), "{output:?}");
    let output = run_example("run_command", &["ws://127.0.0.1:1", "true"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("127.0.0.1:1"), "{output:?}");
}

#[tokio::test]
async fn interactive_pty_answers_resizes_and_interrupts() {
    let server = Server::start(&[]).await;
    let output = run_example("interactive_pty", &[&server.url]).await;
    let printed = written(&output).replace("\r\n", "\n");
    let expected = "name? ann\nsize? \nann has 50 132\nwaiting\n^C\nended with 130 by SIGINT\n";
    assert_eq!(printed, expected);
}

#[tokio::test]
async fn survive_disconnect_loses_and_repeats_nothing() {
    let server = Server::start(&[]).await;
    let output = run_example("survive_disconnect", &[server.authority()]).await;
    assert_eq!(written(&output), "500 lines in their order, 4 cuts\n");
}

#[tokio::test]
async fn local_or_remote_behaves_the_same_everywhere() {
    let server = Server::start(&[]).await;
    let home = tempfile::tempdir().unwrap();
    let file = format!(
        "default = 'box'\n\
         [[environments]]\nid = 'box'\nurl = '{}'\n\
         [[environments]]\nid = 'child'\nprogram = '{}'\nargs = ['--listen', 'stdio']\n\
         [[environments]]\nid = 'gone'\nurl = 'ws://127.0.0.1:1'\n",
        server.url,
        product().display(),
    );
    std::fs::write(home.path().join("environments.toml"), file).unwrap();
    let mut command = tokio::process::Command::new(example("local_or_remote"));
    let command = clean(&mut command).env("CODEX_HOME", home.path());
    let output = within_timeout(command.output()).await.unwrap();
    let mut lines: Vec<_> = written(&output).lines().collect();
    let missing = lines.remove(2);
    assert_eq!(lines, ["*box: HELLO", " child: HELLO", " local: HELLO"]);
    assert!(missing.starts_with(" gone: not there: "), "{missing}");
    assert!(missing.contains("127.0.0.1:1"), "{missing}");
}

#[tokio::test]
async fn local_or_remote_follows_the_variable() {
    let server = Server::start(&[]).await;
    let home = tempfile::tempdir().unwrap();
    for (url, lines) in [
        ("", "*local: HELLO\n"),
        ("none", ""),
        (&*server.url, "*remote: HELLO\n"),
    ] {
        let mut command = tokio::process::Command::new(example("local_or_remote"));
        let command = clean(&mut command)
            .env("CODEX_HOME", home.path())
            .env("CODEX_EXEC_SERVER_URL", url);
        let output = within_timeout(command.output()).await.unwrap();
        assert_eq!(written(&output), lines, "{url}");
    }
}
