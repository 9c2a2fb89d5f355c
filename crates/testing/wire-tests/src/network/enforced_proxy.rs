//! A sandbox from which only the managed proxy is reachable.

use std::{
    net::{Ipv4Addr, TcpStream, UdpSocket},
    os::unix::net::UnixListener,
};

use serde_json::{Value, json};

use super::{HELLO, NetworkFixture, as_every_user, as_one_user, managed, proxy};
use crate::{
    client::with,
    server::{PATH, descriptors, until},
};

as_every_user!(
    allowed_host_is_reachable_by_every_protocol,
    nothing_is_reachable_without_the_proxy,
    sockets_of_other_families_are_refused,
    terminal_process_has_the_same_network,
);

as_one_user!(
    proxy_ports_refuse_invalid_requests,
    proxy_ports_are_not_open_on_the_host,
    each_process_has_its_own_network,
    disabled_socks_proxy_does_not_listen,
    local_binding_gives_a_loopback_that_leads_nowhere,
    client_ports_are_not_bridged_with_a_managed_proxy,
    managed_network_leaves_no_descriptors_or_processes,
    large_bodies_pass_through_the_proxy,
);

fn open() -> Value {
    managed(proxy(json!({"127.0.0.1": "allow"})))
}

async fn allowed_host_is_reachable_by_every_protocol(fixture: &mut NetworkFixture) {
    let (address, port) = (fixture.origin.address(), fixture.origin.port);
    for (script, sign) in [
        (format!("get {address}"), "HTTP/1.1 200 OK\r\n"),
        (format!("tunnel {address}"), "HTTP/1.1 200 "),
        (
            format!("socks 127.0.0.1 {port}"),
            " 05 00 05 00 00 01 00 00 00 00 00 00\n",
        ),
    ] {
        let before = fixture.origin.connection_count();
        let params = fixture.script(&script, open());
        let text = fixture.run(params).await;
        assert!(
            text.starts_with(sign) && text.ends_with(HELLO),
            "{script}: {text}"
        );
        assert_eq!(fixture.origin.connection_count(), before + 1, "{script}");
    }
}

async fn nothing_is_reachable_without_the_proxy(fixture: &mut NetworkFixture) {
    let port = fixture.origin.port.to_string();
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
        let params = fixture.probe(&args, open());
        let line = fixture.run(params).await;
        let error = line.trim_end().strip_prefix("refused ").unwrap_or("none");
        assert!(
            errors.split(' ').any(|one| one == error),
            "{args:?}: {line}"
        );
    }
    // A datagram is dropped without an error.
    let params = fixture.probe(&["udp", "127.0.0.1", &datagrams], open());
    fixture.run(params).await;
    assert!(udp.recv(&mut [0; 16]).is_err(), "the host was reached");
    assert_eq!(fixture.origin.connection_count(), 0);
    // The probes work without a sandbox.
    let params = fixture.probe(&["connect", "127.0.0.1", &port], json!({}));
    assert_eq!(fixture.run(params).await, "ok\n");
    let params = fixture.probe(&["udp", "127.0.0.1", &datagrams], json!({}));
    assert_eq!(fixture.run(params).await, "ok\n");
    udp.recv(&mut [0; 16]).unwrap();
}

async fn sockets_of_other_families_are_refused(fixture: &mut NetworkFixture) {
    let path = fixture.server.path("listener");
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
        let params = fixture.probe(args, open());
        assert_eq!(fixture.run(params).await, "refused EPERM\n", "{args:?}");
    }
    for args in [
        ["socket-inet"],
        ["socket-inet6"],
        ["socketpair"],
        ["lo-self"],
    ] {
        let params = fixture.probe(&args, open());
        assert_eq!(fixture.run(params).await, "ok\n", "{args:?}");
    }
    let every = json!({"managedNetwork": {"dangerouslyAllowAllUnixSockets": true}});
    let params = fixture.probe(&["socket-unix"], with(open(), every.clone()));
    assert_eq!(fixture.run(params).await, "ok\n");
    let params = fixture.probe(&["socket-netlink"], with(open(), every));
    assert_eq!(fixture.run(params).await, "refused EPERM\n");
}

async fn terminal_process_has_the_same_network(fixture: &mut NetworkFixture) {
    let address = fixture.origin.address();
    let script = format!(
        "get {address}; say {} x || echo; echo apart",
        fixture.origin.port
    );
    let params = fixture.script(&script, with(open(), json!({"tty": true})));
    let id = fixture.start(params).await;
    let text = fixture.finish(&id).await.stream("pty");
    assert!(
        text.contains(HELLO) && text.ends_with("apart\r\n"),
        "{text}"
    );
    assert_eq!(fixture.origin.connection_count(), 1);
}

