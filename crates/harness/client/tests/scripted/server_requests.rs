//! Server requests about the network of processes, and decision records.

use std::sync::{Arc, Mutex};

use exec_client::{
    backend::RemoteBackend,
    client::{ExecServerClient, ExecServerClientConnectOptions},
    connect::SessionContinuity,
};
use exec_env::{
    environment::{
        Command, CommandNetwork, DisconnectReason, ExecBackend, NetworkPolicyHook, StartedProcess,
    },
    process::{ExecProcessEvent as Event, ProcessError},
};
use exec_transport::memory;
use exec_wire::{
    environment::ReadEnvironmentStatus,
    id::ProcessId,
    network::{NetworkDecision, NetworkDestination, NetworkProtocol, PolicyDecision},
};
use futures_util::future::{BoxFuture, FutureExt, pending, ready};
use serde_json::{Value, json};
use tokio::{sync::Notify, task::yield_now, time::timeout};

use crate::{
    scripted_connector::ConnectorControl,
    scripted_server::{LIMIT, ScriptedServer, events, session, within},
};

/// Decides by the name of the host.
#[derive(Debug, Default)]
struct ScriptedHook {
    destinations: Mutex<Vec<NetworkDestination>>,
    recorded: Mutex<Vec<PolicyDecision>>,
    news: Notify,
}

