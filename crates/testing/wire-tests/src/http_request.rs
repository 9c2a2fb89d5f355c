//! `http/request`: the server sends the request from its host and streams the response.

use serde_json::{Value, json};

use crate::{
    binary::{frame, granted, split},
    client::{Client, Packet, decode, encode, with},
    over_every_transport, over_one_transport,
    server::{Server, Transport},
    upstream_server::{UpstreamRequest, UpstreamServer},
};

over_every_transport!(
    http_request_returns_status_headers_and_body,
    streamed_body_follows_its_response_and_ends_once,
    unanswered_http_request_does_not_block_others
);

over_one_transport!(
    bodies_are_binary_once_granted,
    disconnect_aborts_downloads,
    disconnect_aborts_http_requests,
    request_fields_are_validated,
    failed_http_request_is_an_internal_error,
    header_can_end_with_a_server_variable,
    truncated_body_ends_with_an_error,
    stream_id_is_in_use_until_its_end_was_sent,
    refused_stream_leaves_its_id_free,
    connection_has_at_most_256_http_streams,
    body_chunks_are_bounded_and_numbered,
    stalled_client_pauses_the_download,
    cancelled_body_sends_nothing_more,
    cancelled_http_request_is_answered_with_an_error,
    http_request_can_be_cancelled_while_its_response_waits,
    cancelling_an_unknown_request_succeeds,
    serial_mode_waits_for_http_requests,
);

fn get(upstream: &UpstreamServer, id: &str) -> Value {
    json!({"method": "GET", "url": upstream.url(), "requestId": id})
}

fn streamed(upstream: &UpstreamServer, id: &str) -> Value {
    with(get(upstream, id), json!({"streamResponse": true}))
}

/// Requests a streamed body and waits for its start.
async fn begin(
    client: &mut Client,
    upstream: &UpstreamServer,
    id: &str,
    length: usize,
) -> UpstreamRequest {
    let call = client.request("http/request", streamed(upstream, id)).await;
    let mut exchange = upstream.accept().await;
    exchange.answer(length, b"").await;
    let answer = client.answer(call).await;
    assert_eq!(answer["result"]["bodyBase64"], "", "{answer}");
    exchange
}

async fn delta(client: &mut Client) -> Value {
    client.note("http/request/bodyDelta").await
}

async fn http_request_returns_status_headers_and_body(transport: Transport) {
    let (mut server, upstream) = (
        Server::start(transport, &[]).await,
        UpstreamServer::new().await,
    );
    let mut client = server.ready().await;
    let body = b"\0\xff body";
    let params = with(
        get(&upstream, "r"),
        json!({"method": "post", "bodyBase64": encode(body), "headers": [
            {"name": "X-One", "value": "1"}, {"name": "x-one", "value": "2"}]}),
    );
    let id = client.request("http/request", params).await;
    let mut exchange = upstream.accept().await;
    assert!(
        exchange
            .head
            .starts_with("post / HTTP/1.1\r\nx-one: 1\r\nx-one: 2\r\n")
    );
    assert!(!exchange.head.contains("user-agent"), "{}", exchange.head);
    assert_eq!(exchange.read(body.len()).await, body);
    exchange.answer(3, b"abc").await;
    let answer = client.answer(id).await;
    let headers = json!([
        {"name": "x-test", "value": "yes"},
        {"name": "content-length", "value": "3"},
        {"name": "connection", "value": "close"},
    ]);
    let result = json!({"status": 200, "headers": headers, "bodyBase64": "YWJj"});
    assert_eq!(answer["result"], result);
}

