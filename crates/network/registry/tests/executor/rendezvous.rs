//! Tests of executors at a rendezvous, through all states of a connection.

use std::{collections::HashSet, future::poll_fn, ops::RangeInclusive, time::Duration};

use exec_registry::executor::ExecutorError;
use exec_relay::{frame::FrameBody, handshake::NoiseHandshakeError, identity::NoiseIdentity};
use exec_transport::{
    link::{DataEncoding, Link},
    websocket::socket::BinarySocket,
};
use exec_wire::outgoing_message::OutgoingMessage;
use serde_json::json;
use tokio::{
    io::AsyncReadExt,
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{Instant, timeout},
};

use crate::{
    registry_server::{
        REGISTER, RegistryServer, Request, VALIDATE, admit, executor, register, registered,
    },
    relay_client::RelayPeer,
};

/// A running executor.
struct Running {
    links: mpsc::Receiver<Link>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ExecutorError>>,
}

fn run(server: &RegistryServer) -> Running {
    let (sender, links) = mpsc::channel(8);
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(executor(server).run(sender, async {
        drop(stopped.await);
    }));
    Running { links, stop, task }
}

/// Ranges of the backoff delays, in seconds.
const BACKOFF: [RangeInclusive<f64>; 8] = [
    0.5..=1.0,
    1.0..=2.0,
    2.0..=4.0,
    4.0..=8.0,
    4.0..=8.0,
    4.0..=8.0,
    4.0..=8.0,
    4.0..=8.0,
];

/// Tolerance for clock and sockets.
const SLACK: f64 = 0.005;

