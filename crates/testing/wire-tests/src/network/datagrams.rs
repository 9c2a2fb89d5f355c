//! UDP over SOCKS5, on the network of the host.

use std::net::UdpSocket;

use serde_json::{Value, json};

use super::{NetworkFixture, as_one_user, asking, proxy};

as_one_user!(
    datagrams_are_relayed_and_recorded,
    datagrams_to_denied_hosts_are_not_relayed,
    datagrams_need_a_decision,
    datagrams_can_be_disabled,
);

/// Opens a SOCKS5 UDP association and sends one datagram: `send 'ADDRESS'` with a SOCKS5 address in
/// `printf` notation. Prints the reply to the association, and the datagram that comes back.
const SEND: &str = r#"
send() {
    exec 3<>"/dev/tcp/127.0.0.1/${ALL_PROXY##*:}" || return
    printf '\x05\x01\x00\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00' >&3
    reply=$(head -c 12 <&3 | od -An -v -tx1)
    echo "$reply"
    set -- "$1" $reply
    [ "$5" = 00 ] || return
    exec 4<>"/dev/udp/127.0.0.1/$((16#${12}${13}))" || return
    printf "\x00\x00\x00$1ping" >&4
    head -c 14 <&4 | od -An -v -tx1
}
"#;

/// Echoes each datagram until the test ends, and returns the port.
fn echo() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((count, peer)) = socket.recv_from(&mut buffer) {
            socket.send_to(&buffer[..count], peer).unwrap();
        }
    });
    port
}

/// Returns loopback and a port as a SOCKS5 address, each byte as `\x7f` or ` 7f`.
fn address(port: u16, form: &str) -> String {
    let [high, low] = port.to_be_bytes();
    let bytes = [1, 127, 0, 0, 1, high, low];
    bytes
        .iter()
        .map(|byte| format!("{form}{byte:02x}"))
        .collect()
}

/// Returns start fields without a sandbox.
fn advice(settings: Value) -> Value {
    json!({"networkProxy": settings})
}

async fn datagrams_are_relayed_and_recorded(fixture: &mut NetworkFixture) {
    let port = echo();
    let script = format!("{SEND} send '{}'", address(port, "\\x"));
    let params = fixture.script(&script, advice(proxy(json!({"127.0.0.1": "allow"}))));
    let id = fixture.start(params).await;
    let text = fixture.text(&id).await;
    assert!(
        text.starts_with(" 05 00 05 00 00 01 7f 00 00 01 "),
        "{text}"
    );
    let back = format!(" 00 00 00{} 70 69 6e 67\n", address(port, " "));
    assert!(text.ends_with(&back), "{text}");
    let record = fixture.record(&id).await;
    for (member, value) in [
        ("decision", json!("allow")),
        ("protocol", json!("socks5_udp")),
        ("host", json!("127.0.0.1")),
        ("port", json!(port)),
    ] {
        assert_eq!(record[member], value, "{record}");
    }
}

/// Waits for the only record of a process that waits for a response in vain, and terminates it.
async fn denied(fixture: &mut NetworkFixture, id: &str) -> Value {
    let record = fixture.client.note("network/policyDecision").await;
    assert_eq!(record["processId"], id);
    fixture
        .client
        .call("process/terminate", json!({"processId": id}))
        .await;
    fixture.end(id).await;
    assert_eq!(record["decision"], "deny", "{record}");
    assert_eq!(record["protocol"], "socks5_udp", "{record}");
    record
}

async fn datagrams_to_denied_hosts_are_not_relayed(fixture: &mut NetworkFixture) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let port = socket.local_addr().unwrap().port();
    for (rules, reason) in [
        (json!({"*": "allow"}), "not_allowed_local"),
        (json!({"*": "allow", "127.0.0.1": "deny"}), "denied"),
    ] {
        let script = format!("{SEND} send '{}'", address(port, "\\x"));
        let params = fixture.script(&script, advice(proxy(rules)));
        let id = fixture.start(params).await;
        assert_eq!(denied(fixture, &id).await["reason"], reason);
        assert!(socket.recv(&mut [0; 16]).is_err(), "it was relayed");
    }
}

async fn datagrams_need_a_decision(fixture: &mut NetworkFixture) {
    let script = format!(r"{SEND} send '\x03\x08udp.test\x00\x35'");
    let params = fixture.script(&script, advice(asking(json!({}))));
    let id = fixture.start(params).await;
    let (question, asked) = fixture.question().await;
    assert_eq!(
        asked,
        json!({
            "processId": id, "request": {"protocol": "socks5_udp", "host": "udp.test", "port": 53},
        })
    );
    let no = json!({"type": "deny", "reason": "no datagrams"});
    fixture.decide(&question, no).await;
    assert_eq!(denied(fixture, &id).await["reason"], "no datagrams");
}

async fn datagrams_can_be_disabled(fixture: &mut NetworkFixture) {
    let script = format!("{SEND} send '{}'", address(9, "\\x"));
    let off = |member: &str, value: Value| {
        let mut settings = proxy(json!({"127.0.0.1": "allow"}));
        settings["proxy"][member] = value;
        settings
    };
    for settings in [
        off("enableSocks5Udp", json!(false)),
        off("mode", json!("limited")),
    ] {
        let params = fixture.script(&script, advice(settings));
        let text = fixture.run(params).await;
        assert_eq!(text, " 05 00 05 07 00 01 00 00 00 00 00 00\n");
    }
}