async fn streamed_body_follows_its_response_and_ends_once(transport: Transport) {
    let (mut server, upstream) = (
        Server::start(transport, &[]).await,
        UpstreamServer::new().await,
    );
    let mut client = server.ready().await;
    let id = client
        .request("http/request", streamed(&upstream, "http-1"))
        .await;
    upstream.accept().await.answer(3, b"abc").await;
    assert_eq!(client.recv().await["id"], id, "the answer comes first");
    let mut bytes = Vec::new();
    let mut seq = 0;
    loop {
        let message = client.recv().await;
        assert_eq!(message["method"], "http/request/bodyDelta", "{message}");
        let params = &message["params"];
        assert_eq!(params.as_object().unwrap().len(), 5, "{message}");
        seq += 1;
        assert_eq!(
            (&params["requestId"], &params["seq"]),
            (&json!("http-1"), &json!(seq))
        );
        assert_eq!(params["error"], Value::Null, "{message}");
        bytes.extend(decode(&params["deltaBase64"]));
        if params["done"] == true {
            assert_eq!(params["deltaBase64"], "", "{message}");
            break;
        }
        assert_eq!(params["done"], false, "{message}");
    }
    assert_eq!(bytes, b"abc");
    let status = client.request("environment/status", json!({})).await;
    assert_eq!(client.recv().await["id"], status, "nothing follows the end");
}

async fn unanswered_http_request_does_not_block_others(transport: Transport) {
    let (mut server, upstream) = (
        Server::start(transport, &[]).await,
        UpstreamServer::new().await,
    );
    let mut client = server.ready().await;
    let id = client.request("http/request", get(&upstream, "r")).await;
    let mut exchange = upstream.accept().await;
    client.start("p", "echo there").await;
    assert_eq!(client.finish("p").await.stdout(), "there\n");
    exchange.answer(0, b"").await;
    assert_eq!(client.answer(id).await["result"]["status"], 200);
}

async fn bodies_are_binary_once_granted(transport: Transport) {
    let (mut server, upstream) = (
        Server::start(transport, &[]).await,
        UpstreamServer::new().await,
    );
    let mut client = granted(&mut server).await;
    let header = json!({"id": 7, "method": "http/request", "params": get(&upstream, "r")});
    client.send_frame(frame(&header, b"\0raw")).await;
    let mut exchange = upstream.accept().await;
    assert_eq!(exchange.read(4).await, b"\0raw");
    exchange.answer(3, b"\xff12").await;
    let Some(Packet::Binary(raw)) = client.packet().await else {
        panic!("the answer is not raw")
    };
    let (header, data) = split(&raw);
    assert_eq!((&header["id"], data), (&json!(7), &b"\xff12"[..]));
    assert_eq!(header["result"].get("bodyBase64"), None, "{header}");

    client
        .request("http/request", streamed(&upstream, "s"))
        .await;
    upstream.accept().await.answer(3, b"\xff34").await;
    let mut parts = Vec::new();
    for (done, bytes) in [
        (None, &b""[..]),
        (Some(false), b"\xff34"),
        (Some(true), b""),
    ] {
        let Some(Packet::Binary(raw)) = client.packet().await else {
            panic!("a part is not raw")
        };
        let (header, data) = split(&raw);
        assert_eq!(header["params"]["done"].as_bool(), done, "{header}");
        assert_eq!(header["params"].get("deltaBase64"), None, "{header}");
        assert_eq!(data, bytes);
        parts.push(header);
    }
    assert_eq!(parts[2]["params"]["error"], Value::Null);
    // Inline and binary data together are refused.
    let params = with(get(&upstream, "r"), json!({"bodyBase64": "YQ=="}));
    let header = json!({"id": 8, "method": "http/request", "params": params});
    client.send_frame(frame(&header, b"a")).await;
    assert_eq!(client.answer(8).await["error"]["code"], -32602);
}

async fn disconnect_aborts_downloads(transport: Transport) {
    let (mut server, upstream) = (
        Server::start(transport, &[]).await,
        UpstreamServer::new().await,
    );
    let mut client = server.ready().await;
    let mut exchange = begin(&mut client, &upstream, "r", 1 << 30).await;
    exchange.send(b"some").await;
    delta(&mut client).await;
    drop(client);
    exchange.closed().await;
}

