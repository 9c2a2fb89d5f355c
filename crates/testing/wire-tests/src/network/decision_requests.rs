//! Decision requests: the client decides about hosts that the settings leave open.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{HELLO, NetworkFixture, as_one_user, asking, managed, proxy};
use crate::{
    client::{decode_text, with},
    sessions::resume,
};

as_one_user!(
    decision_request_names_process_and_destination,
    decision_is_applied,
    invalid_decision_denies,
    missing_decision_denies,
    destinations_decided_by_settings_are_not_asked,
    two_decision_requests_may_be_answered_in_any_order,
    each_connection_needs_its_own_decision,
    disconnect_denies_pending_decisions,
    terminate_cancels_the_decision_request,
    unsandboxed_process_needs_decisions_too,
    decision_response_counts_once,
);

/// Returns a `networkProxy` that allows the origin but still asks about it.
fn reviewing() -> Value {
    let mut settings = asking(json!({"127.0.0.1": "allow"}));
    settings["proxy"]["reviewDomains"] = json!(["127.0.0.1"]);
    settings
}

async fn decision_request_names_process_and_destination(fixture: &mut NetworkFixture) {
    for (number, (script, protocol, host, port)) in (1..).zip([
        ("get Plain.test", "http", "plain.test", 80),
        ("get plain.test:8080", "http", "plain.test", 8080),
        (
            "tunnel secure.test:443",
            "https_connect",
            "secure.test",
            443,
        ),
        ("socks socks.test 22", "socks5_tcp", "socks.test", 22),
        ("get 11.22.33.44", "http", "11.22.33.44", 80),
        ("tunnel [2600::1]:443", "https_connect", "2600::1", 443),
    ]) {
        let params = fixture.script(script, managed(asking(json!({}))));
        let id = fixture.start(params).await;
        let (question, request) = fixture.question().await;
        assert_eq!(question, number, "questions are numbered");
        assert_eq!(
            request,
            json!({
                "processId": id, "request": {"protocol": protocol, "host": host, "port": port},
            })
        );
        let no = json!({"type": "deny", "reason": "not on the list"});
        fixture.decide(&question, no).await;
        let text = fixture.text(&id).await;
        if protocol == "socks5_tcp" {
            assert_eq!(text, " 05 00 05 02 00 01 00 00 00 00 00 00\n");
        } else {
            assert!(text.starts_with("HTTP/1.1 403 "), "{text}");
            assert!(text.contains("not on the list"), "{text}");
        }
        let record = fixture.record(&id).await;
        for (member, value) in [
            ("decision", json!("deny")),
            ("source", json!("decider")),
            ("reason", json!("not on the list")),
            ("protocol", json!(protocol)),
            ("host", json!(host)),
            ("port", json!(port)),
            ("policyOverride", json!(false)),
        ] {
            assert_eq!(record[member], value, "{member}: {record}");
        }
    }
}

async fn decision_is_applied(fixture: &mut NetworkFixture) {
    let (address, port) = (fixture.origin.address(), fixture.origin.port);
    let longest = "r".repeat(1024);
    for script in [
        format!("get {address}"),
        format!("tunnel {address}"),
        format!("socks 127.0.0.1 {port}"),
    ] {
        for (decision, outcome, reason) in [
            (json!({"type": "allow"}), "allow", None),
            (
                json!({"type": "deny", "reason": longest}),
                "deny",
                Some(longest.as_str()),
            ),
            (
                json!({"type": "ask", "reason": "needs approval"}),
                "ask",
                Some("needs approval"),
            ),
        ] {
            let before = fixture.origin.connection_count();
            let params = fixture.script(&script, managed(reviewing()));
            let id = fixture.start(params).await;
            let (question, _) = fixture.question().await;
            assert_eq!(
                fixture.origin.connection_count(),
                before,
                "origin was contacted before the decision"
            );
            fixture.decide(&question, decision).await;
            let text = fixture.text(&id).await;
            assert_eq!(
                text.ends_with(HELLO),
                outcome == "allow",
                "{script}: {text}"
            );
            assert_eq!(
                fixture.origin.connection_count() - before,
                usize::from(outcome == "allow")
            );
            let record = fixture.record(&id).await;
            assert_eq!(record["decision"], outcome, "{record}");
            assert_eq!(record["source"], "decider", "{record}");
            if let Some(reason) = reason {
                assert_eq!(record["reason"], reason, "{record}");
            }
        }
    }
}

