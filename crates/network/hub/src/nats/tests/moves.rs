//! Executors that come back elsewhere.

use super::*;

#[tokio::test]
async fn an_executor_that_reconnects_elsewhere_takes_its_harnesses_along() {
    let broker = Broker::start().await;
    let mut across = Across::new(&broker).await;
    // The first node has not noticed that its socket is dead.
    let mut moved = across.nodes[2].connect(&across.registration).await;
    assert_eq!(
        within(&mut across.executor.attachment.evicted).await,
        Ok(Ending::Replaced)
    );
    assert_eq!(ending(&mut across.near).await, Ending::Replaced);
    for node in &across.nodes {
        let mut near = node.dial(&across.registration).await.unwrap();
        let mut far = moved.accept().await;
        echo(&mut near, &mut far).await;
    }
    // The old socket's end does not touch the new presence.
    across.nodes[0]
        .mesh
        .store()
        .detach(&across.executor.presence, Timestamp::now())
        .await
        .unwrap();
    let seen = across.nodes[0]
        .presence(&across.registration.environment)
        .await;
    assert_eq!(seen, Some(moved.presence));
}

#[tokio::test]
async fn a_new_registration_closes_the_old_socket_on_any_node() {
    let broker = Broker::start().await;
    let mut across = Across::new(&broker).await;
    let environment = across.registration.environment.clone();
    let new = across.nodes[2].register("env").await;
    across.nodes[2]
        .mesh
        .supersede(environment, &*across.nodes[2].mesh.store())
        .await;
    assert_ne!(new.id, across.registration.id);
    assert_eq!(
        within(&mut across.executor.attachment.evicted).await,
        Ok(Ending::Replaced)
    );
    let dial = across.nodes[1].dial(&across.registration).await;
    assert_eq!(dial.unwrap_err(), DialError::Offline);
}

#[tokio::test]
async fn a_registration_made_while_a_node_was_cut_off_closes_its_socket_later() {
    let mut broker = Broker::start().await;
    let mut across = Across::new(&broker).await;
    let [first, second, _third] = &across.nodes;
    // The first node's news of this are lost: nobody tells it.
    let new = second.register("env").await;
    assert_ne!(new.id, across.registration.id);
    broker.kill().await;
    broker.restart().await;
    assert_eq!(
        within(&mut across.executor.attachment.evicted).await,
        Ok(Ending::Replaced)
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
async fn of_sockets_that_race_on_three_nodes_one_stays() {
    let broker = Broker::start().await;
    let across = Across::new(&broker).await;
    let registration = &across.registration;
    for _ in 0..10 {
        let [a, b, c] = &across.nodes;
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
            let kept = sockets.iter().filter(|socket| {
                Some(&socket.presence) == seen.as_ref()
                    && !socket.attachment.evicted.is_terminated()
            });
            kept.count() == 1 && attached(&across.nodes) == 1
        })
        .await;
    }
}

fn attached(nodes: &[Node]) -> usize {
    nodes.iter().map(|node| node.switch.attached().len()).sum()
}

/// As the rendezvous does it: who is told that it is superseded closes.
async fn try_connect(node: &Node, registration: &Registration) -> Option<Executor> {
    let presence = Presence {
        environment: registration.environment.clone(),
        registration: registration.id.clone(),
        node: node.mesh.node().clone(),
        connection: ConnectionId::generate(),
    };
    let attachment = node.switch.attach(
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
