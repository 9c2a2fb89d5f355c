//! A sandbox from which only the client's own proxy is reachable.

use serde_json::{Value, json};

use super::{HELLO, NetworkFixture, OriginServer, as_every_user, as_one_user, sandbox};
use crate::{
    client::with,
    server::{PATH, descriptors, until},
};

as_every_user!(only_the_clients_ports_are_bridged);

as_one_user!(
    ports_default_to_those_of_the_proxy_variables,
    several_ports_are_bridged_separately,
    bridged_port_without_a_listener_is_closed,
    missing_proxy_variables_refuse_the_start,
    invalid_ports_are_refused,
    without_enforcing_nothing_is_bridged,
    bridge_leaves_no_descriptors_or_processes,
);

/// Returns start fields with variables and ports.
fn members(variables: Value, ports: Value) -> Value {
    json!({
        "env": with(json!({"PATH": PATH}), variables), "managedNetwork": {"loopbackPorts": ports},
        "enforceManagedNetwork": true, "sandbox": sandbox("restricted"),
    })
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

/// Returns a script that requests the page at a port.
fn page(port: u16) -> String {
    format!("say {port} 'GET / HTTP/1.1\\r\\n\\r\\n'")
}

async fn only_the_clients_ports_are_bridged(fixture: &mut NetworkFixture) {
    let (other, port) = (OriginServer::new().await, fixture.origin.port);
    let members = members(json!({"HTTP_PROXY": url(port)}), json!([port]));
    for network in ["restricted", "enabled"] {
        let members = with(members.clone(), json!({"sandbox": sandbox(network)}));
        let params = fixture.script(&page(port), members.clone());
        let text = fixture.run(params).await;
        assert!(text.ends_with(HELLO), "{text}");
        for (host, port, error) in [
            ("127.0.0.1", other.port, "ECONNREFUSED"),
            ("127.0.0.2", port, "ECONNREFUSED"),
            ("10.0.0.1", port, "ENETUNREACH"),
        ] {
            let args = ["connect", host, &port.to_string()];
            let params = fixture.probe(&args, members.clone());
            assert_eq!(
                fixture.run(params).await,
                format!("refused {error}\n"),
                "{args:?}"
            );
        }
        // The variables are those of the client.
        let params = fixture.script("env", members);
        let text = fixture.run(params).await;
        assert_eq!(text.matches("127.0.0.1").count(), 1, "{text}");
        assert!(
            text.contains(&format!("HTTP_PROXY={}\n", url(port))),
            "{text}"
        );
    }
    assert_eq!(other.connection_count(), 0);
}

async fn ports_default_to_those_of_the_proxy_variables(fixture: &mut NetworkFixture) {
    let (other, port) = (OriginServer::new().await, fixture.origin.port);
    let socks = format!("socks5h://localhost:{}", other.port);
    let variables =
        json!({"https_proxy": url(port), "ALL_PROXY": socks, "HTTP_PROXY": "http://a.test:1"});
    for ports in [
        json!({"managedNetwork": null}),
        json!({"managedNetwork": {}}),
    ] {
        let members = with(members(variables.clone(), json!([])), ports);
        for port in [port, other.port] {
            let params = fixture.script(&page(port), members.clone());
            let text = fixture.run(params).await;
            assert!(text.ends_with(HELLO), "{text}");
        }
    }
}

async fn several_ports_are_bridged_separately(fixture: &mut NetworkFixture) {
    let mut ports = vec![fixture.origin.port];
    let mut origins = Vec::new();
    for _ in 0..63 {
        let origin = OriginServer::new().await;
        ports.push(origin.port);
        origins.push(origin);
    }
    let script: String = origins
        .iter()
        .map(|origin| page(origin.port) + "; echo\n")
        .collect();
    ports.push(fixture.origin.port);
    let params = fixture.script(
        &script,
        members(json!({"HTTP_PROXY": url(ports[0])}), json!(ports)),
    );
    let text = fixture.run(params).await;
    assert_eq!(text.matches(HELLO).count(), origins.len(), "{text}");
    assert!(origins.iter().all(|origin| origin.connection_count() == 1));
    assert_eq!(fixture.origin.connection_count(), 0);
}

async fn bridged_port_without_a_listener_is_closed(fixture: &mut NetworkFixture) {
    let port = OriginServer::new().await.port;
    let params = fixture.script(
        &page(port),
        members(json!({"HTTP_PROXY": url(port)}), json!([port])),
    );
    let id = fixture.start(params).await;
    assert_eq!(fixture.finish(&id).await.stdout(), "");
}

async fn missing_proxy_variables_refuse_the_start(fixture: &mut NetworkFixture) {
    let port = fixture.origin.port;
    for (variables, ports) in [
        (json!({}), json!([])),
        (json!({}), json!([port])),
        (json!({"HTTP_PROXY": ""}), json!([port])),
        (
            json!({"HTTP_PROXY": "http://proxy.test:3128"}),
            json!([port]),
        ),
        (
            json!({"HTTPS_PROXY": "http://127.0.0.1@proxy.test:1"}),
            json!([port]),
        ),
        (
            json!({"ALL_PROXY": "socks5h://10.0.0.1:1080"}),
            json!([port]),
        ),
        (
            json!({"NO_PROXY": url(port), "OTHER": url(port)}),
            json!([port]),
        ),
        (json!({"HTTP_PROXY": "http://127.0.0.1:0"}), json!([])),
        (json!({"HTTP_PROXY": "http://127.0.0.1:65536"}), json!([])),
    ] {
        let params = fixture.script(&page(port), members(variables, ports));
        fixture.refused(params, &["enforceManagedNetwork"]).await;
    }
    let absent = members(json!({}), json!([]));
    let params = fixture.script("", with(absent, json!({"managedNetwork": null})));
    fixture.refused(params, &["enforceManagedNetwork"]).await;
    assert_eq!(fixture.origin.connection_count(), 0);
}

async fn invalid_ports_are_refused(fixture: &mut NetworkFixture) {
    let many: Vec<u16> = (1000..1065).collect();
    for ports in [
        json!([0]),
        json!([80, 0]),
        json!(many),
        json!([65536]),
        json!([-1]),
        json!(["80"]),
        json!([1.5]),
        json!(80),
        json!(null),
    ] {
        let params = fixture.script("", members(json!({"HTTP_PROXY": url(80)}), ports));
        fixture
            .refused(params, &["managedNetwork", "loopbackPorts"])
            .await;
    }
}

async fn without_enforcing_nothing_is_bridged(fixture: &mut NetworkFixture) {
    let port = fixture.origin.port;
    let members = members(json!({"HTTP_PROXY": url(port)}), json!([port]));
    let members = with(members, json!({"enforceManagedNetwork": false}));
    let params = fixture.probe(&["connect", "127.0.0.1", &port.to_string()], members);
    let text = fixture.run(params).await;
    assert!(text.starts_with("refused "), "{text}");
    assert_eq!(fixture.origin.connection_count(), 0);
}

async fn bridge_leaves_no_descriptors_or_processes(fixture: &mut NetworkFixture) {
    let (pid, port) = (fixture.server.pid(), fixture.origin.port);
    let members = members(json!({"HTTP_PROXY": url(port)}), json!([port]));
    let mut limit = 0;
    // Descriptors may close with a delay, so run more rounds than the allowed excess.
    for round in 0..16 {
        let params = fixture.script(&page(port), members.clone());
        let text = fixture.run(params).await;
        assert!(text.ends_with(HELLO), "{text}");
        if round == 0 {
            limit = descriptors(pid);
        }
    }
    until("descriptors are closed", || descriptors(pid) <= limit).await;
}
