//! Hosts that the settings do not decide: the client is asked.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::stage::{HELLO, Stage, as_one_user, asking, managed, proxy};
use crate::{
    client::{decode_text, with},
    sessions::resume,
};

as_one_user!(
    the_question_tells_who_and_where,
    a_decision_is_what_happens,
    what_is_no_decision_denies,
    silence_denies,
    what_the_settings_decide_is_not_asked,
    two_questions_are_answered_in_any_order,
    each_connection_is_asked_about,
    detaching_denies,
    terminating_gives_up_the_question,
    a_process_without_sandbox_is_asked_about_too,
    an_answer_is_taken_once,
);

/// `networkProxy` that allows the origin, and asks about it all the same.
fn reviewing() -> Value {
    let mut settings = asking(json!({"127.0.0.1": "allow"}));
    settings["proxy"]["reviewDomains"] = json!(["127.0.0.1"]);
    settings
}

async fn the_question_tells_who_and_where(stage: &mut Stage) {
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
        let params = stage.script(script, managed(asking(json!({}))));
        let id = stage.start(params).await;
        let (question, asked) = stage.question().await;
        assert_eq!(question, number, "questions are numbered");
        assert_eq!(
            asked,
            json!({
                "processId": id, "request": {"protocol": protocol, "host": host, "port": port},
            })
        );
        let no = json!({"type": "deny", "reason": "not on the list"});
        stage.decide(&question, no).await;
        let text = stage.text(&id).await;
        if protocol == "socks5_tcp" {
            assert_eq!(text, " 05 00 05 02 00 01 00 00 00 00 00 00\n");
        } else {
            assert!(text.starts_with("HTTP/1.1 403 "), "{text}");
            assert!(text.contains("not on the list"), "{text}");
        }
        let record = stage.record(&id).await;
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

async fn a_decision_is_what_happens(stage: &mut Stage) {
    let (place, port) = (stage.origin.place(), stage.origin.port);
    let longest = "r".repeat(1024);
    for script in [
        format!("get {place}"),
        format!("tunnel {place}"),
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
            let before = stage.origin.visits();
            let params = stage.script(&script, managed(reviewing()));
            let id = stage.start(params).await;
            let (question, _) = stage.question().await;
            assert_eq!(
                stage.origin.visits(),
                before,
                "nobody is reached before it is decided"
            );
            stage.decide(&question, decision).await;
            let text = stage.text(&id).await;
            assert_eq!(
                text.ends_with(HELLO),
                outcome == "allow",
                "{script}: {text}"
            );
            assert_eq!(
                stage.origin.visits() - before,
                usize::from(outcome == "allow")
            );
            let record = stage.record(&id).await;
            assert_eq!(record["decision"], outcome, "{record}");
            assert_eq!(record["source"], "decider", "{record}");
            if let Some(reason) = reason {
                assert_eq!(record["reason"], reason, "{record}");
            }
        }
    }
}

async fn what_is_no_decision_denies(stage: &mut Stage) {
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
    let place = stage.origin.place();
    let script = format!("get {place}\n").repeat(answers.len());
    let params = stage.script(&script, managed(reviewing()));
    let id = stage.start(params).await;
    for answer in &answers {
        let (question, _) = stage.question().await;
        let answer = with(answer.clone(), json!({"id": question}));
        stage.client.send(&answer.to_string()).await;
    }
    let text = stage.text(&id).await;
    assert_eq!(
        text.matches("HTTP/1.1 403 ").count(),
        answers.len(),
        "{text}"
    );
    let records = stage.records(&id).await;
    assert_eq!(records.len(), answers.len());
    for (record, answer) in records.iter().zip(&answers) {
        assert_eq!(record["decision"], "deny", "{answer}: {record}");
        assert_eq!(record["reason"], "not_allowed", "{answer}: {record}");
    }
    assert_eq!(stage.origin.visits(), 0);
}

