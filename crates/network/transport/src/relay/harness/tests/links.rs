//! Links through a working relay.

use exec_relay::frame::{FrameBody, FrameKind, RelayFrame, StreamId};
use exec_wire::message::TraceContext;

use super::*;
use crate::trace::TraceSource;

#[tokio::test]
async fn messages_of_any_size_arrive_in_both_directions() {
    let mut fixture = RelayFixture::new().await;
    for options in [plain(), reliable()] {
        let (mut near, mut far) = fixture.pair(options).await;
        for bytes in [1, 61_436, 61_440, 61_441, 5 << 20] {
            let text = numbered_message(7, bytes);
            for _ in 0..2 {
                let sent = send(&mut near, text.clone());
                let (received, ()) = tokio::join!(receive(&mut far), sent);
                assert!(received == text, "{bytes} bytes");
                std::mem::swap(&mut near, &mut far);
            }
        }
    }
    assert_eq!(fixture.handshakes(), 2);
}

#[tokio::test]
async fn link_reports_when_its_handshake_started() {
    let fixture = RelayFixture::new().await;
    let before = tokio::time::Instant::now();
    let link = fixture.open(reliable()).await.unwrap();
    let began = link.handshake_started_at.unwrap();
    assert!(before <= began && began <= tokio::time::Instant::now());
}

#[tokio::test]
async fn upgrade_request_carries_the_trace_context() {
    let mut fixture = RelayFixture::new().await;
    let _pair = fixture.pair(plain()).await;
    assert_eq!(fixture.relay.traceparent(), None);
    let trace = TraceSource::new(|| {
        Some(TraceContext {
            traceparent: Some("00-ab-cd-01".to_owned()),
            tracestate: None,
        })
    });
    let options = HarnessOptions {
        trace: Some(trace),
        ..plain()
    };
    let _pair = fixture.pair(options).await;
    assert_eq!(fixture.relay.traceparent().unwrap(), "00-ab-cd-01");
}

#[tokio::test]
async fn binary_data_is_carried_raw() {
    let mut fixture = RelayFixture::new().await;
    let (mut near, mut far) = fixture.pair(reliable()).await;
    let data = Bytes::from(vec![0xff; 100_000]);
    let message = || {
        let id = exec_wire::message::RequestId::Number(7);
        OutgoingMessage::result(&id, &serde_json::json!({"eof": true}))
            .with_data("chunk", data.clone())
    };
    far.writer.push(message(), DataEncoding::Binary);
    far.writer.flush().await.unwrap();
    let received = receive(&mut near).await;
    let split = exec_wire::message::split_binary(&received).unwrap();
    let (header, raw) = split.unwrap();
    assert_eq!(header, r#"{"id":7,"result":{"eof":true}}"#);
    assert!(raw == data);
}

#[tokio::test]
async fn unauthorized_url_is_retried_once_with_a_new_grant() {
    let mut fixture = RelayFixture::new().await;
    fixture.relay.refuse(&[401]);
    let (mut near, mut far) = fixture.pair(reliable()).await;
    echo(&mut near, &mut far).await;
    assert_eq!(fixture.fetched(), 2);
    fixture.relay.refuse(&[401, 401]);
    let error = fixture.open(reliable()).await.unwrap_err();
    assert!(
        matches!(error, ConnectError::Refused { status: 401, .. }),
        "{error}"
    );
    assert_eq!(fixture.fetched(), 4);
    fixture.relay.refuse(&[403]);
    let error = fixture.open(reliable()).await.unwrap_err();
    assert!(
        matches!(error, ConnectError::Refused { status: 403, .. }),
        "{error}"
    );
    assert_eq!(fixture.fetched(), 5);
}

#[tokio::test]
async fn stream_refused_by_the_executor_is_a_transient_error() {
    let fixture = RelayFixture::new().await;
    fixture.relay.cut_executor();
    fixture.relay.executor_connected().await;
    fixture.grants.state.lock().unwrap().executor_key =
        NoiseIdentity::generate().public_key().clone();
    let error = fixture.open(reliable()).await.unwrap_err();
    assert!(matches!(error, ConnectError::StreamRefused), "{error}");
    assert!(error.is_transient());
}

#[tokio::test]
async fn close_sends_a_reset_only_on_a_reliable_link() {
    for (options, last) in [(reliable(), FrameKind::Reset), (plain(), FrameKind::Data)] {
        let mut fixture = RelayFixture::new().await;
        let (mut near, mut far) = fixture.pair(options).await;
        send(&mut near, b"last words".to_vec()).await;
        within("closed", near.writer.close()).await.unwrap();
        assert!(matches!(end_of(&mut near).await, Ok(None)));
        assert_eq!(receive(&mut far).await, "last words");
        assert!(matches!(end_of(&mut far).await, Err(LinkReadError::Io(_))));
        assert_eq!(fixture.relay.received_kinds().last(), Some(&last));
    }
}

#[tokio::test]
async fn dropping_a_link_ends_the_remote_end_at_once() {
    let mut fixture = RelayFixture::new().await;
    for options in [plain(), reliable()] {
        let (near, mut far) = fixture.pair(options).await;
        let start = std::time::Instant::now();
        drop(near);
        assert!(end_of(&mut far).await.is_err());
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "it was not parked"
        );
    }
}

