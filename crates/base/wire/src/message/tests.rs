use ::bytes::Bytes;
use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;
use crate::limits;

fn decode_error(text: &str) -> MessageError {
    RpcMessage::decode(text.as_bytes()).expect_err(text)
}

#[test]
fn message_kind_follows_from_its_members() {
    let request = br#"{"id":7,"method":"m","result":1}"#;
    assert!(matches!(
        RpcMessage::decode(request),
        Ok(RpcMessage::Request(_))
    ));
    assert!(matches!(
        RpcMessage::decode(br#"{"method":"m"}"#),
        Ok(RpcMessage::Notification(_))
    ));
    assert!(matches!(
        RpcMessage::decode(br#"{"id":1,"result":null}"#),
        Ok(RpcMessage::Response(_))
    ));
    let error = br#"{"id":1,"error":{"code":-1,"message":"x","data":3}}"#;
    assert!(matches!(
        RpcMessage::decode(error),
        Ok(RpcMessage::Error(_))
    ));
    assert!(RpcMessage::decode(br#" {"id":1,"method":"m","jsonrpc":"2.0","other":[]} "#).is_ok());
}

#[test]
fn ids_are_strings_or_integers() {
    for id in ["0", "-5", "9223372036854775807", r#""""#, r#""aé""#] {
        let text = format!(r#"{{"id":{id},"method":"m"}}"#);
        let Ok(RpcMessage::Request(request)) = RpcMessage::decode(text.as_bytes()) else {
            panic!("expected a request: {text}");
        };
        let mut out = Vec::new();
        request.id.encode_append(&mut out);
        assert_eq!(String::from_utf8(out).unwrap(), id);
    }
    for id in [
        "null",
        "1.0",
        "1e3",
        "9223372036854775808",
        "{}",
        "[]",
        "true",
    ] {
        decode_error(&format!(r#"{{"id":{id},"method":"m"}}"#));
    }
}

#[test]
fn invalid_messages_are_refused() {
    for text in [
        "",
        "{bad",
        "[]",
        "1",
        "null",
        "{}",
        r#"{"id":7}"#,
        r#"{"id":1,"error":3}"#,
        r#"{"id":1,"method":3}"#,
        r#"{"id":1,"method":"m"}{"id":2,"method":"m"}"#,
        r#"{"id":1,"method":"m","trace":7}"#,
        r#"{"result":1}"#,
    ] {
        decode_error(text);
    }
}

#[test]
fn duplicate_keys_are_refused_at_any_depth() {
    assert_eq!(
        decode_error(r#"{"id":1,"method":"m","id":2}"#).to_string(),
        "duplicate JSON object key `id` at line 1 column 25"
    );
    decode_error(r#"{"id":1,"method":"m","params":{"a":[{"b":1,"\u0062":2}]}}"#);
    let many: Vec<String> = (0..40).map(|n| format!(r#""k{n}":0"#)).collect();
    let twice = format!(r#"{{"method":"m","params":{{{},"k3":1}}}}"#, many.join(","));
    assert!(decode_error(&twice).to_string().contains("`k3`"));
}

#[test]
fn values_and_nesting_are_bounded() {
    // The root, the method and the array are values too.
    let items = |count: usize| {
        format!(
            r#"{{"method":"m","params":[{}]}}"#,
            vec!["0"; count].join(",")
        )
    };
    assert!(RpcMessage::decode(items(limits::MAX_JSON_VALUES - 3).as_bytes()).is_ok());
    decode_error(&items(limits::MAX_JSON_VALUES - 2));
    let nested = |depth: usize| {
        format!(
            r#"{{"method":"m","params":{}{}}}"#,
            "[".repeat(depth),
            "]".repeat(depth)
        )
    };
    assert!(RpcMessage::decode(nested(limits::MAX_JSON_DEPTH - 1).as_bytes()).is_ok());
    decode_error(&nested(limits::MAX_JSON_DEPTH));
}

#[test]
fn binary_message_round_trips() {
    let mut frame = Vec::new();
    encode_binary_head(br#"{"id":1,"method":"m"}"#, &mut frame);
    frame.extend_from_slice(b"raw\0");
    let (header, data) = split_binary(&Bytes::from(frame)).unwrap().unwrap();
    assert_eq!(
        (&header[..], &data[..]),
        (&br#"{"id":1,"method":"m"}"#[..], &b"raw\0"[..])
    );
    assert_eq!(split_binary(&Bytes::from_static(b"{}")), None);
    assert_eq!(
        split_binary(&Bytes::from_static(b"\x01\0\0\x05ab")),
        Some(Err(BinaryMessageError))
    );
    assert_eq!(
        split_binary(&Bytes::from_static(b"\x01\0")),
        Some(Err(BinaryMessageError))
    );
}

#[test]
fn params_errors_name_the_member() {
    #[derive(Debug, serde::Deserialize)]
    #[expect(dead_code, reason = "only decoded")]
    struct Params {
        name: String,
        list: Vec<u8>,
    }
    let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
    let error = |text: &str| decode_params::<Params>(Some(&raw(text))).unwrap_err().0;
    assert_eq!(error(r#"{"list":[]}"#), "missing field `name`");
    assert_eq!(
        error(r#"{"name":5,"list":[]}"#),
        "name: invalid type: integer `5`, expected a string"
    );
    assert_eq!(
        error(r#"{"name":"","list":[1,"x"]}"#),
        "list[1]: invalid type: string \"x\", expected u8"
    );
    assert!(decode_params::<()>(None).is_ok());
    assert!(decode_params::<()>(Some(&raw("{ }"))).is_ok());
    assert!(decode_params::<()>(Some(&raw("[]"))).is_err());
    assert!(decode_params::<()>(Some(&raw(r#"{"a":1}"#))).is_err());
}

proptest! {
    #[test]
    fn decoding_never_panics(text in any::<Vec<u8>>()) {
        drop(RpcMessage::decode(&text));
        drop(split_binary(&Bytes::from(text)));
    }

    #[test]
    fn strings_round_trip_through_the_envelope(id in any::<String>(), method in any::<String>()) {
        let text = serde_json::json!({"id": id, "method": method}).to_string();
        let Ok(RpcMessage::Request(request)) = RpcMessage::decode(text.as_bytes()) else {
            panic!("expected a request: {text}");
        };
        prop_assert_eq!(request.id, RequestId::Text(id.into()));
        prop_assert_eq!(request.method, method);
    }
}
