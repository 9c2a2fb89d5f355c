//! Metrics of sessions, requests and network decisions.

use std::time::Duration;

use exec_env::process::ProcessError;
use exec_service::metrics::RequestOutcome;
use exec_wire::{limits, method::MethodName};
use serde_json::json;
use tokio::time::sleep;

use crate::{
    network_policy::denied_decision,
    test_client::{Server, params},
};

/// Waits for a condition on the paused clock.
async fn wait_for(server: &Server, condition: impl Fn(&Server) -> bool) {
    for _ in 0..100 {
        if condition(server) {
            return;
        }
        sleep(Duration::from_millis(1)).await;
    }
    panic!("{:?}", server.service.gauges());
}

#[tokio::test(start_paused = true)]
async fn resumed_and_expired_sessions_are_counted() {
    let server = Server::new();
    let client = server.connect(None).await;
    let session = client.session.clone();
    assert_eq!(server.service.gauges().sessions_attached, 1);
    drop(client);
    wait_for(&server, |server| {
        server.service.gauges().sessions_detached == 1
    })
    .await;
    let client = server.connect(Some(&session)).await;
    let levels = server.service.gauges();
    assert_eq!((levels.sessions_attached, levels.sessions_detached), (1, 0));
    drop(client);
    sleep(limits::SESSION_TTL + Duration::from_secs(1)).await;
    let (levels, meters) = (server.service.gauges(), server.service.metrics());
    assert_eq!((levels.sessions_attached, levels.sessions_detached), (0, 0));
    assert_eq!(meters.sessions_opened.value(), 1);
    assert_eq!(meters.sessions_resumed.value(), 1);
    assert_eq!(meters.sessions_expired.value(), 1);
    assert_eq!(meters.connections_opened.value(), 2);
    assert_eq!(meters.connections.value(), 0);
}

#[tokio::test(start_paused = true)]
async fn request_is_counted_as_cancelled_if_its_connection_ends_first() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let _process = server.start(&mut client, &params("p", None)).await;
    let wait = json!({"id": 9, "method": "process/wait", "params": {"processId": "p"}});
    client.send(wait).await;
    wait_for(&server, |server| {
        server.service.metrics().requests.in_flight.value() == 1
    })
    .await;
    drop(client);
    wait_for(&server, |server| {
        server.service.metrics().requests.in_flight.value() == 0
    })
    .await;
    let requests = &server.service.metrics().requests;
    let waits = requests
        .called_methods()
        .find(|metrics| metrics.method == MethodName::ProcessWait);
    let outcomes: Vec<_> = waits.unwrap().outcomes().collect();
    assert_eq!(outcomes, [(RequestOutcome::Cancelled, 1)]);
    assert_eq!(waits.unwrap().latency.values().count, 0);
}

#[tokio::test(start_paused = true)]
async fn processes_and_network_decisions_are_counted() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let process = server.start(&mut client, &params("p", None)).await;
    let again = client.call("process/start", &params("p", None)).await;
    assert!(again["error"].is_object(), "{again}");
    process.watcher().record(denied_decision("example.com"));
    client.receive().await;
    let levels = server.service.gauges();
    assert_eq!(
        (levels.processes_running, levels.processes_finished),
        (1, 0)
    );
    process.process.fail(ProcessError::Terminated);
    let lost = |server: &Server| {
        let ended = &server.service.metrics().processes_ended;
        ended.values().any(|ended| ended == ("lost", 1))
    };
    // The process failed without an exit status.
    wait_for(&server, lost).await;
    let meters = server.service.metrics();
    assert_eq!(meters.processes_started.value(), 1);
    let refused: Vec<_> = meters
        .start_failures
        .values()
        .filter(|(_, count)| *count > 0)
        .collect();
    assert_eq!(refused, [("table", 1)]);
    let decided: Vec<_> = meters
        .network_decisions
        .values()
        .filter(|(_, count)| *count > 0)
        .collect();
    assert_eq!(decided, [("deny", 1)]);
}
