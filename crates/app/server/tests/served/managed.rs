//! Tests of environments from `environments.toml`, with real servers.

use std::ffi::OsString;

use exec_server::{
    EnvironmentError, EnvironmentId, EnvironmentManager, EnvironmentState, ExecServerRuntimePaths,
    environments::{EnvironmentSelection, SelectionInputs},
};
use tempfile::TempDir;

use crate::program::{Server, product, run, text, within_timeout};

/// Builds a manager from a file.
fn manager(file: &str) -> (EnvironmentManager, TempDir) {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("environments.toml"), file).unwrap();
    let selection = EnvironmentSelection::find(SelectionInputs {
        lookup: &|name| (name == "CODEX_HOME").then(|| OsString::from(home.path())),
        read: &|path| std::fs::read_to_string(path),
    });
    let manager = selection
        .unwrap()
        .into_manager(&ExecServerRuntimePaths::default());
    (manager.unwrap(), home)
}

fn id(text: &str) -> EnvironmentId {
    text.parse().unwrap()
}

/// Runs a script in an environment.
async fn run_script(manager: &EnvironmentManager, name: &str, script: &str) -> String {
    let environment = within_timeout(manager.environment(&id(name)))
        .await
        .unwrap();
    let output = run(&environment, script).await;
    text(&output.stdout.data).trim().to_owned()
}

/// Returns why an environment cannot be opened, with all causes.
async fn refusal(manager: &EnvironmentManager, name: &str) -> String {
    let error = within_timeout(manager.environment(&id(name)))
        .await
        .unwrap_err();
    format!("{:#}", anyhow::Error::from(error))
}

#[tokio::test]
async fn servers_connect_eagerly_and_programs_start_lazily() {
    let server = Server::start(&[]).await;
    let (manager, home) = manager(&format!(
        "default = 'box'\n\
         [[environments]]\nid = 'box'\nurl = '{}'\n\
         [[environments]]\nid = 'child'\nprogram = '{}'\nargs = ['--listen', 'stdio']\n\
         cwd = 'below'\nenv = {{ EXEC_SERVER_SESSION_TTL = '1', MARK = 'given' }}\n",
        server.url,
        product().display(),
    ));
    std::fs::create_dir(home.path().join("below")).unwrap();
    assert_eq!(manager.default(), Some(id("box")));
    assert_eq!(manager.ids(), [id("box"), id("child"), id("local")]);
    let state = |name| manager.state(&id(name)).unwrap();
    assert!(!matches!(state("box"), EnvironmentState::NotStarted));
    assert!(matches!(state("child"), EnvironmentState::NotStarted));

    for name in ["box", "child", "local"] {
        assert_eq!(
            run_script(&manager, name, "echo $((6 * 7))").await,
            "42",
            "{name}"
        );
        assert!(matches!(state(name), EnvironmentState::Ready(_)));
    }
    let child = within_timeout(manager.environment(&id("child")))
        .await
        .unwrap();
    let cwd = child.backend.info().await.unwrap().cwd.unwrap();
    let below = home.path().canonicalize().unwrap().join("below");
    assert_eq!(cwd.to_native().unwrap(), below);
    let mark = "echo ${MARK-none}";
    assert_eq!(run_script(&manager, "child", mark).await, "given");
    assert_eq!(run_script(&manager, "box", mark).await, "none");
}

#[tokio::test]
async fn right_token_is_accepted_and_wrong_one_rejected() {
    let secrets = tempfile::tempdir().unwrap();
    let token_file = secrets.path().join("token");
    std::fs::write(&token_file, "right").unwrap();
    let file = token_file.to_str().unwrap();
    let server = Server::start(&["--ws-auth", "capability-token", "--ws-token-file", file]).await;
    let (manager, _home) = manager(&format!(
        "[[environments]]\nid = 'right'\nurl = '{0}'\nauth_bearer_token = 'right'\n\
         [[environments]]\nid = 'wrong'\nurl = '{0}'\nauth_bearer_token = 'wr0ng'\n\
         [[environments]]\nid = 'none-at-all'\nurl = '{0}'\n",
        server.url,
    ));
    assert_eq!(run_script(&manager, "right", "echo in").await, "in");
    for name in ["wrong", "none-at-all"] {
        let refusal = refusal(&manager, name).await;
        assert!(refusal.contains("401"), "{refusal}");
        assert!(!refusal.contains("wr0ng"), "{refusal}");
    }
}

#[tokio::test]
async fn unreachable_server_fails_only_its_own_environment() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (manager, home) = manager(&format!(
        "[[environments]]\nid = 'closed'\nurl = 'ws://127.0.0.1:1'\n\
         [[environments]]\nid = 'silent'\nurl = 'ws://{}'\nconnect_timeout_sec = 0.05\n\
         [[environments]]\nid = 'missing'\nprogram = '/nonexistent/server'\n\
         [[environments]]\nid = 'mute'\nprogram = 'sleep'\nargs = ['1000']\n\
         initialize_timeout_sec = 0.05\n\
         [[environments]]\nid = 'misplaced'\nprogram = 'cat'\ncwd = 'nowhere'\n\
         [[environments]]\nid = 'dead'\nprogram = 'sh'\nargs = ['-c', 'exit 9']\n",
        silent.local_addr().unwrap(),
    ));
    let nowhere = home.path().join("nowhere");
    for (name, words) in [
        ("closed", "127.0.0.1:1"),
        ("silent", "50ms"),
        ("missing", "/nonexistent/server"),
        ("mute", "50ms"),
        ("misplaced", nowhere.to_str().unwrap()),
        ("dead", "9"),
    ] {
        let refusal = refusal(&manager, name).await;
        assert!(refusal.contains(words), "{name}: {refusal}");
    }
    assert_eq!(run_script(&manager, "local", "echo here").await, "here");
    let unknown = within_timeout(manager.environment(&id("unknown")))
        .await
        .unwrap_err();
    assert!(matches!(unknown, EnvironmentError::Missing(_)), "{unknown}");
}

#[tokio::test]
async fn server_started_later_is_found_on_retry() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let (manager, _home) = manager(&format!(
        "[[environments]]\nid = 'box'\nurl = 'ws://{address}'\n"
    ));
    within_timeout(manager.environment(&id("box")))
        .await
        .unwrap_err();
    let mut command = tokio::process::Command::new(product());
    command.arg("--listen").arg(format!("ws://{address}"));
    let _server = Server::of(command).await;
    assert_eq!(run_script(&manager, "box", "echo up").await, "up");
}

#[tokio::test]
async fn manager_requires_a_tokio_runtime() {
    let outside = std::thread::spawn(|| {
        let selection = EnvironmentSelection::find(SelectionInputs {
            lookup: &|_| None,
            read: &|_| Err(std::io::ErrorKind::NotFound.into()),
        });
        let manager = selection
            .unwrap()
            .into_manager(&ExecServerRuntimePaths::default());
        manager.unwrap_err().to_string()
    });
    assert_eq!(
        outside.join().unwrap(),
        "environments require a tokio runtime"
    );
}
