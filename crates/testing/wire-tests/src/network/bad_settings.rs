//! Refused settings of a managed network: the field is named, and nothing is started.

use serde_json::{Value, json};

use super::{NetworkFixture, as_one_user, asking, managed, proxy};
use crate::{
    client::with,
    params::without,
    server::{descriptors, until},
};

as_one_user!(
    missing_fields_are_named,
    fields_of_the_wrong_type_are_named,
    impossible_settings_are_refused,
    invalid_patterns_are_quoted,
    process_id_is_bounded_if_decisions_are_requested,
    single_unix_sockets_are_refused_in_a_sandbox,
    settings_for_other_platforms_are_accepted,
    refused_start_leaves_nothing_running,
);

/// Asserts that settings are refused with and without a sandbox. The words are in the message.
async fn refused(fixture: &mut NetworkFixture, settings: &Value, words: &[&str]) {
    let marker = fixture.server.path("marker");
    let script = format!("touch {}", marker.display());
    for members in [managed(settings.clone()), json!({"networkProxy": settings})] {
        let params = fixture.script(&script, members);
        fixture.refused(params, words).await;
    }
    assert!(!marker.exists(), "{settings}: something was started");
}

/// Returns settings with a changed field of `proxy`.
fn changed(member: &str, value: Value) -> Value {
    let mut settings = proxy(json!({}));
    settings["proxy"][member] = value;
    settings
}

async fn missing_fields_are_named(fixture: &mut NetworkFixture) {
    for member in [
        "enabled",
        "enableSocks5",
        "enableSocks5Udp",
        "allowUpstreamProxy",
        "dangerouslyAllowAllUnixSockets",
        "allowLocalBinding",
        "mode",
    ] {
        let mut settings = proxy(json!({}));
        settings["proxy"] = without(settings["proxy"].take(), member);
        refused(fixture, &settings, &["networkProxy.proxy", member]).await;
        for value in [json!(null), json!([]), json!(1)] {
            let words = ["networkProxy.proxy", member];
            refused(fixture, &changed(member, value), &words).await;
        }
    }
    refused(
        fixture,
        &without(proxy(json!({})), "proxy"),
        &["networkProxy", "proxy"],
    )
    .await;
    refused(fixture, &json!({}), &["networkProxy", "proxy"]).await;
}

async fn fields_of_the_wrong_type_are_named(fixture: &mut NetworkFixture) {
    for (member, value) in [
        ("mode", json!("other")),
        ("domains", json!([])),
        ("domains", json!({"a.test": "maybe"})),
        ("domains", json!({"a.test": true})),
        ("unixSockets", json!({"/a": "maybe"})),
        ("reviewDomains", json!("a.test")),
        ("reviewDomains", json!([1])),
        ("credentialMasking", json!("yes")),
        ("credentialMasking", json!(null)),
        ("credentialProviders", json!([])),
        ("credentialProviders", json!(null)),
    ] {
        refused(
            fixture,
            &changed(member, value),
            &["networkProxy.proxy", member],
        )
        .await;
    }
    for (member, value) in [
        ("policyDecisionTimeoutMs", json!(-1)),
        ("policyDecisionTimeoutMs", json!(1.5)),
        ("policyDecisionTimeoutMs", json!("1")),
        ("environmentId", json!(1)),
        ("executionId", json!({})),
    ] {
        let settings = with(proxy(json!({})), json!({member: value}));
        refused(fixture, &settings, &["networkProxy", member]).await;
    }
    for value in [json!(true), json!("x"), json!([])] {
        refused(fixture, &value, &["networkProxy"]).await;
    }
}

async fn impossible_settings_are_refused(fixture: &mut NetworkFixture) {
    for (member, value) in [
        ("enabled", json!(false)),
        ("credentialMasking", json!(true)),
        ("credentialProviders", json!({"a": {}})),
    ] {
        refused(fixture, &changed(member, value), &["networkProxy", member]).await;
    }
    let settings = with(proxy(json!({})), json!({"policyDecisionTimeoutMs": 0}));
    refused(
        fixture,
        &settings,
        &["networkProxy", "policyDecisionTimeoutMs"],
    )
    .await;
}

async fn invalid_patterns_are_quoted(fixture: &mut NetworkFixture) {
    let long = format!("{}test", "a.".repeat(130));
    for pattern in [
        "a.test:80",
        "127.0.0.1:80",
        "http://a.test",
        "a.test/x",
        "",
        "a b",
        "a..test",
        "*.",
        "**",
        "**.",
        "*a.test",
        "a.*.test",
        "a.*",
        "***.a.test",
        "*.*.test",
        "*.10.0.0.1",
        "**.[::1]",
        "256.1.1.1",
        "[::1",
        "b\u{fc}cher.test",
        &long,
    ] {
        let quoted: String = pattern.chars().take(250).collect();
        for rule in ["allow", "deny", "none"] {
            let words = ["networkProxy", "domains", &quoted];
            refused(fixture, &proxy(json!({pattern: rule})), &words).await;
        }
        let words = ["networkProxy", "reviewDomains", &quoted];
        refused(fixture, &changed("reviewDomains", json!([pattern])), &words).await;
    }
    refused(
        fixture,
        &proxy(json!({"*": "deny"})),
        &["networkProxy", "domains", "*"],
    )
    .await;
}

