//! Params to send, and members to read.

use base64_simd::STANDARD;
use serde_json::{Value, json};

use crate::server::PATH;

/// A script whose tree is hard to end: it has a child in the group, a child that left it, a daemon
/// that was forked twice and left twice, and all of them ignore what can be ignored.
pub(crate) const TREE: &str = r#"trap '' HUP INT TERM
    sleep 1000 & echo $!
    (setsid sh -c 'echo $$; exec sleep 1000' &)
    (setsid sh -c '(setsid sh -c "echo \$\$; exec sleep 1000" &) &' &)
    echo $$; exec sleep 1000"#;

/// How many of a [`TREE`] print their ids.
pub(crate) const TREE_SIZE: usize = 4;

/// Params that run a shell script on pipes.
pub(crate) fn script_params(id: &str, script: &str) -> Value {
    argv_params(id, &["sh", "-c", script])
}

/// Params that run a program on pipes.
pub(crate) fn argv_params(id: &str, argv: &[&str]) -> Value {
    json!({
        "processId": id, "argv": argv, "cwd": "file:///", "env": {"PATH": PATH}, "tty": false,
    })
}

/// Sets members of an object.
pub(crate) fn merge(params: &mut Value, change: Value) {
    let Value::Object(change) = change else {
        panic!("an object changes an object")
    };
    params.as_object_mut().unwrap().extend(change);
}

/// Params with some members set.
pub(crate) fn with(mut params: Value, change: Value) -> Value {
    merge(&mut params, change);
    params
}

/// Checks an error answer; returns its message.
pub(crate) fn error_message(code: i64, answer: &Value, of: &str) -> String {
    let error = &answer["error"];
    assert_eq!(error["code"], code, "{of}: {answer}");
    assert_eq!(error.get("data"), None, "errors carry no data");
    assert_eq!(answer.as_object().unwrap().len(), 2, "{answer}");
    error["message"].as_str().expect("message").to_owned()
}

/// Decodes a base64 member.
pub(crate) fn decode(chunk: &Value) -> Vec<u8> {
    STANDARD
        .decode_to_vec(chunk.as_str().expect("base64 text"))
        .expect("base64")
}

/// Decodes a base64 member that holds text.
pub(crate) fn decode_text(chunk: &Value) -> String {
    String::from_utf8(decode(chunk)).unwrap()
}

/// Encodes bytes for a base64 member.
pub(crate) fn encode(data: &[u8]) -> String {
    STANDARD.encode_to_string(data)
}