#[tokio::test]
async fn stream_reset_by_the_executor_ends_the_link() {
    let mut fixture = RelayFixture::new().await;
    for options in [plain(), reliable()] {
        let (mut near, mut far) = fixture.pair(options).await;
        send(&mut far, b"last words".to_vec()).await;
        within("closed", far.writer.close()).await.unwrap();
        assert_eq!(receive(&mut near).await, "last words");
        assert!(matches!(end_of(&mut near).await, Err(LinkReadError::Io(_))));
        assert!(near.writer.flush().await.is_err());
    }
    assert_eq!(fixture.fetched(), 2, "neither link reconnects");
}

#[tokio::test]
async fn foreign_frames_are_ignored_and_invalid_ones_end_the_link() {
    for options in [plain(), reliable()] {
        let mut fixture = RelayFixture::new().await;
        let (mut near, mut far) = fixture.pair(options).await;
        let foreign = StreamId::new("foreign").unwrap();
        let reason = "x".to_owned();
        let reset = RelayFrame::new(foreign, FrameBody::Reset { reason });
        fixture.relay.send_to_harnesses(reset.encode()).await;
        echo(&mut near, &mut far).await;
        let own = StreamId::new(&fixture.relay.streams()[0]).unwrap();
        let second_handshake = RelayFrame::new(own, FrameBody::Handshake(Bytes::from_static(b"x")));
        fixture
            .relay
            .send_to_harnesses(second_handshake.encode())
            .await;
        let end = end_of(&mut near).await;
        assert!(matches!(end, Err(LinkReadError::Protocol(_))), "{end:?}");
        let (mut near, _far) = fixture.pair(reliable()).await;
        fixture
            .relay
            .send_to_harnesses(Bytes::from_static(b"\xff"))
            .await;
        let end = end_of(&mut near).await;
        assert!(matches!(end, Err(LinkReadError::Protocol(_))), "{end:?}");
    }
}

#[tokio::test]
async fn unread_plain_link_applies_backpressure_without_loss() {
    let mut fixture = RelayFixture::new().await;
    let (mut near, mut far) = fixture.pair(plain()).await;
    let start = std::time::Instant::now();
    let send = async {
        for number in 0..1000 {
            let text = OutgoingMessage::Text(numbered_message(number, 20_000));
            far.writer.push(text, DataEncoding::Text);
            within("flushed", far.writer.flush()).await.unwrap();
        }
    };
    let read = async {
        // By then, more data is in flight than a stream may buffer.
        tokio::time::sleep(Duration::from_millis(300)).await;
        for number in 0..1000 {
            assert!(receive(&mut near).await == numbered_message(number, 20_000));
        }
    };
    tokio::join!(send, read);
    echo(&mut near, &mut far).await;
    // A driver that slept with unsent data would be woken only by its next ping.
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[tokio::test(start_paused = true)]
async fn unread_plain_link_still_sees_pongs() {
    let mut fixture = RelayFixture::new().await;
    let (mut near, mut far) = fixture.pair(plain()).await;
    for number in 0..40 {
        send(&mut far, numbered_message(number, 100)).await;
    }
    // Pings are sent meanwhile, and their pongs arrive behind messages that are not read yet.
    tokio::time::sleep(Duration::from_secs(100)).await;
    for number in 0..40 {
        assert_eq!(receive(&mut near).await, numbered_message(number, 100));
    }
    echo(&mut near, &mut far).await;
}
