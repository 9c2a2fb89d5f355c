//! Questions, and what becomes of them.

use std::{sync::Arc, time::Duration};

use exec_env::network::NetworkWatcher;
use exec_wire::network::{Decision, Destination, NetworkProtocol, PolicyDecision};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::Instant};

use crate::test_client::{Client, Server, has_proxy, params};

/// Asks about a host, in a task.
fn ask(watcher: &Arc<dyn NetworkWatcher>, host: &str) -> JoinHandle<Decision> {
    tokio::spawn(watcher.decide(Destination {
        protocol: NetworkProtocol::HttpsConnect,
        host: host.to_owned(),
        port: 443,
    }))
}

fn not_allowed() -> Decision {
    Decision::Deny {
        reason: "not_allowed".to_owned(),
    }
}

async fn allow(client: &mut Client, question: &Value) {
    let decision = json!({"decision": {"type": "allow"}});
    client
        .say(json!({"id": question["id"], "result": decision}))
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_client_is_asked_and_decides() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let process = server.start(&mut client, &params("p", Some(500))).await;
    let decision = ask(process.watcher(), "example.com");
    let question = client.asked().await;
    assert_eq!(
        question,
        json!({
            "id": 1, "method": "network/policyRequest",
            "params": {
                "processId": "p",
                "request": {"protocol": "https_connect", "host": "example.com", "port": 443},
            },
        })
    );
    // Answers to what was not asked, or is no decision, change nothing for the others.
    client.say(json!({"id": 7, "result": {}})).await;
    let second = ask(process.watcher(), "two.example.com");
    assert_eq!(client.asked().await["id"], 2);
    client
        .say(json!({"id": 2, "error": {"code": -32601, "message": "no"}}))
        .await;
    assert_eq!(second.await.unwrap(), not_allowed());
    allow(&mut client, &question).await;
    assert_eq!(decision.await.unwrap(), Decision::Allow);
}

#[tokio::test(start_paused = true)]
async fn silence_is_a_denial_after_the_clients_budget_and_five_seconds() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let process = server.start(&mut client, &params("p", Some(500))).await;
    let since = Instant::now();
    let decision = ask(process.watcher(), "example.com");
    let question = client.asked().await;
    assert_eq!(decision.await.unwrap(), not_allowed());
    let waited = since.elapsed();
    let expected = Duration::from_millis(5500);
    assert!(waited >= expected && waited < expected * 2, "{waited:?}");
    // A late answer is nobody's.
    allow(&mut client, &question).await;
    let status = client.call("environment/status", &json!({})).await;
    assert_eq!(status["result"]["status"], "ready");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_did_not_ask_for_it_is_not_asked() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let process = server.start(&mut client, &params("p", None)).await;
    let since = Instant::now();
    assert_eq!(ask(process.watcher(), "a").await.unwrap(), not_allowed());
    assert_eq!(since.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn at_most_256_questions_wait() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let process = server.start(&mut client, &params("p", Some(60_000))).await;
    let mut decisions = Vec::new();
    for _ in 0..256 {
        decisions.push(ask(process.watcher(), "a"));
        client.asked().await;
    }
    let since = Instant::now();
    assert_eq!(ask(process.watcher(), "a").await.unwrap(), not_allowed());
    assert_eq!(since.elapsed(), Duration::ZERO);
    allow(&mut client, &json!({"id": 9})).await;
    assert_eq!(decisions.remove(8).await.unwrap(), Decision::Allow);
    let decision = ask(process.watcher(), "a");
    let question = client.asked().await;
    allow(&mut client, &question).await;
    assert_eq!(decision.await.unwrap(), Decision::Allow);
}

