//! Stdio specifics: lines, their limits, and the end of input.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::{
    client::{TREE, TREE_SIZE, script_params, with},
    server::{Server, Transport, WatchedProcess},
};

async fn ready(flags: &[&str]) -> (Server, crate::client::Client) {
    let mut server = Server::start(Transport::Stdio, flags).await;
    let client = server.ready().await;
    (server, client)
}

#[tokio::test]
async fn carriage_returns_are_stripped_and_blank_lines_ignored() {
    let (_server, mut client) = ready(&[]).await;
    client
        .send_bytes(b"\n\r\n   \n\t\r\n{\"id\":1,\"method\":\"environment/status\"}\r\n\n")
        .await;
    assert_eq!(
        client.text().await,
        r#"{"id":1,"result":{"status":"ready"}}"#
    );
    client.expect_alive().await;
}

#[tokio::test]
async fn many_messages_in_one_write_and_one_message_in_many() {
    let (_server, mut client) = ready(&[]).await;
    let line = "{\"id\":1,\"method\":\"environment/status\"}\n";
    client.send_bytes(line.repeat(50).as_bytes()).await;
    for byte in line.bytes() {
        client.send_bytes(&[byte]).await;
    }
    for _ in 0..51 {
        assert_eq!(client.answer(1).await["result"], json!({"status": "ready"}));
    }
}

#[tokio::test]
async fn line_of_64_mib_is_accepted() {
    let (_server, mut client) = ready(&[]).await;
    let (head, tail) = (r#"{"id":1,"method":"environment/status","pad":""#, "\"}\n");
    let pad = "x".repeat((64 << 20) - head.len() - tail.len() + 1);
    client
        .send_bytes(format!("{head}{pad}{tail}").as_bytes())
        .await;
    assert_eq!(client.answer(1).await["result"], json!({"status": "ready"}));
}

#[tokio::test]
async fn line_above_64_mib_closes_the_connection() {
    let (mut server, mut client) = ready(&[]).await;
    let line = vec![b' '; (64 << 20) + 1];
    client.send_bytes(&line).await;
    client.expect_closed().await;
    let (status, _) = server.ended().await;
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn non_utf8_line_closes_the_connection_with_status_0() {
    let (mut server, mut client) = ready(&[]).await;
    client.send_bytes(b"{\"id\":1,\"method\":\"\xff\"}\n").await;
    client.expect_closed().await;
    let (status, _) = server.ended().await;
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn end_of_input_kills_every_process_and_exits_0() {
    let (mut server, mut client) = ready(&["--session-ttl", "30"]).await;
    let mut watched = Vec::new();
    for (id, change) in [
        ("p", json!({})),
        ("t", json!({"tty": true})),
        ("d", json!({"detached": true})),
    ] {
        let pids = client
            .start_tree(with(script_params(id, TREE), change), TREE_SIZE)
            .await;
        watched.extend(pids.into_iter().map(WatchedProcess::new));
    }
    let started_at = Instant::now();
    client.end_input();
    for process in watched {
        process.death().await;
    }
    client.expect_closed().await;
    let (status, _) = server.ended().await;
    assert_eq!(status.code(), Some(0));
    assert!(
        started_at.elapsed() < Duration::from_secs(3),
        "server took too long to exit"
    );
}

#[tokio::test]
async fn requests_before_end_of_input_are_answered() {
    let mut server = Server::start(Transport::Stdio, &[]).await;
    let mut client = server.connect().await;
    client
        .send_bytes(
            b"{\"id\":1,\"method\":\"initialize\",\"params\":{\"clientName\":\"c\"}}\n\
              {\"method\":\"initialized\"}\n{\"id\":2,\"method\":\"environment/status\"}",
        )
        .await;
    client.end_input();
    assert!(client.answer(1).await["result"]["sessionId"].is_string());
    assert_eq!(client.answer(2).await["result"], json!({"status": "ready"}));
    client.expect_closed().await;
}

#[tokio::test]
async fn stdout_carries_only_protocol_messages() {
    let mut server = Server::start(Transport::Stdio, &["--enable", "x"]).await;
    let (status, printed) = server.ended().await;
    assert_eq!((status.code(), printed.as_str()), (Some(0), ""));
}

#[tokio::test]
async fn binary_data_is_refused() {
    let mut server = Server::start(Transport::Stdio, &[]).await;
    let mut client = server.connect().await;
    let granted = client
        .initialize(json!({"extensions": ["binaryData"]}))
        .await;
    assert_eq!(granted["extensions"], json!([]));
    client.send(r#"{"method":"initialized"}"#).await;
    let header = br#"{"id":1,"method":"process/write","params":{"processId":"p","writeId":"1"}}"#;
    let mut line = vec![1, 0, 0, u8::try_from(header.len()).unwrap()];
    line.extend(header);
    line.extend(b"raw\n");
    client.send_bytes(&line).await;
    let answer = client.recv().await;
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    client.expect_alive().await;
}