async fn disconnect_aborts_http_requests(transport: Transport) {
    let (mut server, upstream) = (
        Server::start(transport, &[]).await,
        UpstreamServer::new().await,
    );
    let mut client = server.ready().await;
    for params in [get(&upstream, "r"), streamed(&upstream, "s")] {
        client.request("http/request", params).await;
    }
    let (one, two) = (upstream.accept().await, upstream.accept().await);
    drop(client);
    one.closed().await;
    two.closed().await;
}

async fn request_fields_are_validated(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let fine = json!({"method": "GET", "url": "http://127.0.0.1:1/", "requestId": "r"});
    let headers = |name: &str, value: &str| json!({"headers": [{"name": name, "value": value}]});
    let changes = [
        json!({"method": null}),
        json!({"method": ""}),
        json!({"method": "GET IT"}),
        json!({"url": null}),
        json!({"url": ""}),
        json!({"url": "nowhere"}),
        json!({"url": "http://"}),
        json!({"url": "ftp://127.0.0.1/"}),
        json!({"url": "file:///etc/passwd"}),
        json!({"requestId": null}),
        json!({"requestId": 1}),
        json!({"requestId": "x".repeat(257)}),
        json!({"headers": null}),
        headers("", "value"),
        headers("a b", "value"),
        headers("name", "two\nlines"),
        headers("content-length", "5"),
        json!({"headers": [{"name": "a"}]}),
        json!({"bodyBase64": "%"}),
        json!({"timeoutMs": -1}),
        json!({"redirectPolicy": "never"}),
        json!({"streamResponse": "yes"}),
    ];
    for change in changes {
        let params = with(fine.clone(), change);
        client
            .expect_error(-32602, "http/request", params.clone())
            .await;
        let params = with(json!({"streamResponse": true}), params);
        client.expect_error(-32602, "http/request", params).await;
    }
    let mut nameless = fine.clone();
    nameless.as_object_mut().unwrap().remove("requestId");
    let text = client.expect_error(-32602, "http/request", nameless).await;
    assert!(text.contains("requestId"), "{text}");
}

async fn failed_http_request_is_an_internal_error(transport: Transport) {
    let (mut server, upstream) = (
        Server::start(transport, &[]).await,
        UpstreamServer::new().await,
    );
    let mut client = server.ready().await;
    let unreachable = UpstreamServer::new().await.url();
    for change in [json!({}), json!({"streamResponse": true})] {
        let params = with(get(&upstream, "r"), json!({"url": unreachable}));
        let params = with(params, change.clone());
        client.expect_error(-32603, "http/request", params).await;
        let params = with(with(get(&upstream, "r"), change), json!({"timeoutMs": 50}));
        let text = client.expect_error(-32603, "http/request", params).await;
        assert!(text.contains("50 ms"), "{text}");
        upstream.accept().await.closed().await;
    }
}

async fn header_can_end_with_a_server_variable(transport: Transport) {
    let script = "export SVC=secret EMPTY= OPENAI_API_KEY=key; exec \"$0\" \"$@\"";
    let mut server = Server::start_by(script, transport, &[]).await;
    let upstream = UpstreamServer::new().await;
    let mut client = server.ready().await;
    let params = |variable: &str| {
        let header = json!({"name": "A", "value": "Bearer ", "valueEnvVar": variable});
        with(get(&upstream, "r"), json!({"headers": [header]}))
    };
    for variable in [
        "UNSET",
        "EMPTY",
        "",
        "OPENAI_API_KEY",
        "openai_api_key",
        "Aws_Session_Token",
    ] {
        let text = client
            .expect_error(-32602, "http/request", params(variable))
            .await;
        assert!(text.contains(variable) && !text.contains("key;"), "{text}");
    }
    let id = client.request("http/request", params("SVC")).await;
    let mut exchange = upstream.accept().await;
    assert!(
        exchange.head.contains("\r\na: Bearer secret\r\n"),
        "{}",
        exchange.head
    );
    exchange.answer(0, b"").await;
    assert_eq!(client.answer(id).await["result"]["status"], 200);
}

