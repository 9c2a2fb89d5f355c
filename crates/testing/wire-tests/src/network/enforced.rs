//! A sandbox from which only the proxy is reached.

use std::{
    net::{Ipv4Addr, TcpStream, UdpSocket},
    os::unix::net::UnixListener,
};

use serde_json::{Value, json};

use super::stage::{HELLO, Stage, as_every_user, as_one_user, managed, proxy};
use crate::{
    client::with,
    server::{PATH, descriptors, until},
};

as_every_user!(
    an_allowed_host_is_reached_by_every_protocol,
    nobody_is_reached_without_the_proxy,
    sockets_of_other_families_are_refused,
    a_terminal_has_the_same_network,
);

as_one_user!(
    the_ports_of_the_proxy_lead_nowhere_else,
    the_ports_of_the_proxy_are_not_on_the_host,
    two_processes_have_two_networks,
    a_socks_proxy_that_is_off_is_not_there,
    ports_of_the_client_are_not_bridged_beside_a_proxy,
    nothing_is_left_of_a_network,
    large_bodies_pass_through,
);

fn open() -> Value {
    managed(proxy(json!({"127.0.0.1": "allow"})))
}

async fn an_allowed_host_is_reached_by_every_protocol(stage: &mut Stage) {
    let (place, port) = (stage.origin.place(), stage.origin.port);
    for (script, sign) in [
        (format!("get {place}"), "HTTP/1.1 200 OK\r\n"),
        (format!("tunnel {place}"), "HTTP/1.1 200 "),
        (
            format!("socks 127.0.0.1 {port}"),
            " 05 00 05 00 00 01 00 00 00 00 00 00\n",
        ),
    ] {
        let before = stage.origin.visits();
        let params = stage.script(&script, open());
        let text = stage.run(params).await;
        assert!(
            text.starts_with(sign) && text.ends_with(HELLO),
            "{script}: {text}"
        );
        assert_eq!(stage.origin.visits(), before + 1, "{script}");
    }
}

async fn nobody_is_reached_without_the_proxy(stage: &mut Stage) {
    let port = stage.origin.port.to_string();
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    udp.set_nonblocking(true).unwrap();
    let datagrams = udp.local_addr().unwrap().port().to_string();
    for (args, errors) in [
        (["connect", "127.0.0.1", &port], "ECONNREFUSED"),
        (["connect", "127.0.0.2", &port], "ECONNREFUSED"),
        (["connect", "0.0.0.0", &port], "ECONNREFUSED"),
        (["connect", "::1", &port], "ECONNREFUSED EADDRNOTAVAIL"),
        (
            ["connect", "::ffff:127.0.0.1", &port],
            "ECONNREFUSED ENETUNREACH",
        ),
        (["connect", "10.0.0.1", "80"], "ENETUNREACH"),
        (["connect", "11.22.33.44", "80"], "ENETUNREACH"),
        (
            ["connect", "2600::1", "80"],
            "ENETUNREACH EADDRNOTAVAIL EHOSTUNREACH",
        ),
        (["udp", "10.0.0.1", "53"], "ENETUNREACH"),
        (["udp", "11.22.33.44", "53"], "ENETUNREACH"),
    ] {
        let params = stage.probe(&args, open());
        let line = stage.run(params).await;
        let error = line.trim_end().strip_prefix("refused ").unwrap_or("none");
        assert!(
            errors.split(' ').any(|one| one == error),
            "{args:?}: {line}"
        );
    }
    // A datagram goes nowhere without anybody being told.
    let params = stage.probe(&["udp", "127.0.0.1", &datagrams], open());
    stage.run(params).await;
    assert!(udp.recv(&mut [0; 16]).is_err(), "the host was reached");
    assert_eq!(stage.origin.visits(), 0);
    // The probes work where they may.
    let params = stage.probe(&["connect", "127.0.0.1", &port], json!({}));
    assert_eq!(stage.run(params).await, "ok\n");
    let params = stage.probe(&["udp", "127.0.0.1", &datagrams], json!({}));
    assert_eq!(stage.run(params).await, "ok\n");
    udp.recv(&mut [0; 16]).unwrap();
}

