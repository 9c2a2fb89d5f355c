//! A proxy that a process may use or not: it has the network of the host.

use std::net::TcpStream;

use serde_json::{Value, json};

use super::stage::{HELLO, Stage, as_every_user, as_one_user, profile, proxy, sandbox};
use crate::{
    client::with,
    server::{descriptors, until},
};

as_every_user!(
    without_sandbox_the_proxy_is_advice,
    a_sandbox_with_network_has_the_proxy_as_advice,
);

as_one_user!(
    the_proxy_stops_with_the_process,
    the_proxy_stops_when_the_process_is_terminated,
    enforcing_without_sandbox_has_no_effect,
    a_start_that_fails_leaves_no_proxy,
);

fn advice() -> Value {
    json!({"networkProxy": proxy(json!({"127.0.0.1": "allow"}))})
}

/// Checks that the origin is reached by every way, with the proxy and without.
async fn check(stage: &mut Stage, members: Value) {
    let (place, port) = (stage.origin.place(), stage.origin.port);
    for script in [
        format!("get {place}"),
        format!("tunnel {place}"),
        format!("socks 127.0.0.1 {port}"),
        format!("say {port} 'GET / HTTP/1.1\\r\\n\\r\\n'"),
    ] {
        let params = stage.script(&script, members.clone());
        let text = stage.run(params).await;
        assert!(text.ends_with(HELLO), "{script}: {text}");
    }
    let params = stage.script("get unlisted.test", members);
    let id = stage.start(params).await;
    let text = stage.text(&id).await;
    assert!(text.starts_with("HTTP/1.1 403 "), "{text}");
    assert_eq!(stage.record(&id).await["decision"], "deny");
}

async fn without_sandbox_the_proxy_is_advice(stage: &mut Stage) {
    check(stage, advice()).await;
}

async fn a_sandbox_with_network_has_the_proxy_as_advice(stage: &mut Stage) {
    let unrestricted = json!({"type": "unrestricted"});
    for sandbox in [
        sandbox("enabled"),
        profile(json!({"type": "managed", "file_system": unrestricted, "network": "enabled"})),
        profile(json!({"type": "external", "network": "enabled"})),
        profile(json!({"type": "disabled"})),
    ] {
        check(stage, with(advice(), json!({"sandbox": sandbox}))).await;
    }
}

/// Starts a process that prints its ports and waits; returns its id and the ports.
async fn waiting(stage: &mut Stage) -> (String, Vec<u16>) {
    let script = "echo ${HTTP_PROXY##*:} ${ALL_PROXY##*:}; read line";
    let params = stage.script(script, with(advice(), json!({"pipeStdin": true})));
    let id = stage.start(params).await;
    let line = stage.client.output_until(&id, "\n").await;
    let ports = line.split_whitespace().map(|port| port.parse().unwrap());
    (id, ports.collect())
}

/// Checks that the proxy listens on the loopback and nowhere else.
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

async fn the_proxy_stops_with_the_process(stage: &mut Stage) {
    let before = descriptors(stage.server.pid());
    let (one, ports) = waiting(stage).await;
    let (two, others) = waiting(stage).await;
    assert!(
        ports.iter().all(|port| !others.contains(port)),
        "each has its own"
    );
    listening(&ports);
    stage.go(&one).await;
    stage.end(&one).await;
    stopped(&ports).await;
    listening(&others);
    stage.go(&two).await;
    stage.end(&two).await;
    stopped(&others).await;
    let pid = stage.server.pid();
    until("descriptors are closed", || descriptors(pid) <= before + 1).await;
}

async fn the_proxy_stops_when_the_process_is_terminated(stage: &mut Stage) {
    let (id, ports) = waiting(stage).await;
    stage
        .client
        .call("process/terminate", json!({"processId": id}))
        .await;
    stage.end(&id).await;
    stopped(&ports).await;
}

async fn enforcing_without_sandbox_has_no_effect(stage: &mut Stage) {
    check(
        stage,
        with(advice(), json!({"enforceManagedNetwork": true})),
    )
    .await;
    let members = json!({"enforceManagedNetwork": true, "managedNetwork": {"loopbackPorts": [1]}});
    let script = format!(
        "say {} 'GET / HTTP/1.1\\r\\n\\r\\n'; env",
        stage.origin.port
    );
    let params = stage.script(&script, members);
    let text = stage.run(params).await;
    assert!(text.contains(HELLO) && !text.contains("PROXY"), "{text}");
}

async fn a_start_that_fails_leaves_no_proxy(stage: &mut Stage) {
    let pid = stage.server.pid();
    let params = stage.script("", with(advice(), json!({"argv": ["no-such-program"]})));
    let mut before = 0;
    for round in 0..4 {
        stage
            .client
            .expect_error(-32603, "process/start", params.clone())
            .await;
        if round == 0 {
            before = descriptors(pid);
        }
    }
    until("descriptors are closed", || descriptors(pid) <= before).await;
}
