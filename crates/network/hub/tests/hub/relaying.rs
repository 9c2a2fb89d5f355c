//! Our executor and our harness, through the hub.

use std::{sync::Arc, time::Duration};

use exec_registry::{
    executor::{Dialing, RemoteExecutor, Settings},
    harness::RegistryTickets,
};
use exec_relay::identity::Identity;
use exec_transport::{
    link::{Encoding, Link},
    relay::harness::{HarnessOptions, open},
};
use exec_wire::outgoing::Outgoing;
use tokio::{sync::mpsc, time::timeout};

use crate::rig::{Rig, id};

const PATIENCE: Duration = Duration::from_secs(20);

/// An executor whose application sends everything back.
async fn echo(rig: &Rig, environment: &str) {
    let settings = Settings {
        registry: rig.registry(),
        environment: id(environment),
        identity: Arc::new(Identity::generate()),
        dialing: Dialing::default(),
    };
    let (links, mut accepted) = mpsc::channel::<Link>(4);
    tokio::spawn(RemoteExecutor::new(settings).run(links, std::future::pending()));
    tokio::spawn(async move {
        while let Some(mut link) = accepted.recv().await {
            tokio::spawn(async move {
                while let Ok(Some(message)) = link.reader.next().await {
                    let message = Outgoing::Text(message.to_vec());
                    link.writer.push(message, Encoding::Text);
                    link.writer.flush().await.unwrap();
                }
            });
        }
    });
    rig.executors(1).await;
}

/// Connects a harness.
async fn connect(rig: &Rig, environment: &str) -> Link {
    let identity = Arc::new(Identity::generate());
    let tickets = RegistryTickets::new(rig.registry(), id(environment), Arc::clone(&identity));
    let opened = open(identity, Arc::new(tickets), HarnessOptions::default());
    timeout(PATIENCE, opened).await.unwrap().unwrap()
}

async fn say(link: &mut Link, message: &[u8]) {
    link.writer
        .push(Outgoing::Text(message.to_vec()), Encoding::Text);
    link.writer.flush().await.unwrap();
    let heard = timeout(PATIENCE, link.reader.next()).await.unwrap();
    assert_eq!(heard.unwrap().unwrap(), message);
}

#[tokio::test]
async fn messages_of_any_size_come_back() {
    let rig = Rig::start().await;
    echo(&rig, "env").await;
    let mut link = connect(&rig, "env").await;
    for size in [1, 1000, 61_440, 61_441, 3_000_000] {
        say(&mut link, &vec![b'x'; size]).await;
    }
    let mut other = connect(&rig, "env").await;
    say(&mut other, b"another harness").await;
    say(&mut link, b"the first one").await;
}

#[tokio::test]
async fn a_link_survives_a_restart_of_the_hub() {
    let rig = Rig::start().await;
    echo(&rig, "env").await;
    let mut link = connect(&rig, "env").await;
    say(&mut link, b"before").await;
    let rig = rig.restart().await;
    say(&mut link, b"after").await;
    rig.hub.stop().await;
}
