use super::*;

fn handle(gate: &mut Gate, text: &str) -> Option<String> {
    match gate.handle_message(Message::decode(text.as_bytes()).unwrap()) {
        Input::Reply(reply) => {
            let mut out = Vec::new();
            reply.encode_text(&mut out);
            Some(String::from_utf8(out).unwrap())
        }
        Input::Answer(_) => {
            gate.handle_unsolicited();
            None
        }
        Input::Request(_) | Input::Acknowledged(_) | Input::Nothing => None,
    }
}

#[test]
fn nothing_passes_before_the_handshake_is_done() {
    let mut gate = Gate::default();
    let method = MethodName::ProcessStart;
    assert_eq!(gate.admit(method), Err(GateError::NotInitialized("exec")));
    assert_eq!(gate.admit(MethodName::Initialize), Ok(()));
    gate.handle_session(&[]);
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
fn initialized_before_initialize_never_opens_the_gate() {
    let mut gate = Gate::default();
    let reply = handle(&mut gate, r#"{"method":"initialized"}"#).unwrap();
    assert!(
        reply.contains(r#""code":-32600"#) && reply.ends_with(r#""id":-1}"#),
        "{reply}"
    );
    assert!(!gate.is_ready());
    gate.handle_session(&[]);
    assert!(!gate.is_ready());
}

#[test]
fn an_unknown_notification_is_an_error_with_id_minus_one() {
    let mut gate = Gate::default();
    let reply = handle(&mut gate, r#"{"method":"nope"}"#).unwrap();
    assert!(
        reply.contains("`nope`") && reply.ends_with(r#""id":-1}"#),
        "{reply}"
    );
}

const ACKNOWLEDGE: &str = r#"{"method":"process/acknowledge","params":{"processId":"p","seq":7}}"#;

#[test]
fn an_acknowledgement_passes_when_it_was_granted_and_the_handshake_is_done() {
    let mut gate = Gate::default();
    let refused = |gate: &mut Gate, reason: &str| {
        let reply = handle(gate, ACKNOWLEDGE).unwrap();
        assert!(
            reply.contains(reason) && reply.contains(r#""code":-32600"#),
            "{reply}"
        );
    };
    refused(&mut gate, "unexpected notification `process/acknowledge`");
    gate.handle_session(&[Extension::Lifecycle, Extension::Acknowledge]);
    refused(&mut gate, "client must send initialized");
    assert_eq!(handle(&mut gate, r#"{"method":"initialized"}"#), None);
    let message = Message::decode(ACKNOWLEDGE.as_bytes()).unwrap();
    let Input::Acknowledged(acknowledged) = gate.handle_message(message) else {
        panic!("it does not pass");
    };
    assert_eq!(acknowledged.process_id.as_str(), "p");
    assert_eq!(acknowledged.seq.0, 7);
}

#[test]
fn an_acknowledgement_without_the_grant_is_an_unknown_notification() {
    let mut gate = Gate::default();
    gate.handle_session(&[Extension::Lifecycle]);
    handle(&mut gate, r#"{"method":"initialized"}"#);
    let reply = handle(&mut gate, ACKNOWLEDGE).unwrap();
    assert!(
        reply.contains("unexpected notification") && reply.contains(r#""code":-32600"#),
        "{reply}"
    );
}

#[test]
fn an_acknowledgement_that_does_not_decode_is_an_error_with_id_minus_one() {
    let mut gate = Gate::default();
    gate.handle_session(&[Extension::Acknowledge]);
    handle(&mut gate, r#"{"method":"initialized"}"#);
    for (params, culprit) in [
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
        assert!(reply.contains(culprit), "{params}: {reply}");
    }
}

#[test]
fn answers_are_passed_on_and_those_that_nobody_waited_for_counted() {
    let mut gate = Gate::default();
    assert_eq!(handle(&mut gate, r#"{"id":9,"result":{}}"#), None);
    assert_eq!(
        handle(&mut gate, r#"{"id":9,"error":{"code":1,"message":""}}"#),
        None
    );
    assert_eq!(gate.unsolicited(), 2);
}

#[test]
fn an_answer_finds_its_waiter_once() {
    let mut calls = Calls::new(2);
    assert_eq!(calls.ask("a"), Ok(RequestId::Number(1)));
    assert_eq!(calls.ask("b"), Ok(RequestId::Number(2)));
    assert_eq!(calls.ask("c"), Err(CallsError::TooMany(2)));
    let text = br#"{"id":2,"result":{"x":1}}"#;
    let answer = calls.handle_answer(Message::decode(text).unwrap()).unwrap();
    assert_eq!(
        (answer.waiter, answer.result.unwrap().get()),
        ("b", r#"{"x":1}"#)
    );
    assert!(
        calls
            .handle_answer(Message::decode(text).unwrap())
            .is_none()
    );
    assert_eq!(calls.ask("c"), Ok(RequestId::Number(3)));
    assert_eq!(calls.drain().collect::<Vec<_>>(), ["a", "c"]);
}

#[test]
fn errors_and_foreign_ids_are_told_apart() {
    let mut calls = Calls::new(9);
    calls.ask(()).unwrap();
    let foreign = br#"{"id":"1","result":0}"#;
    assert!(
        calls
            .handle_answer(Message::decode(foreign).unwrap())
            .is_none()
    );
    let error = br#"{"id":1,"error":{"code":-32010,"message":"busy"}}"#;
    let answer = calls
        .handle_answer(Message::decode(error).unwrap())
        .unwrap();
    assert_eq!(answer.result.unwrap_err().code.0, -32010);
}
