//! Many processes over one client: none blocks another.
#![expect(clippy::unwrap_used, reason = "helper functions of tests")]

use std::{
    collections::BTreeMap, ffi::OsString, num::NonZeroUsize, path::Path, sync::Arc, time::Duration,
};

use exec_client::{
    client::{ExecServerClient, ExecServerClientConnectOptions},
    connect::SessionContinuity,
};
use exec_core::output_log::{BackpressureMode, FollowOptions, FollowStart, RetentionLimits};
use exec_env::{
    environment::{Command, Environment, NoCatalog},
    http::NoHttpClient,
    process::{ExecProcess, ExecProcessEvent as Event},
};
use exec_local::{
    backend::{LocalBackend, LocalConfig},
    filesystem::LocalFileSystem,
    host::{HostDescription, HostFacts},
};
use exec_service::{Concurrency, Service, ServiceConfig};
use exec_test_support::bounded_wait::within;
use exec_transport::memory;
use exec_wire::{
    id::{OutputSeq, ProcessId},
    initialize::{ProtocolExtension, ServerInfo},
    limits,
};
use futures_util::{StreamExt, future::join_all};

const ALL: FollowOptions = FollowOptions {
    start: FollowStart::After(OutputSeq(0)),
    backpressure: BackpressureMode::Pause,
};

async fn connect() -> ExecServerClient {
    let service = service();
    let open = move || {
        let (here, there) = memory::pair();
        let served = service.clone();
        tokio::spawn(async move { served.serve(there).await });
        here
    };
    let options = ExecServerClientConnectOptions::default();
    let connected = ExecServerClient::connect_memory(open, SessionContinuity::Resumed, options);
    let client = within("a client", connected).await.unwrap();
    let granted = &client.session().extensions;
    assert!(
        granted.contains(&ProtocolExtension::Acknowledge),
        "{granted:?}"
    );
    client
}

async fn start(environment: &Environment, id: &str, script: &str) -> Arc<dyn ExecProcess> {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let id = ProcessId::new(id).unwrap();
    let command = Command {
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        ..Command::new(id, argv, "file:///".parse().unwrap())
    };
    within("a start", environment.backend.start(command))
        .await
        .unwrap()
        .process
}

/// Follows a process until its close and returns the number of bytes it wrote.
async fn count(process: &Arc<dyn ExecProcess>) -> usize {
    let mut bytes = 0;
    let mut stream = process.follow(ALL);
    loop {
        match stream.next().await {
            Some(Event::Output(chunk)) => bytes += chunk.data.len(),
            Some(Event::Exited(..)) => {}
            Some(Event::Closed(_)) => return bytes,
            end @ (Some(Event::Failed(_)) | None) => panic!("{end:?}"),
        }
    }
}

#[tokio::test]
async fn stalled_follower_does_not_block_other_processes() {
    let client = connect().await;
    let environment = client.environment();
    let mut held = Vec::new();
    for number in 0..8 {
        let flood = "head -c 8000000 /dev/zero";
        let process = start(&environment, &format!("held-{number}"), flood).await;
        held.push((process.follow(ALL), process));
    }
    let other = start(&environment, "other", "head -c 20000000 /dev/zero").await;
    assert_eq!(within("all output", count(&other)).await, 20_000_000);
    within("a status", client.status()).await.unwrap();
    for (_, process) in &held {
        assert!(process.status().exit.is_none(), "{:?}", process.status());
    }
    // The stalled processes lose no output and continue once they are read.
    for (mut stream, process) in held {
        let mut bytes = 0;
        while let Some(event) = within("an event", stream.next()).await {
            if let Event::Output(chunk) = event {
                bytes += chunk.data.len();
            }
        }
        assert_eq!(bytes, 8_000_000);
        drop(process);
    }
}

#[tokio::test]
async fn two_hundred_processes_stream_concurrently_without_starvation() {
    let client = connect().await;
    let environment = client.environment();
    let script = "head -c 1000000 /dev/zero; sleep 1; head -c 1000000 /dev/zero";
    let jobs = (0..200).map(async |number| {
        let process = start(&environment, &format!("p{number}"), script).await;
        count(&process).await
    });
    let counts = within("all output", join_all(jobs)).await;
    assert_eq!(counts, vec![2_000_000; 200]);
    within("a status", client.status()).await.unwrap();
}

fn service() -> Service {
    let env: BTreeMap<OsString, OsString> =
        BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]);
    let host = HostDescription::new(&HostFacts {
        env: &env,
        passwd: "",
        uid: 0,
        cwd: Path::new("/"),
        exists: &|path: &Path| path.exists(),
    });
    let backend = LocalBackend::new(LocalConfig {
        env,
        host,
        version: "0.0.0".to_owned(),
        retention: RetentionLimits::default(),
        sandbox: exec_sandbox::SandboxSettings::default(),
    });
    let config = ServiceConfig {
        session_ttl: limits::SESSION_TTL,
        process_retention: limits::CLOSED_RETENTION,
        max_processes: limits::MAX_PROCESSES,
        allow_direct_exec: true,
        allow_prepared_exec: true,
        concurrency: Concurrency::AtMost(NonZeroUsize::MIN.saturating_add(63)),
        busy_poll: Duration::ZERO,
        durability: None,
        server_name: ServerInfo {
            name: "memory".to_owned(),
            version: "0.0.0".to_owned(),
        },
    };
    let files = LocalFileSystem::default().with_policies(&backend);
    Service::new(config, move || Environment {
        backend: Arc::new(backend.clone()),
        files: Arc::new(files.clone()),
        http: Arc::new(NoHttpClient),
        catalog: Arc::new(NoCatalog),
        network: Arc::new(exec_env::tunnel::NoNetwork),
    })
}
