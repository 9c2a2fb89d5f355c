//! Writing to stdin and closing it.

use serde_json::{Value, json};

use crate::{
    client::{Client, encode, script_params, with},
    over_every_transport,
    server::{Server, Transport},
};

over_every_transport!(
    writes_arrive_in_order,
    repeated_write_id_is_not_written_again,
    four_thousand_write_ids_are_remembered,
    empty_chunk_is_accepted,
    process_without_a_pipe_has_no_stdin,
    write_after_exit_is_discarded,
    write_after_terminate_fails,
    close_stdin_comes_after_earlier_writes,
    close_stdin_is_final_and_can_be_repeated,
    repeated_write_is_accepted_after_close_stdin,
    close_stdin_on_a_terminal_sends_end_of_file,
    terminal_accepts_control_characters,
    full_stdin_does_not_block_others,
    large_write_arrives_complete,
);

async fn cat(client: &mut Client) {
    client
        .start_with(script_params("p", "cat"), json!({"pipeStdin": true}))
        .await;
}

fn write(id: &str, data: &[u8]) -> Value {
    json!({"processId": "p", "chunk": encode(data), "writeId": id})
}

async fn status(client: &mut Client, params: Value) -> String {
    let result = client.call("process/write", params).await;
    assert_eq!(result.as_object().unwrap().len(), 1);
    result["status"].as_str().unwrap().to_owned()
}

async fn close(client: &mut Client) -> Value {
    client
        .call("process/closeStdin", json!({"processId": "p"}))
        .await
}

async fn writes_arrive_in_order(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    // Everything is pipelined; the outcome is that of serial order.
    client
        .request(
            "process/start",
            with(script_params("p", "cat"), json!({"pipeStdin": true})),
        )
        .await;
    let mut ids = Vec::new();
    for number in 0..300 {
        let data = format!("{number}\n");
        ids.push(
            client
                .request("process/write", write(&number.to_string(), data.as_bytes()))
                .await,
        );
    }
    let closing = client
        .request("process/closeStdin", json!({"processId": "p"}))
        .await;
    for id in ids {
        assert_eq!(
            client.answer(id).await["result"],
            json!({"status": "accepted"})
        );
    }
    assert_eq!(
        client.answer(closing).await["result"],
        json!({"status": "accepted"})
    );
    let expected: String = (0..300).map(|number| format!("{number}\n")).collect();
    assert_eq!(client.finish("p").await.stdout(), expected);
}

async fn repeated_write_id_is_not_written_again(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    cat(&mut client).await;
    for (id, data) in [
        ("1", "a"),
        ("1", "a"),
        ("1", "other"),
        ("2", "b"),
        ("1", "c"),
    ] {
        assert_eq!(
            status(&mut client, write(id, data.as_bytes())).await,
            "accepted"
        );
    }
    close(&mut client).await;
    assert_eq!(client.finish("p").await.stdout(), "ab");
}

async fn four_thousand_write_ids_are_remembered(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    cat(&mut client).await;
    let mut last = 0;
    for number in 0..4096 {
        last = client
            .request("process/write", write(&number.to_string(), b"x"))
            .await;
        if number % 500 == 0 {
            client.answer(last).await;
        }
    }
    client.answer(last).await;
    // The oldest id is still known; one more id evicts it.
    assert_eq!(status(&mut client, write("0", b"-")).await, "accepted");
    assert_eq!(status(&mut client, write("4096", b"y")).await, "accepted");
    assert_eq!(status(&mut client, write("0", b"z")).await, "accepted");
    close(&mut client).await;
    let events = client.finish("p").await;
    assert_eq!(events.stdout(), format!("{}yz", "x".repeat(4096)));
}

async fn empty_chunk_is_accepted(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    cat(&mut client).await;
    assert_eq!(status(&mut client, write("1", b"")).await, "accepted");
    assert_eq!(status(&mut client, write("2", b"x\n")).await, "accepted");
    assert_eq!(client.output_until("p", "\n").await, "x\n");
}

async fn process_without_a_pipe_has_no_stdin(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p", "readlink /proc/self/fd/0; cat").await;
    assert_eq!(status(&mut client, write("1", b"x")).await, "stdinClosed");
    assert_eq!(close(&mut client).await, json!({"status": "stdinClosed"}));
    assert_eq!(client.finish("p").await.stdout(), "/dev/null\n");
    assert_eq!(status(&mut client, write("1", b"x")).await, "stdinClosed");
    let unknown = client
        .call("process/closeStdin", json!({"processId": "zz"}))
        .await;
    assert_eq!(unknown, json!({"status": "unknownProcess"}));
}