async fn silence_denies(stage: &mut Stage) {
    let place = stage.origin.place();
    let settings = with(reviewing(), json!({"policyDecisionTimeoutMs": 1}));
    let params = stage.script(&format!("get {place}"), managed(settings));
    let begin = Instant::now();
    let id = stage.start(params).await;
    let (question, _) = stage.question().await;
    let text = stage.text(&id).await;
    assert!(
        text.starts_with("HTTP/1.1 403 ") && text.contains("not_allowed"),
        "{text}"
    );
    assert!(
        begin.elapsed() > Duration::from_secs(5),
        "the client has five seconds more"
    );
    assert_eq!(stage.record(&id).await["reason"], "not_allowed");
    assert_eq!(stage.origin.visits(), 0);
    // What comes too late changes nothing.
    stage.decide(&question, json!({"type": "allow"})).await;
    stage.client.expect_alive().await;
}

async fn what_the_settings_decide_is_not_asked(stage: &mut Stage) {
    let place = stage.origin.place();
    let rules = json!({"127.0.0.1": "allow", "denied.test": "deny"});
    let script = format!("get {place}; get denied.test");
    let params = stage.script(&script, managed(asking(rules)));
    // A question would fail the test.
    let text = stage.run(params).await;
    assert!(
        text.contains(HELLO) && text.contains("403 Forbidden"),
        "{text}"
    );
}

async fn two_questions_are_answered_in_any_order(stage: &mut Stage) {
    let place = stage.origin.place();
    let script = format!(
        "one=$(get {place}) && echo \"one: $one\" &
        two=$(tunnel {place}) && echo \"two: $two\" & wait"
    );
    let params = stage.script(&script, managed(reviewing()));
    let id = stage.start(params).await;
    let mut asked = [stage.question().await, stage.question().await];
    assert_ne!(asked[0].0, asked[1].0);
    asked.sort_by_key(|(_, asked)| asked["request"]["protocol"] == "http");
    let [(two, _), (one, _)] = asked;
    // The other one is not held up by this one.
    stage.decide(&two, json!({"type": "allow"})).await;
    let text = stage.client.output_until(&id, &format!("{HELLO}\n")).await;
    assert!(text.starts_with("two: HTTP/1.1 200 "), "{text}");
    stage
        .decide(&one, json!({"type": "deny", "reason": "no"}))
        .await;
    let text = stage.client.output_until(&id, "no\n").await;
    assert!(text.starts_with("one: HTTP/1.1 403 "), "{text}");
    stage.end(&id).await;
    assert_eq!(stage.records(&id).await.len(), 2);
}

async fn each_connection_is_asked_about(stage: &mut Stage) {
    let place = stage.origin.place();
    let params = stage.script(&format!("get {place}; get {place}"), managed(reviewing()));
    let id = stage.start(params).await;
    let (first, _) = stage.question().await;
    stage.decide(&first, json!({"type": "allow"})).await;
    let (second, _) = stage.question().await;
    stage
        .decide(&second, json!({"type": "deny", "reason": "once"}))
        .await;
    let text = stage.text(&id).await;
    assert!(
        text.contains(HELLO) && text.contains("403 Forbidden"),
        "{text}"
    );
}

