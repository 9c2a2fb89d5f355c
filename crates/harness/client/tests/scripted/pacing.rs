//! Coming back at the connector's own pace, and only to where the session is.

use std::time::Duration;

use exec_client::connector::Pause;
use exec_env::{
    disconnect::Disconnect,
    process::{ExecProcessEvent as Event, ProcessError},
};
use exec_wire::environment::ReadEnvironmentStatus;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    doors::House,
    server::{events, session, within},
};

/// One second after a failure, and then twice as long each time.
fn growing(failures: u32) -> Pause {
    Pause::AfterEnd(Duration::from_secs(1 << failures))
}

/// Returns the whole seconds between attempts, and that there is nothing else between them.
fn gaps(house: &House) -> Vec<u64> {
    let times = house.times();
    let apart = times.windows(2).map(|two| two[1] - two[0]);
    apart
        .map(|apart| {
            assert!(apart.subsec_millis() < 20, "{apart:?}");
            apart.as_secs()
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn attempts_are_as_far_apart_as_the_connector_says() {
    let (mut house, server, _client) = House::connect_at(growing).await;
    house.close(3);
    drop(server);
    house.resume().await;
    // The first is made at once.
    assert_eq!(gaps(&house), [0, 1, 2, 4]);
}

#[tokio::test(start_paused = true)]
async fn a_pause_begins_when_the_attempt_has_failed() {
    let (mut house, server, _client) = House::connect_at(growing).await;
    drop(server);
    let mut silent = house.knock().await;
    // Nobody answers for ten seconds.
    silent.expect("initialize").await;
    house.resume().await;
    assert_eq!(gaps(&house), [0, 11]);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_was_of_use_starts_over() {
    let (mut house, server, client) = House::connect_at(growing).await;
    house.close(2);
    drop(server);
    let mut server = house.resume().await;
    let call = client.call(ReadEnvironmentStatus);
    let answer = async {
        let asked = server.expect("environment/status").await;
        server.answer(&asked, json!({"status": "ready"})).await;
    };
    let (called, ()) = futures_util::join!(within(call), answer);
    called.unwrap();
    house.close(1);
    drop(server);
    house.resume().await;
    assert_eq!(gaps(&house), [0, 1, 2, 0, 1]);
}

#[tokio::test(start_paused = true)]
async fn another_server_in_the_same_place_ends_the_session_at_once() {
    let (mut house, mut server, client) = House::connect_at(growing).await;
    let process = server.start(&client, "p").await.process;
    house.move_out();
    drop(server);
    let failed = events(&process).await;
    let gone = "server hung up; session was not resumed: executor key changed";
    assert!(
        matches!(&failed[..], [Event::Failed(ProcessError::Disconnected(Disconnect::Session(text)))]
            if text == gone),
        "{failed:?}"
    );
    assert_eq!(house.times().len(), 1, "nobody knocked again");
    // Whoever asks for something gets a session there.
    let call = client.call(ReadEnvironmentStatus);
    let answer = async {
        let mut server = house.knock().await;
        let initialize = server.shake_hands(session("t")).await;
        assert_eq!(
            initialize["params"]
                .get("resumeSessionId")
                .cloned()
                .unwrap_or_default(),
            json!(null)
        );
        let asked = server.expect("environment/status").await;
        server.answer(&asked, json!({"status": "ready"})).await;
        server
    };
    let (called, _server) = futures_util::join!(within(call), answer);
    assert_eq!(called.unwrap().status, "ready");
    assert_eq!(client.session().session_id.as_str(), "t");
}

#[tokio::test(start_paused = true)]
async fn a_requested_retry_does_not_wait_for_the_backoff() {
    let (mut house, server, client) = House::connect_at(growing).await;
    house.close(5);
    let begin = Instant::now();
    drop(server);
    // The sixth attempt would begin 31 seconds after the first.
    sleep(Duration::from_secs(16)).await;
    house.close(0);
    client.retry_now();
    house.resume().await;
    assert_eq!(begin.elapsed().as_secs(), 16);
    assert_eq!(house.times().len(), 7);
}
