//! Tests of an embedded server, and of helpers that are another program.

use std::path::{Path, PathBuf};

use exec_server::{
    Environment, ExecServerClient, ExecServerRuntimePaths, FileError, PathUri, ProcessId,
    RemoteExecServerConnectArgs, StartedProcess, local_environment,
    protocol::{fs::ReadFile, process::ListProcesses, sandbox::SandboxPolicy},
    run_main_with_listen_url,
};
use serde_json::json;
use tokio::{
    process::Command,
    task::{spawn_blocking, yield_now},
};

use crate::program::{Server, example, product, run, text, within_timeout};

async fn connect(server: &Server) -> ExecServerClient {
    let args = RemoteExecServerConnectArgs::new(&*server.url, "test");
    within_timeout(ExecServerClient::connect_websocket(args))
        .await
        .unwrap()
}

/// Returns a policy that allows reading one directory and nothing else.
fn only(directory: &PathUri) -> Box<SandboxPolicy> {
    let path = json!({"type": "path", "path": directory});
    let sandbox = json!({
        "permissions": {
            "type": "managed",
            "network": "restricted",
            "file_system": {
                "type": "restricted",
                "entries": [{"path": path, "access": "read"}],
            },
        },
        "windowsSandboxLevel": "disabled",
    });
    serde_json::from_value(sandbox).unwrap()
}

/// Asserts that commands run, and that a policy applies to files.
async fn works(environment: &Environment) {
    let output = run(environment, "echo $((6 * 7)); exit 3").await;
    assert_eq!(text(&output.stdout.data), "42\n");
    assert_eq!(output.exit.unwrap().code, 3);

    let inside = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    let read = |directory: &tempfile::TempDir| {
        let path = directory.path().join("file");
        std::fs::write(&path, "content").unwrap();
        environment.files.read_file(ReadFile {
            path: PathUri::from_native(&path).unwrap(),
            follow_symlinks: None,
            sandbox: Some(only(&PathUri::from_native(inside.path()).unwrap())),
        })
    };
    assert_eq!(
        &within_timeout(read(&inside)).await.unwrap()[..],
        b"content"
    );
    let refused = within_timeout(read(&outside)).await.unwrap_err();
    assert!(
        matches!(refused, FileError::NotFound(_) | FileError::Invalid(_)),
        "{refused:?}"
    );
}

/// Returns the program that is the parent of an environment's commands.
async fn helper_of(environment: &Environment) -> String {
    let output = run(environment, "readlink /proc/$PPID/exe").await;
    text(&output.stdout.data).trim().to_owned()
}

#[tokio::test]
async fn embedded_server_runs_commands_and_enforces_policies() {
    let mut command = Command::new(example("embed_server"));
    command.arg("ws://127.0.0.1:0");
    let server = Server::of(command).await;
    let client = connect(&server).await;
    works(&client.environment()).await;
    let helper = helper_of(&client.environment()).await;
    let own = example("embed_server").canonicalize().unwrap();
    assert_eq!(helper, own.to_str().unwrap());
    drop(client);
    assert_eq!(server.stop().await, Some(0));
}

#[tokio::test]
async fn local_environment_needs_neither_server_nor_other_program() {
    let environment = local_environment(&ExecServerRuntimePaths::default()).unwrap();
    works(&environment).await;
    let own = std::env::current_exe().unwrap().canonicalize().unwrap();
    assert_eq!(helper_of(&environment).await, own.to_str().unwrap());
}

#[tokio::test]
async fn another_program_can_be_the_helper() {
    let paths = ExecServerRuntimePaths::with_helper(product());
    let environment = local_environment(&paths).unwrap();
    works(&environment).await;
    let product = product().canonicalize().unwrap();
    assert_eq!(helper_of(&environment).await, product.to_str().unwrap());
}

#[tokio::test]
async fn missing_helper_is_reported_before_anything_runs() {
    let paths = ExecServerRuntimePaths::with_helper("/nonexistent/helper");
    let error = local_environment(&paths).unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot find the helper program `/nonexistent/helper`"
    );
    let server = run_main_with_listen_url("ws://127.0.0.1:0", paths);
    assert_eq!(within_timeout(server).await.unwrap_err().to_string(), error);
}

#[tokio::test]
async fn invalid_helper_fails_commands_without_hanging() {
    for helper in ["/bin/true", "/bin/cat"] {
        let paths = ExecServerRuntimePaths::with_helper(helper);
        let environment = local_environment(&paths).unwrap();
        let argv = vec!["/bin/true".to_owned()];
        let root = PathUri::parse("file:///").unwrap();
        let command = exec_server::Command::new(ProcessId::new("p").unwrap(), argv, root);
        let error = within_timeout(environment.backend.start(command))
            .await
            .unwrap_err();
        let output = format!("{:#}", anyhow::Error::from(error));
        assert!(output.contains("cannot create a process"), "{output}");
    }
}

#[tokio::test]
async fn dropping_the_server_closes_the_listener_and_ends_processes() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let url = format!("unix://{}", socket.display());
    let server = tokio::spawn(async move {
        run_main_with_listen_url(&url, ExecServerRuntimePaths::default()).await
    });
    let connect = || ExecServerClient::connect_unix(&socket, Default::default());
    let client = within_timeout(async {
        loop {
            match connect().await {
                Ok(client) => break client,
                Err(_not_bound_yet) => yield_now().await,
            }
        }
    });
    let client = client.await;
    let (attached, running) = sleeper(&client).await;
    let waiting = abandoned(socket.clone()).await;
    assert!(running.exists() && waiting.exists());

    server.abort();
    assert!(within_timeout(server).await.unwrap_err().is_cancelled());
    assert!(connect().await.is_err());
    within_timeout(async {
        while running.exists() || waiting.exists() {
            yield_now().await;
        }
    })
    .await;
    drop(attached);
}

/// Starts a process that does not exit, and returns its path in /proc.
async fn sleeper(client: &ExecServerClient) -> (StartedProcess, PathBuf) {
    let argv = ["/bin/sleep", "1000"].map(str::to_owned).to_vec();
    let root = PathUri::parse("file:///").unwrap();
    let command = exec_server::Command::new(ProcessId::new("p").unwrap(), argv, root);
    let started = client.environment().backend.start(command).await.unwrap();
    let list = client.call(ListProcesses::default()).await.unwrap();
    let pid = list.processes[0].os_pid.unwrap();
    (started, Path::new("/proc").join(pid.to_string()))
}

/// Like [`sleeper`], by a client that disappears; the server keeps its session for a while.
async fn abandoned(socket: PathBuf) -> PathBuf {
    let vanish = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let client = ExecServerClient::connect_unix(socket, Default::default()).await;
            let (started, printed) = sleeper(&client.unwrap()).await;
            // Dropping it would terminate the process.
            std::mem::forget(started);
            printed
        })
    };
    let printed = within_timeout(spawn_blocking(vanish)).await.unwrap();
    // The server runs on the thread of the test.
    for _ in 0..1000 {
        yield_now().await;
    }
    printed
}