async fn process_id_is_bounded_if_decisions_are_requested(fixture: &mut NetworkFixture) {
    for id in [String::new(), "x".repeat(257), "\u{e9}".repeat(129)] {
        for members in [
            managed(asking(json!({}))),
            json!({"networkProxy": asking(json!({}))}),
        ] {
            let params = fixture.script("", with(members, json!({"processId": id})));
            fixture.refused(params, &["processId", "256"]).await;
        }
    }
    for (id, members) in [
        ("x".repeat(256), managed(asking(json!({})))),
        // These need no decision.
        (String::new(), managed(proxy(json!({})))),
        ("x".repeat(257), managed(proxy(json!({})))),
    ] {
        let params = fixture.script(
            "get a.test",
            with(members.clone(), json!({"processId": id})),
        );
        let id = fixture.start(params).await;
        if members["networkProxy"]["policyDecisionTimeoutMs"].is_u64() {
            let (question, asked) = fixture.question().await;
            assert_eq!(asked["processId"], id);
            fixture
                .decide(&question, json!({"type": "deny", "reason": ""}))
                .await;
        }
        let text = fixture.text(&id).await;
        assert!(text.starts_with("HTTP/1.1 403 "), "{text}");
        assert_eq!(fixture.record(&id).await["processId"], id);
    }
}

async fn single_unix_sockets_are_refused_in_a_sandbox(fixture: &mut NetworkFixture) {
    let sockets = json!({"managedNetwork": {"allowUnixSockets": ["/run/a"]}});
    let params = fixture.script("", with(managed(proxy(json!({}))), sockets.clone()));
    fixture
        .refused(params, &["managedNetwork.allowUnixSockets"])
        .await;
    for (member, value) in [
        ("allowUnixSockets", json!("/run/a")),
        ("allowUnixSockets", json!([1])),
        ("dangerouslyAllowAllUnixSockets", json!("yes")),
        ("allowLocalBinding", json!(1)),
    ] {
        let bad = json!({"managedNetwork": {member: value}});
        let params = fixture.script("", with(managed(proxy(json!({}))), bad));
        fixture.refused(params, &["managedNetwork", member]).await;
    }
    // Without a sandbox every socket is usable anyway.
    let params = fixture.script("echo ran", sockets);
    assert_eq!(fixture.run(params).await, "ran\n");
}

async fn settings_for_other_platforms_are_accepted(fixture: &mut NetworkFixture) {
    let mut settings = proxy(Value::Null);
    for (member, value) in [
        ("unixSockets", json!({"/run/a": "allow", "/run/b": "deny"})),
        ("allowUpstreamProxy", json!(true)),
        ("dangerouslyAllowAllUnixSockets", json!(true)),
        ("credentialMasking", json!(false)),
        ("credentialProviders", json!({})),
        ("reviewDomains", json!(null)),
        ("newer", json!({"x": 1})),
    ] {
        settings["proxy"][member] = value;
    }
    let extra = json!({"environmentId": "e", "executionId": "x", "newer": [1], "auditMetadata": {
        "conversationId": "c", "appVersion": null, "userEmail": "a@b.test",
    }});
    let params = fixture.script("echo ran", managed(with(settings, extra)));
    assert_eq!(fixture.run(params).await, "ran\n");
    let absent = without(without(proxy(json!({})), "auditMetadata"), "proxy");
    let mut least = with(absent, json!({"proxy": proxy(json!({}))["proxy"]}));
    for member in ["domains", "unixSockets"] {
        least["proxy"] = without(least["proxy"].take(), member);
    }
    let params = fixture.script("echo ran", managed(least));
    assert_eq!(fixture.run(params).await, "ran\n");
}

async fn refused_start_leaves_nothing_running(fixture: &mut NetworkFixture) {
    let settings = changed("enabled", json!(false));
    refused(fixture, &settings, &["enabled"]).await;
    let (pid, before) = (fixture.server.pid(), descriptors(fixture.server.pid()));
    for _ in 0..20 {
        refused(fixture, &settings, &["enabled"]).await;
        let socket = json!({"managedNetwork": {"allowUnixSockets": ["/run/a"]}});
        let params = fixture.script("", with(managed(proxy(json!({}))), socket));
        fixture.refused(params, &["allowUnixSockets"]).await;
    }
    until("descriptors are closed", || descriptors(pid) <= before).await;
}
