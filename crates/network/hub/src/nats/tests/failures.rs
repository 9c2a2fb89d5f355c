//! Tests of nodes and brokers that fail.

use std::{fs, time::Instant};

use super::*;
use crate::{
    nats::{NatsError, connection::REQUEST_TIMEOUT},
    store::StoreError,
};

#[tokio::test]
async fn killed_node_affects_only_its_own_circuits() {
    let broker = Broker::start().await;
    let mut cluster = BridgedCluster::new(&broker).await;
    let registration = cluster.nodes[2].register("other").await;
    let mut other_executor = cluster.nodes[2].connect(&registration).await;
    let mut other_harness_end = cluster.nodes[1].dial(&registration).await.unwrap();
    let mut other_executor_end = other_executor.accept().await;
    // Not even the executor table announces the shutdown.
    let [dead, second, third] = cluster.nodes;
    drop(dead);
    let killed = Instant::now();
    assert_eq!(
        close_reason(&mut cluster.harness_end).await,
        CloseReason::Unreachable
    );
    assert!(
        killed.elapsed() < Duration::from_secs(4),
        "{:?}",
        killed.elapsed()
    );
    for node in [&second, &third] {
        eventually(async || {
            node.presence(&cluster.registration.environment)
                .await
                .is_none()
        })
        .await;
        let dial = node.dial(&cluster.registration).await;
        assert_eq!(dial.unwrap_err(), DialError::Offline);
    }
    assert!(
        killed.elapsed() < Duration::from_secs(5),
        "{:?}",
        killed.elapsed()
    );
    echo(&mut other_harness_end, &mut other_executor_end).await;
    // Its executor reconnects elsewhere.
    let mut executor = third.connect(&cluster.registration).await;
    let mut harness_end = second.dial(&cluster.registration).await.unwrap();
    let mut executor_end = executor.accept().await;
    echo(&mut harness_end, &mut executor_end).await;
}

