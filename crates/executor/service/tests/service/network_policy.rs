//! Network policy requests, decision notifications and start parameters of the proxy.

use std::{sync::Arc, time::Duration};

use exec_env::environment::NetworkPolicyHook;
use exec_wire::network::{NetworkDecision, NetworkDestination, NetworkProtocol, PolicyDecision};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::Instant};

use crate::test_client::{Client, Server, end, has_proxy, params};

/// Requests a decision about a host in a new task.
fn request_decision(
    watcher: &Arc<dyn NetworkPolicyHook>,
    host: &str,
) -> JoinHandle<NetworkDecision> {
    tokio::spawn(watcher.decide(NetworkDestination {
        protocol: NetworkProtocol::HttpsConnect,
        host: host.to_owned(),
        port: 443,
    }))
}

fn not_allowed() -> NetworkDecision {
    NetworkDecision::Deny {
        reason: "not_allowed".to_owned(),
    }
}

async fn allow(client: &mut Client, request: &Value) {
    let decision = json!({"decision": {"type": "allow"}});
    client
        .send(json!({"id": request["id"], "result": decision}))
        .await;
}

#[tokio::test(start_paused = true)]
async fn client_is_asked_and_decides() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let process = server.start(&mut client, &params("p", Some(500))).await;
    let decision = request_decision(process.watcher(), "example.com");
    let request = client.expect_policy_request().await;
    assert_eq!(
        request,
        json!({
            "id": 1, "method": "network/policyRequest",
            "params": {
                "processId": "p",
                "request": {"protocol": "https_connect", "host": "example.com", "port": 443},
            },
        })
    );
    // Unsolicited and invalid responses do not affect other requests.
    client.send(json!({"id": 7, "result": {}})).await;
    let second = request_decision(process.watcher(), "two.example.com");
    assert_eq!(client.expect_policy_request().await["id"], 2);
    client
        .send(json!({"id": 2, "error": {"code": -32601, "message": "no"}}))
        .await;
    assert_eq!(second.await.unwrap(), not_allowed());
    allow(&mut client, &request).await;
    assert_eq!(decision.await.unwrap(), NetworkDecision::Allow);
}

#[tokio::test(start_paused = true)]
async fn missing_response_is_a_denial_after_the_decision_timeout_and_grace() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let process = server.start(&mut client, &params("p", Some(500))).await;
    let since = Instant::now();
    let decision = request_decision(process.watcher(), "example.com");
    let request = client.expect_policy_request().await;
    assert_eq!(decision.await.unwrap(), not_allowed());
    let waited = since.elapsed();
    let expected = Duration::from_millis(5500);
    assert!(waited >= expected && waited < expected * 2, "{waited:?}");
    // A late response is ignored.
    allow(&mut client, &request).await;
    let status = client.call("environment/status", &json!({})).await;
    assert_eq!(status["result"]["status"], "ready");
}

#[tokio::test(start_paused = true)]
async fn client_without_a_decision_timeout_is_not_asked() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let process = server.start(&mut client, &params("p", None)).await;
    let since = Instant::now();
    assert_eq!(
        request_decision(process.watcher(), "a").await.unwrap(),
        not_allowed()
    );
    assert_eq!(since.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn at_most_256_requests_are_pending() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let process = server.start(&mut client, &params("p", Some(60_000))).await;
    let mut decisions = Vec::new();
    for _ in 0..256 {
        decisions.push(request_decision(process.watcher(), "a"));
        client.expect_policy_request().await;
    }
    let since = Instant::now();
    assert_eq!(
        request_decision(process.watcher(), "a").await.unwrap(),
        not_allowed()
    );
    assert_eq!(since.elapsed(), Duration::ZERO);
    allow(&mut client, &json!({"id": 9})).await;
    assert_eq!(decisions.remove(8).await.unwrap(), NetworkDecision::Allow);
    let decision = request_decision(process.watcher(), "a");
    let request = client.expect_policy_request().await;
    allow(&mut client, &request).await;
    assert_eq!(decision.await.unwrap(), NetworkDecision::Allow);
}

#[tokio::test(start_paused = true)]
async fn detached_session_denies_and_resumed_session_asks_again() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let process = server.start(&mut client, &params("p", Some(60_000))).await;
    let since = Instant::now();
    let decision = request_decision(process.watcher(), "a");
    client.expect_policy_request().await;
    let session = client.session.clone();
    drop(client);
    assert_eq!(decision.await.unwrap(), not_allowed());
    assert_eq!(
        request_decision(process.watcher(), "a").await.unwrap(),
        not_allowed()
    );
    assert!(since.elapsed() < Duration::from_secs(5));
    let mut client = server.connect(Some(&session)).await;
    let decision = request_decision(process.watcher(), "a");
    let request = client.expect_policy_request().await;
    assert_eq!(request["id"], 1, "each connection numbers its own");
    allow(&mut client, &request).await;
    assert_eq!(decision.await.unwrap(), NetworkDecision::Allow);
}

#[tokio::test(start_paused = true)]
async fn detached_process_asks_the_connection_that_started_it() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let mut params = params("p", Some(60_000));
    params["detached"] = json!(true);
    let process = server.start(&mut client, &params).await;
    let decision = request_decision(process.watcher(), "a");
    let request = client.expect_policy_request().await;
    allow(&mut client, &request).await;
    assert_eq!(decision.await.unwrap(), NetworkDecision::Allow);
    let session = client.session.clone();
    drop(client);
    let client = server.connect(Some(&session)).await;
    assert_eq!(
        request_decision(process.watcher(), "a").await.unwrap(),
        not_allowed()
    );
    drop(client);
}

