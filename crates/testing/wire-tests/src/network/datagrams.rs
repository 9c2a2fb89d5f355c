//! Datagrams over SOCKS5, on the network of the host.

use std::net::UdpSocket;

use serde_json::{Value, json};

use super::stage::{Stage, as_one_user, asking, proxy};

as_one_user!(
    datagrams_are_relayed_and_recorded,
    datagrams_to_others_are_not_relayed,
    datagrams_are_asked_about,
    datagrams_can_be_off,
);

/// Gets leave to send datagrams, and sends one: `send 'ADDRESS'` with an address of SOCKS5, as the
/// arguments of `printf` have it. Prints the answer to the leave, and the datagram that comes back.
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

/// Answers each datagram with itself until the test is over; returns the port.
fn echo() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut room = [0; 64];
        while let Ok((count, peer)) = socket.recv_from(&mut room) {
            socket.send_to(&room[..count], peer).unwrap();
        }
    });
    port
}

/// Returns the loopback and a port as SOCKS5 has them, each byte in a form: `\x7f` or ` 7f`.
fn address(port: u16, form: &str) -> String {
    let [high, low] = port.to_be_bytes();
    let bytes = [1, 127, 0, 0, 1, high, low];
    bytes
        .iter()
        .map(|byte| format!("{form}{byte:02x}"))
        .collect()
}

/// Members of a start without sandbox.
fn advice(settings: Value) -> Value {
    json!({"networkProxy": settings})
}

async fn datagrams_are_relayed_and_recorded(stage: &mut Stage) {
    let port = echo();
    let script = format!("{SEND} send '{}'", address(port, "\\x"));
    let params = stage.script(&script, advice(proxy(json!({"127.0.0.1": "allow"}))));
    let id = stage.start(params).await;
    let text = stage.text(&id).await;
    assert!(
        text.starts_with(" 05 00 05 00 00 01 7f 00 00 01 "),
        "{text}"
    );
    let back = format!(" 00 00 00{} 70 69 6e 67\n", address(port, " "));
    assert!(text.ends_with(&back), "{text}");
    let record = stage.record(&id).await;
    for (member, value) in [
        ("decision", json!("allow")),
        ("protocol", json!("socks5_udp")),
        ("host", json!("127.0.0.1")),
        ("port", json!(port)),
    ] {
        assert_eq!(record[member], value, "{record}");
    }
}

/// Waits for the only record of a process that waits for an answer in vain, and ends it.
async fn denied(stage: &mut Stage, id: &str) -> Value {
    let record = stage.client.note("network/policyDecision").await;
    assert_eq!(record["processId"], id);
    stage
        .client
        .call("process/terminate", json!({"processId": id}))
        .await;
    stage.end(id).await;
    assert_eq!(record["decision"], "deny", "{record}");
    assert_eq!(record["protocol"], "socks5_udp", "{record}");
    record
}

async fn datagrams_to_others_are_not_relayed(stage: &mut Stage) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let port = socket.local_addr().unwrap().port();
    for (rules, reason) in [
        (json!({"*": "allow"}), "not_allowed_local"),
        (json!({"*": "allow", "127.0.0.1": "deny"}), "denied"),
    ] {
        let script = format!("{SEND} send '{}'", address(port, "\\x"));
        let params = stage.script(&script, advice(proxy(rules)));
        let id = stage.start(params).await;
        assert_eq!(denied(stage, &id).await["reason"], reason);
        assert!(socket.recv(&mut [0; 16]).is_err(), "it was relayed");
    }
}

async fn datagrams_are_asked_about(stage: &mut Stage) {
    let script = format!(r"{SEND} send '\x03\x08udp.test\x00\x35'");
    let params = stage.script(&script, advice(asking(json!({}))));
    let id = stage.start(params).await;
    let (question, asked) = stage.question().await;
    assert_eq!(
        asked,
        json!({
            "processId": id, "request": {"protocol": "socks5_udp", "host": "udp.test", "port": 53},
        })
    );
    let no = json!({"type": "deny", "reason": "no datagrams"});
    stage.decide(&question, no).await;
    assert_eq!(denied(stage, &id).await["reason"], "no datagrams");
}

async fn datagrams_can_be_off(stage: &mut Stage) {
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
        let params = stage.script(&script, advice(settings));
        let text = stage.run(params).await;
        assert_eq!(text, " 05 00 05 07 00 01 00 00 00 00 00 00\n");
    }
}
