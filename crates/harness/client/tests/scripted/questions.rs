//! What a server asks and tells about the network of processes.

use std::sync::{Arc, Mutex};

use exec_client::{
    backend::RemoteBackend, client::ExecServerClient, connector::Continuity,
    options::ExecServerClientConnectOptions,
};
use exec_env::{
    backend::{ExecBackend, StartedProcess},
    command::Command,
    disconnect::Disconnect,
    network::{Network, NetworkWatcher},
    process::{ExecProcessEvent as Event, ProcessError},
};
use exec_transport::memory;
use exec_wire::{
    environment::ReadEnvironmentStatus,
    id::ProcessId,
    network::{Decision, Destination, NetworkProtocol, PolicyDecision},
};
use futures_util::future::{BoxFuture, FutureExt, pending, ready};
use serde_json::{Value, json};
use tokio::{sync::Notify, task::yield_now, time::timeout};

use crate::{
    doors::House,
    server::{LIMIT, Server, events, session, within},
};

/// Decides by the name of the host.
#[derive(Debug, Default)]
struct Watcher {
    asked: Mutex<Vec<Destination>>,
    recorded: Mutex<Vec<PolicyDecision>>,
    news: Notify,
}

impl NetworkWatcher for Watcher {
    fn decide(&self, destination: Destination) -> BoxFuture<'static, Decision> {
        let host = destination.host.clone();
        self.asked.lock().unwrap().push(destination);
        match &*host {
            "good" => ready(Decision::Allow).boxed(),
            "slow" => pending().boxed(),
            "broken" => panic!("whoever decides may fail"),
            _ => ready(Decision::Ask { reason: host }).boxed(),
        }
    }

    fn record(&self, decision: PolicyDecision) {
        assert_ne!(decision.host, "broken", "whoever records may fail");
        self.recorded.lock().unwrap().push(decision);
        self.news.notify_one();
    }
}

fn proxy(timeout_ms: Option<u64>) -> Value {
    json!({
        "proxy": {
            "enabled": true, "enableSocks5": false, "enableSocks5Udp": false,
            "allowUpstreamProxy": false, "dangerouslyAllowAllUnixSockets": false,
            "allowLocalBinding": false, "mode": "full", "domains": null, "unixSockets": null,
        },
        "policyDecisionTimeoutMs": timeout_ms,
    })
}

impl Server {
    async fn start_watched(
        &mut self,
        client: &ExecServerClient,
        watcher: &Arc<Watcher>,
        timeout_ms: Option<u64>,
    ) -> (StartedProcess, Value) {
        let backend = RemoteBackend::new(client.clone());
        let id = ProcessId::new("p").unwrap();
        let argv = vec!["true".to_owned()];
        let command = Command {
            network: Network {
                enforced: true,
                managed: Some(serde_json::from_value(json!({"loopbackPorts": [80]})).unwrap()),
                proxy: Some(serde_json::from_value(proxy(timeout_ms)).unwrap()),
                watcher: Some(Arc::clone(watcher) as Arc<dyn NetworkWatcher>),
            },
            ..Command::new(id, argv, "file:///".parse().unwrap())
        };
        let accept = async {
            let start = self.expect("process/start").await;
            self.answer(&start, json!({"processId": "p"})).await;
            start
        };
        let (started, start) = futures_util::join!(backend.start(command), accept);
        (started.unwrap(), start)
    }

    async fn ask(&mut self, id: i64, process: &str, host: &str) {
        let request = json!({"protocol": "https_connect", "host": host, "port": 443});
        let params = json!({"processId": process, "request": request});
        self.say(json!({"id": id, "method": "network/policyRequest", "params": params}))
            .await;
    }

    async fn hear(&mut self) -> Value {
        let message = timeout(LIMIT, self.0.reader.next())
            .await
            .expect("an answer comes");
        serde_json::from_slice(&message.unwrap().unwrap()).unwrap()
    }
}

fn not_allowed(id: i64) -> Value {
    json!({"id": id, "result": {"decision": {"type": "deny", "reason": "not_allowed"}}})
}