async fn truncated_body_ends_with_an_error(transport: Transport) {
    let (mut server, upstream) = (
        Server::start(transport, &[]).await,
        UpstreamServer::new().await,
    );
    let mut client = server.ready().await;
    let mut exchange = begin(&mut client, &upstream, "r", 10).await;
    exchange.send(b"some").await;
    drop(exchange);
    assert_eq!(delta(&mut client).await["deltaBase64"], encode(b"some"));
    let end = delta(&mut client).await;
    assert_eq!(
        (&end["done"], &end["deltaBase64"]),
        (&json!(true), &json!(""))
    );
    assert!(end["error"].is_string(), "{end}");
    // Without streaming, the request itself fails.
    let id = client.request("http/request", get(&upstream, "r")).await;
    upstream.accept().await.answer(10, b"some").await;
    assert_eq!(client.answer(id).await["error"]["code"], -32603);
}

async fn stream_id_is_in_use_until_its_end_was_sent(transport: Transport) {
    let (mut server, upstream) = (
        Server::start(transport, &[]).await,
        UpstreamServer::new().await,
    );
    let mut client = server.ready().await;
    for _ in 0..3 {
        // Before and after the response.
        client
            .request("http/request", streamed(&upstream, "r"))
            .await;
        let mut exchange = upstream.accept().await;
        let duplicate = streamed(&upstream, "r");
        client
            .expect_error(-32602, "http/request", duplicate.clone())
            .await;
        exchange.answer(1, b"").await;
        client.expect_error(-32602, "http/request", duplicate).await;
        exchange.send(b"x").await;
        while delta(&mut client).await["done"] == false {}
    }
}

async fn refused_stream_leaves_its_id_free(transport: Transport) {
    let (mut server, upstream) = (
        Server::start(transport, &[]).await,
        UpstreamServer::new().await,
    );
    let mut client = server.ready().await;
    let unreachable = with(
        streamed(&upstream, "r"),
        json!({"url": UpstreamServer::new().await.url()}),
    );
    client
        .expect_error(-32603, "http/request", unreachable)
        .await;
    begin(&mut client, &upstream, "r", 0).await;
    assert_eq!(delta(&mut client).await["done"], true);
}

async fn connection_has_at_most_256_http_streams(transport: Transport) {
    let (mut server, upstream) = (
        Server::start(transport, &[]).await,
        UpstreamServer::new().await,
    );
    let mut client = server.ready().await;
    let mut open = Vec::new();
    for number in 0..256 {
        open.push(begin(&mut client, &upstream, &number.to_string(), 1).await);
    }
    let excess = streamed(&upstream, "more");
    client
        .expect_error(-32600, "http/request", excess.clone())
        .await;
    open[0].send(b"x").await;
    while delta(&mut client).await["done"] == false {}
    begin(&mut client, &upstream, "more", 1).await;
}

async fn body_chunks_are_bounded_and_numbered(transport: Transport) {
    let (mut server, upstream) = (
        Server::start(transport, &[]).await,
        UpstreamServer::new().await,
    );
    let mut client = server.ready().await;
    let content: Vec<u8> = (0u32..1 << 20).flat_map(u32::to_be_bytes).collect();
    let mut exchange = begin(&mut client, &upstream, "r", content.len()).await;
    let read = async {
        let (mut bytes, mut seq) = (Vec::new(), 0);
        loop {
            let delta = delta(&mut client).await;
            seq += 1;
            assert_eq!(delta["seq"], seq);
            let part = decode(&delta["deltaBase64"]);
            assert!(part.len() <= 1 << 20, "{}", part.len());
            bytes.extend(part);
            if delta["done"] == true {
                return bytes;
            }
        }
    };
    let (bytes, ()) = tokio::join!(read, exchange.send(&content));
    assert!(bytes == content, "every byte arrives");
}

