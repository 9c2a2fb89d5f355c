//! How long the service keeps sessions without a connection, and processes that have ended.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::client::{Client, Server};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn params() -> Value {
    json!({"processId": "p", "argv": ["write"], "cwd": "file:///", "env": {}, "tty": false})
}

/// Tells whether a process is still known.
async fn is_readable(client: &mut Client) -> bool {
    let read = client
        .call("process/read", &json!({"processId": "p"}))
        .await;
    read["result"].is_object()
}

/// Runs a process whose client is away from before its end until `absence` is over. Tells whether it
/// can still be read.
async fn read_after_an_outage(server: &mut Server, absence: Duration) -> bool {
    let mut client = server.connect(None).await;
    let started = server.start(&mut client, &params()).await;
    let session = client.session.clone();
    drop(client);
    sleep(SECOND).await;
    let process = started.written.unwrap();
    process.write(1);
    process.close();
    sleep(absence - SECOND).await;
    let mut client = server.connect(Some(&session)).await;
    is_readable(&mut client).await
}

#[tokio::test(start_paused = true)]
async fn a_process_that_ends_during_an_outage_is_readable_when_the_session_is_resumed() {
    let mut server = Server::new();
    for seconds in [38, 79] {
        let absence = Duration::from_secs(seconds);
        assert!(
            read_after_an_outage(&mut server, absence).await,
            "{seconds}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn finished_processes_are_kept_at_least_as_long_as_a_session_without_a_connection() {
    let mut server = Server::with_times(HOUR, SECOND);
    assert!(read_after_an_outage(&mut server, HOUR - SECOND).await);
}

#[tokio::test(start_paused = true)]
async fn retention_of_finished_processes_is_configured() {
    let mut server = Server::with_times(SECOND, HOUR);
    let mut client = server.connect(None).await;
    let started = server.start(&mut client, &params()).await;
    let process = started.written.unwrap();
    client.hear_up_to(process.close()).await;
    sleep(HOUR - SECOND).await;
    assert!(is_readable(&mut client).await);
    sleep(SECOND * 2).await;
    assert!(!is_readable(&mut client).await);
}

#[tokio::test(start_paused = true)]
async fn initialize_tells_how_long_a_session_is_kept() {
    for (ttl, told) in [(Duration::ZERO, 0), (SECOND, 1000), (HOUR, 3_600_000)] {
        let server = Server::with_ttl(ttl);
        let client = server.connect(None).await;
        assert_eq!(client.session_ttl_ms, told);
    }
    let client = Server::new().connect(None).await;
    assert_eq!(client.session_ttl_ms, 80_000);
}