async fn invalid_decision_denies(fixture: &mut NetworkFixture) {
    let answers = [
        json!({"error": {"code": -32601, "message": "no such method"}}),
        json!({"error": {"code": 1, "message": "", "data": {"decision": {"type": "allow"}}}}),
        json!({"result": null}),
        json!({"result": {}}),
        json!({"result": "allow"}),
        json!({"result": {"type": "allow"}}),
        json!({"result": {"decision": "allow"}}),
        json!({"result": {"decision": {"type": "Allow"}}}),
        json!({"result": {"decision": {"type": "perhaps"}}}),
        json!({"result": {"decision": {"type": ["allow"]}}}),
        json!({"result": {"decision": [{"type": "allow"}]}}),
        json!({"result": {"decision": {"type": "deny"}}}),
        json!({"result": {"decision": {"type": "ask", "reason": 1}}}),
        json!({"result": {"decision": {"type": "ask", "reason": "r".repeat(1025)}}}),
        json!({"result": {"decision": {"type": "deny", "reason": "two\r\nlines: x"}}}),
    ];
    let address = fixture.origin.address();
    let script = format!("get {address}\n").repeat(answers.len());
    let params = fixture.script(&script, managed(reviewing()));
    let id = fixture.start(params).await;
    for answer in &answers {
        let (question, _) = fixture.question().await;
        let answer = with(answer.clone(), json!({"id": question}));
        fixture.client.send(&answer.to_string()).await;
    }
    let text = fixture.text(&id).await;
    assert_eq!(
        text.matches("HTTP/1.1 403 ").count(),
        answers.len(),
        "{text}"
    );
    let records = fixture.records(&id).await;
    assert_eq!(records.len(), answers.len());
    for (record, answer) in records.iter().zip(&answers) {
        assert_eq!(record["decision"], "deny", "{answer}: {record}");
        assert_eq!(record["reason"], "not_allowed", "{answer}: {record}");
    }
    assert_eq!(fixture.origin.connection_count(), 0);
}

async fn missing_decision_denies(fixture: &mut NetworkFixture) {
    let address = fixture.origin.address();
    let settings = with(reviewing(), json!({"policyDecisionTimeoutMs": 1}));
    let params = fixture.script(&format!("get {address}"), managed(settings));
    let begin = Instant::now();
    let id = fixture.start(params).await;
    let (question, _) = fixture.question().await;
    let text = fixture.text(&id).await;
    assert!(
        text.starts_with("HTTP/1.1 403 ") && text.contains("not_allowed"),
        "{text}"
    );
    assert!(
        begin.elapsed() > Duration::from_secs(5),
        "decision timeout is five seconds too long"
    );
    assert_eq!(fixture.record(&id).await["reason"], "not_allowed");
    assert_eq!(fixture.origin.connection_count(), 0);
    // A late response has no effect.
    fixture.decide(&question, json!({"type": "allow"})).await;
    fixture.client.expect_alive().await;
}

async fn destinations_decided_by_settings_are_not_asked(fixture: &mut NetworkFixture) {
    let address = fixture.origin.address();
    let rules = json!({"127.0.0.1": "allow", "denied.test": "deny"});
    let script = format!("get {address}; get denied.test");
    let params = fixture.script(&script, managed(asking(rules)));
    // A decision request would fail the test.
    let text = fixture.run(params).await;
    assert!(
        text.contains(HELLO) && text.contains("403 Forbidden"),
        "{text}"
    );
}

async fn two_decision_requests_may_be_answered_in_any_order(fixture: &mut NetworkFixture) {
    let address = fixture.origin.address();
    let script = format!(
        "one=$(get {address}) && echo \"one: $one\" &
        two=$(tunnel {address}) && echo \"two: $two\" & wait"
    );
    let params = fixture.script(&script, managed(reviewing()));
    let id = fixture.start(params).await;
    let mut requests = [fixture.question().await, fixture.question().await];
    assert_ne!(requests[0].0, requests[1].0);
    requests.sort_by_key(|(_, request)| request["request"]["protocol"] == "http");
    let [(two, _), (one, _)] = requests;
    // The other connection is not blocked by this one.
    fixture.decide(&two, json!({"type": "allow"})).await;
    let text = fixture
        .client
        .output_until(&id, &format!("{HELLO}\n"))
        .await;
    assert!(text.starts_with("two: HTTP/1.1 200 "), "{text}");
    fixture
        .decide(&one, json!({"type": "deny", "reason": "no"}))
        .await;
    let text = fixture.client.output_until(&id, "no\n").await;
    assert!(text.starts_with("one: HTTP/1.1 403 "), "{text}");
    fixture.end(&id).await;
    assert_eq!(fixture.records(&id).await.len(), 2);
}

async fn each_connection_needs_its_own_decision(fixture: &mut NetworkFixture) {
    let address = fixture.origin.address();
    let params = fixture.script(
        &format!("get {address}; get {address}"),
        managed(reviewing()),
    );
    let id = fixture.start(params).await;
    let (first, _) = fixture.question().await;
    fixture.decide(&first, json!({"type": "allow"})).await;
    let (second, _) = fixture.question().await;
    fixture
        .decide(&second, json!({"type": "deny", "reason": "once"}))
        .await;
    let text = fixture.text(&id).await;
    assert!(
        text.contains(HELLO) && text.contains("403 Forbidden"),
        "{text}"
    );
}

