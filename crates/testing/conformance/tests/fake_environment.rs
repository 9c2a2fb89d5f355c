//! The service on a fake environment: it needs only the traits.
#![expect(
    clippy::unwrap_used,
    reason = "a subject that cannot be built fails its case"
)]

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_client::{backend::RemoteBackend, client::ExecServerClient, filesystem::RemoteFileSystem};
use exec_core::output_log::{BackpressureMode, FollowOptions, FollowStart, OutputChunk};
use exec_env::{
    environment::{Command, Environment, ExecBackend},
    filesystem::ExecutorFileSystem,
    process::{ExecProcessEvent as Event, OutputReadRequest},
};
use exec_service::{Concurrency, Service, ServiceConfig};
use exec_test_support::{
    fake_environment::{FakeBackend, FakeFileSystem, fake_info},
    fake_process::FakeProcess,
};
use exec_transport::memory;
use exec_wire::{
    fs::{CanonicalizePath, ReadFile},
    id::{OutputSeq, ProcessId},
    initialize::ServerInfo,
    limits,
    path_uri::PathUri,
    process::OutputStream,
};
use futures_util::StreamExt;

/// Connects to a service whose processes write their arguments, and whose files contain their path.
async fn connect() -> ExecServerClient {
    let config = ServiceConfig {
        session_ttl: Duration::ZERO,
        process_retention: limits::CLOSED_RETENTION,
        max_processes: limits::MAX_PROCESSES,
        allow_direct_exec: true,
        allow_prepared_exec: true,
        concurrency: Concurrency::AtMost(NonZeroUsize::MIN),
        busy_poll: Duration::ZERO,
        durability: None,
        server_name: ServerInfo {
            name: "fake".to_owned(),
            version: "0.0.0".to_owned(),
        },
    };
    let backend = Arc::new(FakeBackend::default());
    backend.on_start(|command| {
        let process = FakeProcess::default();
        process.print(command.argv.join(" "));
        process.exit(42);
        process.close();
        Ok(process)
    });
    let files = Arc::new(FakeFileSystem {
        read_file: Some(|path| Ok(Bytes::from(path.to_string()))),
    });
    let service = Service::new(config, move || Environment {
        files: files.clone(),
        ..backend.environment()
    });
    let (here, there) = memory::pair();
    tokio::spawn(async move { service.serve(there).await });
    let connected = ExecServerClient::connect(here, Default::default()).await;
    connected.unwrap()
}

#[tokio::test]
async fn service_serves_a_fake_environment() {
    let backend = RemoteBackend::new(connect().await);
    assert_eq!(backend.info().await.unwrap(), fake_info());
    let id = ProcessId::new("p").unwrap();
    let argv = ["a", "b"].map(str::to_owned).to_vec();
    let command = Command::new(id, argv, "file:///".parse().unwrap());
    let process = backend.start(command).await.unwrap().process;
    let follow = FollowOptions {
        start: FollowStart::After(OutputSeq(0)),
        backpressure: BackpressureMode::Pause,
    };
    let events: Vec<Event> = process.follow(follow).collect().await;
    let chunk = OutputChunk {
        seq: OutputSeq(1),
        stream: OutputStream::Stdout,
        data: Bytes::from_static(b"a b"),
    };
    assert_eq!(events[0], Event::Output(chunk));
    assert!(matches!(&events[1..], [Event::Exited(_, exit), Event::Closed(_)] if exit.code == 42));
    assert_eq!(
        process
            .read(OutputReadRequest::default())
            .await
            .unwrap()
            .chunks
            .len(),
        1
    );
    assert_eq!(process.snapshot().await.unwrap().stdout.data, b"a b");
}

#[tokio::test]
async fn service_serves_a_fake_filesystem() {
    let files = RemoteFileSystem::new(connect().await);
    let path: PathUri = "file:///nowhere".parse().unwrap();
    let read = ReadFile {
        path: path.clone(),
        follow_symlinks: None,
        sandbox: None,
    };
    assert_eq!(files.read_file(read).await.unwrap(), path.as_str());
    let canonicalize = CanonicalizePath {
        path,
        sandbox: None,
    };
    let refusal = files.canonicalize(canonicalize).await;
    assert_eq!(refusal, Err(FakeFileSystem::rejection()));
}
