//! Invalid and premature file requests.

use serde_json::{Value, json};

use crate::{
    client::Client,
    fs_fixture::FsFixture,
    over_every_transport, over_one_transport,
    params::without,
    server::{Server, Transport},
};

over_every_transport!(
    requests_before_initialize_are_refused_by_family,
    invalid_params_are_reported_before_the_handshake_check,
    unknown_methods_are_not_found,
);

over_one_transport!(
    params_of_the_wrong_type_are_refused,
    required_fields_are_required,
    optional_fields_may_be_null,
    fields_with_a_default_must_not_be_null,
    flags_are_booleans,
    unknown_fields_are_ignored,
    advertised_capabilities_work,
    connection_survives_invalid_requests,
);

/// Returns every method with valid params.
fn methods() -> Vec<(&'static str, Value)> {
    let path = "file:///nonexistent/for/tests";
    let walk = json!({
        "maxDepth": 1, "maxDirectories": 1, "maxEntries": 1, "followDirectorySymlinks": false,
    });
    let copy = json!({"sourcePath": path, "destinationPath": path, "recursive": false});
    vec![
        ("fs/readFile", json!({"path": path})),
        ("fs/writeFile", json!({"path": path, "dataBase64": ""})),
        (
            "fs/createDirectory",
            json!({"path": path, "recursive": false}),
        ),
        ("fs/getMetadata", json!({"path": path})),
        ("fs/canonicalize", json!({"path": path})),
        ("fs/readDirectory", json!({"path": path})),
        ("fs/walk", json!({"path": path, "options": walk})),
        ("fs/remove", json!({"path": path, "force": false})),
        ("fs/copy", copy),
        (
            "fs/rename",
            json!({"sourcePath": path, "destinationPath": path}),
        ),
        ("fs/open", json!({"path": path, "handleId": "h"})),
        (
            "fs/readBlock",
            json!({"handleId": "h", "offset": 0, "len": 1}),
        ),
        (
            "fs/writeBlock",
            json!({"handleId": "h", "offset": 0, "chunk": "eA=="}),
        ),
        ("fs/close", json!({"handleId": "h"})),
        ("fs/watchMissing", json!({"watchId": 1, "missing": []})),
        ("fs/watch", json!({"path": path, "watchId": "w"})),
        ("fs/unwatch", json!({"watchId": "w"})),
        ("fs/search", json!({"path": path, "pattern": "x"})),
        ("fs/find", json!({"path": path, "glob": "x"})),
    ]
}

/// Methods that succeed although the path does not exist.
const SUCCEED_WITHOUT_A_FILE: [&str; 3] = ["fs/close", "fs/watchMissing", "fs/unwatch"];

