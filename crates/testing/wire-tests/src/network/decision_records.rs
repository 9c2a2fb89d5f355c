//! Decisions by the settings, and their records.

use serde_json::{Value, json};

use super::{HELLO, NetworkFixture, as_one_user, managed, proxy};
use crate::client::with;

as_one_user!(
    unlisted_destination_is_refused_and_recorded,
    denied_destination_is_refused_although_all_are_allowed,
    allowed_destination_is_recorded,
    host_patterns_match_as_documented,
    limited_mode_allows_only_read_methods,
    undecided_host_is_denied_without_a_decision_timeout,
    invalid_host_is_refused,
    managed_network_capability_is_advertised,
);

/// Asserts that a record has exactly the expected fields, and returns it without the variable ones.
fn checked(mut record: Value, id: &str) -> Value {
    let members = record.as_object_mut().unwrap();
    assert_eq!(members.remove("processId").unwrap(), id);
    let time = members.remove("timestamp").unwrap();
    let time = time.as_str().unwrap();
    let shape: String = time
        .chars()
        .map(|c| if c.is_ascii_digit() { '0' } else { c })
        .collect();
    assert_eq!(shape, "0000-00-00T00:00:00.000Z", "{time}");
    let client = members.remove("client").unwrap();
    let (host, port) = client.as_str().unwrap().rsplit_once(':').unwrap();
    assert!(
        host == "127.0.0.1" && port.parse::<u16>().is_ok(),
        "{client}"
    );
    record
}

/// Returns whether the proxy refused a request for this reason.
fn blocked(text: &str, reason: &str) -> bool {
    text.starts_with("HTTP/1.1 403 ") && text.contains("x-proxy-error") && text.contains(reason)
}

const BOTH: [&str; 2] = ["in a sandbox", "without one"];

fn members(placement: &str, settings: &Value) -> Value {
    if placement == BOTH[0] {
        managed(settings.clone())
    } else {
        json!({"networkProxy": settings})
    }
}

async fn unlisted_destination_is_refused_and_recorded(fixture: &mut NetworkFixture) {
    let settings = proxy(json!({"allowed.test": "allow", "nothing.test": "none"}));
    for placement in BOTH {
        for (script, protocol, host, port, method) in [
            (
                "get unlisted.test",
                "http",
                "unlisted.test",
                80,
                Some("GET"),
            ),
            (
                "get Nothing.TEST:81",
                "http",
                "nothing.test",
                81,
                Some("GET"),
            ),
            (
                "tunnel unlisted.test:443",
                "https_connect",
                "unlisted.test",
                443,
                Some("CONNECT"),
            ),
            (
                "socks unlisted.test 22",
                "socks5_tcp",
                "unlisted.test",
                22,
                None,
            ),
        ] {
            let params = fixture.script(script, members(placement, &settings));
            let id = fixture.start(params).await;
            let text = fixture.text(&id).await;
            if protocol == "socks5_tcp" {
                assert_eq!(
                    text, " 05 00 05 02 00 01 00 00 00 00 00 00\n",
                    "{placement}"
                );
            } else {
                assert!(
                    blocked(&text, "not_allowed"),
                    "{script} {placement}: {text}"
                );
            }
            let mut expected = json!({
                "scope": "domain", "decision": "deny", "source": "baseline_policy",
                "reason": "not_allowed", "protocol": protocol, "host": host, "port": port,
                "policyOverride": false,
            });
            if let Some(method) = method {
                expected["method"] = json!(method);
            }
            let record = fixture.record(&id).await;
            assert_eq!(checked(record, &id), expected, "{script} {placement}");
        }
    }
}

async fn denied_destination_is_refused_although_all_are_allowed(fixture: &mut NetworkFixture) {
    let rules = json!({"*": "allow", "127.0.0.1": "deny", "**.denied.test": "deny"});
    let address = fixture.origin.address();
    for (host, name) in [
        (address.as_str(), "127.0.0.1"),
        ("denied.test:80", "denied.test"),
        ("a.denied.test.:80", "a.denied.test"),
    ] {
        let params = fixture.script(&format!("get {host}"), managed(proxy(rules.clone())));
        let id = fixture.start(params).await;
        let text = fixture.text(&id).await;
        assert!(blocked(&text, "denied"), "{host}: {text}");
        let record = checked(fixture.record(&id).await, &id);
        assert_eq!(
            (&record["decision"], &record["reason"], &record["host"]),
            (&json!("deny"), &json!("denied"), &json!(name))
        );
    }
    assert_eq!(fixture.origin.connection_count(), 0);
}

