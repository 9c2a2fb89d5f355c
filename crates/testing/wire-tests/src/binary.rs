//! The extension `binaryData`: output and input as raw bytes after their header.

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::{
    client::{Client, Packet, error_message, script_params, with},
    over_every_socket,
    server::{Server, Transport},
};

over_every_socket!(
    output_is_binary_once_granted,
    input_may_be_binary_or_text,
    binary_input_is_refused_without_the_extension,
    extension_is_not_inherited_by_the_next_connection,
    inline_and_binary_data_together_are_refused,
    only_data_fields_may_be_binary,
    truncated_binary_header_is_malformed,
    command_exec_output_is_binary_too,
);

pub(crate) async fn granted(server: &mut Server) -> Client {
    let mut client = server.connect().await;
    let result = client
        .initialize(json!({"extensions": ["binaryData"]}))
        .await;
    assert_eq!(result["extensions"], json!(["binaryData"]));
    client.send(r#"{"method":"initialized"}"#).await;
    client
}

pub(crate) fn frame(header: &Value, data: &[u8]) -> Message {
    let header = header.to_string();
    let length = u32::try_from(header.len()).unwrap().to_be_bytes();
    let mut frame = vec![1, length[1], length[2], length[3]];
    frame.extend(header.as_bytes());
    frame.extend(data);
    Message::binary(frame)
}

pub(crate) fn split(frame: &[u8]) -> (Value, &[u8]) {
    assert_eq!(frame[0], 1);
    let length = u32::from_be_bytes([0, frame[1], frame[2], frame[3]]);
    let (header, data) = frame[4..].split_at(usize::try_from(length).unwrap());
    (
        serde_json::from_slice(header).expect("header is not JSON"),
        data,
    )
}

/// Collects binary output until the close and returns it with the other messages.
async fn finish(client: &mut Client) -> (Vec<u8>, Vec<Value>) {
    let (mut output, mut others) = (Vec::new(), Vec::new());
    loop {
        match client.packet().await.expect("connection closed") {
            Packet::Binary(frame) => {
                let (header, data) = split(&frame);
                assert_eq!(header["params"].get("chunk"), None, "{header}");
                assert_eq!(header["params"]["stream"], "stdout");
                output.extend(data);
            }
            Packet::Text(text) => {
                let message: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(message["params"].get("chunk"), None, "{message}");
                let method = message["method"].as_str().unwrap_or_default().to_owned();
                others.push(message);
                if method == "process/closed" || method == "command/exec/exited" {
                    return (output, others);
                }
            }
        }
    }
}

async fn output_is_binary_once_granted(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = granted(&mut server).await;
    client
        .request(
            "process/start",
            script_params("p", "head -c 300000 /dev/zero; echo end"),
        )
        .await;
    let (output, _) = finish(&mut client).await;
    assert_eq!(output.len(), 300_004);
    assert!(output.ends_with(b"\0end\n"));
    // Responses with several data fields stay text.
    let page = client
        .call("process/read", json!({"processId": "p", "maxBytes": 1}))
        .await;
    assert!(page["chunks"][0]["chunk"].is_string(), "{page}");
}

async fn input_may_be_binary_or_text(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = granted(&mut server).await;
    let start = with(script_params("p", "cat"), json!({"pipeStdin": true}));
    client.request("process/start", start).await;
    let write = |id: i64| {
        let params = json!({"processId": "p", "writeId": id.to_string()});
        json!({"id": id, "method": "process/write", "params": params})
    };
    client.send_frame(frame(&write(1), b"raw\0\xff\n")).await;
    let text = json!({"processId": "p", "writeId": "2", "chunk": "dGV4dAo="});
    client.request("process/write", text).await;
    client.send_frame(frame(&write(3), b"")).await;
    client.send_frame(frame(&write(4), &[b'z'; 1 << 20])).await;
    client
        .request("process/closeStdin", json!({"processId": "p"}))
        .await;
    let (output, others) = finish(&mut client).await;
    assert!(output.starts_with(b"raw\0\xff\ntext\nzzz"));
    assert_eq!(output.len(), 11 + (1 << 20));
    let accepted = others
        .iter()
        .filter(|message| message["result"] == json!({"status": "accepted"}));
    assert_eq!(accepted.count(), 5, "{others:?}");
}

async fn binary_input_is_refused_without_the_extension(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client
        .start_with(script_params("p", "cat"), json!({"pipeStdin": true}))
        .await;
    let params = json!({"processId": "p", "writeId": "1"});
    let header = json!({"id": 7, "method": "process/write", "params": params});
    client.send_frame(frame(&header, b"raw")).await;
    let message = error_message(-32600, &client.recv().await, "raw data");
    assert!(message.contains("binary data was not granted"), "{message}");
    client.start("q", "echo x").await;
    assert_eq!(
        client.finish("q").await.stdout(),
        "x\n",
        "output must stay text"
    );
}

async fn extension_is_not_inherited_by_the_next_connection(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    granted(&mut server).await;
    let mut client = server.ready().await;
    client.start("p", "echo x").await;
    assert_eq!(client.finish("p").await.stdout(), "x\n");
}

async fn inline_and_binary_data_together_are_refused(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = granted(&mut server).await;
    let params = json!({"processId": "p", "writeId": "1", "chunk": "YQ=="});
    let header = json!({"id": 7, "method": "process/write", "params": params});
    client.send_frame(frame(&header, b"raw")).await;
    let message = error_message(-32602, &client.recv().await, "data twice");
    assert!(message.contains("chunk"), "{message}");
}

async fn only_data_fields_may_be_binary(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = granted(&mut server).await;
    let header = json!({"id": 7, "method": "process/read", "params": {"processId": "p"}});
    client.send_frame(frame(&header, b"raw")).await;
    let answer = client.recv().await;
    assert_eq!(
        (&answer["id"], &answer["error"]["code"]),
        (&json!(7), &json!(-32602)),
        "{answer}"
    );
    client.expect_alive().await;
}

async fn truncated_binary_header_is_malformed(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = granted(&mut server).await;
    for bytes in [
        &b"\x01"[..],
        b"\x01\0\0",
        b"\x01\0\0\x05{}",
        b"\x01\xff\xff\xff{}",
        b"\x01\0\0\0",
        b"\x01\0\0\x02xx",
    ] {
        client.send_frame(Message::binary(bytes.to_vec())).await;
        error_message(-32600, &client.answer(-1).await, "cut off");
    }
    client.expect_alive().await;
}

async fn command_exec_output_is_binary_too(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = granted(&mut server).await;
    let params = json!({
        "processId": "p", "argv": ["sh", "-c", "echo x"], "cwd": "/",
        "env": {"PATH": crate::server::PATH}, "tty": false,
    });
    client.request("command/exec", params).await;
    assert_eq!(finish(&mut client).await.0, b"x\n");
}