#[tokio::test]
async fn whoever_watches_a_process_is_asked_about_its_network() {
    let (mut server, client) = Server::connect().await;
    let watcher = Arc::default();
    let (_process, start) = server.start_watched(&client, &watcher, Some(60_000)).await;
    assert_eq!(start["params"]["networkProxy"]["proxy"]["mode"], "full");
    assert_eq!(
        start["params"]["networkProxy"]["policyDecisionTimeoutMs"],
        60_000
    );
    assert_eq!(
        start["params"]["managedNetwork"]["loopbackPorts"],
        json!([80])
    );
    assert_eq!(start["params"]["enforceManagedNetwork"], true);
    server.ask(1, "p", "good").await;
    let allowed = json!({"id": 1, "result": {"decision": {"type": "allow"}}});
    assert_eq!(server.hear().await, allowed);
    // One that takes its time holds up nobody.
    server.ask(2, "p", "slow").await;
    server.ask(3, "p", "other").await;
    let asks = json!({"id": 3, "result": {"decision": {"type": "ask", "reason": "other"}}});
    assert_eq!(server.hear().await, asks);
    let expected = Destination {
        protocol: NetworkProtocol::HttpsConnect,
        host: "good".to_owned(),
        port: 443,
    };
    assert_eq!(watcher.asked.lock().unwrap()[0], expected);
}

#[tokio::test]
async fn what_nobody_decides_is_denied() {
    let (mut server, client) = Server::connect().await;
    let watcher = Arc::default();
    let (_process, _) = server.start_watched(&client, &watcher, Some(1)).await;
    for (id, process, host) in [(1, "unknown", "good"), (2, "p", "slow"), (3, "p", "broken")] {
        server.ask(id, process, host).await;
        assert_eq!(server.hear().await, not_allowed(id));
    }
}