async fn disconnect_denies_pending_decisions(fixture: &mut NetworkFixture) {
    let address = fixture.origin.address();
    let script = format!("get {address} | head -1; read line; get {address} | head -1");
    let params = fixture.script(
        &script,
        with(managed(reviewing()), json!({"pipeStdin": true})),
    );
    let id = fixture.start(params).await;
    fixture.question().await;
    let replacement = fixture.server.connect().await;
    drop(std::mem::replace(&mut fixture.client, replacement));
    let session = fixture.session.clone();
    fixture.client = resume(&mut fixture.server, &session).await;
    fixture.client.send(r#"{"method":"initialized"}"#).await;
    let page = fixture
        .client
        .call("process/read", json!({"processId": id, "waitMs": 5000}))
        .await;
    let text = decode_text(&page["chunks"][0]["chunk"]);
    assert!(text.starts_with("HTTP/1.1 403 "), "{text}");
    assert_eq!(fixture.origin.connection_count(), 0);
    // A client that resumes is asked again.
    fixture.go(&id).await;
    let (question, request) = fixture.question().await;
    assert_eq!(
        (question.clone(), &request["processId"]),
        (json!(1), &json!(id))
    );
    fixture.decide(&question, json!({"type": "allow"})).await;
    fixture.end(&id).await;
    assert_eq!(fixture.origin.connection_count(), 1);
}

async fn terminate_cancels_the_decision_request(fixture: &mut NetworkFixture) {
    let address = fixture.origin.address();
    let params = fixture.script(&format!("get {address}"), managed(reviewing()));
    let id = fixture.start(params).await;
    let (question, _) = fixture.question().await;
    fixture
        .client
        .call("process/terminate", json!({"processId": id}))
        .await;
    fixture.end(&id).await;
    fixture.decide(&question, json!({"type": "allow"})).await;
    fixture.client.expect_alive().await;
    assert_eq!(fixture.origin.connection_count(), 0);
}

async fn unsandboxed_process_needs_decisions_too(fixture: &mut NetworkFixture) {
    let address = fixture.origin.address();
    let params = fixture.script(
        &format!("get {address}"),
        json!({"networkProxy": reviewing()}),
    );
    let id = fixture.start(params).await;
    let (question, request) = fixture.question().await;
    assert_eq!(request["processId"], id);
    fixture.decide(&question, json!({"type": "allow"})).await;
    let text = fixture.text(&id).await;
    assert!(text.ends_with(HELLO), "{text}");
}

async fn decision_response_counts_once(fixture: &mut NetworkFixture) {
    let address = fixture.origin.address();
    let script = format!("get {address}; read line; get {address}");
    let wait = json!({"pipeStdin": true});
    let params = fixture.script(&script, with(managed(reviewing()), wait));
    let id = fixture.start(params).await;
    let (first, _) = fixture.question().await;
    for decision in [
        json!({"type": "deny", "reason": "first"}),
        json!({"type": "allow"}),
    ] {
        fixture.decide(&first, decision).await;
    }
    // A response before its request does not count either.
    for early in [json!(2), json!("2"), json!(1000)] {
        fixture.decide(&early, json!({"type": "allow"})).await;
    }
    fixture.client.expect_alive().await;
    fixture.go(&id).await;
    let (second, _) = fixture.question().await;
    assert_eq!(second, 2);
    let no = json!({"type": "deny", "reason": "second"});
    fixture.decide(&second, no).await;
    let text = fixture.text(&id).await;
    assert!(text.contains("first") && text.contains("second"), "{text}");
    assert_eq!(fixture.origin.connection_count(), 0);
}

#[tokio::test]
async fn allow_decision_overrides_settings_except_for_local_addresses() {
    let mut fixture = NetworkFixture::apart().await;
    for (host, status, decision, overrides) in [
        // The outbound connection ends in an empty network namespace.
        ("public.test", "HTTP/1.1 502 ", "allow", true),
        ("11.22.33.44", "HTTP/1.1 502 ", "allow", true),
        ("unknown.test", "HTTP/1.1 502 ", "allow", true),
        ("rebound.test", "HTTP/1.1 403 ", "deny", false),
        ("inner.test", "HTTP/1.1 403 ", "deny", false),
    ] {
        let params = fixture.script(&format!("get {host}"), managed(asking(json!({}))));
        let id = fixture.start(params).await;
        let (question, request) = fixture.question().await;
        assert_eq!(request["request"]["host"], host);
        fixture.decide(&question, json!({"type": "allow"})).await;
        let text = fixture.text(&id).await;
        assert!(text.starts_with(status), "{host}: {text}");
        let record = fixture.record(&id).await;
        assert_eq!(record["decision"], decision, "{record}");
        assert_eq!(record["policyOverride"], overrides, "{record}");
        if decision == "deny" {
            assert_eq!(record["reason"], "not_allowed_local", "{record}");
        }
    }
}

#[tokio::test]
async fn reviewed_destination_is_allowed_without_a_client_to_ask() {
    let mut fixture = NetworkFixture::new().await;
    let mut settings = proxy(json!({"127.0.0.1": "allow"}));
    settings["proxy"]["reviewDomains"] = json!(["127.0.0.1"]);
    let script = format!("get {}", fixture.origin.address());
    let params = fixture.script(&script, managed(settings));
    assert!(fixture.run(params).await.ends_with(HELLO));
}
