//! The JSON-RPC envelope: valid and malformed messages, none of which is fatal.

use serde_json::json;

use crate::{
    client::error_message,
    over_every_transport,
    server::{Server, Transport},
};

over_every_transport!(
    ids_are_echoed_verbatim,
    ids_of_other_types_are_malformed,
    minus_zero_is_echoed_verbatim_or_refused,
    equal_ids_are_each_answered,
    non_messages_are_refused_and_the_connection_stays_open,
    malformed_texts_are_refused_before_initialize,
    unknown_envelope_field_is_ignored,
    method_takes_precedence_over_result,
    trace_is_an_object_or_null,
    duplicate_keys_are_refused_at_any_depth,
    number_of_json_values_is_bounded,
    json_nesting_is_bounded,
    unknown_notification_is_an_error_with_id_minus_one,
    unsolicited_response_is_ignored,
    surrounding_whitespace_is_accepted,
    two_documents_are_malformed,
    string_escapes_are_preserved,
);

async fn ids_are_echoed_verbatim(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for id in [
        "0",
        "-1",
        "-7",
        "9223372036854775807",
        "-9223372036854775808",
        r#""""#,
        r#""a b""#,
        r#""1""#,
        r#""é\"\\""#,
        r#""💥""#,
    ] {
        client
            .send(&format!(r#"{{"id":{id},"method":"environment/status"}}"#))
            .await;
        assert_eq!(
            client.text().await,
            format!(r#"{{"id":{id},"result":{{"status":"ready"}}}}"#)
        );
    }
    let long = format!("\"{}\"", "x".repeat(100_000));
    client
        .send(&format!(r#"{{"id":{long},"method":"nope"}}"#))
        .await;
    assert!(client.text().await.ends_with(&format!(r#""id":{long}}}"#)));
}

async fn ids_of_other_types_are_malformed(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for id in [
        "null",
        "1.0",
        "1.5",
        "1e3",
        "9223372036854775808",
        "-9223372036854775809",
        "true",
        "{}",
        "[]",
        "[1]",
        "18446744073709551616",
    ] {
        let text = format!(r#"{{"id":{id},"method":"environment/status"}}"#);
        let message = client.expect_refused(&text).await;
        assert!(
            message.contains("id must be a string or a 64-bit integer"),
            "{id}: {message}"
        );
    }
    client.expect_alive().await;
}

async fn minus_zero_is_echoed_verbatim_or_refused(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client
        .send(r#"{"id":-0,"method":"environment/status"}"#)
        .await;
    let answer = client.text().await;
    assert!(
        answer.contains(r#""id":-0"#) || answer.contains(r#""id":-1"#),
        "{answer}"
    );
}

async fn equal_ids_are_each_answered(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for _ in 0..3 {
        client
            .send(r#"{"id":5,"method":"environment/status"}"#)
            .await;
    }
    for _ in 0..3 {
        assert_eq!(client.answer(5).await["result"], json!({"status": "ready"}));
    }
}

async fn non_messages_are_refused_and_the_connection_stays_open(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for text in [
        "{bad",
        "}",
        "x",
        "[]",
        "[{}]",
        "1",
        "null",
        "true",
        r#""text""#,
        "{}",
        r#"{"id":7}"#,
        r#"{"id":1,"error":3}"#,
        r#"{"id":1,"error":{}}"#,
        r#"{"id":1,"error":{"code":"x"}}"#,
        r#"{"error":{"code":1,"message":"m"}}"#,
        r#"{"result":1}"#,
        r#"{"id":1,"method":3}"#,
        r#"{"id":1,"method":null}"#,
        r#"{"id":1,"method":["m"]}"#,
        r#"{"method":{}}"#,
        r#"{"id":1,"method":"m",}"#,
        r#"{'id':1}"#,
        r#"{"id":1,"method":"m"} x"#,
        r#"{"id":01,"method":"m"}"#,
        r#"{"id":+1,"method":"m"}"#,
        r#"{"id":1,"method":"m"#,
        r#"{"id":1,"method":"\ud800"}"#,
        r#"{"id":1,"method":"\x"}"#,
        "\u{feff}{}",
        "NaN",
        r#"{"id":NaN,"method":"m"}"#,
        r#"{"id":1,"method":"m","params":}"#,
        "{\"id\":1,\"method\":\"a\tb\"}",
        r#"[{"id":1,"method":"environment/status"}]"#,
    ] {
        client.expect_refused(text).await;
    }
    client.expect_alive().await;
}

async fn malformed_texts_are_refused_before_initialize(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    let message = client.expect_refused("{bad").await;
    assert!(message.starts_with("failed to parse"), "{message}");
    client.handshake().await;
    client.expect_alive().await;
}

async fn unknown_envelope_field_is_ignored(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let text = r#"{"jsonrpc":"2.0","extra":[{}],"id":1,"method":"environment/status"}"#;
    client.send(text).await;
    assert_eq!(
        client.text().await,
        r#"{"id":1,"result":{"status":"ready"}}"#
    );
    client
        .expect_error(
            -32600,
            "process/read",
            json!({"processId": "p", "new": [1]}),
        )
        .await;
}

async fn method_takes_precedence_over_result(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client
        .send(r#"{"id":1,"result":5,"error":6,"method":"environment/status"}"#)
        .await;
    assert_eq!(
        client.text().await,
        r#"{"id":1,"result":{"status":"ready"}}"#
    );
}

async fn trace_is_an_object_or_null(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for trace in [
        "null",
        "{}",
        r#"{"traceparent":null,"tracestate":null}"#,
        r#"{"traceparent":"garbage"}"#,
        r#"{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","x":1}"#,
    ] {
        client
            .send(&format!(
                r#"{{"id":1,"method":"environment/status","trace":{trace}}}"#
            ))
            .await;
        assert_eq!(
            client.answer(1).await["result"],
            json!({"status": "ready"}),
            "{trace}"
        );
    }
    for trace in ["7", "[]", r#""x""#, "true"] {
        let text = format!(r#"{{"id":1,"method":"environment/status","trace":{trace}}}"#);
        let message = client.expect_refused(&text).await;
        assert!(message.contains("trace"), "{message}");
    }
}

async fn duplicate_keys_are_refused_at_any_depth(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for (key, text) in [
        ("id", r#"{"id":1,"method":"environment/status","id":1}"#),
        (
            "method",
            r#"{"method":"initialized","method":"initialized"}"#,
        ),
        (
            "a",
            r#"{"id":1,"method":"environment/status","params":{"a":1,"a":1}}"#,
        ),
        (
            "b",
            r#"{"id":1,"method":"m","params":{"x":[[{"b":1,"\u0062":2}]]}}"#,
        ),
        ("c", r#"{"id":1,"method":"m","ignored":{"c":{},"c":{}}}"#),
        ("", r#"{"id":1,"method":"m","ignored":{"":1,"":2}}"#),
    ] {
        let message = client.expect_refused(text).await;
        assert!(
            message.contains(&format!("duplicate JSON object key `{key}`")),
            "{message}"
        );
    }
    let keys: Vec<String> = (0..200).map(|key| format!(r#""k{key}":0"#)).collect();
    let text = format!(
        r#"{{"id":1,"method":"m","params":{{{},"k7":1}}}}"#,
        keys.join(",")
    );
    let message = client.expect_refused(&text).await;
    assert!(message.contains("`k7`"), "{message}");
}

async fn number_of_json_values_is_bounded(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    // The root, the id, the method, the array and its items are values; keys are not.
    let text = |items: usize| {
        let zeros = vec!["0"; items].join(",");
        format!(r#"{{"id":1,"method":"environment/status","ignored":[{zeros}]}}"#)
    };
    client.send(&text(262_144 - 4)).await;
    assert_eq!(client.answer(1).await["result"], json!({"status": "ready"}));
    let message = client.expect_refused(&text(262_144 - 3)).await;
    assert!(message.contains("262144"), "{message}");
    let keys: Vec<String> = (0..131_000).map(|key| format!(r#""{key}":0"#)).collect();
    let text = format!(r#"{{"id":1,"method":"nope","x":{{{}}}}}"#, keys.join(","));
    client.send(&text).await;
    error_message(-32601, &client.answer(1).await, "keys do not count");
}

async fn json_nesting_is_bounded(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let text = |depth: usize| {
        // The root is the first level.
        let (open, close) = ("[".repeat(depth - 1), "]".repeat(depth - 1));
        format!(r#"{{"id":1,"method":"environment/status","ignored":{open}{close}}}"#)
    };
    client.send(&text(127)).await;
    assert_eq!(client.answer(1).await["result"], json!({"status": "ready"}));
    client.expect_refused(&text(128)).await;
    client.expect_refused(&text(100_000)).await;
    client
        .expect_refused(&format!(r#"{{"a":{}"#, r#"{"a":"#.repeat(100_000)))
        .await;
    client.expect_alive().await;
}

async fn unknown_notification_is_an_error_with_id_minus_one(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    let message = client.expect_refused(r#"{"method":"nope"}"#).await;
    assert!(
        message.contains("`nope`") && message.contains("initialized"),
        "{message}"
    );
    client.handshake().await;
    client
        .expect_refused(r#"{"method":"process/start","params":{}}"#)
        .await;
    client.expect_refused(r#"{"method":""}"#).await;
    client.expect_alive().await;
}

async fn unsolicited_response_is_ignored(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    for text in [
        r#"{"id":1,"result":{}}"#,
        r#"{"id":"x","result":null}"#,
        r#"{"id":-1,"result":[]}"#,
        r#"{"id":9,"error":{"code":-32000,"message":"m","data":{"deep":[1]}}}"#,
    ] {
        client.send(text).await;
    }
    client.handshake().await;
    client.send(r#"{"id":1,"result":{}}"#).await;
    client
        .send(r#"{"id":3,"method":"environment/status"}"#)
        .await;
    assert_eq!(
        client.text().await,
        r#"{"id":3,"result":{"status":"ready"}}"#
    );
}

async fn surrounding_whitespace_is_accepted(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client
        .send("\t  {\"id\" : 1 ,\t\"method\":\"environment/status\" } \t\r")
        .await;
    assert_eq!(client.answer(1).await["result"], json!({"status": "ready"}));
}

async fn two_documents_are_malformed(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let one = r#"{"id":1,"method":"environment/status"}"#;
    client.expect_refused(&format!("{one}{one}")).await;
    client.expect_refused(&format!("{one} {one}")).await;
    client.expect_alive().await;
}

async fn string_escapes_are_preserved(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client
        .send(r#"{"\u0069d":"\u0041\n","m\u0065thod":"environment\/st\u0061tus"}"#)
        .await;
    assert_eq!(
        client.text().await,
        r#"{"id":"A\n","result":{"status":"ready"}}"#
    );
}
