use super::*;
use crate::message::RpcMessage;

fn text(message: &OutgoingMessage) -> String {
    let mut out = Vec::new();
    message.encode_text(&mut out);
    assert_eq!(out.len(), message.text_len());
    String::from_utf8(out).unwrap()
}

#[test]
fn unsendable_response_becomes_an_error_with_the_same_id() {
    let error = RpcError::internal("no");
    for id in [
        RequestId::Number(7),
        RequestId::Text(r#"a,"result":b"#.into()),
    ] {
        let expected = text(&OutgoingMessage::error(&id, &error));
        let plain = OutgoingMessage::result(&id, &"x");
        assert_eq!(
            plain.error_response(&error).map(|error| text(&error)),
            Some(expected.clone())
        );
        let data = OutgoingMessage::result(&id, &crate::process::EmptyResult {})
            .with_data("dataBase64", Bytes::new());
        assert_eq!(
            data.error_response(&error).map(|error| text(&error)),
            Some(expected)
        );
    }
    assert!(
        OutgoingMessage::notification("m", &())
            .error_response(&error)
            .is_none()
    );
    assert!(
        OutgoingMessage::error(&RequestId::Number(1), &error)
            .error_response(&error)
            .is_none()
    );
}

#[test]
fn output_notification_matches_the_stock_server() {
    let id = ProcessId::new("p\"1").unwrap();
    let message = OutgoingMessage::output(
        &id,
        OutputSeq(1),
        OutputStream::Stdout,
        Bytes::from_static(b"out\n"),
    );
    assert_eq!(
        text(&message),
        r#"{"method":"process/output","params":{"processId":"p\"1","seq":1,"stream":"stdout","chunk":"b3V0Cg=="}}"#
    );
}

#[test]
fn binary_header_has_no_data_member() {
    let id = ProcessId::new("p").unwrap();
    let message = OutgoingMessage::output(
        &id,
        OutputSeq(2),
        OutputStream::Pty,
        Bytes::from_static(b"\xff"),
    );
    let OutgoingMessage::Data(message) = message else {
        panic!("expected a data message")
    };
    let mut out = Vec::new();
    let data = message.encode_binary(&mut out);
    let header =
        br#"{"method":"process/output","params":{"processId":"p","seq":2,"stream":"pty"}}"#;
    assert_eq!(&out[..4], [1, 0, 0, u8::try_from(header.len()).unwrap()]);
    assert_eq!(&out[4..], header);
    assert_eq!(&data[..], b"\xff");
}

#[test]
fn data_member_comes_last_in_requests() {
    #[derive(Serialize)]
    struct Params {
        a: u8,
    }
    let data = Bytes::from_static(b"hi");
    let id = RequestId::Number(3);
    let message = OutgoingMessage::request(&id, "m", &Params { a: 1 }).with_data("chunk", data);
    assert_eq!(
        text(&message),
        r#"{"id":3,"method":"m","params":{"a":1,"chunk":"aGk="}}"#
    );
}

#[test]
fn trace_is_added_to_requests_with_and_without_data() {
    let id = RequestId::Number(3);
    let trace = TraceContext {
        traceparent: Some("00-ab-cd-01".to_owned()),
        tracestate: None,
    };
    let nothing = TraceContext {
        traceparent: None,
        tracestate: None,
    };
    let params = crate::process::EmptyResult {};
    let plain = || OutgoingMessage::request(&id, "m", &params);
    let data = Bytes::from_static(b"hi");
    let with_data = plain().with_data("chunk", data);
    for message in [plain(), with_data] {
        let untraced = text(&message);
        let message = message.with_trace(&trace);
        assert_eq!(
            text(&message),
            untraced.replacen('{', r#"{"trace":{"traceparent":"00-ab-cd-01"},"#, 1)
        );
        let text = text(&message);
        let Ok(RpcMessage::Request(request)) = RpcMessage::decode(text.as_bytes()) else {
            panic!("expected a request")
        };
        assert_eq!(
            (request.id, request.trace),
            (id.clone(), Some(trace.clone()))
        );
    }
    assert_eq!(text(&plain().with_trace(&nothing)), text(&plain()));
}

#[test]
fn body_delta_has_all_members_of_the_stock_server() {
    let delta = crate::http::HttpBodyDelta {
        request_id: crate::id::HttpRequestId::new("http-1").unwrap(),
        seq: 1,
        delta_base64: None,
        done: false,
        error: None,
    };
    let data = Bytes::from_static(b"abc");
    let method = notification::HTTP_BODY_DELTA;
    let message = OutgoingMessage::notification(method, &delta).with_data("deltaBase64", data);
    assert_eq!(
        text(&message),
        r#"{"method":"http/request/bodyDelta","params":{"requestId":"http-1","seq":1,"done":false,"error":null,"deltaBase64":"YWJj"}}"#
    );
}

#[test]
fn responses_have_the_stock_member_order() {
    let id = RequestId::Number(8);
    assert_eq!(
        text(&OutgoingMessage::result(&id, &1)),
        r#"{"id":8,"result":1}"#
    );
    assert_eq!(
        text(&OutgoingMessage::error(&id, &RpcError::internal("x"))),
        r#"{"error":{"code":-32603,"message":"x"},"id":8}"#
    );
}