#[tokio::test]
async fn executor_notices_the_harness_of_a_killed_node() {
    let broker = Broker::start().await;
    let mut cluster = BridgedCluster::new(&broker).await;
    let [_first, dead, _third] = cluster.nodes;
    drop(dead);
    let killed = Instant::now();
    assert_eq!(
        close_reason(&mut cluster.executor_end).await,
        CloseReason::Unreachable
    );
    assert!(
        killed.elapsed() < Duration::from_secs(4),
        "{:?}",
        killed.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_from_a_dying_node_have_no_gaps() {
    let broker = Broker::start().await;
    let cluster = BridgedCluster::new(&broker).await;
    let (mut harness_end, mut executor_end) = (cluster.harness_end, cluster.executor_end);
    let [dead, _second, _third] = cluster.nodes;
    let send = tokio::spawn(async move {
        for n in 0_u64.. {
            let mut frame = vec![0; 2_000];
            frame[..8].copy_from_slice(&n.to_be_bytes());
            if executor_end.sender.send(frame.into()).await.is_err() {
                return n;
            }
        }
        0
    });
    let mut dead = Some(dead);
    let mut expected = 0_u64;
    while let Ok(frame) = within(harness_end.receiver.frame()).await {
        assert_eq!(frame[..8], expected.to_be_bytes());
        expected += 1;
        if expected == 5_000 {
            dead.take();
        }
    }
    assert!(
        dead.is_none(),
        "the circuit ended by itself after {expected} frames"
    );
    assert!(within(send).await.unwrap() >= expected);
    assert_eq!(
        close_reason(&mut harness_end).await,
        CloseReason::Unreachable
    );
}

#[tokio::test]
async fn stopping_node_announces_its_shutdown() {
    let broker = Broker::start().await;
    let mut cluster = BridgedCluster::new(&broker).await;
    // All nodes have received each other's heartbeats.
    eventually(async || cluster.nodes[1].mesh.gauges().nodes == 3).await;
    cluster.nodes[0].mesh.leave().await;
    let left_at = Instant::now();
    let ended = close_reason(&mut cluster.harness_end).await;
    assert!(
        matches!(ended, CloseReason::Stopping | CloseReason::Unreachable),
        "{ended:?}"
    );
    assert!(
        left_at.elapsed() < Duration::from_secs(1),
        "{:?}",
        left_at.elapsed()
    );
    eventually(async || cluster.nodes[1].mesh.gauges().nodes == 2).await;
    assert!(
        left_at.elapsed() < Duration::from_secs(1),
        "{:?}",
        left_at.elapsed()
    );
}

#[tokio::test]
async fn broker_restart_affects_only_bridged_circuits() {
    let mut broker = Broker::start().await;
    let mut cluster = BridgedCluster::new(&broker).await;
    let mut local = cluster.nodes[0].dial(&cluster.registration).await.unwrap();
    let mut local_executor_end = cluster.executor.accept().await;

    broker.kill().await;
    assert_eq!(
        close_reason(&mut cluster.harness_end).await,
        CloseReason::Unreachable
    );
    assert_eq!(
        close_reason(&mut cluster.executor_end).await,
        CloseReason::Unreachable
    );
    echo(&mut local, &mut local_executor_end).await;
    let environment = &cluster.registration.environment;
    let started_at = Instant::now();
    let unavailable = cluster.nodes[1].mesh.store().presence(environment).await;
    assert!(
        matches!(unavailable, Err(StoreError::Unavailable(_))),
        "{unavailable:?}"
    );
    // No caller waits for a response that cannot arrive.
    let took = started_at.elapsed();
    assert!(took < REQUEST_TIMEOUT, "{took:?}");
    assert!(!cluster.nodes[1].mesh.is_connected());
    let dial = cluster.nodes[1].dial(&cluster.registration).await;
    assert_eq!(dial.unwrap_err(), DialError::Unreachable);
    let mut more = cluster.nodes[0].dial(&cluster.registration).await.unwrap();
    let mut more_executor_end = cluster.executor.accept().await;
    echo(&mut more, &mut more_executor_end).await;

    broker.restart().await;
    let node = &cluster.nodes[1];
    let found = Some(cluster.executor.presence.clone());
    eventually(async || {
        node.mesh
            .store()
            .presence(environment)
            .await
            .is_ok_and(|seen| seen == found)
    })
    .await;
    let mut harness_end = eventually_dial(node, &cluster.registration).await;
    let mut executor_end = cluster.executor.accept().await;
    echo(&mut harness_end, &mut executor_end).await;
    echo(&mut local, &mut local_executor_end).await;
}

#[tokio::test]
async fn lost_data_connection_closes_its_circuits_at_both_ends() {
    for cut_off in [0, 1] {
        let broker = Broker::start().await;
        let proxy = CuttableProxy::to(&broker).await;
        let mut configs = [broker.config(), broker.config(), broker.config()];
        configs[cut_off] = broker.config_at(&proxy.url());
        let mut cluster = BridgedCluster::over(configs).await;
        echo(&mut cluster.harness_end, &mut cluster.executor_end).await;
        proxy.disconnect();
        let disconnected_at = Instant::now();
        assert_eq!(
            close_reason(&mut cluster.harness_end).await,
            CloseReason::Unreachable
        );
        assert_eq!(
            close_reason(&mut cluster.executor_end).await,
            CloseReason::Unreachable
        );
        let took = disconnected_at.elapsed();
        assert!(took < Duration::from_secs(4), "{took:?}");
        let [first, second, _third] = &cluster.nodes;
        eventually(async || first.mesh.gauges().circuits + second.mesh.gauges().circuits == 0)
            .await;
        let mut harness_end = eventually_dial(second, &cluster.registration).await;
        let mut executor_end = cluster.executor.accept().await;
        echo(&mut harness_end, &mut executor_end).await;
    }
}

#[tokio::test]
async fn websocket_end_during_a_broker_outage_is_recorded_afterwards() {
    let mut broker = Broker::start().await;
    let cluster = BridgedCluster::new(&broker).await;
    broker.kill().await;
    eventually(async || !cluster.nodes[0].mesh.is_connected()).await;
    let store = cluster.nodes[0].mesh.store();
    let failed = store
        .detach(&cluster.executor.presence, Timestamp::now())
        .await;
    assert!(
        matches!(failed, Err(StoreError::Unavailable(_))),
        "{failed:?}"
    );
    broker.restart().await;
    let environment = &cluster.registration.environment;
    let node = &cluster.nodes[1];
    eventually(async || {
        node.mesh
            .store()
            .presence(environment)
            .await
            .is_ok_and(|seen| seen.is_none())
    })
    .await;
}

#[tokio::test]
async fn broker_that_lost_its_data_is_repopulated() {
    let mut broker = Broker::start().await;
    let mut cluster = BridgedCluster::new(&broker).await;
    let key = cluster.nodes[0].mesh.store().signing_key().await.unwrap();
    broker.kill().await;
    broker.restart_empty().await;
    let node = &cluster.nodes[1];
    // Registrations are lost, so the executor's websocket is closed and it registers again.
    let evicted = within(&mut cluster.executor.attachment.evicted).await;
    assert_eq!(evicted, Ok(CloseReason::Replaced));
    eventually(async || node.mesh.is_connected()).await;
    let registration = node.register("env").await;
    let mut executor = cluster.nodes[0].connect(&registration).await;
    let mut harness_end = eventually_dial(node, &registration).await;
    let mut executor_end = executor.accept().await;
    echo(&mut harness_end, &mut executor_end).await;
    // A new node must not reject the URLs that the others sign.
    let late = Node::join(&broker.config()).await;
    assert_eq!(late.mesh.store().signing_key().await.unwrap(), key);
}

/// Dials until the other node is back as well.
async fn eventually_dial(node: &Node, registration: &Registration) -> Circuit {
    let mut pause = tokio::time::interval(Duration::from_millis(50));
    within(async {
        loop {
            if let Ok(circuit) = node.dial(registration).await {
                return circuit;
            }
            pause.tick().await;
        }
    })
    .await
}

async fn join(config: &NatsConfig) -> Result<NatsMesh, NatsError> {
    within(NatsMesh::join(config, Arc::new(ExecutorTable::default()))).await
}

#[tokio::test]
async fn user_needs_the_right_password() {
    let broker = Broker::with(&["--user", "hub", "--pass", "p@ss"]).await;
    join(&broker.config_at("nats://hub:p%40ss@127.0.0.1:PORT"))
        .await
        .unwrap();
    for wrong in ["nats://hub:guess@127.0.0.1:PORT", "nats://127.0.0.1:PORT"] {
        let error = join(&broker.config_at(wrong)).await.unwrap_err();
        assert!(matches!(error, NatsError::Login { .. }), "{error:?}");
        assert!(!format!("{error:?} {error}").contains("guess"), "{error:?}");
    }
}

#[tokio::test]
async fn token_login_is_accepted() {
    let broker = Broker::with(&["--auth", "s3cret"]).await;
    join(&broker.config_at("nats://s3cret@127.0.0.1:PORT"))
        .await
        .unwrap();
    let error = join(&broker.config_at("nats://guess@127.0.0.1:PORT"))
        .await
        .unwrap_err();
    assert!(matches!(error, NatsError::Login { .. }), "{error:?}");
}

#[tokio::test]
async fn tls_needs_a_trusted_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, content: String| {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = file("cert.pem", certified.cert.pem());
    let key = file("key.pem", certified.signing_key.serialize_pem());
    let arguments = [
        "--tls",
        "--tlscert",
        certificate.to_str().unwrap(),
        "--tlskey",
    ];
    let arguments = [&arguments[..], &[key.to_str().unwrap()]].concat();
    let broker = Broker::with(&arguments).await;
    for url in ["tls://localhost:PORT", "nats://localhost:PORT"] {
        let mut config = broker.config_at(url);
        let error = join(&config).await.unwrap_err();
        assert!(matches!(error, NatsError::Tls { .. }), "{error:?}");
        config.ca_file = Some(certificate.clone());
        join(&config).await.unwrap();
    }
}

#[tokio::test]
async fn credentials_file_must_be_valid() {
    let broker = Broker::start().await;
    let mut config = broker.config();
    config.credentials_file = Some("/nonexistent/hub.creds".into());
    let error = join(&config).await.unwrap_err();
    assert!(matches!(error, NatsError::Credentials(_)), "{error:?}");
}

#[tokio::test]
async fn missing_jetstream_is_reported() {
    let broker = Broker::without_jetstream().await;
    let error = join(&broker.config()).await.unwrap_err();
    assert!(matches!(error, NatsError::Bucket { .. }), "{error:?}");
    assert!(error.to_string().contains("JetStream"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn unreachable_broker_is_reported_after_retries() {
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let url = format!("nats://user:hidden@{free}");
    let config = NatsConfig::new(url.parse().unwrap(), "node".parse().unwrap());
    let error = join(&config).await.unwrap_err();
    assert!(matches!(error, NatsError::Unreachable { .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        format!("no NATS server responds at nats://{free}")
    );
    assert!(!format!("{error:?}").contains("hidden"), "{error:?}");
}

#[tokio::test]
async fn broker_with_a_small_message_limit_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("broker.conf");
    fs::write(&file, "max_payload: 65536").unwrap();
    let broker = Broker::with(&["-c", file.to_str().unwrap()]).await;
    let error = join(&broker.config()).await.unwrap_err();
    assert!(
        matches!(error, NatsError::Payload { limit: 65_536 }),
        "{error:?}"
    );
}
