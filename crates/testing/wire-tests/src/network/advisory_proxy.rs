//! Advisory proxy: the process also has the network of the host.

use std::net::TcpStream;

use serde_json::{Value, json};

use super::{HELLO, NetworkFixture, as_every_user, as_one_user, profile, proxy, sandbox};
use crate::{
    client::with,
    server::{descriptors, until},
};

as_every_user!(
    proxy_is_advisory_without_a_sandbox,
    proxy_is_advisory_in_a_sandbox_with_network,
);

as_one_user!(
    proxy_stops_with_the_process,
    proxy_stops_when_the_process_is_terminated,
    enforcing_without_sandbox_has_no_effect,
    failed_start_leaves_no_proxy,
);

fn advice() -> Value {
    json!({"networkProxy": proxy(json!({"127.0.0.1": "allow"}))})
}

/// Asserts that the origin is reachable with and without the proxy.
async fn check(fixture: &mut NetworkFixture, members: Value) {
    let (address, port) = (fixture.origin.address(), fixture.origin.port);
    for script in [
        format!("get {address}"),
        format!("tunnel {address}"),
        format!("socks 127.0.0.1 {port}"),
        format!("say {port} 'GET / HTTP/1.1\\r\\n\\r\\n'"),
    ] {
        let params = fixture.script(&script, members.clone());
        let text = fixture.run(params).await;
        assert!(text.ends_with(HELLO), "{script}: {text}");
    }
    let params = fixture.script("get unlisted.test", members);
    let id = fixture.start(params).await;
    let text = fixture.text(&id).await;
    assert!(text.starts_with("HTTP/1.1 403 "), "{text}");
    assert_eq!(fixture.record(&id).await["decision"], "deny");
}

async fn proxy_is_advisory_without_a_sandbox(fixture: &mut NetworkFixture) {
    check(fixture, advice()).await;
}

async fn proxy_is_advisory_in_a_sandbox_with_network(fixture: &mut NetworkFixture) {
    let unrestricted = json!({"type": "unrestricted"});
    for sandbox in [
        sandbox("enabled"),
        profile(json!({"type": "managed", "file_system": unrestricted, "network": "enabled"})),
        profile(json!({"type": "external", "network": "enabled"})),
        profile(json!({"type": "disabled"})),
    ] {
        check(fixture, with(advice(), json!({"sandbox": sandbox}))).await;
    }
}

/// Starts a process that prints its ports and waits, and returns its id and the ports.
async fn waiting(fixture: &mut NetworkFixture) -> (String, Vec<u16>) {
    let script = "echo ${HTTP_PROXY##*:} ${ALL_PROXY##*:}; read line";
    let params = fixture.script(script, with(advice(), json!({"pipeStdin": true})));
    let id = fixture.start(params).await;
    let line = fixture.client.output_until(&id, "\n").await;
    let ports = line.split_whitespace().map(|port| port.parse().unwrap());
    (id, ports.collect())
}

/// Asserts that the proxy listens only on loopback.
fn listening(ports: &[u16]) {
    for port in ports {
        TcpStream::connect(("127.0.0.1", *port)).unwrap();
        assert!(TcpStream::connect(("127.0.0.2", *port)).is_err(), "{port}");
    }
}

async fn stopped(ports: &[u16]) {
    for port in ports {
        until(&format!("nobody listens at {port}"), || {
            TcpStream::connect(("127.0.0.1", *port)).is_err()
        })
        .await;
    }
}

async fn proxy_stops_with_the_process(fixture: &mut NetworkFixture) {
    let before = descriptors(fixture.server.pid());
    let (one, ports) = waiting(fixture).await;
    let (two, others) = waiting(fixture).await;
    assert!(
        ports.iter().all(|port| !others.contains(port)),
        "processes must have separate proxies"
    );
    listening(&ports);
    fixture.go(&one).await;
    fixture.end(&one).await;
    stopped(&ports).await;
    listening(&others);
    fixture.go(&two).await;
    fixture.end(&two).await;
    stopped(&others).await;
    let pid = fixture.server.pid();
    until("descriptors are closed", || descriptors(pid) <= before + 1).await;
}

async fn proxy_stops_when_the_process_is_terminated(fixture: &mut NetworkFixture) {
    let (id, ports) = waiting(fixture).await;
    fixture
        .client
        .call("process/terminate", json!({"processId": id}))
        .await;
    fixture.end(&id).await;
    stopped(&ports).await;
}

async fn enforcing_without_sandbox_has_no_effect(fixture: &mut NetworkFixture) {
    check(
        fixture,
        with(advice(), json!({"enforceManagedNetwork": true})),
    )
    .await;
    let members = json!({"enforceManagedNetwork": true, "managedNetwork": {"loopbackPorts": [1]}});
    let script = format!(
        "say {} 'GET / HTTP/1.1\\r\\n\\r\\n'; env",
        fixture.origin.port
    );
    let params = fixture.script(&script, members);
    let text = fixture.run(params).await;
    assert!(text.contains(HELLO) && !text.contains("PROXY"), "{text}");
}

async fn failed_start_leaves_no_proxy(fixture: &mut NetworkFixture) {
    let pid = fixture.server.pid();
    let params = fixture.script("", with(advice(), json!({"argv": ["no-such-program"]})));
    let mut before = 0;
    for round in 0..4 {
        fixture
            .client
            .expect_error(-32603, "process/start", params.clone())
            .await;
        if round == 0 {
            before = descriptors(pid);
        }
    }
    until("descriptors are closed", || descriptors(pid) <= before).await;
}
