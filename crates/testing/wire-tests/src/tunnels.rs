//! The extension `tunnels`: raw messages about tunnels, valid and invalid ones.

use std::{io::ErrorKind, net::SocketAddr};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::{
    binary::{frame, split},
    client::{Client, Packet, argv_params, decode, encode},
    over_every_socket, over_every_transport, over_one_transport,
    server::{Server, TIMEOUT, Transport},
    sessions,
};

mod every_transport {
    use super::*;

    over_every_transport!(tunnel_carries_data_and_both_ends);

    async fn tunnel_carries_data_and_both_ends(transport: Transport) {
        super::check_round_trip(transport).await;
    }
}

mod every_socket {
    use super::*;

    over_every_socket!(resumed_session_repeats_what_is_unacknowledged);

    async fn resumed_session_repeats_what_is_unacknowledged(transport: Transport) {
        super::check_resume(transport).await;
    }
}

over_one_transport!(
    data_is_binary_once_granted,
    nothing_works_without_the_extension,
    invalid_requests_are_refused,
    invalid_notifications_are_refused,
    violations_close_only_their_tunnel,
    messages_about_unknown_tunnels_are_answered_with_a_close,
    repeated_request_of_an_open_tunnel_has_no_effect,
    server_stops_at_the_window_and_continues_after_an_acknowledgement,
    listener_announces_connections_until_it_is_closed,
    listener_is_on_loopback_unless_the_client_names_an_address,
    listener_that_a_policy_refuses_is_not_opened,
    client_without_the_extension_ends_the_tunnels_of_its_session,
    ports_need_no_extension,
    ports_name_every_detached_process,
);

/// Initializes with extensions and returns the session id.
async fn initialize(client: &mut Client, extensions: &[&str]) -> String {
    let response = client.initialize(json!({"extensions": extensions})).await;
    assert_eq!(response["extensions"], json!(extensions));
    client.send(r#"{"method":"initialized"}"#).await;
    response["sessionId"].as_str().unwrap().to_owned()
}

async fn connect(transport: Transport) -> (Server, Client) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    initialize(&mut client, &["tunnels"]).await;
    (server, client)
}

/// A port of this machine that the server connects to.
struct Target {
    listener: TcpListener,
}

impl Target {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { listener }
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    async fn accept(&self) -> TcpStream {
        let accepted = timeout(TIMEOUT, self.listener.accept()).await;
        accepted.expect("no connection").unwrap().0
    }

    /// Opens a tunnel and returns the far end.
    async fn open(&self, client: &mut Client, id: &str) -> TcpStream {
        let params = json!({"tunnelId": id, "port": self.port()});
        assert_eq!(client.call("tunnel/open", params).await, json!({}));
        self.accept().await
    }
}

async fn note(client: &mut Client, method: &str, params: Value) {
    client
        .send(&json!({"method": method, "params": params}).to_string())
        .await;
}

async fn send_data(client: &mut Client, id: &str, seq: u64, data: &[u8]) {
    let params = json!({"tunnelId": id, "seq": seq, "chunk": encode(data)});
    note(client, "tunnel/data", params).await;
}

async fn send_cursor(client: &mut Client, method: &str, id: &str, seq: u64) {
    note(client, method, json!({"tunnelId": id, "seq": seq})).await;
}

async fn read(stream: &mut TcpStream, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    let read = timeout(TIMEOUT, stream.read_exact(&mut data)).await;
    read.expect("no data").unwrap();
    data
}