async fn sockets_of_other_families_are_refused(stage: &mut Stage) {
    let path = stage.server.path("listener");
    let _listener = UnixListener::bind(&path).unwrap();
    let unix = ["unix-connect", path.to_str().unwrap()];
    let probes: [&[&str]; 7] = [
        &["socket-unix"],
        &unix,
        &["socket-netlink"],
        &["socket-packet"],
        &["socket-raw"],
        &["socket-vsock"],
        &["socket-alg"],
    ];
    for args in probes {
        let params = stage.probe(args, open());
        assert_eq!(stage.run(params).await, "refused EPERM\n", "{args:?}");
    }
    for args in [
        ["socket-inet"],
        ["socket-inet6"],
        ["socketpair"],
        ["lo-self"],
    ] {
        let params = stage.probe(&args, open());
        assert_eq!(stage.run(params).await, "ok\n", "{args:?}");
    }
    let every = json!({"managedNetwork": {"dangerouslyAllowAllUnixSockets": true}});
    let params = stage.probe(&["socket-unix"], with(open(), every.clone()));
    assert_eq!(stage.run(params).await, "ok\n");
    let params = stage.probe(&["socket-netlink"], with(open(), every));
    assert_eq!(stage.run(params).await, "refused EPERM\n");
}

async fn a_terminal_has_the_same_network(stage: &mut Stage) {
    let place = stage.origin.place();
    let script = format!(
        "get {place}; say {} x || echo; echo apart",
        stage.origin.port
    );
    let params = stage.script(&script, with(open(), json!({"tty": true})));
    let id = stage.start(params).await;
    let text = stage.finish(&id).await.stream("pty");
    assert!(
        text.contains(HELLO) && text.ends_with("apart\r\n"),
        "{text}"
    );
    assert_eq!(stage.origin.visits(), 1);
}

async fn the_ports_of_the_proxy_lead_nowhere_else(stage: &mut Stage) {
    let (place, port) = (stage.origin.place(), stage.origin.port);
    // What is said to the ports, and what is not a wish that a proxy grants.
    for (script, sign) in [
        (
            "http 'GET / HTTP/1.1\\r\\nHost: PLACE\\r\\n\\r\\n'",
            "HTTP/1.1 400 ",
        ),
        ("http 'GET /x HTTP/1.0\\r\\n\\r\\n'", "HTTP/1.1 400 "),
        (
            "http 'GET ftp://PLACE/ HTTP/1.1\\r\\nHost: PLACE\\r\\n\\r\\n'",
            "HTTP/1.1 400 ",
        ),
        (
            "http 'CONNECT 127.0.0.1 HTTP/1.1\\r\\nHost: PLACE\\r\\n\\r\\n'",
            "HTTP/1.1 400 ",
        ),
        (
            "http 'CONNECT 127.0.0.1:0 HTTP/1.1\\r\\nHost: PLACE\\r\\n\\r\\n'",
            "HTTP/1.1 400 ",
        ),
        ("http 'SSH-2.0-OpenSSH_9.2\\r\\n\\r\\n'", "HTTP/1.1 400 "),
        // The Host field does not decide where a request goes.
        (
            "http 'GET http://unlisted.test/ HTTP/1.1\\r\\nHost: PLACE\\r\\n\\r\\n'",
            "HTTP/1.1 403 ",
        ),
        // No authentication is offered, and nobody gets in by another version.
        ("other '\\x05\\x01\\x02'", " 05 ff\n"),
        ("other '\\x04\\x01\\x1f\\x90\\x7f\\x00\\x00\\x01\\x00'", ""),
        ("other 'GET http://PLACE/ HTTP/1.1\\r\\n\\r\\n'", ""),
        // Listening for others, and datagrams, which have no way out of here.
        (
            "other '\\x05\\x01\\x00\\x05\\x02\\x00\\x01\\x7f\\x00\\x00\\x01\\x00\\x50'",
            " 05 00 05 07 00 01 00 00 00 00 00 00\n",
        ),
        (
            "other '\\x05\\x01\\x00\\x05\\x03\\x00\\x01\\x00\\x00\\x00\\x00\\x00\\x00'",
            " 05 00 05 07 00 01 00 00 00 00 00 00\n",
        ),
    ] {
        let script = script.replace("PLACE", &place);
        let functions = r#"http() { say "${HTTP_PROXY##*:}" "$1"; }
            other() { say "${ALL_PROXY##*:}" "$1" | od -An -v -tx1; }"#;
        let params = stage.script(&format!("{functions}\n{script}"), open());
        let text = stage.run(params).await;
        let fits = if sign.is_empty() {
            text.is_empty()
        } else {
            text.starts_with(sign)
        };
        assert!(fits, "{script}: {text}");
    }
    assert_eq!(stage.origin.visits(), 0, "{port} was reached");
}

