//! Local and private addresses are unreachable even if all hosts are allowed.

use serde_json::{Value, json};

use super::{HELLO, NetworkFixture, as_one_user, asking, managed, proxy};

as_one_user!(
    local_addresses_are_refused_in_every_notation,
    local_addresses_are_refused_by_every_protocol,
    local_addresses_are_refused_without_asking,
    explicitly_named_local_address_is_reachable,
    local_binding_allows_local_addresses,
);

/// Local and private hosts.
const LOCAL: [&str; 28] = [
    "10.0.0.1",
    "169.254.169.254",
    "127.0.0.1",
    "127.8.9.10",
    "0.0.0.0",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "198.18.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "2130706433",
    "127.1",
    "0x7f.1",
    "0x7f000001",
    "0177.0.0.1",
    "0",
    "127.0.0.1.",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:a00:1]",
    "[::7f00:1]",
    "[fd00::1]",
    "[fe80::1]",
    "[64:ff9b::7f00:1]",
    "localhost",
    "Name.LocalHost.",
];

fn everywhere() -> Value {
    proxy(json!({"*": "allow", "**.test": "allow"}))
}

/// Requests the origin's port at each of the hosts with one protocol.
fn script(fixture: &NetworkFixture, protocol: &str) -> String {
    let port = fixture.origin.port;
    let line = |host: &&str| match protocol {
        "socks" => format!("socks {} {port}\n", host.trim_matches(['[', ']'])),
        _ => format!("{protocol} {host}:{port}\n"),
    };
    LOCAL.iter().map(line).collect()
}

/// Asserts that each host is refused as local.
async fn refused(fixture: &mut NetworkFixture, protocol: &str, settings: Value) {
    let script = script(fixture, protocol);
    let params = fixture.script(&script, managed(settings));
    let id = fixture.start(params).await;
    let text = fixture.text(&id).await;
    let records = fixture.records(&id).await;
    assert_eq!(records.len(), LOCAL.len(), "{text}");
    for (record, host) in records.iter().zip(LOCAL) {
        assert_eq!(record["decision"], "deny", "{host}: {record}");
        assert_eq!(record["reason"], "not_allowed_local", "{host}: {record}");
        assert_eq!(record["source"], "baseline_policy", "{host}: {record}");
    }
    let refusals = match protocol {
        "socks" => vec![" 05 00 05 02 00 01 00 00 00 00 00 00\n"],
        _ => vec!["HTTP/1.1 403 ", "network policy: not_allowed_local"],
    };
    for refusal in refusals {
        assert_eq!(text.matches(refusal).count(), LOCAL.len(), "{text}");
    }
    assert_eq!(fixture.origin.connection_count(), 0, "{protocol}");
}

async fn local_addresses_are_refused_in_every_notation(fixture: &mut NetworkFixture) {
    refused(fixture, "get", everywhere()).await;
}

async fn local_addresses_are_refused_by_every_protocol(fixture: &mut NetworkFixture) {
    refused(fixture, "tunnel", everywhere()).await;
    refused(fixture, "socks", everywhere()).await;
}

async fn local_addresses_are_refused_without_asking(fixture: &mut NetworkFixture) {
    // A decision request would fail the test.
    refused(fixture, "get", asking(Value::Null)).await;
}

async fn explicitly_named_local_address_is_reachable(fixture: &mut NetworkFixture) {
    let port = fixture.origin.port;
    for (rule, host, reached) in [
        ("127.0.0.1", "127.0.0.1", true),
        ("127.0.0.1", "0x7f.1", true),
        ("127.0.0.1", "localhost", false),
        ("127.0.0.1", "127.0.0.2", false),
        ("localhost", "localhost", true),
        ("localhost", "127.0.0.1", false),
        ("**.localhost", "localhost", false),
    ] {
        let before = fixture.origin.connection_count();
        let settings = proxy(json!({rule: "allow"}));
        let params = fixture.script(&format!("get {host}:{port}"), managed(settings));
        let text = fixture.run(params).await;
        if reached {
            assert!(text.ends_with(HELLO), "{rule} {host}: {text}");
        } else {
            assert!(text.contains("not_allowed_local"), "{rule} {host}: {text}");
        }
        assert_eq!(
            fixture.origin.connection_count() - before,
            usize::from(reached)
        );
    }
}

async fn local_binding_allows_local_addresses(fixture: &mut NetworkFixture) {
    let address = fixture.origin.address();
    for (rules, sign) in [
        (json!({"*": "allow"}), HELLO),
        (json!({}), "not_allowed"),
        (json!({"*": "allow", "127.0.0.1": "deny"}), "denied"),
    ] {
        let mut settings = proxy(rules);
        settings["proxy"]["allowLocalBinding"] = json!(true);
        let params = fixture.script(&format!("get {address}"), managed(settings));
        let text = fixture.run(params).await;
        assert!(text.trim_end().ends_with(sign), "{sign}: {text}");
    }
}

#[tokio::test]
async fn allowed_name_does_not_resolve_to_a_local_address() {
    let mut fixture = NetworkFixture::apart().await;
    for (host, status, decision) in [
        ("rebound.test", "HTTP/1.1 403 ", "deny"),
        ("inner.test", "HTTP/1.1 403 ", "deny"),
        // The name resolves to a public address, which is unreachable here.
        ("public.test", "HTTP/1.1 502 ", "allow"),
        ("mixed.test", "HTTP/1.1 502 ", "allow"),
        ("unknown.test", "HTTP/1.1 502 ", "allow"),
    ] {
        let settings = proxy(json!({"*.test": "allow", host: "allow"}));
        let params = fixture.script(&format!("get {host}"), managed(settings));
        let id = fixture.start(params).await;
        let text = fixture.text(&id).await;
        assert!(text.starts_with(status), "{host}: {text}");
        let record = fixture.record(&id).await;
        assert_eq!(record["decision"], decision, "{record}");
        if decision == "deny" {
            assert_eq!(record["reason"], "not_allowed_local", "{record}");
        }
    }
}
