//! A sandbox from which only a proxy of the client's is reached.

use serde_json::{Value, json};

use super::stage::{HELLO, Origin, Stage, as_every_user, as_one_user, sandbox};
use crate::{
    client::with,
    server::{PATH, descriptors, until},
};

as_every_user!(only_the_ports_of_the_client_are_bridged);

as_one_user!(
    without_ports_those_of_the_variables_are_bridged,
    several_ports_are_bridged_each_to_its_own,
    a_port_where_nobody_listens_is_closed,
    without_usable_variables_nothing_starts,
    bad_ports_are_refused,
    without_enforcing_nothing_is_bridged,
    nothing_is_left_of_a_bridge,
);

/// Members of a start with variables and ports.
fn members(variables: Value, ports: Value) -> Value {
    json!({
        "env": with(json!({"PATH": PATH}), variables), "managedNetwork": {"loopbackPorts": ports},
        "enforceManagedNetwork": true, "sandbox": sandbox("restricted"),
    })
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

/// A script that asks for the page at a port.
fn page(port: u16) -> String {
    format!("say {port} 'GET / HTTP/1.1\\r\\n\\r\\n'")
}

async fn only_the_ports_of_the_client_are_bridged(stage: &mut Stage) {
    let (other, port) = (Origin::new().await, stage.origin.port);
    let members = members(json!({"HTTP_PROXY": url(port)}), json!([port]));
    for network in ["restricted", "enabled"] {
        let members = with(members.clone(), json!({"sandbox": sandbox(network)}));
        let params = stage.script(&page(port), members.clone());
        let text = stage.run(params).await;
        assert!(text.ends_with(HELLO), "{text}");
        for (host, port, error) in [
            ("127.0.0.1", other.port, "ECONNREFUSED"),
            ("127.0.0.2", port, "ECONNREFUSED"),
            ("10.0.0.1", port, "ENETUNREACH"),
        ] {
            let args = ["connect", host, &port.to_string()];
            let params = stage.probe(&args, members.clone());
            assert_eq!(
                stage.run(params).await,
                format!("refused {error}\n"),
                "{args:?}"
            );
        }
        // Nobody is led anywhere else than the client said.
        let params = stage.script("env", members);
        let text = stage.run(params).await;
        assert_eq!(text.matches("127.0.0.1").count(), 1, "{text}");
        assert!(
            text.contains(&format!("HTTP_PROXY={}\n", url(port))),
            "{text}"
        );
    }
    assert_eq!(other.visits(), 0);
}

async fn without_ports_those_of_the_variables_are_bridged(stage: &mut Stage) {
    let (other, port) = (Origin::new().await, stage.origin.port);
    let socks = format!("socks5h://localhost:{}", other.port);
    let variables =
        json!({"https_proxy": url(port), "ALL_PROXY": socks, "HTTP_PROXY": "http://a.test:1"});
    for ports in [
        json!({"managedNetwork": null}),
        json!({"managedNetwork": {}}),
    ] {
        let members = with(members(variables.clone(), json!([])), ports);
        for port in [port, other.port] {
            let params = stage.script(&page(port), members.clone());
            let text = stage.run(params).await;
            assert!(text.ends_with(HELLO), "{text}");
        }
    }
}

async fn several_ports_are_bridged_each_to_its_own(stage: &mut Stage) {
    let mut ports = vec![stage.origin.port];
    let mut others = Vec::new();
    for _ in 0..63 {
        let origin = Origin::new().await;
        ports.push(origin.port);
        others.push(origin);
    }
    let script: String = others
        .iter()
        .map(|origin| page(origin.port) + "; echo\n")
        .collect();
    ports.push(stage.origin.port);
    let params = stage.script(
        &script,
        members(json!({"HTTP_PROXY": url(ports[0])}), json!(ports)),
    );
    let text = stage.run(params).await;
    assert_eq!(text.matches(HELLO).count(), others.len(), "{text}");
    assert!(others.iter().all(|origin| origin.visits() == 1));
    assert_eq!(stage.origin.visits(), 0);
}

async fn a_port_where_nobody_listens_is_closed(stage: &mut Stage) {
    let port = Origin::new().await.port;
    let params = stage.script(
        &page(port),
        members(json!({"HTTP_PROXY": url(port)}), json!([port])),
    );
    let id = stage.start(params).await;
    assert_eq!(stage.finish(&id).await.stdout(), "");
}

async fn without_usable_variables_nothing_starts(stage: &mut Stage) {
    let port = stage.origin.port;
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
        let params = stage.script(&page(port), members(variables, ports));
        stage.refused(params, &["enforceManagedNetwork"]).await;
    }
    let absent = members(json!({}), json!([]));
    let params = stage.script("", with(absent, json!({"managedNetwork": null})));
    stage.refused(params, &["enforceManagedNetwork"]).await;
    assert_eq!(stage.origin.visits(), 0);
}

async fn bad_ports_are_refused(stage: &mut Stage) {
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
        let params = stage.script("", members(json!({"HTTP_PROXY": url(80)}), ports));
        stage
            .refused(params, &["managedNetwork", "loopbackPorts"])
            .await;
    }
}

async fn without_enforcing_nothing_is_bridged(stage: &mut Stage) {
    let port = stage.origin.port;
    let members = members(json!({"HTTP_PROXY": url(port)}), json!([port]));
    let members = with(members, json!({"enforceManagedNetwork": false}));
    let params = stage.probe(&["connect", "127.0.0.1", &port.to_string()], members);
    let text = stage.run(params).await;
    assert!(text.starts_with("refused "), "{text}");
    assert_eq!(stage.origin.visits(), 0);
}

async fn nothing_is_left_of_a_bridge(stage: &mut Stage) {
    let (pid, port) = (stage.server.pid(), stage.origin.port);
    let members = members(json!({"HTTP_PROXY": url(port)}), json!([port]));
    let mut most = 0;
    // What closes a little later counts at first, so that there are more rounds than that may be.
    for round in 0..16 {
        let params = stage.script(&page(port), members.clone());
        let text = stage.run(params).await;
        assert!(text.ends_with(HELLO), "{text}");
        if round == 0 {
            most = descriptors(pid);
        }
    }
    until("descriptors are closed", || descriptors(pid) <= most).await;
}