/// Waits until the far end of a tunnel breaks.
async fn expect_reset(stream: &mut TcpStream) {
    let read = timeout(TIMEOUT, stream.read(&mut [0])).await;
    let error = read.expect("connection did not break").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

async fn check_round_trip(transport: Transport) {
    let (_server, mut client) = connect(transport).await;
    let target = Target::new().await;
    let mut far = target.open(&mut client, "t").await;
    send_data(&mut client, "t", 1, b"hello").await;
    send_cursor(&mut client, "tunnel/shutdown", "t", 2).await;
    assert_eq!(read(&mut far, 5).await, b"hello");
    assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
    let acknowledged = client.note("tunnel/acknowledge").await;
    assert_eq!(acknowledged, json!({"tunnelId": "t", "seq": 2}));
    far.write_all(b"bye").await.unwrap();
    drop(far);
    let data = client.note("tunnel/data").await;
    assert_eq!((&data["tunnelId"], &data["seq"]), (&json!("t"), &json!(1)));
    assert_eq!(decode(&data["chunk"]), b"bye");
    let end = client.note("tunnel/shutdown").await;
    assert_eq!(end, json!({"tunnelId": "t", "seq": 2}));
    send_cursor(&mut client, "tunnel/acknowledge", "t", 2).await;
    // The id is free again.
    target.open(&mut client, "t").await;
}

async fn check_resume(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    let session = initialize(&mut client, &["tunnels"]).await;
    let target = Target::new().await;
    let mut far = target.open(&mut client, "t").await;
    far.write_all(b"one").await.unwrap();
    assert_eq!(client.note("tunnel/data").await["seq"], 1);
    send_data(&mut client, "t", 1, b"first").await;
    assert_eq!(read(&mut far, 5).await, b"first");
    drop(client);
    // Written while no client is there.
    far.write_all(b"two").await.unwrap();
    let extensions = json!({"extensions": ["tunnels"]});
    let mut client = sessions::resume_with(&mut server, &session, extensions).await;
    client.send(r#"{"method":"initialized"}"#).await;
    let acknowledged = client.note("tunnel/acknowledge").await;
    assert_eq!(acknowledged, json!({"tunnelId": "t", "seq": 1}));
    let mut received = Vec::new();
    for seq in 1.. {
        let data = client.note("tunnel/data").await;
        assert_eq!(data["seq"], seq);
        received.extend(decode(&data["chunk"]));
        if received.len() >= 6 {
            break;
        }
    }
    assert_eq!(received, b"onetwo");
    // The server has the first event and ignores its repetition.
    send_data(&mut client, "t", 1, b"first").await;
    send_data(&mut client, "t", 2, b"second").await;
    assert_eq!(read(&mut far, 6).await, b"second");
}

async fn data_is_binary_once_granted(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    initialize(&mut client, &["binaryData", "tunnels"]).await;
    let target = Target::new().await;
    let mut far = target.open(&mut client, "t").await;
    let params = json!({"tunnelId": "t", "seq": 1});
    let header = json!({"method": "tunnel/data", "params": params});
    client.send_frame(frame(&header, b"\0raw\xff")).await;
    assert_eq!(read(&mut far, 5).await, b"\0raw\xff");
    far.write_all(b"\xfeback").await.unwrap();
    let Some(Packet::Binary(packet)) = client.packet().await else {
        panic!("data was not binary");
    };
    assert_eq!(split(&packet), (header, &b"\xfeback"[..]));
}

async fn nothing_works_without_the_extension(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for (method, params) in [
        ("tunnel/open", json!({"tunnelId": "t", "port": 1})),
        ("tunnel/listen", json!({"listenId": "l", "port": 0})),
    ] {
        let error = client.expect_error(-32600, method, params).await;
        assert!(error.contains("tunnels were not granted"), "{error}");
    }
    for method in [
        "tunnel/data",
        "tunnel/acknowledge",
        "tunnel/shutdown",
        "tunnel/close",
    ] {
        let params = json!({"tunnelId": "t", "seq": 1, "chunk": ""});
        note(&mut client, method, params).await;
        let answer = client.answer(-1).await;
        assert_eq!(answer["error"]["code"], -32600, "{answer}");
    }
    client.expect_alive().await;
}

async fn invalid_requests_are_refused(transport: Transport) {
    let (_server, mut client) = connect(transport).await;
    let target = Target::new().await;
    let _far = target.open(&mut client, "t").await;
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().port()
    };
    let long = "t".repeat(65);
    for (method, params, code, reason) in [
        ("tunnel/open", json!({"port": 1}), -32602, "tunnelId"),
        ("tunnel/open", json!({"tunnelId": "u"}), -32602, "port"),
        (
            "tunnel/open",
            json!({"tunnelId": "u", "port": 65536}),
            -32602,
            "port",
        ),
        (
            "tunnel/open",
            json!({"tunnelId": "u", "port": 1, "host": "a b"}),
            -32602,
            "host",
        ),
        (
            "tunnel/open",
            json!({"tunnelId": "u", "port": 1, "host": ""}),
            -32602,
            "host",
        ),
        (
            "tunnel/open",
            json!({"tunnelId": long, "port": 1}),
            -32602,
            "64 bytes",
        ),
        (
            "tunnel/open",
            json!({"tunnelId": "t", "port": closed}),
            -32600,
            "in use",
        ),
        (
            "tunnel/listen",
            json!({"listenId": "t", "port": 0}),
            -32600,
            "in use",
        ),
        (
            "tunnel/open",
            json!({"tunnelId": "u", "port": closed}),
            -32603,
            "nothing listens",
        ),
        (
            "tunnel/listen",
            json!({"listenId": "u", "port": target.port()}),
            -32603,
            "in use",
        ),
        (
            "tunnel/open",
            json!({"tunnelId": "u", "port": 1, "processId": "none"}),
            -32602,
            "none",
        ),
    ] {
        let error = client.expect_error(code, method, params.clone()).await;
        assert!(error.contains(reason), "{method} {params}: {error}");
    }
}

async fn invalid_notifications_are_refused(transport: Transport) {
    let (_server, mut client) = connect(transport).await;
    let target = Target::new().await;
    let mut far = target.open(&mut client, "t").await;
    let valid = json!({"tunnelId": "t", "seq": 1, "chunk": "eA=="});
    for (method, params, code) in [
        ("tunnel/data", json!({"tunnelId": "t", "seq": 1}), -32602),
        ("tunnel/data", json!({"tunnelId": "t", "chunk": ""}), -32602),
        (
            "tunnel/data",
            json!({"tunnelId": "t", "seq": -1, "chunk": ""}),
            -32602,
        ),
        (
            "tunnel/data",
            json!({"tunnelId": "t", "seq": 1, "chunk": "%"}),
            -32602,
        ),
        (
            "tunnel/data",
            json!({"tunnelId": "t", "seq": 1, "chunk": "A".repeat(300_000)}),
            -32602,
        ),
        ("tunnel/acknowledge", json!({"tunnelId": "t"}), -32602),
        ("tunnel/shutdown", json!(null), -32602),
        ("tunnel/close", json!({"tunnelId": 7}), -32602),
        (
            "tunnel/incoming",
            json!({"listenId": "l", "tunnelId": "t"}),
            -32600,
        ),
    ] {
        note(&mut client, method, params).await;
        let answer = client.answer(-1).await;
        assert_eq!(answer["error"]["code"], code, "{method}: {answer}");
    }
    // Raw bytes need `binaryData`.
    let header = json!({"method": "tunnel/data", "params": {"tunnelId": "t", "seq": 1}});
    client.send_frame(frame(&header, b"x")).await;
    let answer = client.answer(-1).await;
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    // The tunnel has not noticed any of these.
    note(&mut client, "tunnel/data", valid).await;
    assert_eq!(read(&mut far, 1).await, b"x");
}

async fn violations_close_only_their_tunnel(transport: Transport) {
    let (_server, mut client) = connect(transport).await;
    let target = Target::new().await;
    let mut good = target.open(&mut client, "good").await;
    type Step = (&'static str, u64, usize);
    let cases: [(&[Step], &str); 6] = [
        (&[("tunnel/data", 2, 1)], "unexpected event 2: expected 1"),
        (&[("tunnel/data", 0, 1)], "events are numbered from 1"),
        (
            &[("tunnel/shutdown", 1, 0), ("tunnel/data", 2, 1)],
            "after shutdown",
        ),
        (&[("tunnel/shutdown", 3, 0)], "unexpected event 3"),
        (&[("tunnel/data", 1, (64 << 10) + 1)], "limit is 65536"),
        (&[("tunnel/acknowledge", 9, 0)], "0 were sent"),
    ];
    for (steps, reason) in cases {
        let mut far = target.open(&mut client, "bad").await;
        for (method, seq, bytes) in steps {
            match *bytes {
                0 => send_cursor(&mut client, method, "bad", *seq).await,
                bytes => send_data(&mut client, "bad", *seq, &vec![0; bytes]).await,
            }
        }
        let closed = client.note("tunnel/close").await;
        assert_eq!(closed["tunnelId"], "bad");
        let text = closed["reason"].as_str().unwrap();
        assert!(text.contains(reason), "{text}");
        match steps[0] {
            // The direction had ended before.
            ("tunnel/shutdown", 1, _) => assert_eq!(far.read(&mut [0]).await.unwrap(), 0),
            _ => expect_reset(&mut far).await,
        }
    }
    // The far end does not read, so the window fills: 16 events exceed it, but the kernel takes
    // some.
    let _stalled = target.open(&mut client, "full").await;
    let mut seq = 0;
    let closed = loop {
        for _ in 0..64 {
            seq += 1;
            send_data(&mut client, "full", seq, &vec![0; 64 << 10]).await;
        }
        assert!(seq < 4096, "the window has no end");
        client.expect_alive().await;
        if let Some(closed) = client.queued_notes("tunnel/close").into_iter().next() {
            break closed;
        }
    };
    let text = closed["reason"].as_str().unwrap();
    assert!(text.contains("exceeds the window"), "{text}");
    send_data(&mut client, "good", 1, b"fine").await;
    assert_eq!(read(&mut good, 4).await, b"fine");
}

async fn messages_about_unknown_tunnels_are_answered_with_a_close(transport: Transport) {
    let (_server, mut client) = connect(transport).await;
    for method in ["tunnel/data", "tunnel/acknowledge", "tunnel/shutdown"] {
        let params = json!({"tunnelId": "none", "seq": 1, "chunk": ""});
        note(&mut client, method, params).await;
        let closed = client.note("tunnel/close").await;
        let expected = json!({"tunnelId": "none", "reason": "unknown tunnel"});
        assert_eq!(closed, expected, "{method}");
    }
    note(&mut client, "tunnel/close", json!({"tunnelId": "none"})).await;
    client.expect_alive().await;
}

async fn repeated_request_of_an_open_tunnel_has_no_effect(transport: Transport) {
    let (_server, mut client) = connect(transport).await;
    let target = Target::new().await;
    let mut far = target.open(&mut client, "t").await;
    let params = json!({"tunnelId": "t", "port": target.port()});
    assert_eq!(client.call("tunnel/open", params).await, json!({}));
    send_data(&mut client, "t", 1, b"x").await;
    assert_eq!(read(&mut far, 1).await, b"x");
    let params = json!({"listenId": "l", "port": 0});
    let first = client.call("tunnel/listen", params.clone()).await;
    assert_eq!(client.call("tunnel/listen", params).await, first);
    // Only one connection was made.
    let another = target.open(&mut client, "u").await;
    assert_ne!(another.peer_addr().unwrap(), far.peer_addr().unwrap());
}

async fn server_stops_at_the_window_and_continues_after_an_acknowledgement(transport: Transport) {
    const WINDOW: usize = 1 << 20;
    let (_server, mut client) = connect(transport).await;
    let target = Target::new().await;
    let far = target.open(&mut client, "t").await;
    let (_reader, mut writer) = far.into_split();
    let sent = 8 << 20;
    let writing = tokio::spawn(async move {
        writer.write_all(&vec![7; sent]).await.unwrap();
        writer
    });
    let (mut received, mut unacked, mut last) = (0, 0, 0);
    while received < sent {
        let mut count = |data: &Value| {
            last += 1;
            assert_eq!(data["seq"], last);
            let bytes = decode(&data["chunk"]).len();
            (received, unacked) = (received + bytes, unacked + bytes + 128);
            unacked < WINDOW - (70 << 10) && received < sent
        };
        // What is left is less than the largest event.
        while count(&client.note("tunnel/data").await) {}
        client.expect_alive().await;
        for data in client.queued_notes("tunnel/data") {
            count(&data);
        }
        assert!(unacked <= WINDOW, "{unacked} bytes are unacknowledged");
        send_cursor(&mut client, "tunnel/acknowledge", "t", last).await;
        unacked = 0;
    }
    assert_eq!(received, sent);
    drop(writing.await.unwrap());
    assert_eq!(client.note("tunnel/shutdown").await["seq"], last + 1);
}

async fn listener_announces_connections_until_it_is_closed(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    let session = initialize(&mut client, &["tunnels"]).await;
    let params = json!({"listenId": "l", "port": 0});
    let port = client.call("tunnel/listen", params).await["port"].clone();
    let port = u16::try_from(port.as_u64().unwrap()).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut far = TcpStream::connect(address).await.unwrap();
    far.write_all(b"hi").await.unwrap();
    let incoming = client.note("tunnel/incoming").await;
    assert_eq!(incoming["listenId"], "l");
    drop(client);
    // Nothing has confirmed it, so it is announced again.
    let extensions = json!({"extensions": ["tunnels"]});
    let mut client = sessions::resume_with(&mut server, &session, extensions).await;
    client.send(r#"{"method":"initialized"}"#).await;
    assert_eq!(client.note("tunnel/incoming").await, incoming);
    let data = client.note("tunnel/data").await;
    assert_eq!(data["tunnelId"], incoming["tunnelId"]);
    assert_eq!(decode(&data["chunk"]), b"hi");
    let id = incoming["tunnelId"].as_str().unwrap();
    send_data(&mut client, id, 1, b"ho").await;
    assert_eq!(read(&mut far, 2).await, b"ho");
    note(&mut client, "tunnel/close", json!({"tunnelId": "l"})).await;
    client.expect_alive().await;
    let refused = async { while TcpStream::connect(address).await.is_ok() {} };
    timeout(TIMEOUT, refused).await.expect("port stays open");
    // Its tunnels stay.
    send_data(&mut client, id, 2, b"!").await;
    assert_eq!(read(&mut far, 1).await, b"!");
}

/// Opens a listener, and returns the addresses on which its port listens.
async fn listening_addresses(client: &mut Client, params: Value) -> Vec<String> {
    let port = client.call("tunnel/listen", params).await["port"].clone();
    let list = client.call("ports/list", json!({})).await;
    let ports = list["ports"].as_array().unwrap().iter();
    let own = ports.filter(|listed| listed["port"] == port);
    own.map(|listed| listed["address"].as_str().unwrap().to_owned())
        .collect()
}

async fn listener_is_on_loopback_unless_the_client_names_an_address(transport: Transport) {
    let (_server, mut client) = connect(transport).await;
    let params = json!({"listenId": "default", "port": 0});
    let addresses = listening_addresses(&mut client, params).await;
    assert_eq!(addresses[0], "127.0.0.1");
    let is_loopback = |address: &String| ["127.0.0.1", "::1"].contains(&address.as_str());
    assert!(addresses.iter().all(is_loopback), "{addresses:?}");
    let params = json!({"listenId": "named", "host": "0.0.0.0", "port": 0});
    assert_eq!(listening_addresses(&mut client, params).await, ["0.0.0.0"]);
}

async fn listener_that_a_policy_refuses_is_not_opened(transport: Transport) {
    let (_server, mut client) = connect(transport).await;
    let free = Target::new().await;
    let port = free.port();
    drop(free);
    let root = json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"});
    let sandbox = json!({
        "permissions": {
            "type": "managed",
            "file_system": {"type": "restricted", "entries": [root]},
            "network": "restricted",
        },
        "windowsSandboxLevel": "disabled",
    });
    for host in ["localhost", "0.0.0.0"] {
        let params = json!({"listenId": "l", "host": host, "port": port, "sandbox": sandbox});
        let error = client.expect_error(-32602, "tunnel/listen", params).await;
        assert!(error.contains("does not allow listening"), "{error}");
        let connected = TcpStream::connect(("127.0.0.1", port)).await;
        assert!(connected.is_err());
    }
}

async fn client_without_the_extension_ends_the_tunnels_of_its_session(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    let session = initialize(&mut client, &["tunnels"]).await;
    let target = Target::new().await;
    let mut far = target.open(&mut client, "t").await;
    drop(client);
    let mut client = sessions::resume(&mut server, &session).await;
    client.send(r#"{"method":"initialized"}"#).await;
    expect_reset(&mut far).await;
    client.expect_alive().await;
}

async fn ports_need_no_extension(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let target = Target::new().await;
    let list = client.call("ports/list", json!({})).await;
    let ports = list["ports"].as_array().unwrap();
    let found = ports.iter().find(|port| port["port"] == target.port());
    assert_eq!(found.unwrap()["address"], "127.0.0.1");
    let answer = client
        .expect_error(-32602, "ports/list", json!({"processId": "none"}))
        .await;
    assert!(answer.contains("none"), "{answer}");
}

async fn ports_name_every_detached_process(transport: Transport) {
    const LISTEN: &str = "use Socket; $| = 1; socket(S, AF_INET, SOCK_STREAM, 0); \
        bind(S, pack_sockaddr_in(0, INADDR_LOOPBACK)); listen(S, 1); \
        print((unpack_sockaddr_in(getsockname(S)))[0], qq(\n)); sleep";
    let mut server = Server::start(transport, &[]).await;
    let (mut clients, mut expected) = (Vec::new(), Vec::new());
    for number in 0..12 {
        let mut client = server.ready().await;
        let id = format!("taken-{number}");
        let params = argv_params(&id, &["perl", "-e", LISTEN]);
        expected.push((client.start_tree(params, 1).await[0], id));
        clients.push(client);
    }
    let mut client = server.ready().await;
    // Taken over from its session, each becomes a detached process.
    let all = client.call("process/list", json!({"all": true})).await;
    for listed in all["processes"].as_array().unwrap() {
        let (id, started) = (&listed["processId"], &listed["startedAtMs"]);
        let attach = json!({"processId": id, "startedAtMs": started});
        client.call("process/attach", attach).await;
    }
    let list = client.call("ports/list", json!({})).await;
    let ports = list["ports"].as_array().unwrap();
    for (port, id) in expected {
        let found = ports.iter().find(|listed| listed["port"] == port);
        assert_eq!(found.unwrap()["processId"], id);
    }
}