#[tokio::test]
async fn a_server_that_was_not_told_to_ask_is_denied() {
    let (mut server, client) = Server::connect().await;
    let watcher = Arc::default();
    let (_process, _) = server.start_watched(&client, &watcher, None).await;
    server.ask(1, "p", "good").await;
    assert_eq!(server.hear().await, not_allowed(1));
    assert!(watcher.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn only_so_many_questions_are_thought_about() {
    let (mut server, client) = Server::connect().await;
    let watcher = Arc::default();
    let (_process, _) = server.start_watched(&client, &watcher, Some(60_000)).await;
    for id in 1..=257 {
        server.ask(id, "p", "slow").await;
    }
    assert_eq!(server.hear().await, not_allowed(257));
}

#[tokio::test]
async fn requests_that_a_client_does_not_know_are_refused_and_change_nothing() {
    let (mut server, client) = Server::connect().await;
    let watcher = Arc::default();
    server
        .say(json!({"id": "x", "method": "nope", "params": [1]}))
        .await;
    let refusal = server.hear().await;
    assert_eq!(refusal["id"], "x");
    assert_eq!(refusal["error"]["code"], -32601);
    let params = json!({"processId": "p"});
    server
        .say(json!({"id": 1, "method": "network/policyRequest", "params": params}))
        .await;
    let refusal = server.hear().await;
    assert_eq!(refusal["error"]["code"], -32602);
    let text = refusal["error"]["message"].as_str().unwrap();
    assert!(text.contains("request"), "{text}");
    let (_process, _) = server.start_watched(&client, &watcher, Some(60_000)).await;
    server.ask(1, "p", "good").await;
    assert_eq!(server.hear().await["result"]["decision"]["type"], "allow");
}

#[tokio::test]
async fn questions_before_the_session_is_there_are_answered_too() {
    let (here, there) = memory::pair();
    let mut server = Server(there);
    let connect = ExecServerClient::connect(here, ExecServerClientConnectOptions::default());
    let shake = async {
        let initialize = server.expect("initialize").await;
        server.ask(1, "p", "good").await;
        server.answer(&initialize, session("s")).await;
        server.expect("initialized").await;
    };
    let (client, ()) = futures_util::join!(connect, shake);
    let _client = client.unwrap();
    assert_eq!(server.hear().await, not_allowed(1));
}

#[tokio::test]
async fn questions_are_answered_after_a_resume_and_those_before_it_are_forgotten() {
    let (mut house, mut server, client) = House::connect().await;
    let watcher = Arc::default();
    let (_process, _) = server.start_watched(&client, &watcher, Some(60_000)).await;
    server.ask(1, "p", "slow").await;
    // Asked before, so that the slow one is being thought about.
    server.ask(2, "p", "good").await;
    server.hear().await;
    drop(server);
    let mut server = house.knock().await;
    let initialize = server.expect("initialize").await;
    server.ask(1, "p", "good").await;
    server.answer(&initialize, session("s")).await;
    server.expect("initialized").await;
    server.expect("process/read").await;
    let allowed = json!({"id": 1, "result": {"decision": {"type": "allow"}}});
    assert_eq!(server.hear().await, allowed);
    for id in 2..=257 {
        server.ask(id, "p", "slow").await;
    }
    server.ask(258, "p", "good").await;
    assert_eq!(server.hear().await, not_allowed(258));
}

#[tokio::test]
async fn decisions_are_recorded_by_whoever_watches_the_process() {
    let (mut server, client) = Server::connect().await;
    let watcher: Arc<Watcher> = Arc::default();
    let (_process, _) = server.start_watched(&client, &watcher, None).await;
    let decision = |process: &str| {
        json!({
            "processId": process, "timestamp": "2026-01-01T00:00:00.000Z", "scope": "domain",
            "decision": "deny", "source": "baseline_policy", "reason": "not_allowed",
            "protocol": "http", "host": "example.com", "port": 80, "policyOverride": false,
            "somethingNew": 1,
        })
    };
    // What is not understood, or nobody's, is lost.
    for params in [
        json!({"processId": "p"}),
        decision("unknown"),
        decision("p"),
    ] {
        server
            .say(json!({"method": "network/policyDecision", "params": params}))
            .await;
    }
    timeout(LIMIT, watcher.news.notified())
        .await
        .expect("it is recorded");
    let recorded = watcher.recorded.lock().unwrap();
    assert_eq!(recorded.len(), 1);
    assert_eq!(recorded[0].host, "example.com");
}

#[tokio::test]
async fn whoever_stops_the_client_by_a_panic_leaves_nobody_waiting() {
    let (mut server, client) = Server::connect().await;
    let watcher: Arc<Watcher> = Arc::default();
    let (started, _) = server.start_watched(&client, &watcher, None).await;
    let call = client.call(ReadEnvironmentStatus);
    server.expect("environment/status").await;
    let decision = json!({
        "processId": "p", "timestamp": "2026-01-01T00:00:00.000Z", "scope": "domain",
        "decision": "deny", "source": "baseline_policy", "reason": "not_allowed",
        "protocol": "http", "host": "broken", "port": 80, "policyOverride": false,
    });
    server
        .say(json!({"method": "network/policyDecision", "params": decision}))
        .await;
    let gone = Disconnect::Transport("the client's task was stopped".to_owned());
    let error = ProcessError::Disconnected(gone.clone());
    assert_eq!(events(&started.process).await, [Event::Failed(error)]);
    assert_eq!(within(call).await, Err(gone.into()));
    within(client.closed()).await;
}

#[tokio::test]
async fn a_process_that_is_let_go_of_without_a_connection_is_not_kept() {
    for continuity in [Continuity::Ended, Continuity::Resumed] {
        let (house, mut server, client) = House::connect_to(continuity, session("s")).await;
        let watcher: Arc<Watcher> = Arc::default();
        let (started, _) = server.start_watched(&client, &watcher, None).await;
        house.close(usize::MAX);
        let mut connection = client.connection();
        drop(server);
        within(connection.changed()).await.unwrap();
        drop((started, client));
        let let_go = async {
            while Arc::strong_count(&watcher) > 1 {
                yield_now().await;
            }
        };
        within(let_go).await;
    }
}