async fn detaching_denies(stage: &mut Stage) {
    let place = stage.origin.place();
    let script = format!("get {place} | head -1; read line; get {place} | head -1");
    let params = stage.script(
        &script,
        with(managed(reviewing()), json!({"pipeStdin": true})),
    );
    let id = stage.start(params).await;
    stage.question().await;
    let gone = stage.server.connect().await;
    drop(std::mem::replace(&mut stage.client, gone));
    let session = stage.session.clone();
    stage.client = resume(&mut stage.server, &session).await;
    stage.client.send(r#"{"method":"initialized"}"#).await;
    let page = stage
        .client
        .call("process/read", json!({"processId": id, "waitMs": 5000}))
        .await;
    let text = decode_text(&page["chunks"][0]["chunk"]);
    assert!(text.starts_with("HTTP/1.1 403 "), "{text}");
    assert_eq!(stage.origin.visits(), 0);
    // Whoever comes back is asked from now on.
    stage.go(&id).await;
    let (question, asked) = stage.question().await;
    assert_eq!(
        (question.clone(), &asked["processId"]),
        (json!(1), &json!(id))
    );
    stage.decide(&question, json!({"type": "allow"})).await;
    stage.end(&id).await;
    assert_eq!(stage.origin.visits(), 1);
}

async fn terminating_gives_up_the_question(stage: &mut Stage) {
    let place = stage.origin.place();
    let params = stage.script(&format!("get {place}"), managed(reviewing()));
    let id = stage.start(params).await;
    let (question, _) = stage.question().await;
    stage
        .client
        .call("process/terminate", json!({"processId": id}))
        .await;
    stage.end(&id).await;
    stage.decide(&question, json!({"type": "allow"})).await;
    stage.client.expect_alive().await;
    assert_eq!(stage.origin.visits(), 0);
}

async fn a_process_without_sandbox_is_asked_about_too(stage: &mut Stage) {
    let place = stage.origin.place();
    let params = stage.script(
        &format!("get {place}"),
        json!({"networkProxy": reviewing()}),
    );
    let id = stage.start(params).await;
    let (question, asked) = stage.question().await;
    assert_eq!(asked["processId"], id);
    stage.decide(&question, json!({"type": "allow"})).await;
    let text = stage.text(&id).await;
    assert!(text.ends_with(HELLO), "{text}");
}

async fn an_answer_is_taken_once(stage: &mut Stage) {
    let place = stage.origin.place();
    let script = format!("get {place}; read line; get {place}");
    let wait = json!({"pipeStdin": true});
    let params = stage.script(&script, with(managed(reviewing()), wait));
    let id = stage.start(params).await;
    let (first, _) = stage.question().await;
    for decision in [
        json!({"type": "deny", "reason": "first"}),
        json!({"type": "allow"}),
    ] {
        stage.decide(&first, decision).await;
    }
    // Nor does an answer count that comes before its question.
    for early in [json!(2), json!("2"), json!(1000)] {
        stage.decide(&early, json!({"type": "allow"})).await;
    }
    stage.client.expect_alive().await;
    stage.go(&id).await;
    let (second, _) = stage.question().await;
    assert_eq!(second, 2);
    let no = json!({"type": "deny", "reason": "second"});
    stage.decide(&second, no).await;
    let text = stage.text(&id).await;
    assert!(text.contains("first") && text.contains("second"), "{text}");
    assert_eq!(stage.origin.visits(), 0);
}

#[tokio::test]
async fn an_allowing_answer_overrides_the_settings_but_not_for_local_addresses() {
    let mut stage = Stage::apart().await;
    for (host, status, decision, overrides) in [
        // The way out ends in an empty network.
        ("public.test", "HTTP/1.1 502 ", "allow", true),
        ("11.22.33.44", "HTTP/1.1 502 ", "allow", true),
        ("unknown.test", "HTTP/1.1 502 ", "allow", true),
        ("rebound.test", "HTTP/1.1 403 ", "deny", false),
        ("inner.test", "HTTP/1.1 403 ", "deny", false),
    ] {
        let params = stage.script(&format!("get {host}"), managed(asking(json!({}))));
        let id = stage.start(params).await;
        let (question, asked) = stage.question().await;
        assert_eq!(asked["request"]["host"], host);
        stage.decide(&question, json!({"type": "allow"})).await;
        let text = stage.text(&id).await;
        assert!(text.starts_with(status), "{host}: {text}");
        let record = stage.record(&id).await;
        assert_eq!(record["decision"], decision, "{record}");
        assert_eq!(record["policyOverride"], overrides, "{record}");
        if decision == "deny" {
            assert_eq!(record["reason"], "not_allowed_local", "{record}");
        }
    }
}

#[tokio::test]
async fn what_is_reviewed_is_allowed_if_nobody_can_be_asked() {
    let mut stage = Stage::new().await;
    let mut settings = proxy(json!({"127.0.0.1": "allow"}));
    settings["proxy"]["reviewDomains"] = json!(["127.0.0.1"]);
    let script = format!("get {}", stage.origin.place());
    let params = stage.script(&script, managed(settings));
    assert!(stage.run(params).await.ends_with(HELLO));
}