async fn requests_before_initialize_are_refused_by_family(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    for (method, params) in methods() {
        let message = client.expect_error(-32600, method, params).await;
        let expected = "client must call initialize before using filesystem methods";
        assert_eq!(message, expected, "{method}");
    }
    client.initialize(json!({})).await;
    for (method, params) in methods() {
        let message = client.expect_error(-32600, method, params).await;
        let expected = "client must send initialized before using filesystem methods";
        assert_eq!(message, expected, "{method}");
    }
    client.send(r#"{"method":"initialized"}"#).await;
    expect_served(&mut client).await;
}

/// Sends every request once for a missing path.
async fn expect_served(client: &mut Client) {
    for (method, params) in methods() {
        if SUCCEED_WITHOUT_A_FILE.contains(&method) {
            client.call(method, params).await;
        } else {
            client.expect_error(-32004, method, params).await;
        }
    }
}

async fn invalid_params_are_reported_before_the_handshake_check(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    for (method, _) in methods() {
        client.expect_error(-32602, method, json!({})).await;
    }
    client.initialize(json!({})).await;
    for (method, _) in methods() {
        client.expect_error(-32602, method, json!({})).await;
    }
}

async fn unknown_methods_are_not_found(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    for method in [
        "fs/nope",
        "fs/",
        "fs",
        "fs/readfile",
        "fs/readFile/",
        "filesystem/readFile",
    ] {
        client.expect_error(-32601, method, json!({})).await;
    }
    client.handshake().await;
    // Server notifications are not methods.
    for method in ["fs/changed", "fs/missingChanged"] {
        client
            .expect_error(-32601, method, json!({"watchId": 1}))
            .await;
    }
}

async fn params_of_the_wrong_type_are_refused(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (method, _) in methods() {
        for params in [
            json!(null),
            json!({}),
            json!("x"),
            json!(1),
            json!(true),
            json!([]),
        ] {
            fixture.client.expect_error(-32602, method, params).await;
        }
        let text = json!({"id": 7, "method": method}).to_string();
        fixture.client.send(&text).await;
        let answer = fixture.client.answer(7).await;
        assert_eq!(answer["error"]["code"], -32602, "{method}: {answer}");
    }
}

async fn required_fields_are_required(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (method, params) in methods() {
        let members: Vec<String> = params.as_object().unwrap().keys().cloned().collect();
        for member in members {
            let is_optional = matches!(
                (method, member.as_str()),
                ("fs/createDirectory", "recursive") | ("fs/remove", "force") | ("fs/find", "glob")
            );
            if is_optional {
                continue;
            }
            let mut null = params.clone();
            null[&member] = json!(null);
            for params in [without(params.clone(), &member), null] {
                let message = fixture.client.expect_error(-32602, method, params).await;
                assert!(message.contains(&member), "{method} {member}: {message}");
            }
        }
    }
}

async fn optional_fields_may_be_null(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (method, mut params) in methods() {
        let members: &[&str] = match method {
            "fs/readFile" | "fs/getMetadata" => &["followSymlinks", "sandbox"],
            "fs/writeFile" => &["followSymlinks", "mode", "sandbox"],
            "fs/createDirectory" => &["followSymlinks", "sandbox"],
            "fs/remove" => &["recursive", "followSymlinks", "sandbox"],
            "fs/watchMissing" => &["present"],
            "fs/search" => &["glob", "sandbox"],
            "fs/find" => &["query", "sandbox"],
            "fs/readBlock" | "fs/writeBlock" | "fs/close" | "fs/unwatch" => &[],
            _ => &["sandbox"],
        };
        for member in members {
            params[member] = json!(null);
        }
        if SUCCEED_WITHOUT_A_FILE.contains(&method) {
            fixture.client.call(method, params).await;
        } else {
            fixture.client.expect_error(-32004, method, params).await;
        }
    }
}

async fn fields_with_a_default_must_not_be_null(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (method, member) in [
        ("fs/writeFile", "createParents"),
        ("fs/writeFile", "atomic"),
        ("fs/rename", "overwrite"),
        ("fs/open", "mode"),
        ("fs/watch", "recursive"),
        ("fs/search", "regex"),
        ("fs/search", "caseSensitive"),
        ("fs/search", "maxMatches"),
        ("fs/search", "contextLines"),
        ("fs/find", "maxResults"),
    ] {
        let all = methods();
        let (_, params) = all.iter().find(|(name, _)| *name == method).unwrap();
        let mut params = params.clone();
        params[member] = json!(null);
        let message = fixture.client.expect_error(-32602, method, params).await;
        assert!(message.contains(member), "{method}: {message}");
    }
}

async fn flags_are_booleans(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (method, member) in [
        ("fs/readFile", "followSymlinks"),
        ("fs/writeFile", "followSymlinks"),
        ("fs/writeFile", "createParents"),
        ("fs/writeFile", "atomic"),
        ("fs/getMetadata", "followSymlinks"),
        ("fs/createDirectory", "followSymlinks"),
        ("fs/createDirectory", "recursive"),
        ("fs/remove", "followSymlinks"),
        ("fs/remove", "recursive"),
        ("fs/remove", "force"),
        ("fs/copy", "recursive"),
        ("fs/rename", "overwrite"),
        ("fs/watch", "recursive"),
        ("fs/search", "regex"),
        ("fs/search", "caseSensitive"),
    ] {
        let all = methods();
        let (_, params) = all.iter().find(|(name, _)| *name == method).unwrap();
        for value in [json!(0), json!(1), json!("true"), json!([]), json!({})] {
            let mut params = params.clone();
            params[member] = value;
            let message = fixture.client.expect_error(-32602, method, params).await;
            assert!(
                message.contains(member) && message.contains("expected a boolean"),
                "{method}: {message}"
            );
        }
    }
}

async fn unknown_fields_are_ignored(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (method, mut params) in methods() {
        params["later"] = json!({"x": [1]});
        params["jsonrpc"] = json!("2.0");
        if SUCCEED_WITHOUT_A_FILE.contains(&method) {
            fixture.client.call(method, params).await;
        } else {
            fixture.client.expect_error(-32004, method, params).await;
        }
    }
}

async fn advertised_capabilities_work(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let info = fixture.client.call("environment/info", json!({})).await;
    for capability in ["fsWatchMissing", "fileWriteStreaming"] {
        assert_eq!(info["capabilities"][capability], true, "{info}");
    }
    expect_served(&mut fixture.client).await;
}

async fn connection_survives_invalid_requests(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for text in [
        r#"{"id":1,"method":"fs/readFile","params":{"path":"file:///x","path":"file:///y"}}"#,
        r#"{"id":1,"method":"fs/readFile","params":{"path":"file:///x"}"#,
        r#"{"id":1.5,"method":"fs/readFile","params":{"path":"file:///x"}}"#,
    ] {
        fixture.client.expect_refused(text).await;
    }
    for method in ["fs/changed", "fs/readFile"] {
        let text = json!({"method": method, "params": {"path": "file:///x"}}).to_string();
        fixture.client.expect_refused(&text).await;
    }
    assert_eq!(fixture.read("file").await, b"hello");
}
