//! Proxy variables of a process.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{NetworkFixture, as_one_user, managed, proxy};
use crate::{client::with, server::PATH};

as_one_user!(
    proxy_variables_are_set_in_a_sandbox,
    proxy_variables_are_set_without_a_sandbox,
    without_socks_all_variables_name_the_http_proxy,
    local_binding_exempts_loopback,
    client_proxy_variables_are_overridden,
);

/// Variables that name the HTTP proxy.
const HTTP: [&str; 14] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "WS_PROXY",
    "ws_proxy",
    "WSS_PROXY",
    "wss_proxy",
    "YARN_HTTP_PROXY",
    "YARN_HTTPS_PROXY",
    "npm_config_proxy",
    "npm_config_https_proxy",
    "BUNDLE_HTTP_PROXY",
    "PIP_PROXY",
];

/// Variables that name the SOCKS5 proxy, if there is one.
const OTHER: [&str; 4] = ["ALL_PROXY", "all_proxy", "FTP_PROXY", "ftp_proxy"];

/// Variables that name destinations to reach without a proxy.
const EXEMPT: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Runs `env` and returns its output.
async fn environment(fixture: &mut NetworkFixture, members: Value) -> BTreeMap<String, String> {
    let params = fixture.script("exec env", members);
    let text = fixture.run(params).await;
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn port(url: &str, scheme: &str) -> u16 {
    let rest = url
        .strip_prefix(scheme)
        .and_then(|rest| rest.strip_prefix("://127.0.0.1:"));
    rest.and_then(|port| port.parse().ok())
        .unwrap_or_else(|| panic!("{url} is not {scheme}"))
}

/// Checks the variables of a proxy with both protocols that blocks local addresses.
fn check(found: &BTreeMap<String, String>) {
    let (http, other) = (&found["HTTP_PROXY"], &found["ALL_PROXY"]);
    assert_ne!(port(http, "http"), port(other, "socks5h"));
    for name in HTTP {
        assert_eq!(&found[name], http, "{name}");
    }
    for name in OTHER {
        assert_eq!(&found[name], other, "{name}");
    }
    for name in EXEMPT {
        assert_eq!(found[name], "", "{name}");
    }
    for (name, value) in [
        ("CODEX_NETWORK_PROXY_ACTIVE", "1"),
        ("CODEX_NETWORK_ALLOW_LOCAL_BINDING", "0"),
        ("ELECTRON_GET_USE_PROXY", "true"),
        ("NODE_USE_ENV_PROXY", "1"),
        ("PATH", PATH),
    ] {
        assert_eq!(found[name], value, "{name}");
    }
    assert!(found.contains_key("DOCKER_HTTP_PROXY") && found.contains_key("DOCKER_HTTPS_PROXY"));
}

async fn proxy_variables_are_set_in_a_sandbox(fixture: &mut NetworkFixture) {
    check(&environment(fixture, managed(proxy(json!({})))).await);
}

async fn proxy_variables_are_set_without_a_sandbox(fixture: &mut NetworkFixture) {
    check(&environment(fixture, json!({"networkProxy": proxy(json!({}))})).await);
}

async fn without_socks_all_variables_name_the_http_proxy(fixture: &mut NetworkFixture) {
    let mut settings = proxy(json!({}));
    settings["proxy"]["enableSocks5"] = json!(false);
    for members in [managed(settings.clone()), json!({"networkProxy": settings})] {
        let found = environment(fixture, members).await;
        port(&found["HTTP_PROXY"], "http");
        for name in HTTP.into_iter().chain(OTHER) {
            assert_eq!(found[name], found["HTTP_PROXY"], "{name}");
        }
    }
}

async fn local_binding_exempts_loopback(fixture: &mut NetworkFixture) {
    let mut settings = proxy(json!({}));
    settings["proxy"]["allowLocalBinding"] = json!(true);
    let found = environment(fixture, managed(settings)).await;
    assert_eq!(found["CODEX_NETWORK_ALLOW_LOCAL_BINDING"], "1");
    for name in EXEMPT {
        let local: Vec<&str> = found[name].split(',').collect();
        assert!(
            local.contains(&"localhost") && local.contains(&"127.0.0.1"),
            "{local:?}"
        );
    }
}

async fn client_proxy_variables_are_overridden(fixture: &mut NetworkFixture) {
    let mut env = json!({"PATH": PATH, "CODEX_NETWORK_PROXY_ACTIVE": "0"});
    for name in HTTP.into_iter().chain(OTHER) {
        env[name] = json!("http://elsewhere.test:3128");
    }
    for name in EXEMPT {
        env[name] = json!("*");
    }
    for members in [
        managed(proxy(json!({}))),
        json!({"networkProxy": proxy(json!({}))}),
    ] {
        check(&environment(fixture, with(members, json!({"env": env}))).await);
    }
}