async fn write_after_exit_is_discarded(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client
        .start_with(script_params("p", "exit 0"), json!({"pipeStdin": true}))
        .await;
    client.finish("p").await;
    assert_eq!(
        status(&mut client, write("1", &[0; 200_000])).await,
        "accepted"
    );
    client
        .start_with(
            script_params("q", "exec 0<&-; echo closed; sleep 1000"),
            json!({"pipeStdin": true}),
        )
        .await;
    client.output_until("q", "\n").await;
    for number in 0..5 {
        let params = with(
            write(&number.to_string(), &[0; 100_000]),
            json!({"processId": "q"}),
        );
        assert_eq!(status(&mut client, params).await, "accepted");
    }
}

async fn write_after_terminate_fails(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    cat(&mut client).await;
    client
        .call("process/terminate", json!({"processId": "p"}))
        .await;
    let message = client
        .expect_error(-32603, "process/write", write("1", b"x"))
        .await;
    assert_eq!(message, "failed to write to process stdin");
    client.finish("p").await;
    client
        .expect_error(-32603, "process/write", write("1", b"x"))
        .await;
}

async fn close_stdin_comes_after_earlier_writes(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let script = "sleep 0.2; wc -c";
    client
        .start_with(script_params("p", script), json!({"pipeStdin": true}))
        .await;
    // More than the pipe buffer: still queued when stdin is closed.
    assert_eq!(
        status(&mut client, write("1", &[b'x'; 1_000_000])).await,
        "accepted"
    );
    assert_eq!(close(&mut client).await, json!({"status": "accepted"}));
    assert_eq!(client.finish("p").await.stdout().trim(), "1000000");
}

async fn close_stdin_is_final_and_can_be_repeated(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client
        .start_with(
            script_params("p", "cat; sleep 1000"),
            json!({"pipeStdin": true}),
        )
        .await;
    let params = json!({"processId": "p", "writeId": "end"});
    for _ in 0..2 {
        let closed = client.call("process/closeStdin", params.clone()).await;
        assert_eq!(closed, json!({"status": "accepted"}), "the same end twice");
    }
    assert_eq!(close(&mut client).await, json!({"status": "stdinClosed"}));
    assert_eq!(status(&mut client, write("2", b"x")).await, "stdinClosed");
}

async fn repeated_write_is_accepted_after_close_stdin(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client
        .start_with(
            script_params("p", "cat; sleep 1000"),
            json!({"pipeStdin": true}),
        )
        .await;
    assert_eq!(status(&mut client, write("1", b"x\n")).await, "accepted");
    close(&mut client).await;
    // A client that lost the response repeats the request.
    assert_eq!(status(&mut client, write("1", b"x\n")).await, "accepted");
    assert_eq!(client.output_until("p", "\n").await, "x\n");
}

async fn close_stdin_on_a_terminal_sends_end_of_file(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let script = "stty -echo; echo up; cat; echo end";
    client
        .start_with(script_params("p", script), json!({"tty": true}))
        .await;
    client.output_until("p", "up\r\n").await;
    assert_eq!(status(&mut client, write("1", b"line\n")).await, "accepted");
    client.output_until("p", "line\r\n").await;
    assert_eq!(close(&mut client).await, json!({"status": "accepted"}));
    // A terminal may hand out one line in two reads.
    assert_eq!(client.output_until("p", "end\r\n").await, "end\r\n");
    assert_eq!(client.note("process/exited").await["exitCode"], 0);
}

async fn terminal_accepts_control_characters(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client
        .start_with(
            script_params("p", "stty -echo; echo up; exec cat"),
            json!({"tty": true}),
        )
        .await;
    client.output_until("p", "up\r\n").await;
    assert_eq!(status(&mut client, write("1", b"\x03")).await, "accepted");
    assert_eq!(client.note("process/exited").await["exitCode"], 130);
}

async fn full_stdin_does_not_block_others(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client
        .start_with(
            script_params("p", "exec sleep 1000"),
            json!({"pipeStdin": true}),
        )
        .await;
    let mut writes = Vec::new();
    for number in 0..200 {
        let params = write(&number.to_string(), &[0; 65_536]);
        writes.push(client.request("process/write", params).await);
    }
    client.expect_alive().await;
    client.start("other", "echo hi").await;
    assert_eq!(client.finish("other").await.stdout(), "hi\n");
    client
        .call("process/terminate", json!({"processId": "p"}))
        .await;
    for id in writes {
        let answer = client.answer(id).await;
        assert!(
            answer["result"]["status"] == "accepted" || answer["error"]["code"] == -32603,
            "{answer}"
        );
    }
}

async fn large_write_arrives_complete(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client
        .start_with(script_params("p", "sha256sum"), json!({"pipeStdin": true}))
        .await;
    let data: Vec<u8> = (0..9_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    assert_eq!(status(&mut client, write("1", &data)).await, "accepted");
    close(&mut client).await;
    let digest = <sha2::Sha256 as sha2::Digest>::digest(&data);
    assert_eq!(
        client.finish("p").await.stdout(),
        format!("{digest:x}  -\n")
    );
}
