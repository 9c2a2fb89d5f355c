//! Tests with the executor on one node and the harness on another.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use exec_registry::{
    api::RegistryEnvironmentId,
    executor::{DialOptions, ExecutorSettings, RemoteExecutor},
    harness::RegistryGrants,
    registry::RegistryClient,
};
use exec_relay::identity::NoiseIdentity;
use exec_transport::{
    link::{DataEncoding, Link},
    relay::harness::{HarnessOptions, open},
};
use exec_wire::outgoing_message::OutgoingMessage;
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::JoinHandle,
    time::{interval, timeout},
};

use crate::cluster::{Cluster, TEST_TIMEOUT};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_any_size_cross_nodes() {
    let cluster = Cluster::start().await;
    let here = cluster.proxy([0, 1, 2]).await;
    let there = cluster.proxy([1, 2, 0]).await;
    echo(cluster.registry(&here), "env");
    let mut link = connect(cluster.registry(&there), "env").await;
    for size in [1, 1000, 61_440, 61_441, 3_000_000] {
        send_message(&mut link, &vec![b'x'; size]).await;
    }
    let mut same = connect(cluster.registry(&here), "env").await;
    send_message(&mut same, b"at the executor's own node").await;
    send_message(&mut link, b"at another").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restart_interrupts_no_link() {
    let mut cluster = Cluster::start().await;
    let here = cluster.proxy([0, 1, 2]).await;
    let there = cluster.proxy([1, 2, 0]).await;
    echo(cluster.registry(&here), "env");
    let mut link = connect(cluster.registry(&there), "env").await;
    send_message(&mut link, b"three nodes").await;
    cluster.nodes[1].stop().await;
    send_message(&mut link, b"two nodes").await;
    cluster.nodes[0].stop().await;
    send_message(&mut link, b"one node").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executor_is_online_on_every_node_once_its_upgrade_is_answered() {
    let cluster = Cluster::start().await;
    let doors = (
        cluster.proxy([0, 1, 2]).await,
        cluster.proxy([1, 2, 0]).await,
    );
    let (here, there) = (cluster.registry(&doors.0), cluster.registry(&doors.1));
    let identity = NoiseIdentity::generate();
    for round in 0..20 {
        let environment = RegistryEnvironmentId::new(&format!("env-{round}")).unwrap();
        let registered = here.register(&environment, identity.public_key()).await;
        let url = registered.unwrap().url.into_exposed();
        let opened = tokio_tungstenite::connect_async(url).await;
        let (_socket, _) = opened.unwrap();
        for registry in [&here, &there] {
            let connected = registry.connect(&environment, identity.public_key());
            connected.await.unwrap();
        }
    }
}

/// Longest permitted interruption when a node dies, for 95 of 100 links.
const RECOVERY: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_killed_under_load_loses_no_message_and_recovers_in_seconds() {
    let mut cluster = Cluster::start().await;
    let mut loads = Vec::new();
    let mut doors = Vec::new();
    // Executors and harnesses at all pairs of nodes.
    for executor in 0..3_usize {
        for harness in 0..3_usize {
            let environment = format!("env-{executor}-{harness}");
            let [here, there] =
                [executor, harness].map(|first| [first, (first + 1) % 3, (first + 2) % 3]);
            let (here, there) = (cluster.proxy(here).await, cluster.proxy(there).await);
            echo(cluster.registry(&here), &environment);
            let link = connect(cluster.registry(&there), &environment).await;
            loads.push(((executor, harness), LoadClient::start(link)));
            doors.push((here, there));
        }
    }
    for (_, load) in &mut loads {
        load.more(100).await;
    }
    cluster.nodes[0].kill();
    // More than can have been in flight when the node died.
    for (_, load) in &mut loads {
        load.more(200).await;
    }
    let (mut hit, mut spared) = (Vec::new(), Vec::new());
    for ((executor, harness), load) in loads {
        let pause = load.finish().await;
        if executor == 0 || harness == 0 {
            hit.push(pause);
        } else {
            spared.push(pause);
        }
    }
    hit.sort_unstable();
    spared.sort_unstable();
    eprintln!("pauses of links through the dead node: {hit:?}, of others: {spared:?}");
    assert!(hit.iter().all(|pause| *pause <= RECOVERY), "{hit:?}");
    // Other links are not interrupted; the bound allows for a busy machine.
    assert!(
        spared.iter().all(|pause| *pause < Duration::from_secs(2)),
        "{spared:?}"
    );
}

/// Messages in flight per harness.
const PIPELINE: usize = 32;

const MESSAGE_BYTES: usize = 3_000;

/// Starts an executor that echoes every message.
pub(crate) fn echo(registry: RegistryClient, environment: &str) {
    let settings = ExecutorSettings {
        registry,
        environment: RegistryEnvironmentId::new(environment).unwrap(),
        identity: Arc::new(NoiseIdentity::generate()),
        dial_options: DialOptions::default(),
    };
    let (links, mut accepted) = mpsc::channel::<Link>(4);
    tokio::spawn(RemoteExecutor::new(settings).run(links, std::future::pending()));
    tokio::spawn(async move {
        while let Some(mut link) = accepted.recv().await {
            tokio::spawn(async move {
                while let Ok(Some(message)) = link.reader.next().await {
                    let message = OutgoingMessage::Text(message.to_vec());
                    link.writer.push(message, DataEncoding::Text);
                    link.writer.flush().await.unwrap();
                }
            });
        }
    });
}

/// Connects a harness. Its executor is connected, or will be in a moment.
pub(crate) async fn connect(registry: RegistryClient, environment: &str) -> Link {
    let identity = Arc::new(NoiseIdentity::generate());
    let environment = RegistryEnvironmentId::new(environment).unwrap();
    // A harness does not wait for an environment that was never registered.
    let mut pause = interval(Duration::from_millis(50));
    let registered = async {
        while registry
            .connect(&environment, identity.public_key())
            .await
            .is_err()
        {
            pause.tick().await;
        }
    };
    timeout(TEST_TIMEOUT, registered).await.unwrap();
    let tickets = RegistryGrants::new(registry, environment, Arc::clone(&identity));
    let opened = open(identity, Arc::new(tickets), HarnessOptions::default());
    timeout(TEST_TIMEOUT, opened).await.unwrap().unwrap()
}

pub(crate) async fn send_message(link: &mut Link, message: &[u8]) {
    link.writer
        .push(OutgoingMessage::Text(message.to_vec()), DataEncoding::Text);
    link.writer.flush().await.unwrap();
    let received = timeout(TEST_TIMEOUT, link.reader.next()).await.unwrap();
    assert_eq!(received.unwrap().unwrap(), message);
}

/// A harness that sends numbered messages continuously and verifies the echoes.
pub(crate) struct LoadClient {
    seen: watch::Receiver<u64>,
    stop: watch::Sender<bool>,
    sent: JoinHandle<u64>,
    received: JoinHandle<(u64, Duration)>,
}

impl LoadClient {
    pub(crate) fn start(link: Link) -> Self {
        let (stop, stopped) = watch::channel(false);
        let (count, seen) = watch::channel(0);
        let pipeline = Arc::new(Semaphore::new(PIPELINE));
        let Link {
            mut reader,
            mut writer,
            ..
        } = link;
        let permits = Arc::clone(&pipeline);
        let sent = tokio::spawn(async move {
            let mut number = 0_u64;
            while !*stopped.borrow() {
                permits.acquire().await.unwrap().forget();
                writer.push(OutgoingMessage::Text(message(number)), DataEncoding::Text);
                writer.flush().await.unwrap();
                number += 1;
            }
            // Closing the writer would end the link; the remaining messages are still in flight.
            permits
                .acquire_many(u32::try_from(PIPELINE).unwrap())
                .await
                .unwrap()
                .forget();
            writer.close().await.unwrap();
            number
        });
        let received = tokio::spawn(async move {
            let (mut number, mut longest, mut last) = (0_u64, Duration::ZERO, Instant::now());
            while let Ok(Some(got)) = reader.next().await {
                assert_eq!(got, message(number), "message {number}");
                longest = longest.max(last.elapsed());
                last = Instant::now();
                number += 1;
                count.send_replace(number);
                pipeline.add_permits(1);
            }
            (number, longest)
        });
        Self {
            seen,
            stop,
            sent,
            received,
        }
    }

    /// Waits for this many more echoes.
    pub(crate) async fn more(&mut self, count: u64) {
        let target = *self.seen.borrow() + count;
        let seen = self.seen.wait_for(|seen| *seen >= target);
        timeout(TEST_TIMEOUT, seen).await.unwrap().unwrap();
    }

    /// Stops it and returns the longest interruption.
    pub(crate) async fn finish(self) -> Duration {
        self.stop.send_replace(true);
        let sent = timeout(TEST_TIMEOUT, self.sent).await.unwrap().unwrap();
        let (received, longest) = timeout(TEST_TIMEOUT, self.received).await.unwrap().unwrap();
        assert_eq!(received, sent, "every message came back once");
        longest
    }
}

fn message(number: u64) -> Vec<u8> {
    let mut message = format!("{number:020}").into_bytes();
    message.resize(MESSAGE_BYTES, b'a' + u8::try_from(number % 26).unwrap());
    message
}
