//! Nodes and brokers that die.

use std::time::Instant;

use super::*;
use crate::{nats::connection::REQUEST, store::StoreError};

#[tokio::test]
async fn a_killed_node_costs_its_own_circuits_and_nothing_else() {
    let broker = Broker::start().await;
    let mut across = Across::new(&broker).await;
    let registration = across.nodes[2].register("other").await;
    let mut bystander = across.nodes[2].connect(&registration).await;
    let mut here = across.nodes[1].dial(&registration).await.unwrap();
    let mut there = bystander.accept().await;
    // Not even the switch says goodbye.
    let [dead, second, third] = across.nodes;
    drop(dead);
    let killed = Instant::now();
    assert_eq!(ending(&mut across.near).await, Ending::Unreachable);
    assert!(
        killed.elapsed() < Duration::from_secs(4),
        "{:?}",
        killed.elapsed()
    );
    for node in [&second, &third] {
        eventually(async || {
            node.presence(&across.registration.environment)
                .await
                .is_none()
        })
        .await;
        let dial = node.dial(&across.registration).await;
        assert_eq!(dial.unwrap_err(), DialError::Offline);
    }
    assert!(
        killed.elapsed() < Duration::from_secs(5),
        "{:?}",
        killed.elapsed()
    );
    echo(&mut here, &mut there).await;
    // Its executor comes back elsewhere.
    let mut executor = third.connect(&across.registration).await;
    let mut near = second.dial(&across.registration).await.unwrap();
    let mut far = executor.accept().await;
    echo(&mut near, &mut far).await;
}

