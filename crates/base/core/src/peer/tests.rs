use super::*;

fn handle(gate: &mut HandshakeGate, text: &str) -> Option<String> {
    match gate.handle_message(RpcMessage::decode(text.as_bytes()).unwrap()) {
        MessageAction::Reply(reply) => {
            let mut out = Vec::new();
            reply.encode_text(&mut out);
            Some(String::from_utf8(out).unwrap())
        }
        MessageAction::Request(_)
        | MessageAction::Response(_)
        | MessageAction::Acknowledge(_)
        | MessageAction::Tunnel(_)
        | MessageAction::Ready
        | MessageAction::Ignore => None,
    }
}

#[test]
fn methods_are_refused_until_the_handshake_completes() {
    let mut gate = HandshakeGate::default();
    let method = MethodName::ProcessStart;
    assert_eq!(gate.admit(method), Err(GateError::NotInitialized("exec")));
    assert_eq!(gate.admit(MethodName::Initialize), Ok(()));
    gate.handle_initialize(&[]);
    assert_eq!(gate.admit(method), Err(GateError::NotReady("exec")));
    assert_eq!(
        gate.admit(MethodName::Initialize),
        Err(GateError::InitializedTwice)
    );
    assert_eq!(
        handle(&mut gate, r#"{"method":"initialized","params":[1]}"#),
        None
    );
    assert_eq!(gate.admit(method), Ok(()));
    assert_eq!(handle(&mut gate, r#"{"method":"initialized"}"#), None);
    assert_eq!(gate.admit(method), Ok(()));
}

#[test]
fn initialized_before_initialize_is_refused() {
    let mut gate = HandshakeGate::default();
    let reply = handle(&mut gate, r#"{"method":"initialized"}"#).unwrap();
    assert!(
        reply.contains(r#""code":-32600"#) && reply.ends_with(r#""id":-1}"#),
        "{reply}"
    );
    assert!(!gate.is_ready());
    gate.handle_initialize(&[]);
    assert!(!gate.is_ready());
}

#[test]
fn unknown_notification_is_answered_with_an_error_and_id_minus_one() {
    let mut gate = HandshakeGate::default();
    let reply = handle(&mut gate, r#"{"method":"nope"}"#).unwrap();
    assert!(
        reply.contains("`nope`") && reply.ends_with(r#""id":-1}"#),
        "{reply}"
    );
}

const ACKNOWLEDGE: &str = r#"{"method":"process/acknowledge","params":{"processId":"p","seq":7}}"#;

#[test]
fn acknowledgement_is_accepted_once_granted_and_initialized() {
    let mut gate = HandshakeGate::default();
    let assert_refused = |gate: &mut HandshakeGate, reason: &str| {
        let reply = handle(gate, ACKNOWLEDGE).unwrap();
        assert!(
            reply.contains(reason) && reply.contains(r#""code":-32600"#),
            "{reply}"
        );
    };
    assert_refused(&mut gate, "unexpected notification `process/acknowledge`");
    gate.handle_initialize(&[ProtocolExtension::Lifecycle, ProtocolExtension::Acknowledge]);
    assert_refused(&mut gate, "client must send initialized");
    assert_eq!(handle(&mut gate, r#"{"method":"initialized"}"#), None);
    let message = RpcMessage::decode(ACKNOWLEDGE.as_bytes()).unwrap();
    let MessageAction::Acknowledge(acknowledged) = gate.handle_message(message) else {
        panic!("acknowledgement was not accepted");
    };
    assert_eq!(acknowledged.process_id.as_str(), "p");
    assert_eq!(acknowledged.seq.0, 7);
}

#[test]
fn acknowledgement_without_the_extension_is_an_unknown_notification() {
    let mut gate = HandshakeGate::default();
    gate.handle_initialize(&[ProtocolExtension::Lifecycle]);
    handle(&mut gate, r#"{"method":"initialized"}"#);
    let reply = handle(&mut gate, ACKNOWLEDGE).unwrap();
    assert!(
        reply.contains("unexpected notification") && reply.contains(r#""code":-32600"#),
        "{reply}"
    );
}

#[test]
fn malformed_acknowledgement_is_answered_with_an_error_and_id_minus_one() {
    let mut gate = HandshakeGate::default();
    gate.handle_initialize(&[ProtocolExtension::Acknowledge]);
    handle(&mut gate, r#"{"method":"initialized"}"#);
    for (params, field) in [
        (r#"{"processId":"p"}"#, "seq"),
        (r#"{"processId":"p","seq":-1}"#, "seq"),
        (r#"{"processId":1,"seq":1}"#, "processId"),
        ("null", "expected"),
        ("7", "expected"),
    ] {
        let note = format!(r#"{{"method":"process/acknowledge","params":{params}}}"#);
        let reply = handle(&mut gate, &note).unwrap();
        assert!(
            reply.contains(r#""code":-32602"#) && reply.ends_with(r#""id":-1}"#),
            "{reply}"
        );
        assert!(reply.contains(field), "{params}: {reply}");
    }
}

#[test]
fn responses_are_passed_on() {
    let mut gate = HandshakeGate::default();
    for text in [
        r#"{"id":9,"result":{}}"#,
        r#"{"id":9,"error":{"code":1,"message":""}}"#,
    ] {
        let message = RpcMessage::decode(text.as_bytes()).unwrap();
        let action = gate.handle_message(message);
        assert!(matches!(action, MessageAction::Response(_)), "{text}");
    }
}

#[test]
fn response_is_matched_to_its_call_once() {
    let mut calls = PendingCalls::new(2);
    assert_eq!(calls.register("a"), Ok(RequestId::Number(1)));
    assert_eq!(calls.register("b"), Ok(RequestId::Number(2)));
    assert_eq!(calls.register("c"), Err(PendingCallsError::TooMany(2)));
    let text = br#"{"id":2,"result":{"x":1}}"#;
    let answer = calls
        .handle_response(RpcMessage::decode(text).unwrap())
        .unwrap();
    assert_eq!(
        (answer.waiter, answer.result.unwrap().get()),
        ("b", r#"{"x":1}"#)
    );
    assert!(
        calls
            .handle_response(RpcMessage::decode(text).unwrap())
            .is_none()
    );
    assert_eq!(calls.register("c"), Ok(RequestId::Number(3)));
    assert_eq!(calls.drain().collect::<Vec<_>>(), ["a", "c"]);
}

#[test]
fn error_responses_match_and_foreign_ids_do_not() {
    let mut calls = PendingCalls::new(9);
    calls.register(()).unwrap();
    let foreign = br#"{"id":"1","result":0}"#;
    assert!(
        calls
            .handle_response(RpcMessage::decode(foreign).unwrap())
            .is_none()
    );
    let error = br#"{"id":1,"error":{"code":-32010,"message":"busy"}}"#;
    let answer = calls
        .handle_response(RpcMessage::decode(error).unwrap())
        .unwrap();
    assert_eq!(answer.result.unwrap_err().code.0, -32010);
}

#[test]
fn messages_about_tunnels_need_the_extension_and_a_session() {
    let data = r#"{"method":"tunnel/data","params":{"tunnelId":"t","seq":1,"chunk":"eA=="}}"#;
    let assert_refused = |gate: &mut HandshakeGate, text: &str, reason: &str| {
        let reply = handle(gate, text).unwrap();
        assert!(
            reply.contains(reason) && reply.ends_with(r#""id":-1}"#),
            "{reply}"
        );
    };
    let mut gate = HandshakeGate::default();
    gate.handle_initialize(&[ProtocolExtension::Acknowledge]);
    handle(&mut gate, r#"{"method":"initialized"}"#);
    assert_refused(&mut gate, data, "unexpected notification `tunnel/data`");
    let mut gate = HandshakeGate::default();
    gate.handle_initialize(&[ProtocolExtension::Tunnels]);
    assert_refused(&mut gate, data, "client must send initialized");
    handle(&mut gate, r#"{"method":"initialized"}"#);
    let message = RpcMessage::decode(data.as_bytes()).unwrap();
    let MessageAction::Tunnel(TunnelMessage::Data { seq, chunk, .. }) =
        gate.handle_message(message)
    else {
        panic!("data was not accepted");
    };
    assert_eq!((seq, &*chunk), (1, &b"x"[..]));
    for (method, params, reason) in [
        (
            "tunnel/data",
            r#"{"tunnelId":"t","seq":1}"#,
            "missing field `chunk`",
        ),
        (
            "tunnel/data",
            r#"{"tunnelId":"t","seq":1,"chunk":"?"}"#,
            "invalid base64",
        ),
        (
            "tunnel/acknowledge",
            r#"{"tunnelId":"t"}"#,
            "missing field `seq`",
        ),
        (
            "tunnel/shutdown",
            r#"{"seq":1}"#,
            "missing field `tunnelId`",
        ),
        ("tunnel/close", "{}", "missing field `tunnelId`"),
        (
            "tunnel/incoming",
            r#"{"listenId":"l","tunnelId":"t"}"#,
            "unexpected notification",
        ),
    ] {
        let text = format!(r#"{{"method":"{method}","params":{params}}}"#);
        assert_refused(&mut gate, &text, reason);
    }
}