async fn allowed_destination_is_recorded(fixture: &mut NetworkFixture) {
    let (address, port) = (fixture.origin.address(), fixture.origin.port);
    let params = fixture.script(
        &format!("get {address}; get {address}"),
        managed(proxy(json!({"127.0.0.1": "allow"}))),
    );
    let id = fixture.start(params).await;
    assert_eq!(fixture.text(&id).await.matches(HELLO).count(), 2);
    let records = fixture.records(&id).await;
    assert_eq!(records.len(), 2);
    for record in records {
        let record = checked(record, &id);
        let reason = record["reason"].clone();
        assert!(reason.is_string(), "{record}");
        assert_eq!(
            record,
            json!({
                "scope": "domain", "decision": "allow", "source": "baseline_policy",
                "reason": reason, "protocol": "http", "host": "127.0.0.1", "port": port,
                "method": "GET", "policyOverride": false,
            })
        );
    }
}

async fn host_patterns_match_as_documented(fixture: &mut NetworkFixture) {
    // Deny rules, so that no name is resolved.
    for (pattern, matching, other) in [
        (
            "a.test",
            vec!["a.test", "A.TEST", "a.test."],
            vec!["b.a.test", "xa.test", "test"],
        ),
        (
            "*.a.test",
            vec!["b.a.test", "c.b.a.test"],
            vec!["a.test", "xa.test", "a.test.b"],
        ),
        (
            "**.a.test",
            vec!["a.test", "b.a.test", "c.b.a.test"],
            vec!["xa.test", "test"],
        ),
    ] {
        let all = matching.iter().map(|host| (host, "denied"));
        let all = all.chain(other.iter().map(|host| (host, "not_allowed")));
        let all: Vec<_> = all.collect();
        let script: String = all
            .iter()
            .map(|(host, _)| format!("get {host}\n"))
            .collect();
        let params = fixture.script(&script, managed(proxy(json!({pattern: "deny"}))));
        let id = fixture.start(params).await;
        fixture.finish(&id).await;
        let records = fixture.records(&id).await;
        let reasons: Vec<&str> = records
            .iter()
            .map(|one| one["reason"].as_str().unwrap())
            .collect();
        let expected: Vec<&str> = all.iter().map(|(_, reason)| *reason).collect();
        assert_eq!(reasons, expected, "{pattern}: {all:?}");
    }
}

async fn limited_mode_allows_only_read_methods(fixture: &mut NetworkFixture) {
    let mut settings = proxy(json!({"127.0.0.1": "allow"}));
    settings["proxy"]["mode"] = json!("limited");
    let (address, port) = (fixture.origin.address(), fixture.origin.port);
    let ask = |method: &str| {
        format!(
            "say ${{HTTP_PROXY##*:}} '{method} http://{address}/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'"
        )
    };
    for (script, reads) in [
        (ask("GET"), true),
        (ask("HEAD"), true),
        (ask("OPTIONS"), true),
        (ask("POST"), false),
        (ask("DELETE"), false),
        (ask("get"), false),
        (ask("PROPFIND"), false),
        (format!("tunnel {address}"), false),
        (format!("socks 127.0.0.1 {port}"), false),
    ] {
        let before = fixture.origin.connection_count();
        let params = fixture.script(&script, managed(settings.clone()));
        let id = fixture.start(params).await;
        let text = fixture.text(&id).await;
        let record = checked(fixture.record(&id).await, &id);
        if reads {
            assert!(text.starts_with("HTTP/1.1 200 "), "{script}: {text}");
            assert_eq!(record["decision"], "allow");
        } else {
            let refused = text.starts_with("HTTP/1.1 403 ") || text.starts_with(" 05 00 05 02 ");
            assert!(refused, "{script}: {text}");
            assert_eq!(record["decision"], "deny");
            assert_eq!(record["source"], "mode_guard");
        }
        assert_eq!(
            fixture.origin.connection_count() - before,
            usize::from(reads),
            "{script}"
        );
    }
}

async fn undecided_host_is_denied_without_a_decision_timeout(fixture: &mut NetworkFixture) {
    for absent in [json!({}), json!({"policyDecisionTimeoutMs": null})] {
        let settings = with(proxy(Value::Null), absent);
        let params = fixture.script("get unlisted.test", managed(settings));
        // A decision request would block it.
        let text = fixture.run(params).await;
        assert!(blocked(&text, "not_allowed"), "{text}");
    }
}

async fn invalid_host_is_refused(fixture: &mut NetworkFixture) {
    let long = format!("{}.test", "a.".repeat(130));
    for host in [
        "a_b%20c.test",
        "127.0.0.1.5",
        "256.1.1.1",
        "a..b",
        "[::1",
        &long,
    ] {
        let params = fixture.script(
            &format!("get '{}'", host.replace('%', "%%")),
            managed(proxy(json!({"*": "allow", "127.0.0.1": "deny"}))),
        );
        let text = fixture.run(params).await;
        assert!(text.starts_with("HTTP/1.1 400 "), "{host}: {text}");
    }
}

async fn managed_network_capability_is_advertised(fixture: &mut NetworkFixture) {
    let info = fixture.client.call("environment/info", json!({})).await;
    assert_eq!(info["capabilities"]["networkProxyLaunch"], true, "{info}");
}
