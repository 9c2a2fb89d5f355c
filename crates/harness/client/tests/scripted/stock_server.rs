//! A stock or older server, without server information and extensions.

use std::time::Duration;

use bytes::Bytes;
use exec_client::{backend::RemoteBackend, client::ExecServerClient, filesystem::RemoteFileSystem};
use exec_env::{
    environment::{Command, ExecBackend, ProcessIo, StartError},
    filesystem::{ExecutorFileSystem, FileError, MissingPathsRequest, OpenFileRequest},
    process::{OutputReadRequest, ProcessError},
};
use exec_wire::{
    environment::ShellProgram,
    error::ErrorCode,
    fs::{OpenMode, WriteFile},
    process::{ProcessLimits, ShellSnapshot, TerminalSize, TerminateMode, WaitUntil},
};
use serde_json::{Value, json};

use crate::scripted_server::{ScriptedServer, command, within};

/// Connects to a server with these capabilities.
async fn connect(capabilities: Value) -> (ScriptedServer, ExecServerClient) {
    let shell = json!({"name": "sh", "path": "/bin/sh"});
    let info = json!({"shell": shell, "capabilities": capabilities});
    ScriptedServer::connect_as(json!({"sessionId": "s", "environmentInfo": info})).await
}

/// Asserts that the client has sent nothing.
async fn assert_silent(server: &mut ScriptedServer, client: &ExecServerClient) {
    let status = client.status();
    let play = async {
        let request = server.expect("environment/status").await;
        server.answer(&request, json!({"status": "ready"})).await;
    };
    let (status, ()) = futures_util::join!(status, play);
    status.unwrap();
}

#[tokio::test]
async fn received_output_is_served_locally() {
    let (mut server, client) = connect(json!({})).await;
    let process = server.start(&client, "p").await.process;
    let poll = process.read(OutputReadRequest {
        wait: Duration::from_secs(60),
        ..OutputReadRequest::default()
    });
    let wait = process.wait(WaitUntil::Closed, None);
    server.output("p", 1, "YQ==").await;
    let page = within(poll).await.unwrap();
    assert_eq!((&page.chunks[0].data[..], page.next_seq.0), (&b"a"[..], 2));
    let short = Duration::from_millis(1);
    let status = within(process.wait(WaitUntil::Exited, Some(short))).await;
    assert_eq!(status.unwrap().exit, None);
    server.exited("p", 2).await;
    server.closed("p", 3).await;
    assert!(within(wait).await.unwrap().closed);
    let snapshot = within(process.snapshot()).await.unwrap();
    assert_eq!(snapshot.stdout.data, b"a");
    assert_silent(&mut server, &client).await;
}

#[tokio::test]
async fn wait_fails_when_the_connection_ends() {
    let (mut server, client) = connect(json!({})).await;
    let process = server.start(&client, "p").await.process;
    let poll = process.read(OutputReadRequest {
        wait: Duration::from_secs(60),
        ..OutputReadRequest::default()
    });
    let wait = process.wait(WaitUntil::Exited, None);
    drop(server);
    assert!(matches!(
        within(poll).await,
        Err(ProcessError::Disconnected(_))
    ));
    assert!(matches!(
        within(wait).await,
        Err(ProcessError::Disconnected(_))
    ));
    let snapshot = within(process.snapshot()).await;
    assert!(matches!(snapshot, Err(ProcessError::Disconnected(_))));
}

#[tokio::test]
async fn start_with_unsupported_members_is_rejected() {
    let (mut server, client) = connect(json!({})).await;
    let backend = RemoteBackend::new(client.clone());
    let limits = ProcessLimits {
        wall_ms: Some(1),
        ..ProcessLimits::default()
    };
    let size = TerminalSize { rows: 25, cols: 80 };
    for (field, command) in [
        (
            "limits",
            Command {
                limits,
                ..command("p")
            },
        ),
        (
            "size",
            Command {
                io: ProcessIo::Terminal(size),
                ..command("p")
            },
        ),
    ] {
        match within(backend.start(command)).await {
            Err(StartError::Refused {
                field: received, ..
            }) => assert_eq!(received, field),
            other => panic!("expected a refusal: {other:?}"),
        }
    }
    assert_silent(&mut server, &client).await;
}

#[tokio::test]
async fn unsupported_shell_snapshot_is_omitted() {
    let (mut server, client) = connect(json!({"shellSnapshotV2": false})).await;
    let backend = RemoteBackend::new(client);
    let shell = ShellProgram {
        name: "sh".to_owned(),
        path: "/bin/sh".to_owned(),
    };
    let scope_id = "scope".to_owned();
    let start = backend.start(Command {
        shell_snapshot: Some(ShellSnapshot { scope_id, shell }),
        ..command("p")
    });
    let play = async {
        let start = server.expect("process/start").await;
        assert_eq!(start["params"]["shellSnapshot"], json!(null));
        server.answer(&start, json!({"processId": "p"})).await;
    };
    let (started, ()) = futures_util::join!(start, play);
    started.unwrap();
}