impl NetworkPolicyHook for ScriptedHook {
    fn decide(&self, destination: NetworkDestination) -> BoxFuture<'static, NetworkDecision> {
        let host = destination.host.clone();
        self.destinations.lock().unwrap().push(destination);
        match &*host {
            "good" => ready(NetworkDecision::Allow).boxed(),
            "slow" => pending().boxed(),
            "broken" => panic!("scripted panic in decide"),
            _ => ready(NetworkDecision::Ask { reason: host }).boxed(),
        }
    }

    fn record(&self, decision: PolicyDecision) {
        assert_ne!(decision.host, "broken", "scripted panic in record");
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

impl ScriptedServer {
    async fn start_with_hook(
        &mut self,
        client: &ExecServerClient,
        network_hook: &Arc<ScriptedHook>,
        timeout_ms: Option<u64>,
    ) -> (StartedProcess, Value) {
        let backend = RemoteBackend::new(client.clone());
        let id = ProcessId::new("p").unwrap();
        let argv = vec!["true".to_owned()];
        let command = Command {
            network: CommandNetwork {
                enforced: true,
                managed: Some(serde_json::from_value(json!({"loopbackPorts": [80]})).unwrap()),
                proxy: Some(serde_json::from_value(proxy(timeout_ms)).unwrap()),
                policy_hook: Some(Arc::clone(network_hook) as Arc<dyn NetworkPolicyHook>),
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

    async fn request_decision(&mut self, id: i64, process: &str, host: &str) {
        let request = json!({"protocol": "https_connect", "host": host, "port": 443});
        let params = json!({"processId": process, "request": request});
        self.send(json!({"id": id, "method": "network/policyRequest", "params": params}))
            .await;
    }

    async fn receive(&mut self) -> Value {
        let message = timeout(LIMIT, self.0.reader.next())
            .await
            .expect("no response");
        serde_json::from_slice(&message.unwrap().unwrap()).unwrap()
    }
}

fn not_allowed(id: i64) -> Value {
    json!({"id": id, "result": {"decision": {"type": "deny", "reason": "not_allowed"}}})
}

#[tokio::test]
async fn policy_requests_reach_the_network_hook() {
    let (mut server, client) = ScriptedServer::connect().await;
    let network_hook = Arc::default();
    let (_process, start) = server
        .start_with_hook(&client, &network_hook, Some(60_000))
        .await;
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
    server.request_decision(1, "p", "good").await;
    let allowed = json!({"id": 1, "result": {"decision": {"type": "allow"}}});
    assert_eq!(server.receive().await, allowed);
    // A slow decision does not block others.
    server.request_decision(2, "p", "slow").await;
    server.request_decision(3, "p", "other").await;
    let ask_decision = json!({"id": 3, "result": {"decision": {"type": "ask", "reason": "other"}}});
    assert_eq!(server.receive().await, ask_decision);
    let expected = NetworkDestination {
        protocol: NetworkProtocol::HttpsConnect,
        host: "good".to_owned(),
        port: 443,
    };
    assert_eq!(network_hook.destinations.lock().unwrap()[0], expected);
}

#[tokio::test]
async fn undecided_destination_is_denied() {
    let (mut server, client) = ScriptedServer::connect().await;
    let network_hook = Arc::default();
    let (_process, _) = server
        .start_with_hook(&client, &network_hook, Some(1))
        .await;
    for (id, process, host) in [(1, "unknown", "good"), (2, "p", "slow"), (3, "p", "broken")] {
        server.request_decision(id, process, host).await;
        assert_eq!(server.receive().await, not_allowed(id));
    }
}

#[tokio::test]
async fn unsolicited_policy_request_is_denied() {
    let (mut server, client) = ScriptedServer::connect().await;
    let network_hook = Arc::default();
    let (_process, _) = server.start_with_hook(&client, &network_hook, None).await;
    server.request_decision(1, "p", "good").await;
    assert_eq!(server.receive().await, not_allowed(1));
    assert!(network_hook.destinations.lock().unwrap().is_empty());
}

#[tokio::test]
async fn pending_policy_requests_are_bounded() {
    let (mut server, client) = ScriptedServer::connect().await;
    let network_hook = Arc::default();
    let (_process, _) = server
        .start_with_hook(&client, &network_hook, Some(60_000))
        .await;
    for id in 1..=257 {
        server.request_decision(id, "p", "slow").await;
    }
    assert_eq!(server.receive().await, not_allowed(257));
}

#[tokio::test]
async fn unknown_requests_are_rejected() {
    let (mut server, client) = ScriptedServer::connect().await;
    let network_hook = Arc::default();
    server
        .send(json!({"id": "x", "method": "nope", "params": [1]}))
        .await;
    let refusal = server.receive().await;
    assert_eq!(refusal["id"], "x");
    assert_eq!(refusal["error"]["code"], -32601);
    let params = json!({"processId": "p"});
    server
        .send(json!({"id": 1, "method": "network/policyRequest", "params": params}))
        .await;
    let refusal = server.receive().await;
    assert_eq!(refusal["error"]["code"], -32602);
    let text = refusal["error"]["message"].as_str().unwrap();
    assert!(text.contains("request"), "{text}");
    let (_process, _) = server
        .start_with_hook(&client, &network_hook, Some(60_000))
        .await;
    server.request_decision(1, "p", "good").await;
    assert_eq!(
        server.receive().await["result"]["decision"]["type"],
        "allow"
    );
}

#[tokio::test]
async fn policy_requests_during_the_handshake_are_answered() {
    let (client_link, server_link) = memory::pair();
    let mut server = ScriptedServer(server_link);
    let connect = ExecServerClient::connect(client_link, ExecServerClientConnectOptions::default());
    let handshake = async {
        let initialize = server.expect("initialize").await;
        server.request_decision(1, "p", "good").await;
        server.answer(&initialize, session("s")).await;
        server.expect("initialized").await;
    };
    let (client, ()) = futures_util::join!(connect, handshake);
    let _client = client.unwrap();
    assert_eq!(server.receive().await, not_allowed(1));
}

#[tokio::test]
async fn policy_requests_do_not_survive_a_resume() {
    let (mut connector, mut server, client) = ConnectorControl::connect().await;
    let network_hook = Arc::default();
    let (_process, _) = server
        .start_with_hook(&client, &network_hook, Some(60_000))
        .await;
    server.request_decision(1, "p", "slow").await;
    // Requested first, so that the slow decision is pending.
    server.request_decision(2, "p", "good").await;
    server.receive().await;
    drop(server);
    let mut server = connector.accept().await;
    let initialize = server.expect("initialize").await;
    server.request_decision(1, "p", "good").await;
    server.answer(&initialize, session("s")).await;
    server.expect("initialized").await;
    server.expect("process/read").await;
    let allowed = json!({"id": 1, "result": {"decision": {"type": "allow"}}});
    assert_eq!(server.receive().await, allowed);
    for id in 2..=257 {
        server.request_decision(id, "p", "slow").await;
    }
    server.request_decision(258, "p", "good").await;
    assert_eq!(server.receive().await, not_allowed(258));
}

#[tokio::test]
async fn policy_decisions_reach_the_network_hook() {
    let (mut server, client) = ScriptedServer::connect().await;
    let network_hook: Arc<ScriptedHook> = Arc::default();
    let (_process, _) = server.start_with_hook(&client, &network_hook, None).await;
    let decision = |process: &str| {
        json!({
            "processId": process, "timestamp": "2026-01-01T00:00:00.000Z", "scope": "domain",
            "decision": "deny", "source": "baseline_policy", "reason": "not_allowed",
            "protocol": "http", "host": "example.com", "port": 80, "policyOverride": false,
            "somethingNew": 1,
        })
    };
    // Malformed and unknown records are ignored.
    for params in [
        json!({"processId": "p"}),
        decision("unknown"),
        decision("p"),
    ] {
        server
            .send(json!({"method": "network/policyDecision", "params": params}))
            .await;
    }
    timeout(LIMIT, network_hook.news.notified())
        .await
        .expect("not recorded");
    let recorded = network_hook.recorded.lock().unwrap();
    assert_eq!(recorded.len(), 1);
    assert_eq!(recorded[0].host, "example.com");
}

#[tokio::test]
async fn panic_in_the_driver_releases_all_waiters() {
    let (mut server, client) = ScriptedServer::connect().await;
    let network_hook: Arc<ScriptedHook> = Arc::default();
    let (started, _) = server.start_with_hook(&client, &network_hook, None).await;
    let call = client.call(ReadEnvironmentStatus);
    server.expect("environment/status").await;
    let decision = json!({
        "processId": "p", "timestamp": "2026-01-01T00:00:00.000Z", "scope": "domain",
        "decision": "deny", "source": "baseline_policy", "reason": "not_allowed",
        "protocol": "http", "host": "broken", "port": 80, "policyOverride": false,
    });
    server
        .send(json!({"method": "network/policyDecision", "params": decision}))
        .await;
    let reason = DisconnectReason::Transport("the client's driver was stopped".to_owned());
    let error = ProcessError::Disconnected(reason.clone());
    assert_eq!(events(&started.process).await, [Event::Failed(error)]);
    assert_eq!(within(call).await, Err(reason.into()));
    within(client.closed()).await;
}

#[tokio::test]
async fn process_dropped_without_a_connection_is_freed() {
    for continuity in [SessionContinuity::Ended, SessionContinuity::Resumed] {
        let (connector, mut server, client) =
            ConnectorControl::connect_to(continuity, session("s")).await;
        let network_hook: Arc<ScriptedHook> = Arc::default();
        let (started, _) = server.start_with_hook(&client, &network_hook, None).await;
        connector.fail_attempts(usize::MAX);
        let mut connection = client.connection();
        drop(server);
        within(connection.changed()).await.unwrap();
        drop((started, client));
        let let_go = async {
            while Arc::strong_count(&network_hook) > 1 {
                yield_now().await;
            }
        };
        within(let_go).await;
    }
}
