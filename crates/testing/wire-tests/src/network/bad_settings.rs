//! Settings of a managed network that are refused: the member is named, and nothing is started.

use serde_json::{Value, json};

use super::stage::{Stage, as_one_user, asking, managed, proxy};
use crate::{
    client::with,
    params::without,
    server::{descriptors, until},
};

as_one_user!(
    missing_members_are_named,
    members_of_the_wrong_type_are_named,
    what_cannot_be_is_refused,
    bad_patterns_are_quoted,
    a_process_that_is_asked_about_has_a_short_name,
    single_unix_sockets_are_refused_in_a_sandbox,
    what_matters_elsewhere_is_taken,
    refused_starts_leave_nothing,
);

/// Checks that settings are refused, in a sandbox and without one. The words are in the message.
async fn refused(stage: &mut Stage, settings: &Value, words: &[&str]) {
    let marker = stage.server.path("marker");
    let script = format!("touch {}", marker.display());
    for members in [managed(settings.clone()), json!({"networkProxy": settings})] {
        let params = stage.script(&script, members);
        stage.refused(params, words).await;
    }
    assert!(!marker.exists(), "{settings}: something was started");
}

/// Settings with a member of `proxy` changed.
fn changed(member: &str, value: Value) -> Value {
    let mut settings = proxy(json!({}));
    settings["proxy"][member] = value;
    settings
}

async fn missing_members_are_named(stage: &mut Stage) {
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
        refused(stage, &settings, &["networkProxy.proxy", member]).await;
        for value in [json!(null), json!([]), json!(1)] {
            let words = ["networkProxy.proxy", member];
            refused(stage, &changed(member, value), &words).await;
        }
    }
    refused(
        stage,
        &without(proxy(json!({})), "proxy"),
        &["networkProxy", "proxy"],
    )
    .await;
    refused(stage, &json!({}), &["networkProxy", "proxy"]).await;
}

async fn members_of_the_wrong_type_are_named(stage: &mut Stage) {
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
            stage,
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
        refused(stage, &settings, &["networkProxy", member]).await;
    }
    for value in [json!(true), json!("x"), json!([])] {
        refused(stage, &value, &["networkProxy"]).await;
    }
}

async fn what_cannot_be_is_refused(stage: &mut Stage) {
    for (member, value) in [
        ("enabled", json!(false)),
        ("credentialMasking", json!(true)),
        ("credentialProviders", json!({"a": {}})),
    ] {
        refused(stage, &changed(member, value), &["networkProxy", member]).await;
    }
    let settings = with(proxy(json!({})), json!({"policyDecisionTimeoutMs": 0}));
    refused(
        stage,
        &settings,
        &["networkProxy", "policyDecisionTimeoutMs"],
    )
    .await;
}

async fn bad_patterns_are_quoted(stage: &mut Stage) {
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
            refused(stage, &proxy(json!({pattern: rule})), &words).await;
        }
        let words = ["networkProxy", "reviewDomains", &quoted];
        refused(stage, &changed("reviewDomains", json!([pattern])), &words).await;
    }
    refused(
        stage,
        &proxy(json!({"*": "deny"})),
        &["networkProxy", "domains", "*"],
    )
    .await;
}

async fn a_process_that_is_asked_about_has_a_short_name(stage: &mut Stage) {
    for id in [String::new(), "x".repeat(257), "\u{e9}".repeat(129)] {
        for members in [
            managed(asking(json!({}))),
            json!({"networkProxy": asking(json!({}))}),
        ] {
            let params = stage.script("", with(members, json!({"processId": id})));
            stage.refused(params, &["processId", "256"]).await;
        }
    }
    for (id, members) in [
        ("x".repeat(256), managed(asking(json!({})))),
        // Nobody asks about these.
        (String::new(), managed(proxy(json!({})))),
        ("x".repeat(257), managed(proxy(json!({})))),
    ] {
        let params = stage.script(
            "get a.test",
            with(members.clone(), json!({"processId": id})),
        );
        let id = stage.start(params).await;
        if members["networkProxy"]["policyDecisionTimeoutMs"].is_u64() {
            let (question, asked) = stage.question().await;
            assert_eq!(asked["processId"], id);
            stage
                .decide(&question, json!({"type": "deny", "reason": ""}))
                .await;
        }
        let text = stage.text(&id).await;
        assert!(text.starts_with("HTTP/1.1 403 "), "{text}");
        assert_eq!(stage.record(&id).await["processId"], id);
    }
}

async fn single_unix_sockets_are_refused_in_a_sandbox(stage: &mut Stage) {
    let sockets = json!({"managedNetwork": {"allowUnixSockets": ["/run/a"]}});
    let params = stage.script("", with(managed(proxy(json!({}))), sockets.clone()));
    stage
        .refused(params, &["managedNetwork.allowUnixSockets"])
        .await;
    for (member, value) in [
        ("allowUnixSockets", json!("/run/a")),
        ("allowUnixSockets", json!([1])),
        ("dangerouslyAllowAllUnixSockets", json!("yes")),
        ("allowLocalBinding", json!(1)),
    ] {
        let bad = json!({"managedNetwork": {member: value}});
        let params = stage.script("", with(managed(proxy(json!({}))), bad));
        stage.refused(params, &["managedNetwork", member]).await;
    }
    // Without a sandbox every socket can be used anyway.
    let params = stage.script("echo ran", sockets);
    assert_eq!(stage.run(params).await, "ran\n");
}

async fn what_matters_elsewhere_is_taken(stage: &mut Stage) {
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
    let more = json!({"environmentId": "e", "executionId": "x", "newer": [1], "auditMetadata": {
        "conversationId": "c", "appVersion": null, "userEmail": "a@b.test",
    }});
    let params = stage.script("echo ran", managed(with(settings, more)));
    assert_eq!(stage.run(params).await, "ran\n");
    let absent = without(without(proxy(json!({})), "auditMetadata"), "proxy");
    let mut least = with(absent, json!({"proxy": proxy(json!({}))["proxy"]}));
    for member in ["domains", "unixSockets"] {
        least["proxy"] = without(least["proxy"].take(), member);
    }
    let params = stage.script("echo ran", managed(least));
    assert_eq!(stage.run(params).await, "ran\n");
}

async fn refused_starts_leave_nothing(stage: &mut Stage) {
    let settings = changed("enabled", json!(false));
    refused(stage, &settings, &["enabled"]).await;
    let (pid, before) = (stage.server.pid(), descriptors(stage.server.pid()));
    for _ in 0..20 {
        refused(stage, &settings, &["enabled"]).await;
        let socket = json!({"managedNetwork": {"allowUnixSockets": ["/run/a"]}});
        let params = stage.script("", with(managed(proxy(json!({}))), socket));
        stage.refused(params, &["allowUnixSockets"]).await;
    }
    until("descriptors are closed", || descriptors(pid) <= before).await;
}