async fn the_ports_of_the_proxy_are_not_on_the_host(stage: &mut Stage) {
    let script = "echo ${HTTP_PROXY##*:} ${ALL_PROXY##*:}; read line";
    let params = stage.script(script, with(open(), json!({"pipeStdin": true})));
    let id = stage.start(params).await;
    let line = stage.client.output_until(&id, "\n").await;
    let ports: Vec<u16> = line
        .split_whitespace()
        .map(|port| port.parse().unwrap())
        .collect();
    assert_eq!(ports.len(), 2, "{line}");
    for port in ports {
        for address in ["127.0.0.1", "0.0.0.0", "::1"] {
            assert!(
                TcpStream::connect((address, port)).is_err(),
                "{address} {port}"
            );
        }
    }
    stage.go(&id).await;
    stage.end(&id).await;
}

async fn two_processes_have_two_networks(stage: &mut Stage) {
    let place = stage.origin.place();
    let wait = json!({"pipeStdin": true});
    let script = format!("read line; echo; get {place}");
    let closed = with(managed(proxy(json!({}))), wait.clone());
    let (yes, no) = (
        stage.script(&script, with(open(), wait)),
        stage.script(&script, closed),
    );
    let (yes, no) = (stage.start(yes).await, stage.start(no).await);
    for id in [&no, &yes] {
        stage.go(id).await;
    }
    let text = stage.text(&no).await;
    assert!(text.starts_with("\nHTTP/1.1 403 "), "{text}");
    let text = stage.text(&yes).await;
    assert!(text.ends_with(HELLO), "{text}");
    assert_eq!(stage.origin.visits(), 1);
    for (id, decision) in [(yes, "allow"), (no, "deny")] {
        assert_eq!(stage.record(&id).await["decision"], decision);
    }
}

async fn a_socks_proxy_that_is_off_is_not_there(stage: &mut Stage) {
    let place = stage.origin.place();
    let mut members = open();
    members["networkProxy"]["proxy"]["enableSocks5"] = json!(false);
    let script = format!(
        "[ \"$ALL_PROXY\" = \"$HTTP_PROXY\" ] && get {place}
        say $((${{HTTP_PROXY##*:}} + 1)) x || printf none"
    );
    let params = stage.script(&script, members);
    let id = stage.start(params).await;
    let events = stage.finish(&id).await;
    assert!(
        events.stdout().ends_with(&format!("{HELLO}none")),
        "{events:?}"
    );
}

async fn ports_of_the_client_are_not_bridged_beside_a_proxy(stage: &mut Stage) {
    let port = stage.origin.port;
    let ports = json!({
        "managedNetwork": {"loopbackPorts": [port], "allowLocalBinding": true},
        "env": {"PATH": PATH, "HTTP_PROXY": format!("http://127.0.0.1:{port}")},
    });
    let members = with(managed(proxy(json!({}))), ports);
    let probe = stage.probe(&["connect", "127.0.0.1", &port.to_string()], members);
    assert_eq!(stage.run(probe).await, "refused ECONNREFUSED\n");
    assert_eq!(stage.origin.visits(), 0);
}

async fn nothing_is_left_of_a_network(stage: &mut Stage) {
    let (pid, place) = (stage.server.pid(), stage.origin.place());
    let mut most = 0;
    // What closes a little later counts at first, so that there are more rounds than that may be.
    for round in 0..16 {
        let params = stage.script(&format!("get {place}"), open());
        let text = stage.run(params).await;
        assert!(text.ends_with(HELLO), "{text}");
        if round == 0 {
            most = descriptors(pid);
        }
    }
    until("descriptors are closed", || descriptors(pid) <= most).await;
}

async fn large_bodies_pass_through(stage: &mut Stage) {
    // More than any buffer on the way holds, both ways: what is sent comes back.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let echo = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut read, mut write) = stream.split();
        tokio::io::copy(&mut read, &mut write).await.unwrap()
    });
    let script = format!(
        r#"exec 3<>"/dev/tcp/127.0.0.1/${{HTTPS_PROXY##*:}}"
        printf 'CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n' >&3
        while read -r line <&3 && [ "$line" != $'\r' ]; do :; done
        head -c 8000000 /dev/zero >&3 & head -c 8000000 <&3 | wc -c; wait"#
    );
    let params = stage.script(&script, open());
    assert_eq!(stage.run(params).await, "8000000\n");
    assert_eq!(echo.await.unwrap(), 8_000_000);
}