async fn proxy_ports_refuse_invalid_requests(fixture: &mut NetworkFixture) {
    let (address, port) = (fixture.origin.address(), fixture.origin.port);
    // Input for the ports that is not a valid proxy request.
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
        // The Host header does not decide the destination.
        (
            "http 'GET http://unlisted.test/ HTTP/1.1\\r\\nHost: PLACE\\r\\n\\r\\n'",
            "HTTP/1.1 403 ",
        ),
        // No authentication is offered, and other SOCKS versions are refused.
        ("other '\\x05\\x01\\x02'", " 05 ff\n"),
        ("other '\\x04\\x01\\x1f\\x90\\x7f\\x00\\x00\\x01\\x00'", ""),
        ("other 'GET http://PLACE/ HTTP/1.1\\r\\n\\r\\n'", ""),
        // BIND, and UDP, which is not available here.
        (
            "other '\\x05\\x01\\x00\\x05\\x02\\x00\\x01\\x7f\\x00\\x00\\x01\\x00\\x50'",
            " 05 00 05 07 00 01 00 00 00 00 00 00\n",
        ),
        (
            "other '\\x05\\x01\\x00\\x05\\x03\\x00\\x01\\x00\\x00\\x00\\x00\\x00\\x00'",
            " 05 00 05 07 00 01 00 00 00 00 00 00\n",
        ),
    ] {
        let script = script.replace("PLACE", &address);
        let functions = r#"http() { say "${HTTP_PROXY##*:}" "$1"; }
            other() { say "${ALL_PROXY##*:}" "$1" | od -An -v -tx1; }"#;
        let params = fixture.script(&format!("{functions}\n{script}"), open());
        let text = fixture.run(params).await;
        let fits = if sign.is_empty() {
            text.is_empty()
        } else {
            text.starts_with(sign)
        };
        assert!(fits, "{script}: {text}");
    }
    assert_eq!(fixture.origin.connection_count(), 0, "{port} was reached");
}

async fn proxy_ports_are_not_open_on_the_host(fixture: &mut NetworkFixture) {
    let script = "echo ${HTTP_PROXY##*:} ${ALL_PROXY##*:}; read line";
    let params = fixture.script(script, with(open(), json!({"pipeStdin": true})));
    let id = fixture.start(params).await;
    let line = fixture.client.output_until(&id, "\n").await;
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
    fixture.go(&id).await;
    fixture.end(&id).await;
}

async fn each_process_has_its_own_network(fixture: &mut NetworkFixture) {
    let address = fixture.origin.address();
    let wait = json!({"pipeStdin": true});
    let script = format!("read line; echo; get {address}");
    let closed = with(managed(proxy(json!({}))), wait.clone());
    let (yes, no) = (
        fixture.script(&script, with(open(), wait)),
        fixture.script(&script, closed),
    );
    let (yes, no) = (fixture.start(yes).await, fixture.start(no).await);
    for id in [&no, &yes] {
        fixture.go(id).await;
    }
    let text = fixture.text(&no).await;
    assert!(text.starts_with("\nHTTP/1.1 403 "), "{text}");
    let text = fixture.text(&yes).await;
    assert!(text.ends_with(HELLO), "{text}");
    assert_eq!(fixture.origin.connection_count(), 1);
    for (id, decision) in [(yes, "allow"), (no, "deny")] {
        assert_eq!(fixture.record(&id).await["decision"], decision);
    }
}

async fn disabled_socks_proxy_does_not_listen(fixture: &mut NetworkFixture) {
    let address = fixture.origin.address();
    let mut members = open();
    members["networkProxy"]["proxy"]["enableSocks5"] = json!(false);
    let script = format!(
        "[ \"$ALL_PROXY\" = \"$HTTP_PROXY\" ] && get {address}
        say $((${{HTTP_PROXY##*:}} + 1)) x || printf none"
    );
    let params = fixture.script(&script, members);
    let id = fixture.start(params).await;
    let events = fixture.finish(&id).await;
    assert!(
        events.stdout().ends_with(&format!("{HELLO}none")),
        "{events:?}"
    );
}

async fn local_binding_gives_a_loopback_that_leads_nowhere(fixture: &mut NetworkFixture) {
    let port = fixture.origin.port.to_string();
    let members = |allowed: bool| {
        json!({
            "sandbox": super::sandbox("restricted"),
            "managedNetwork": {"allowLocalBinding": allowed},
        })
    };
    // It has a TCP socket, and nobody listens on this loopback.
    let mut probe = |allowed| fixture.probe(&["connect", "127.0.0.1", &port], members(allowed));
    let (allowed, denied) = (probe(true), probe(false));
    assert_eq!(fixture.run(allowed).await, "refused ECONNREFUSED\n");
    assert_eq!(fixture.run(denied).await, "refused EPERM\n");
    assert_eq!(fixture.origin.connection_count(), 0);
}

async fn client_ports_are_not_bridged_with_a_managed_proxy(fixture: &mut NetworkFixture) {
    let port = fixture.origin.port;
    let ports = json!({
        "managedNetwork": {"loopbackPorts": [port], "allowLocalBinding": true},
        "env": {"PATH": PATH, "HTTP_PROXY": format!("http://127.0.0.1:{port}")},
    });
    let members = with(managed(proxy(json!({}))), ports);
    let probe = fixture.probe(&["connect", "127.0.0.1", &port.to_string()], members);
    assert_eq!(fixture.run(probe).await, "refused ECONNREFUSED\n");
    assert_eq!(fixture.origin.connection_count(), 0);
}

async fn managed_network_leaves_no_descriptors_or_processes(fixture: &mut NetworkFixture) {
    let (pid, address) = (fixture.server.pid(), fixture.origin.address());
    let mut limit = 0;
    // Descriptors may close with a delay, so run more rounds than the allowed excess.
    for round in 0..16 {
        let params = fixture.script(&format!("get {address}"), open());
        let text = fixture.run(params).await;
        assert!(text.ends_with(HELLO), "{text}");
        if round == 0 {
            limit = descriptors(pid);
        }
    }
    until("descriptors are closed", || descriptors(pid) <= limit).await;
}

async fn large_bodies_pass_through_the_proxy(fixture: &mut NetworkFixture) {
    // More than all buffers hold, in both directions: the origin echoes.
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
    let params = fixture.script(&script, open());
    assert_eq!(fixture.run(params).await, "8000000\n");
    assert_eq!(echo.await.unwrap(), 8_000_000);
}
