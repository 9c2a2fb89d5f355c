//! Links through a relay that does its work.

use exec_relay::{
    frame::{Body, Frame, StreamId},
    route::Kind,
};
use exec_wire::message::Trace;

use super::*;
use crate::trace::TraceSource;

#[tokio::test]
async fn messages_of_any_size_arrive_both_ways() {
    let mut world = World::new().await;
    for options in [plain(), reliable()] {
        let (mut near, mut far) = world.pair(options).await;
        for bytes in [1, 61_436, 61_440, 61_441, 5 << 20] {
            let text = numbered(7, bytes);
            for _ in 0..2 {
                let sent = send(&mut near, text.clone());
                let (received, ()) = tokio::join!(receive(&mut far), sent);
                assert!(received == text, "{bytes} bytes");
                std::mem::swap(&mut near, &mut far);
            }
        }
    }
    assert_eq!(world.handshakes(), 2);
}

#[tokio::test]
async fn a_link_tells_since_when_its_executor_is_waited_for() {
    let world = World::new().await;
    let before = tokio::time::Instant::now();
    let link = world.open(reliable()).await.unwrap();
    let began = link.handshake_began.unwrap();
    assert!(before <= began && began <= tokio::time::Instant::now());
}

#[tokio::test]
async fn a_websocket_is_asked_for_with_what_it_belongs_to() {
    let mut world = World::new().await;
    let _pair = world.pair(plain()).await;
    assert_eq!(world.relay.traceparent(), None);
    let trace = TraceSource::new(|| {
        Some(Trace {
            traceparent: Some("00-ab-cd-01".to_owned()),
            tracestate: None,
        })
    });
    let options = HarnessOptions {
        trace: Some(trace),
        ..plain()
    };
    let _pair = world.pair(options).await;
    assert_eq!(world.relay.traceparent().unwrap(), "00-ab-cd-01");
}

