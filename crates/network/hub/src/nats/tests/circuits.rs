//! Tests of circuits between nodes.

use std::pin::pin;

use futures_util::StreamExt as _;

use super::*;

#[tokio::test]
async fn frames_cross_nodes_both_ways() {
    let broker = Broker::start().await;
    let BridgedCluster {
        mut harness_end,
        mut executor_end,
        nodes,
        ..
    } = BridgedCluster::new(&broker).await;
    for _ in 0..100 {
        echo(&mut harness_end, &mut executor_end).await;
    }
    let circuits = nodes.each_ref().map(|node| node.mesh.gauges().circuits);
    assert_eq!(circuits, [1, 1, 0]);
}

#[tokio::test]
async fn local_circuit_does_not_use_the_broker() {
    let broker = Broker::start().await;
    let node = Node::join(&broker.config()).await;
    let registration = node.register("env").await;
    let mut executor = node.connect(&registration).await;
    let mut harness_end = node.dial(&registration).await.unwrap();
    let mut executor_end = executor.accept().await;
    echo(&mut harness_end, &mut executor_end).await;
    assert_eq!(node.mesh.gauges().circuits, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_of_all_sizes_arrive_unchanged_and_in_order() {
    let broker = Broker::start().await;
    let cluster = BridgedCluster::new(&broker).await;
    let (mut harness_end, mut executor_end) = (cluster.harness_end, cluster.executor_end);
    let frame = |n: usize| {
        let size = [1, 40, 300, 61_500, 5, 262_144, 9_000][n % 7];
        let mut frame = vec![u8::try_from(n % 251).unwrap(); size];
        let number = n.to_be_bytes();
        let length = number.len().min(size);
        frame[..length].copy_from_slice(&number[number.len() - length..]);
        Bytes::from(frame)
    };
    let count = 2_000;
    let send = tokio::spawn(async move {
        for n in 0..count {
            executor_end.sender.send(frame(n)).await.unwrap();
        }
        executor_end
    });
    for n in 0..count {
        assert_eq!(
            within(harness_end.receiver.frame()).await.unwrap(),
            frame(n),
            "{n}"
        );
    }
    drop(send.await.unwrap());
    assert_eq!(
        close_reason(&mut harness_end).await,
        CloseReason::ExecutorGone
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_harness_applies_backpressure_across_nodes_without_loss() {
    let broker = Broker::start().await;
    let cluster = BridgedCluster::new(&broker).await;
    let (mut harness_end, mut executor_end) = (cluster.harness_end, cluster.executor_end);
    let frame = Bytes::from(vec![9; 32 * 1024]);
    let mut sent = 0_usize;
    // The queues and the window hold far less than this test sends.
    let stalled = loop {
        let send = executor_end.sender.send(frame.clone());
        match tokio::time::timeout(Duration::from_millis(500), send).await {
            Ok(result) => result.unwrap(),
            Err(_) => break true,
        }
        sent += frame.len();
        if sent > 64 << 20 {
            break false;
        }
    };
    assert!(stalled, "{sent} bytes were taken without a reader");
    assert!(sent <= 8 << 20, "{sent} bytes wait for one harness");
    // The other direction is not blocked.
    harness_end
        .sender
        .send(Bytes::from_static(b"still here"))
        .await
        .unwrap();
    assert_eq!(
        within(executor_end.receiver.frame()).await,
        Ok(Bytes::from_static(b"still here"))
    );
    drop(executor_end);
    let mut received = 0;
    while let Ok(frame) = within(harness_end.receiver.frame()).await {
        received += frame.len();
    }
    assert_eq!(received, sent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_end_is_noticed_although_the_other_does_not_read() {
    let broker = Broker::start().await;
    let mut cluster = BridgedCluster::new(&broker).await;
    fill(&mut cluster.executor_end).await;
    drop(cluster.executor_end);
    eventually(async || cluster.nodes[0].mesh.gauges().circuits == 0).await;
    assert_eq!(
        close_reason(&mut cluster.harness_end).await,
        CloseReason::ExecutorGone
    );

    let mut harness_end = cluster.nodes[1].dial(&cluster.registration).await.unwrap();
    let mut executor_end = cluster.executor.accept().await;
    fill(&mut harness_end).await;
    drop(harness_end);
    eventually(async || cluster.nodes[1].mesh.gauges().circuits == 0).await;
    assert_eq!(
        close_reason(&mut executor_end).await,
        CloseReason::HarnessGone
    );
}

/// Sends until the queue is full.
async fn fill(end: &mut Circuit) {
    let frame = Bytes::from(vec![9; 32 * 1024]);
    let timeout = Duration::from_millis(500);
    while let Ok(sent) = tokio::time::timeout(timeout, end.sender.send(frame.clone())).await {
        sent.unwrap();
    }
}

#[tokio::test]
async fn close_reason_crosses_nodes() {
    let broker = Broker::start().await;
    let mut cluster = BridgedCluster::new(&broker).await;
    for reason in [
        CloseReason::Moved,
        CloseReason::Refused,
        CloseReason::Stalled,
    ] {
        let mut harness_end = cluster.nodes[1].dial(&cluster.registration).await.unwrap();
        let mut executor_end = cluster.executor.accept().await;
        executor_end
            .sender
            .send(Bytes::from_static(b"last"))
            .await
            .unwrap();
        executor_end.close(reason);
        assert_eq!(
            within(harness_end.receiver.frame()).await,
            Ok(Bytes::from_static(b"last"))
        );
        assert_eq!(close_reason(&mut harness_end).await, reason);
    }
    let harness_end = cluster.nodes[1].dial(&cluster.registration).await.unwrap();
    let mut executor_end = cluster.executor.accept().await;
    drop(harness_end);
    assert_eq!(
        close_reason(&mut executor_end).await,
        CloseReason::HarnessGone
    );
    eventually(async || cluster.nodes[0].mesh.gauges().circuits == 1).await;
    echo(&mut cluster.harness_end, &mut cluster.executor_end).await;
}

#[tokio::test]
async fn cancelled_dial_leaves_no_circuit() {
    let broker = Broker::start().await;
    let mut cluster = BridgedCluster::new(&broker).await;
    for _ in 0..10 {
        let mut dial = Box::pin(cluster.nodes[1].dial(&cluster.registration));
        let mut polls = 0;
        while polls < 3 && futures_util::poll!(&mut dial).is_pending() {
            polls += 1;
            cluster.nodes[2]
                .presence(&cluster.registration.environment)
                .await;
        }
        drop(dial);
    }
    eventually(async || {
        cluster.nodes[0].mesh.gauges().circuits == 1 && cluster.nodes[1].mesh.gauges().circuits == 1
    })
    .await;
    echo(&mut cluster.harness_end, &mut cluster.executor_end).await;
}

#[tokio::test]
async fn dialling_a_missing_executor_fails() {
    let broker = Broker::start().await;
    let cluster = BridgedCluster::new(&broker).await;
    let mut other = cluster.registration.clone();
    other.id = RegistrationId::generate();
    assert_eq!(
        cluster.nodes[1].dial(&other).await.unwrap_err(),
        DialError::Offline
    );
    other.environment = "nowhere".parse().unwrap();
    assert_eq!(
        cluster.nodes[1].dial(&other).await.unwrap_err(),
        DialError::Offline
    );
    // Its websocket has ended, but its presence still exists.
    drop(cluster.executor);
    let result = cluster.nodes[1].dial(&cluster.registration).await;
    assert_eq!(result.unwrap_err(), DialError::Offline);
}

#[tokio::test]
async fn unexpected_packet_closes_only_its_circuit_at_both_ends() {
    let broker = Broker::start().await;
    let mut cluster = BridgedCluster::new(&broker).await;
    let attacker = broker.client().await;
    let seen = attacker.subscribe("exec-hub.circuit.>").await.unwrap();
    attacker.flush().await.unwrap();
    let mut harness_end = cluster.nodes[1].dial(&cluster.registration).await.unwrap();
    let mut executor_end = cluster.executor.accept().await;
    echo(&mut harness_end, &mut executor_end).await;
    // The other circuit's first packets may arrive late; only this one carries frames.
    let frames = seen.filter(|message| {
        let has_frame = message.payload.windows(4).any(|bytes| bytes == b"ping");
        std::future::ready(has_frame)
    });
    let subject = within(pin!(frames).next()).await.unwrap().subject;
    for packet in [&b"garbage"[..], b""] {
        attacker
            .publish(subject.clone(), Bytes::copy_from_slice(packet))
            .await
            .unwrap();
    }
    assert_eq!(
        close_reason(&mut harness_end).await,
        CloseReason::Unreachable
    );
    assert_eq!(
        close_reason(&mut executor_end).await,
        CloseReason::Unreachable
    );
    echo(&mut cluster.harness_end, &mut cluster.executor_end).await;
}

#[tokio::test]
async fn executor_that_reconnects_elsewhere_closes_its_old_circuits() {
    let broker = Broker::start().await;
    let mut cluster = BridgedCluster::new(&broker).await;
    // The first node has not noticed that its connection is dead.
    let mut moved = cluster.nodes[2].connect(&cluster.registration).await;
    assert_eq!(
        within(&mut cluster.executor.attachment.evicted).await,
        Ok(CloseReason::Replaced)
    );
    assert_eq!(
        close_reason(&mut cluster.harness_end).await,
        CloseReason::Replaced
    );
    for node in &cluster.nodes {
        let mut harness_end = node.dial(&cluster.registration).await.unwrap();
        let mut executor_end = moved.accept().await;
        echo(&mut harness_end, &mut executor_end).await;
    }
    // The end of the old websocket does not affect the new presence.
    cluster.nodes[0]
        .mesh
        .store()
        .detach(&cluster.executor.presence, Timestamp::now())
        .await
        .unwrap();
    let seen = cluster.nodes[0]
        .presence(&cluster.registration.environment)
        .await;
    assert_eq!(seen, Some(moved.presence));
}

#[tokio::test]
async fn new_registration_closes_the_old_websocket_on_any_node() {
    let broker = Broker::start().await;
    let mut cluster = BridgedCluster::new(&broker).await;
    let environment = cluster.registration.environment.clone();
    let new = cluster.nodes[2].register("env").await;
    cluster.nodes[2]
        .mesh
        .supersede(environment, &*cluster.nodes[2].mesh.store())
        .await;
    assert_ne!(new.id, cluster.registration.id);
    assert_eq!(
        within(&mut cluster.executor.attachment.evicted).await,
        Ok(CloseReason::Replaced)
    );
    let dial = cluster.nodes[1].dial(&cluster.registration).await;
    assert_eq!(dial.unwrap_err(), DialError::Offline);
}

#[tokio::test]
async fn registration_during_a_partition_closes_the_websocket_later() {
    let mut broker = Broker::start().await;
    let mut cluster = BridgedCluster::new(&broker).await;
    let [first, second, _third] = &cluster.nodes;
    // The first node misses the event.
    let new = second.register("env").await;
    assert_ne!(new.id, cluster.registration.id);
    broker.kill().await;
    broker.restart().await;
    assert_eq!(
        within(&mut cluster.executor.attachment.evicted).await,
        Ok(CloseReason::Replaced)
    );
    eventually(async || {
        first
            .mesh
            .store()
            .presence(&new.environment)
            .await
            .is_ok_and(|seen| seen.is_none())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_racing_websockets_on_three_nodes_stays() {
    let broker = Broker::start().await;
    let cluster = BridgedCluster::new(&broker).await;
    let registration = &cluster.registration;
    for _ in 0..10 {
        let [a, b, c] = &cluster.nodes;
        let connected = tokio::join!(
            try_connect(a, registration),
            try_connect(b, registration),
            try_connect(c, registration)
        );
        let sockets: Vec<_> = [connected.0, connected.1, connected.2]
            .into_iter()
            .flatten()
            .collect();
        eventually(async || {
            let seen = a.presence(&registration.environment).await;
            let retained = sockets.iter().filter(|socket| {
                Some(&socket.presence) == seen.as_ref()
                    && !socket.attachment.evicted.is_terminated()
            });
            retained.count() == 1 && attached(&cluster.nodes) == 1
        })
        .await;
    }
}

fn attached(nodes: &[Node]) -> usize {
    nodes
        .iter()
        .map(|node| node.executor_table.attached().len())
        .sum()
}

/// Attaches like the rendezvous: closes if it is superseded.
async fn try_connect(node: &Node, registration: &Registration) -> Option<Executor> {
    let presence = Presence {
        environment: registration.environment.clone(),
        registration: registration.id.clone(),
        node: node.mesh.name().clone(),
        connection: ConnectionId::generate(),
    };
    let attachment = node.executor_table.attach(
        presence.environment.clone(),
        presence.registration.clone(),
        presence.connection.clone(),
    );
    node.mesh.store().attach(presence.clone()).await.ok()?;
    Some(Executor {
        attachment,
        presence,
    })
}