async fn stalled_client_pauses_the_download(transport: Transport) {
    let (mut server, upstream) = (
        Server::start(transport, &[]).await,
        UpstreamServer::new().await,
    );
    let mut client = server.ready().await;
    let mut exchange = begin(&mut client, &upstream, "r", 1 << 30).await;
    let downloaded = exchange.fill().await;
    assert!(
        downloaded < 64 << 20,
        "server read {downloaded} bytes although the client did not read"
    );
    // The download continues when the client reads.
    let (mut read, mut seq) = (0, 0);
    while read < downloaded {
        let delta = delta(&mut client).await;
        seq += 1;
        assert_eq!(delta["seq"], seq);
        read += decode(&delta["deltaBase64"]).len();
    }
}

async fn cancelled_body_sends_nothing_more(transport: Transport) {
    let (mut server, upstream) = (
        Server::start(transport, &[]).await,
        UpstreamServer::new().await,
    );
    let mut client = server.ready().await;
    let mut exchange = begin(&mut client, &upstream, "r", 10).await;
    exchange.send(b"some").await;
    delta(&mut client).await;
    let cancelled = client
        .call("http/request/cancel", json!({"requestId": "r"}))
        .await;
    assert_eq!(cancelled, json!({}));
    exchange.closed().await;
    // The id is free, and later chunks belong to the next body.
    begin(&mut client, &upstream, "r", 0).await;
    let end = delta(&mut client).await;
    assert_eq!((&end["seq"], &end["done"]), (&json!(1), &json!(true)));
}

async fn cancelled_http_request_is_answered_with_an_error(transport: Transport) {
    let (mut server, upstream) = (
        Server::start(transport, &[]).await,
        UpstreamServer::new().await,
    );
    let mut client = server.ready().await;
    for params in [get(&upstream, "r"), streamed(&upstream, "r")] {
        let id = client.request("http/request", params).await;
        let exchange = upstream.accept().await;
        client
            .call("http/request/cancel", json!({"requestId": "r"}))
            .await;
        let answer = client.answer(id).await;
        assert_eq!(answer["error"]["code"], -32603, "{answer}");
        exchange.closed().await;
    }
}

async fn http_request_can_be_cancelled_while_its_response_waits(transport: Transport) {
    let (mut server, upstream) = (
        Server::start(transport, &[]).await,
        UpstreamServer::new().await,
    );
    let mut client = server.ready().await;
    begin(&mut client, &upstream, "full", 1 << 30)
        .await
        .fill()
        .await;
    let id = client
        .request("http/request", streamed(&upstream, "r"))
        .await;
    let mut exchange = upstream.accept().await;
    exchange.answer(10, b"some").await;
    // When a later request arrives, the response to the first one is complete.
    client.request("http/request", get(&upstream, "s")).await;
    let _later = upstream.accept().await;
    let cancel = client
        .request("http/request/cancel", json!({"requestId": "r"}))
        .await;
    let answer = client.answer(id).await;
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
    assert_eq!(client.answer(cancel).await["result"], json!({}));
    exchange.closed().await;
}

async fn cancelling_an_unknown_request_succeeds(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let cancel = "http/request/cancel";
    assert_eq!(
        client.call(cancel, json!({"requestId": "r"})).await,
        json!({})
    );
    client.expect_error(-32602, cancel, json!({})).await;
}

async fn serial_mode_waits_for_http_requests(transport: Transport) {
    let flags = ["--concurrent-requests", "1"];
    let (mut server, upstream) = (
        Server::start(transport, &flags).await,
        UpstreamServer::new().await,
    );
    let mut client = server.ready().await;
    let id = client
        .request("http/request", streamed(&upstream, "r"))
        .await;
    let status = client.request("environment/status", json!({})).await;
    let mut exchange = upstream.accept().await;
    exchange.answer(10, b"").await;
    assert_eq!(client.recv().await["id"], id);
    // A running body does not block other requests.
    assert_eq!(client.recv().await["id"], status);
}