#[tokio::test]
async fn raw_data_travels_as_raw_data() {
    let mut world = World::new().await;
    let (mut near, mut far) = world.pair(reliable()).await;
    let data = Bytes::from(vec![0xff; 100_000]);
    let message = || {
        let id = exec_wire::message::RequestId::Number(7);
        Outgoing::result_with_data(
            &id,
            &serde_json::json!({"eof": true}),
            "chunk",
            data.clone(),
        )
    };
    far.writer.push(message(), Encoding::Binary);
    far.writer.flush().await.unwrap();
    let received = receive(&mut near).await;
    let split = exec_wire::message::split_binary(&received).unwrap();
    let (header, raw) = split.unwrap();
    assert_eq!(header, r#"{"id":7,"result":{"eof":true}}"#);
    assert!(raw == data);
}

#[tokio::test]
async fn a_refused_url_is_replaced_once_and_other_refusals_are_told() {
    let mut world = World::new().await;
    world.relay.refuse(&[401]);
    let (mut near, mut far) = world.pair(reliable()).await;
    echo(&mut near, &mut far).await;
    assert_eq!(world.fetched(), 2);
    world.relay.refuse(&[401, 401]);
    let error = world.open(reliable()).await.unwrap_err();
    assert!(
        matches!(error, ConnectError::Refused { status: 401, .. }),
        "{error}"
    );
    assert_eq!(world.fetched(), 4);
    world.relay.refuse(&[403]);
    let error = world.open(reliable()).await.unwrap_err();
    assert!(
        matches!(error, ConnectError::Refused { status: 403, .. }),
        "{error}"
    );
    assert_eq!(world.fetched(), 5);
}

#[tokio::test]
async fn an_executor_that_does_not_answer_is_given_up() {
    let world = World::new().await;
    world.relay.cut_executor();
    world.relay.executor_is_there().await;
    world.office.state.lock().unwrap().executor_key = Identity::generate().public_key().clone();
    let error = world.open(reliable()).await.unwrap_err();
    assert!(matches!(error, ConnectError::StreamRefused), "{error}");
    assert!(error.is_passing());
}

#[tokio::test]
async fn closing_says_so_on_a_reliable_link_and_nothing_on_a_plain_one() {
    for (options, last) in [(reliable(), Kind::Reset), (plain(), Kind::Data)] {
        let mut world = World::new().await;
        let (mut near, mut far) = world.pair(options).await;
        send(&mut near, b"last words".to_vec()).await;
        within("closed", near.writer.close()).await.unwrap();
        assert!(matches!(end_of(&mut near).await, Ok(None)));
        assert_eq!(receive(&mut far).await, "last words");
        assert!(matches!(end_of(&mut far).await, Err(ReadError::Io(_))));
        assert_eq!(world.relay.said().last(), Some(&last));
    }
}

#[tokio::test]
async fn a_link_that_is_dropped_ends_the_other_one_at_once() {
    let mut world = World::new().await;
    for options in [plain(), reliable()] {
        let (near, mut far) = world.pair(options).await;
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
async fn an_executor_that_ends_the_stream_ends_the_link() {
    let mut world = World::new().await;
    for options in [plain(), reliable()] {
        let (mut near, mut far) = world.pair(options).await;
        send(&mut far, b"last words".to_vec()).await;
        within("closed", far.writer.close()).await.unwrap();
        assert_eq!(receive(&mut near).await, "last words");
        assert!(matches!(end_of(&mut near).await, Err(ReadError::Io(_))));
        assert!(near.writer.flush().await.is_err());
    }
    assert_eq!(world.fetched(), 2, "nobody comes back");
}

#[tokio::test]
async fn frames_of_others_are_ignored_and_bad_ones_on_the_own_stream_are_the_end() {
    for options in [plain(), reliable()] {
        let mut world = World::new().await;
        let (mut near, mut far) = world.pair(options).await;
        let foreign = StreamId::new("foreign").unwrap();
        let reason = "x".to_owned();
        let reset = Frame::new(foreign, Body::Reset { reason });
        world.relay.tell_harnesses(reset.encode()).await;
        echo(&mut near, &mut far).await;
        let own = StreamId::new(&world.relay.streams()[0]).unwrap();
        let again = Frame::new(own, Body::Handshake(Bytes::from_static(b"x")));
        world.relay.tell_harnesses(again.encode()).await;
        let end = end_of(&mut near).await;
        assert!(matches!(end, Err(ReadError::Protocol(_))), "{end:?}");
        let (mut near, _far) = world.pair(reliable()).await;
        world
            .relay
            .tell_harnesses(Bytes::from_static(b"\xff"))
            .await;
        let end = end_of(&mut near).await;
        assert!(matches!(end, Err(ReadError::Protocol(_))), "{end:?}");
    }
}

#[tokio::test]
async fn a_plain_link_that_is_not_read_holds_the_executor_up_and_loses_nothing() {
    let mut world = World::new().await;
    let (mut near, mut far) = world.pair(plain()).await;
    let start = std::time::Instant::now();
    let send = async {
        for number in 0..1000 {
            let text = Outgoing::Text(numbered(number, 20_000));
            far.writer.push(text, Encoding::Text);
            within("flushed", far.writer.flush()).await.unwrap();
        }
    };
    let read = async {
        // More than a stream may hold is on its way by then.
        tokio::time::sleep(Duration::from_millis(300)).await;
        for number in 0..1000 {
            assert!(receive(&mut near).await == numbered(number, 20_000));
        }
    };
    tokio::join!(send, read);
    echo(&mut near, &mut far).await;
    // A driver that goes to sleep with something to send is woken by its next ping.
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[tokio::test(start_paused = true)]
async fn a_plain_link_that_is_not_read_still_hears_that_the_relay_answers() {
    let mut world = World::new().await;
    let (mut near, mut far) = world.pair(plain()).await;
    for number in 0..40 {
        send(&mut far, numbered(number, 100)).await;
    }
    // Pings are sent meanwhile, and their answers come behind messages that are not wanted yet.
    tokio::time::sleep(Duration::from_secs(100)).await;
    for number in 0..40 {
        assert_eq!(receive(&mut near).await, numbered(number, 100));
    }
    echo(&mut near, &mut far).await;
}