#[track_caller]
fn assert_pause(waited: Duration, expected: &RangeInclusive<f64>) {
    let waited = waited.as_secs_f64();
    assert!(
        waited >= *expected.start() && waited <= expected.end() + SLACK,
        "{waited} is not in {expected:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn harness_accepted_by_the_registry_gets_a_link() {
    let mut server = RegistryServer::start().await;
    let mut running = run(&server);
    let known = register(&mut server, "/r?role=environment&sig=1", "reg-1").await;
    let request = server.expect("GET", "/r?role=environment&sig=1").await;
    // The URL alone authenticates the executor.
    assert_eq!(request.header("authorization"), None);
    let id = request.header("x-request-id").unwrap().to_owned();
    assert_eq!((id.len(), id.starts_with("req_")), (36, true), "{id}");
    let mut relay = RelayPeer::new(request.socket().await);
    let mut stream = admit(&mut server, &mut relay, &known, "stream-1").await;
    let mut link = running.links.recv().await.unwrap();
    relay.send_message(&mut stream, br#"{"id":1}"#).await;
    assert_eq!(link.reader.next().await.unwrap().unwrap(), r#"{"id":1}"#);
    link.writer
        .push(OutgoingMessage::Text(b"{}".to_vec()), DataEncoding::Text);
    link.writer.flush().await.unwrap();
    assert_eq!(relay.receive_message(&mut stream).await, b"{}");
}

#[tokio::test(start_paused = true)]
async fn harness_refused_by_the_registry_is_reset() {
    let mut server = RegistryServer::start().await;
    let mut running = run(&server);
    let known = register(&mut server, "/r", "reg-1").await;
    let mut relay = RelayPeer::new(server.expect("GET", "/r").await.socket().await);
    let refusals = [
        (200, r#"{"valid":false}"#),
        (200, "{}"),
        (500, r#"{"valid":true}"#),
    ];
    for (number, (status, body)) in refusals.into_iter().enumerate() {
        let id = format!("stream-{number}");
        relay
            .start_handshake(&known, &id, &NoiseIdentity::generate())
            .await;
        server
            .expect("POST", VALIDATE)
            .await
            .reply(status, body)
            .await;
        relay.expect_reset(&id).await;
    }
    // An unresponsive registry delays only this stream, for ten seconds.
    let started_at = Instant::now();
    relay
        .start_handshake(&known, "slow", &NoiseIdentity::generate())
        .await;
    let silent = server.expect("POST", VALIDATE).await;
    admit(&mut server, &mut relay, &known, "quick").await;
    assert!(started_at.elapsed() < Duration::from_secs(1));
    let _link = running.links.recv().await.unwrap();
    relay.expect_reset("slow").await;
    assert_pause(started_at.elapsed(), &(10.0..=10.1));
    drop(silent);
}

#[tokio::test(start_paused = true)]
async fn refused_url_causes_a_new_registration_with_the_same_key() {
    let mut server = RegistryServer::start().await;
    let mut running = run(&server);
    let mut known = register(&mut server, "/0", "reg-0").await;
    for (number, status) in (1..).zip([400, 401, 403, 404, 409, 410, 429, 499]) {
        let request = server.expect("GET", &format!("/{}", number - 1)).await;
        let refused = request.at;
        request.reply(status, "").await;
        let request = server.expect("POST", REGISTER).await;
        assert_pause(request.at - refused, &(0.0..=0.0));
        let key = request.json()["executor_public_key"].clone();
        assert_eq!(key, serde_json::to_value(&known.key).unwrap());
        known.registration = format!("reg-{number}");
        let url = server.ws(&format!("/{number}"));
        request
            .reply(200, registered(&url, &known.registration))
            .await;
    }
    // Handshakes are bound to the new registration.
    let mut relay = RelayPeer::new(server.expect("GET", "/8").await.socket().await);
    admit(&mut server, &mut relay, &known, "stream-1").await;
    assert!(running.links.recv().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn other_failures_keep_the_url_and_back_off() {
    let mut server = RegistryServer::start().await;
    let _running = run(&server);
    register(&mut server, "/r", "reg-1").await;
    let answers = [500, 502, 503, 302, 200, 204, 0];
    let mut last = answer(server.expect("GET", "/r").await, 503).await;
    let mut ids = HashSet::new();
    for (pause, status) in BACKOFF.iter().zip(answers) {
        let request = server.expect("GET", "/r").await;
        assert_pause(request.at - last, pause);
        assert!(ids.insert(request.header("x-request-id").unwrap().to_owned()));
        last = answer(request, status).await;
    }
}

/// Responds with a status, or drops the connection for 0; returns the time.
async fn answer(request: Request, status: u16) -> Instant {
    match status {
        0 => drop(request),
        status => request.reply(status, "").await,
    }
    Instant::now()
}

#[tokio::test(start_paused = true)]
async fn unresponsive_rendezvous_times_out_after_ten_seconds() {
    let mut server = RegistryServer::start().await;
    let _running = run(&server);
    register(&mut server, "/r", "reg-1").await;
    let silent = server.expect("GET", "/r").await;
    let next = server.expect("GET", "/r").await;
    assert_pause(next.at - silent.at, &(10.5..=11.0));
}

#[tokio::test(start_paused = true)]
async fn invalid_rendezvous_url_is_retried_forever() {
    let mut server = RegistryServer::start().await;
    let running = run(&server);
    let request = server.expect("POST", REGISTER).await;
    request.reply(200, registered("nowhere", "reg-1")).await;
    server.expect_nothing(Duration::from_secs(3600)).await;
    assert!(!running.task.is_finished());
}

#[tokio::test(start_paused = true)]
async fn short_connections_back_off_too() {
    let mut server = RegistryServer::start().await;
    let mut running = run(&server);
    let known = register(&mut server, "/r", "reg-1").await;
    let mut socket = server.expect("GET", "/r").await.socket().await;
    for (number, pause) in BACKOFF[..4].iter().enumerate() {
        // Alternate between ending with and without a close frame.
        if number % 2 == 0 {
            socket.writer.close().await.unwrap();
        }
        let ended = Instant::now();
        drop(socket);
        // The same URL, without a new registration.
        let request = server.expect("GET", "/r").await;
        assert_pause(request.at - ended, pause);
        socket = request.socket().await;
    }
    let mut relay = RelayPeer::new(socket);
    admit(&mut server, &mut relay, &known, "stream-1").await;
    assert!(running.links.recv().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn only_a_connection_of_two_minutes_resets_the_backoff() {
    let mut server = RegistryServer::start().await;
    let _running = run(&server);
    register(&mut server, "/r", "reg-1").await;
    let mut request = server.expect("GET", "/r").await;
    let steps = [
        (0, &BACKOFF[0]),
        (0, &BACKOFF[1]),
        (119, &BACKOFF[2]),
        (121, &BACKOFF[0]),
        (119, &BACKOFF[1]),
        (600, &BACKOFF[0]),
    ];
    for (seconds, pause) in steps {
        let ended = last(request.socket().await, Duration::from_secs(seconds)).await;
        request = server.expect("GET", "/r").await;
        assert_pause(request.at - ended, pause);
    }
}

/// Keeps a connection open for a while, answering pings; returns the time of its end.
async fn last(mut socket: BinarySocket, duration: Duration) -> Instant {
    let serve = async {
        loop {
            tokio::select! {
                message = socket.reader.next() => panic!("{message:?}"),
                sent = poll_fn(|cx| socket.writer.poll_keepalive(cx)) => {
                    sent.unwrap();
                    socket.writer.flush().await.unwrap();
                }
            }
        }
    };
    assert!(timeout(duration, serve).await.is_err());
    Instant::now()
}

#[tokio::test(start_paused = true)]
async fn failed_registration_ends_the_executor() {
    for (status, body) in [
        (302, json!({})),
        (400, json!({})),
        (401, json!({})),
        (
            409,
            json!({"error": {"code": "registration_conflict", "message": ""}}),
        ),
        (429, json!({})),
        (500, json!({})),
        (503, json!({})),
        (200, json!({})),
    ] {
        // At start, and on a later registration.
        for later in [false, true] {
            let mut server = RegistryServer::start().await;
            let running = run(&server);
            if later {
                register(&mut server, "/r", "reg-1").await;
                server.expect("GET", "/r").await.reply(410, "").await;
            }
            server
                .expect("POST", REGISTER)
                .await
                .reply(status, &body)
                .await;
            let error = running.task.await.unwrap().unwrap_err();
            assert!(matches!(error, ExecutorError::Register { .. }), "{error:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn registration_conflict_is_retried_until_resolved() {
    let mut server = RegistryServer::start().await;
    let _running = run(&server);
    let conflict = json!({"error": {"code": "registration_conflict", "message": "wait"}});
    let unavailable =
        json!({"detail": {"code": "authentication_service_unavailable", "message": ""}});
    for _ in 0..5 {
        server
            .expect("POST", REGISTER)
            .await
            .reply(503, &conflict)
            .await;
        server
            .expect("POST", REGISTER)
            .await
            .reply(502, &unavailable)
            .await;
    }
    register(&mut server, "/r", "reg-1").await;
    drop(server.expect("GET", "/r").await);
}

#[tokio::test(start_paused = true)]
async fn stop_drops_the_websocket_without_close_frame() {
    let mut server = RegistryServer::start().await;
    let running = run(&server);
    register(&mut server, "/r", "reg-1").await;
    let mut socket = server.expect("GET", "/r").await.upgrade().await;
    running.stop.send(()).unwrap();
    assert!(running.task.await.unwrap().is_ok());
    let mut received = Vec::new();
    // A reset connection has not sent anything either.
    drop(socket.read_to_end(&mut received).await);
    assert_eq!(received, b"");
}

#[tokio::test(start_paused = true)]
async fn dropped_links_end_the_executor() {
    let mut server = RegistryServer::start().await;
    let running = run(&server);
    register(&mut server, "/r", "reg-1").await;
    let _socket = server.expect("GET", "/r").await.socket().await;
    drop(running.links);
    let error = running.task.await.unwrap().unwrap_err();
    assert!(matches!(error, ExecutorError::Abandoned), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn only_an_unauthorized_validate_is_reported_to_the_harness() {
    let mut server = RegistryServer::start().await;
    let running = run(&server);
    let known = register(&mut server, "/r", "reg-1").await;
    let mut relay = RelayPeer::new(server.expect("GET", "/r").await.socket().await);
    for (status, body) in [(403, ""), (500, ""), (200, r#"{"valid":false}"#)] {
        let id = format!("stream-{status}");
        relay
            .start_handshake(&known, &id, &NoiseIdentity::generate())
            .await;
        server
            .expect("POST", VALIDATE)
            .await
            .reply(status, body)
            .await;
        relay.expect_reset(&id).await;
    }
    let initiator = relay
        .start_handshake(&known, "stream-401", &NoiseIdentity::generate())
        .await;
    server.expect("POST", VALIDATE).await.reply(401, "").await;
    let FrameBody::Handshake(message) = relay.receive().await.body else {
        panic!("no handshake response");
    };
    let error = initiator.finish(&message).unwrap_err();
    assert_eq!(error, NoiseHandshakeError::RegistryAuthentication);
    drop(running);
}