#[tokio::test]
async fn proxy_without_masking_is_sent_to_any_server() {
    let abilities = json!({"networkProxyLaunch": true, "credentialMasking": false});
    let (mut server, client) = connect(abilities).await;
    let backend = RemoteBackend::new(client.clone());
    let with_proxy = |masking: Value| {
        let mut proxy = json!({
            "enabled": true, "enableSocks5": false, "enableSocks5Udp": false,
            "allowUpstreamProxy": false, "dangerouslyAllowAllUnixSockets": false,
            "allowLocalBinding": false, "mode": "full",
        });
        for (member, value) in masking.as_object().unwrap() {
            proxy[member] = value.clone();
        }
        let mut command = command("p");
        command.network.proxy = Some(serde_json::from_value(json!({"proxy": proxy})).unwrap());
        command
    };
    for asks in [
        json!({"credentialMasking": true}),
        json!({"credentialProviders": {"github": {}}}),
    ] {
        let refused = within(backend.start(with_proxy(asks))).await;
        assert!(
            matches!(&refused, Err(StartError::Refused { field, .. }) if field.contains("Masking")),
            "{refused:?}"
        );
    }
    assert_silent(&mut server, &client).await;
    let no_masking = json!({"credentialMasking": false, "credentialProviders": {}});
    let start = backend.start(with_proxy(no_masking));
    let play = async {
        let start = server.expect("process/start").await;
        let proxy = &start["params"]["networkProxy"]["proxy"];
        // Older servers may reject these members, so they are omitted.
        assert!(proxy.get("credentialMasking").is_none(), "{proxy}");
        assert!(proxy.get("credentialProviders").is_none(), "{proxy}");
        server.answer(&start, json!({"processId": "p"})).await;
    };
    let (started, ()) = futures_util::join!(start, play);
    started.unwrap();
}

#[tokio::test]
async fn graceful_termination_is_rejected() {
    let (mut server, client) = connect(json!({})).await;
    let process = server.start(&client, "p").await.process;
    let mode = TerminateMode::Graceful { timeout_ms: 1 };
    match within(process.terminate(mode)).await {
        Err(ProcessError::Remote(error)) => {
            assert_eq!(error.code, ErrorCode::INVALID_PARAMS);
            assert!(error.message.contains("mode"), "{error}");
        }
        other => panic!("expected a refusal: {other:?}"),
    }
    assert_silent(&mut server, &client).await;
}

#[tokio::test]
async fn write_with_unsupported_members_is_rejected() {
    let (mut server, client) = connect(json!({})).await;
    let files = RemoteFileSystem::new(client.clone());
    let write = WriteFile {
        path: "file:///file".parse().unwrap(),
        data_base64: None,
        follow_symlinks: None,
        create_parents: false,
        atomic: false,
        mode: None,
        sandbox: None,
    };
    let parents = WriteFile {
        create_parents: true,
        ..write.clone()
    };
    let atomic = WriteFile {
        atomic: true,
        ..write.clone()
    };
    let mode = WriteFile {
        mode: Some(0o600),
        ..write
    };
    for (member, write) in [
        ("createParents", parents),
        ("atomic", atomic),
        ("mode", mode),
    ] {
        match within(files.write_file(write, Bytes::new())).await {
            Err(FileError::Refused(text)) => assert!(text.contains(member), "{text}"),
            other => panic!("expected a refusal: {other:?}"),
        }
    }
    assert_silent(&mut server, &client).await;
}

#[tokio::test]
async fn unsupported_capabilities_are_rejected_locally() {
    let (mut server, client) = connect(json!({})).await;
    let files = RemoteFileSystem::new(client.clone());
    let path = "file:///file".parse().unwrap();
    let opened = within(files.open(OpenFileRequest {
        path,
        mode: OpenMode::Replace,
        sandbox: None,
    }))
    .await;
    assert!(matches!(opened, Err(FileError::Refused(text)) if text.contains("mode")));
    let missing = vec!["file:///none".parse().unwrap()];
    let watch = within(files.watch_missing(MissingPathsRequest {
        missing,
        present: None,
        sandbox: None,
    }))
    .await;
    assert!(watch.unwrap().is_none());
    assert_silent(&mut server, &client).await;
}

#[tokio::test]
async fn releases_are_sent_before_later_calls() {
    let (mut server, client) = connect(json!({})).await;
    let files = RemoteFileSystem::new(client.clone());
    // A server that handles requests one at a time would be blocked by waiting requests.
    for _ in 0..50 {
        let open = files.open(OpenFileRequest {
            path: "file:///file".parse().unwrap(),
            mode: OpenMode::Read,
            sandbox: None,
        });
        let play = async {
            let request = server.expect("fs/open").await;
            let id = request["params"]["handleId"].clone();
            server.answer(&request, json!({"handleId": id})).await;
        };
        let (opened, ()) = futures_util::join!(open, play);
        drop(opened.unwrap());
        let status = client.status();
        let play = async {
            let closed = server.expect("fs/close").await;
            server.answer(&closed, json!({})).await;
            let request = server.expect("environment/status").await;
            server.answer(&request, json!({"status": "ready"})).await;
        };
        let (status, ()) = futures_util::join!(status, play);
        status.unwrap();
    }
}