#[tokio::test(start_paused = true)]
async fn a_detached_session_denies_and_a_resumed_one_asks_again() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let process = server.start(&mut client, &params("p", Some(60_000))).await;
    let since = Instant::now();
    let decision = ask(process.watcher(), "a");
    client.asked().await;
    let session = client.session.clone();
    drop(client);
    assert_eq!(decision.await.unwrap(), not_allowed());
    assert_eq!(ask(process.watcher(), "a").await.unwrap(), not_allowed());
    assert!(since.elapsed() < Duration::from_secs(5));
    let mut client = server.connect(Some(&session)).await;
    let decision = ask(process.watcher(), "a");
    let question = client.asked().await;
    assert_eq!(question["id"], 1, "each connection numbers its own");
    allow(&mut client, &question).await;
    assert_eq!(decision.await.unwrap(), Decision::Allow);
}

#[tokio::test(start_paused = true)]
async fn a_process_of_the_servers_asks_who_started_it() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let mut params = params("p", Some(60_000));
    params["detached"] = json!(true);
    let process = server.start(&mut client, &params).await;
    let decision = ask(process.watcher(), "a");
    let question = client.asked().await;
    allow(&mut client, &question).await;
    assert_eq!(decision.await.unwrap(), Decision::Allow);
    let session = client.session.clone();
    drop(client);
    let client = server.connect(Some(&session)).await;
    assert_eq!(ask(process.watcher(), "a").await.unwrap(), not_allowed());
    drop(client);
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_for_a_process_that_is_over_is_denied() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let process = server.start(&mut client, &params("p", Some(60_000))).await;
    let since = Instant::now();
    let decision = ask(process.watcher(), "a");
    client.asked().await;
    process.end();
    assert_eq!(decision.await.unwrap(), not_allowed());
    assert!(since.elapsed() < Duration::from_secs(5));
}

pub(crate) fn decided(host: &str) -> PolicyDecision {
    let decision = json!({
        "processId": "whoever", "timestamp": "2026-01-01T00:00:00.000Z", "scope": "domain",
        "decision": "deny", "source": "baseline_policy", "reason": "not_allowed",
        "protocol": "http", "host": host, "port": 80, "policyOverride": false,
    });
    serde_json::from_value(decision).unwrap()
}

#[tokio::test(start_paused = true)]
async fn decisions_are_told_to_the_client() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let process = server.start(&mut client, &params("p", None)).await;
    process.watcher().record(decided("example.com"));
    let told = client.hear().await;
    assert_eq!(told["method"], "network/policyDecision");
    assert_eq!(told["params"]["processId"], "p");
    assert_eq!(told["params"]["host"], "example.com");
    assert_eq!(told["params"].get("method"), None);
}

#[tokio::test(start_paused = true)]
async fn records_that_a_client_does_not_read_are_lost_and_answers_are_not() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let process = server.start(&mut client, &params("p", None)).await;
    // Nothing is sent before this task waits: the records are more than the queue holds.
    let host = "h".repeat(1 << 16);
    for _ in 0..100 {
        process.watcher().record(decided(&host));
    }
    client
        .say(json!({"id": "call", "method": "environment/status", "params": {}}))
        .await;
    let mut records = 0;
    while client.hear().await["method"] == "network/policyDecision" {
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
async fn no_time_to_decide_is_refused() {
    let text = refusal(&params("p", Some(0))).await;
    assert!(
        text.contains("networkProxy.policyDecisionTimeoutMs"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_id_that_a_client_cannot_be_asked_about_is_refused() {
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
        assert!(started.command.network.watcher.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_proxy_without_its_settings_is_refused_by_name() {
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
async fn names_for_the_record_are_not_looked_at() {
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
async fn a_process_without_a_proxy_is_not_watched() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let mut params = params("p", None);
    params["networkProxy"] = Value::Null;
    params["enforceManagedNetwork"] = json!(true);
    params["managedNetwork"] = json!({"loopbackPorts": [80]});
    let network = server.start(&mut client, &params).await.command.network;
    assert!(network.watcher.is_none() && network.enforced);
    assert_eq!(network.managed.unwrap().loopback_ports, [80]);
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_does_not_decode_is_refused_by_name() {
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