#[tokio::test(start_paused = true)]
async fn requests_of_an_ended_process_are_denied() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let process = server.start(&mut client, &params("p", Some(60_000))).await;
    let since = Instant::now();
    let decision = request_decision(process.watcher(), "a");
    client.expect_policy_request().await;
    end(&process.process);
    assert_eq!(decision.await.unwrap(), not_allowed());
    assert!(since.elapsed() < Duration::from_secs(5));
}

pub(crate) fn denied_decision(host: &str) -> PolicyDecision {
    let decision = json!({
        "processId": "whoever", "timestamp": "2026-01-01T00:00:00.000Z", "scope": "domain",
        "decision": "deny", "source": "baseline_policy", "reason": "not_allowed",
        "protocol": "http", "host": host, "port": 80, "policyOverride": false,
    });
    serde_json::from_value(decision).unwrap()
}

#[tokio::test(start_paused = true)]
async fn decisions_are_sent_to_the_client() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let process = server.start(&mut client, &params("p", None)).await;
    process.watcher().record(denied_decision("example.com"));
    let notification = client.receive().await;
    assert_eq!(notification["method"], "network/policyDecision");
    assert_eq!(notification["params"]["processId"], "p");
    assert_eq!(notification["params"]["host"], "example.com");
    assert_eq!(notification["params"].get("method"), None);
}

#[tokio::test(start_paused = true)]
async fn decision_notifications_are_dropped_when_the_queue_is_full_but_responses_are_not() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let process = server.start(&mut client, &params("p", None)).await;
    // The writer cannot run before this task yields, so the notifications exceed the queue.
    let host = "h".repeat(1 << 16);
    for _ in 0..100 {
        process.watcher().record(denied_decision(&host));
    }
    client
        .send(json!({"id": "call", "method": "environment/status", "params": {}}))
        .await;
    let mut records = 0;
    while client.receive().await["method"] == "network/policyDecision" {
        records += 1;
    }
    assert!((10..20).contains(&records), "{records}");
}

async fn refusal(params: &Value) -> String {
    let server = Server::new();
    let mut client = server.connect(None).await;
    let answer = client.call("process/start", params).await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    answer["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn zero_decision_timeout_is_rejected() {
    let text = refusal(&params("p", Some(0))).await;
    assert!(
        text.contains("networkProxy.policyDecisionTimeoutMs"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn process_id_too_long_for_policy_requests_is_rejected() {
    for id in ["", &"p".repeat(257)] {
        let text = refusal(&params(id, Some(1))).await;
        assert!(text.contains("processId"), "{text}");
    }
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let longest = "p".repeat(256);
    for (id, timeout_ms) in [(&*longest, Some(1)), ("", None), (&"p".repeat(257), None)] {
        let started = server.start(&mut client, &params(id, timeout_ms)).await;
        assert!(has_proxy(&started.command));
        assert!(started.command.network.policy_hook.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn missing_proxy_setting_is_rejected_by_name() {
    for member in [
        "enabled",
        "enableSocks5",
        "enableSocks5Udp",
        "allowUpstreamProxy",
        "dangerouslyAllowAllUnixSockets",
        "allowLocalBinding",
        "mode",
    ] {
        let mut params = params("p", None);
        let proxy = params["networkProxy"]["proxy"].as_object_mut().unwrap();
        proxy.remove(member);
        let text = refusal(&params).await;
        assert!(text.contains("networkProxy.proxy"), "{text}");
        assert!(text.contains(member), "{text}");
    }
    let mut params = params("p", None);
    params["networkProxy"]["proxy"]["mode"] = json!("open");
    let text = refusal(&params).await;
    assert!(text.contains("networkProxy.proxy.mode"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn environment_and_execution_ids_are_not_validated() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let mut params = params("p", None);
    params["networkProxy"]["environmentId"] = json!("");
    params["networkProxy"]["executionId"] = json!("x\n".repeat(1000));
    let started = server.start(&mut client, &params).await;
    let proxy = started.command.network.proxy.unwrap();
    assert_eq!(proxy.environment_id.as_deref(), Some(""));
}

#[tokio::test(start_paused = true)]
async fn process_without_a_proxy_has_no_watcher() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let mut params = params("p", None);
    params["networkProxy"] = Value::Null;
    params["enforceManagedNetwork"] = json!(true);
    params["managedNetwork"] = json!({"loopbackPorts": [80]});
    let network = server.start(&mut client, &params).await.command.network;
    assert!(network.policy_hook.is_none() && network.enforced);
    assert_eq!(network.managed.unwrap().loopback_ports, [80]);
}

#[tokio::test(start_paused = true)]
async fn malformed_sandbox_policy_is_rejected_by_name() {
    let entry = |path: Value, access: &str| {
        json!({
            "permissions": {
                "type": "managed",
                "file_system": {"type": "restricted", "entries": [{"path": path, "access": access}]},
                "network": "restricted",
            },
            "windowsSandboxLevel": "disabled",
        })
    };
    let root = json!({"type": "special", "value": {"kind": "root"}});
    let odd = json!({"type": "special", "value": {"kind": "odd"}});
    let nowhere = json!({"type": "path", "path": "/native"});
    let disabled = json!({"type": "disabled"});
    for (sandbox, culprit) in [
        (entry(odd, "read"), "odd"),
        (entry(root, "execute"), "execute"),
        (entry(nowhere, "read"), "URI"),
        (json!({"permissions": disabled}), "windowsSandboxLevel"),
        (json!({"windowsSandboxLevel": "disabled"}), "permissions"),
        (json!("read-only"), "sandbox"),
    ] {
        let mut params = params("p", None);
        params["sandbox"] = sandbox;
        let text = refusal(&params).await;
        assert!(text.contains(culprit) && text.contains("sandbox"), "{text}");
    }
}
