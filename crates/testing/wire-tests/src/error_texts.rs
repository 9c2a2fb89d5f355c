//! Error texts that clients of the stock server compare, exactly as its releases 0.166.0 and
//! 0.169.0 send them.
//!
//! `scripts/stock-codex error-texts` compares the responses of both servers.

use serde_json::{Value, json};

use crate::{
    client::with,
    fs_fixture::FsFixture,
    over_one_transport,
    server::{Server, Transport},
    upstream_server::UpstreamServer,
};

over_one_transport!(
    error_text_of_empty_config_selectors,
    error_texts_of_refused_copies,
    error_texts_of_invalid_http_timeouts,
    error_text_of_a_duplicate_http_stream_id,
    error_texts_of_http_header_variables,
    error_texts_of_invalid_http_requests,
    error_texts_of_malformed_json_on_a_websocket,
);

async fn error_text_of_empty_config_selectors(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let cwd = fixture.uri("");
    let no_key = "TOML paths must contain at least one key segment";
    for (config, requirements, expected) in [
        (
            json!([]),
            json!([]),
            "at least one config or requirements path is required",
        ),
        (json!([[]]), json!([]), no_key),
        (json!([]), json!([[]]), no_key),
        (json!([["a"], []]), json!([["a"]]), no_key),
    ] {
        let params = json!({"cwd": cwd, "configPaths": config, "requirementsPaths": requirements});
        let text = fixture
            .client
            .expect_error(-32602, "environmentConfig/read", params);
        assert_eq!(text.await, expected);
    }
}

async fn error_texts_of_refused_copies(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let special = "fs/copy only supports regular files, directories, and symlinks";
    let flat = "fs/copy requires recursive: true when sourcePath is a directory";
    let inside = "fs/copy cannot copy a directory to itself or one of its descendants";
    for (source, destination, recursive, expected) in [
        ("fifo", "new", false, special),
        ("fifo", "new", true, special),
        ("socket", "new", false, special),
        ("dir", "new", false, flat),
        ("dir", "dir/new", false, flat),
        ("dir", "dir", true, inside),
        ("dir", "dir/sub/new", true, inside),
        ("dir", "to-dir/sub/new", true, inside),
    ] {
        let params = json!({
            "sourcePath": fixture.uri(source),
            "destinationPath": fixture.uri(destination),
            "recursive": recursive,
        });
        let text = fixture.client.expect_error(-32600, "fs/copy", params);
        assert_eq!(text.await, expected, "{source} {destination}");
    }
}

fn get(url: &str, change: Value) -> Value {
    let request = json!({"method": "GET", "url": url, "requestId": "r"});
    with(request, change)
}

async fn error_texts_of_invalid_http_timeouts(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for (timeout, expected) in [
        (json!(-1), "invalid number"),
        (json!(1.5), "invalid number"),
        (json!(18_446_744_073_709_551_616_f64), "invalid number"),
        (json!("5"), r#"invalid type: string "5", expected u64"#),
        (json!(true), "invalid type: boolean `true`, expected u64"),
    ] {
        let params = get("http://127.0.0.1:1/", json!({"timeoutMs": timeout}));
        let text = client.expect_error(-32602, "http/request", params).await;
        assert_eq!(text, expected);
    }
    let params = get("http://127.0.0.1:1/", json!({"timeoutMs": 0}));
    let text = client.expect_error(-32603, "http/request", params).await;
    assert_eq!(text, "http/request failed: route-aware request timed out");
}

async fn error_text_of_a_duplicate_http_stream_id(transport: Transport) {
    let (mut server, upstream) = (
        Server::start(transport, &[]).await,
        UpstreamServer::new().await,
    );
    let mut client = server.ready().await;
    let params = get(&upstream.url(), json!({"streamResponse": true}));
    client.request("http/request", params.clone()).await;
    let _exchange = upstream.accept().await;
    let text = client.expect_error(-32602, "http/request", params).await;
    let expected = "http/request streamResponse requestId `r` is already active";
    assert_eq!(text, expected);
}

async fn error_texts_of_http_header_variables(transport: Transport) {
    let script = "export EMPTY= OPENAI_API_KEY=key; exec \"$0\" \"$@\"";
    let mut server = Server::start_by(script, transport, &[]).await;
    let mut client = server.ready().await;
    for (variable, expected) in [
        ("OPENAI_API_KEY", "cannot use executor environment variable"),
        ("openai_api_key", "cannot use executor environment variable"),
        (
            "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
            "cannot use executor environment variable",
        ),
        ("UNSET", "requires executor environment variable"),
        (
            "EMPTY",
            "requires a non-empty executor environment variable",
        ),
    ] {
        let header = json!({"name": "a", "value": "x", "valueEnvVar": variable});
        let params = get("http://127.0.0.1:1/", json!({"headers": [header]}));
        let text = client.expect_error(-32602, "http/request", params).await;
        assert_eq!(text, format!("http/request header a {expected} {variable}"));
    }
}

async fn error_texts_of_invalid_http_requests(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let header = |name: &str, value: &str| json!({"headers": [{"name": name, "value": value}]});
    for (change, expected) in [
        (
            header("a b", "x"),
            "header name is invalid: invalid HTTP header name",
        ),
        (
            header("a", "x\ny"),
            "header value is invalid for a: failed to parse header value",
        ),
        (
            json!({"url": "nowhere"}),
            "url is invalid: relative URL without a base",
        ),
        (
            json!({"url": "ftp://127.0.0.1/"}),
            "only supports http and https URLs, got ftp",
        ),
        (
            json!({"method": "GET IT"}),
            "method is invalid: invalid HTTP method",
        ),
    ] {
        let params = get("http://127.0.0.1:1/", change);
        let text = client.expect_error(-32602, "http/request", params).await;
        assert_eq!(text, format!("http/request {expected}"));
    }
}

async fn error_texts_of_malformed_json_on_a_websocket(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for (message, expected) in [
        ("{bad", "key must be a string at line 1 column 2"),
        ("not json", "expected ident at line 1 column 2"),
        ("", "EOF while parsing a value at line 1 column 0"),
        (
            r#"{"id":1"#,
            "EOF while parsing an object at line 1 column 7",
        ),
        (
            r#"{"id":1,"id":2,"method":"x"}"#,
            "duplicate JSON object key `id` at line 1 column 12",
        ),
        ("[]", "expected a JSON-RPC object"),
        ("5", "expected a JSON-RPC object"),
    ] {
        let text = client.expect_refused(message).await;
        let start =
            "failed to parse websocket JSON-RPC message from exec-server websocket 127.0.0.1:";
        let rest = text.strip_prefix(start).unwrap_or_else(|| panic!("{text}"));
        let (port, reason) = rest.split_once(": ").unwrap();
        assert!(port.parse::<u16>().is_ok(), "{text}");
        assert_eq!(reason, expected);
    }
}