#[tokio::test]
async fn the_harness_of_a_killed_node_is_gone_for_its_executor() {
    let broker = Broker::start().await;
    let mut across = Across::new(&broker).await;
    let [_first, dead, _third] = across.nodes;
    drop(dead);
    let killed = Instant::now();
    assert_eq!(ending(&mut across.far).await, Ending::Unreachable);
    assert!(
        killed.elapsed() < Duration::from_secs(4),
        "{:?}",
        killed.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_arrives_from_a_node_before_it_dies_is_without_gaps() {
    let broker = Broker::start().await;
    let across = Across::new(&broker).await;
    let (mut near, mut far) = (across.near, across.far);
    let [dead, _second, _third] = across.nodes;
    let send = tokio::spawn(async move {
        for n in 0_u64.. {
            let mut frame = vec![0; 2_000];
            frame[..8].copy_from_slice(&n.to_be_bytes());
            if far.sender.send(frame.into()).await.is_err() {
                return n;
            }
        }
        0
    });
    let mut dead = Some(dead);
    let mut expected = 0_u64;
    while let Ok(frame) = within(near.receiver.frame()).await {
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
    assert_eq!(ending(&mut near).await, Ending::Unreachable);
}

#[tokio::test]
async fn a_node_that_stops_says_so() {
    let broker = Broker::start().await;
    let mut across = Across::new(&broker).await;
    // Everybody has heard everybody.
    eventually(async || across.nodes[1].mesh.nodes() == 3).await;
    across.nodes[0].mesh.leave().await;
    let left = Instant::now();
    let ended = ending(&mut across.near).await;
    assert!(
        matches!(ended, Ending::Stopping | Ending::Unreachable),
        "{ended}"
    );
    assert!(
        left.elapsed() < Duration::from_secs(1),
        "{:?}",
        left.elapsed()
    );
    eventually(async || across.nodes[1].mesh.nodes() == 2).await;
    assert!(
        left.elapsed() < Duration::from_secs(1),
        "{:?}",
        left.elapsed()
    );
}

#[tokio::test]
async fn a_broker_that_restarts_costs_only_what_crosses_it() {
    let mut broker = Broker::start().await;
    let mut across = Across::new(&broker).await;
    let mut local = across.nodes[0].dial(&across.registration).await.unwrap();
    let mut local_far = across.executor.accept().await;

    broker.kill().await;
    assert_eq!(ending(&mut across.near).await, Ending::Unreachable);
    assert_eq!(ending(&mut across.far).await, Ending::Unreachable);
    echo(&mut local, &mut local_far).await;
    let environment = &across.registration.environment;
    let asked = Instant::now();
    let unavailable = across.nodes[1].mesh.store().presence(environment).await;
    assert!(
        matches!(unavailable, Err(StoreError::Unavailable(_))),
        "{unavailable:?}"
    );
    // Nobody waited for an answer that cannot come.
    let took = asked.elapsed();
    assert!(took < REQUEST, "{took:?}");
    assert!(!across.nodes[1].mesh.is_connected());
    let dial = across.nodes[1].dial(&across.registration).await;
    assert_eq!(dial.unwrap_err(), DialError::Unreachable);
    let mut more = across.nodes[0].dial(&across.registration).await.unwrap();
    let mut more_far = across.executor.accept().await;
    echo(&mut more, &mut more_far).await;

    broker.restart().await;
    let node = &across.nodes[1];
    let found = Some(across.executor.presence.clone());
    eventually(async || {
        node.mesh
            .store()
            .presence(environment)
            .await
            .is_ok_and(|seen| seen == found)
    })
    .await;
    let mut near = eventually_dial(node, &across.registration).await;
    let mut far = across.executor.accept().await;
    echo(&mut near, &mut far).await;
    echo(&mut local, &mut local_far).await;
}

#[tokio::test]
async fn a_lost_data_connection_ends_its_circuits_at_both_ends() {
    for cut_off in [0, 1] {
        let broker = Broker::start().await;
        let cable = Cable::to(&broker).await;
        let mut configs = [broker.config(), broker.config(), broker.config()];
        configs[cut_off] = broker.config_at(&cable.url());
        let mut across = Across::over(configs).await;
        echo(&mut across.near, &mut across.far).await;
        cable.cut();
        let cut = Instant::now();
        assert_eq!(ending(&mut across.near).await, Ending::Unreachable);
        assert_eq!(ending(&mut across.far).await, Ending::Unreachable);
        let took = cut.elapsed();
        assert!(took < Duration::from_secs(4), "{took:?}");
        let [first, second, _third] = &across.nodes;
        eventually(async || first.mesh.circuits() + second.mesh.circuits() == 0).await;
        let mut near = eventually_dial(second, &across.registration).await;
        let mut far = across.executor.accept().await;
        echo(&mut near, &mut far).await;
    }
}

#[tokio::test]
async fn a_socket_that_ended_while_the_broker_was_away_is_forgotten_when_it_is_back() {
    let mut broker = Broker::start().await;
    let across = Across::new(&broker).await;
    broker.kill().await;
    eventually(async || !across.nodes[0].mesh.is_connected()).await;
    let store = across.nodes[0].mesh.store();
    let failed = store
        .detach(&across.executor.presence, Timestamp::now())
        .await;
    assert!(
        matches!(failed, Err(StoreError::Unavailable(_))),
        "{failed:?}"
    );
    broker.restart().await;
    let environment = &across.registration.environment;
    let node = &across.nodes[1];
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
async fn a_broker_that_lost_everything_is_filled_again() {
    let mut broker = Broker::start().await;
    let mut across = Across::new(&broker).await;
    let key = across.nodes[0].mesh.store().signing_key().await.unwrap();
    broker.kill().await;
    broker.restart_empty().await;
    let node = &across.nodes[1];
    // Registrations are gone, so the executor's socket is closed and it registers again.
    let evicted = within(&mut across.executor.attachment.evicted).await;
    assert_eq!(evicted, Ok(Ending::Replaced));
    eventually(async || node.mesh.is_connected()).await;
    let registration = node.register("env").await;
    let mut executor = across.nodes[0].connect(&registration).await;
    let mut near = eventually_dial(node, &registration).await;
    let mut far = executor.accept().await;
    echo(&mut near, &mut far).await;
    // A node that comes now must not refuse the URLs that the others sign.
    let late = Node::join(&broker.config()).await;
    assert_eq!(late.mesh.store().signing_key().await.unwrap(), key);
}

/// Dials until the other node is back, too.
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
