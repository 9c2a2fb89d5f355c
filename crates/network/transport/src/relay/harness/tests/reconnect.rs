//! Reconnects of links whose websockets are cut.

use super::*;

const MESSAGES: usize = 400;

/// Sends many messages in both directions while `cut` runs now and then; none may be lost,
/// duplicated or reordered.
async fn expect_no_loss(fixture: &mut RelayFixture, cut: impl Fn(&TestRelay)) {
    let (mut near, mut far) = fixture.pair(reliable()).await;
    let handshakes = fixture.handshakes();
    let (near_writer, far_writer) = (&mut near.writer, &mut far.writer);
    let (near_reader, far_reader) = (&mut near.reader, &mut far.reader);
    let relay = &fixture.relay;
    let size = |number: usize| number * 7919 % 100_000;
    let send_up = async {
        for number in 0..MESSAGES {
            let text = OutgoingMessage::Text(numbered_message(number, size(number)));
            near_writer.push(text, DataEncoding::Text);
            within("flushed", near_writer.flush()).await.unwrap();
            if number % 100 == 50 {
                cut(relay);
            }
        }
    };
    let send_down = async {
        for number in 0..MESSAGES {
            let text = OutgoingMessage::Text(numbered_message(number, size(number)));
            far_writer.push(text, DataEncoding::Text);
            within("flushed", far_writer.flush()).await.unwrap();
        }
    };
    let receive_up = async {
        for number in 0..MESSAGES {
            let message = within("a message", far_reader.next()).await;
            assert!(message.unwrap().unwrap() == numbered_message(number, size(number)));
        }
    };
    let receive_down = async {
        for number in 0..MESSAGES {
            let message = within("a message", near_reader.next()).await;
            assert!(message.unwrap().unwrap() == numbered_message(number, size(number)));
        }
    };
    tokio::join!(send_up, send_down, receive_up, receive_down);
    assert_eq!(
        fixture.handshakes(),
        handshakes,
        "there is no new handshake"
    );
    assert!(fixture.fetched() > 1, "there were new websockets");
    echo(&mut near, &mut far).await;
}

#[tokio::test]
async fn reliable_link_survives_loss_of_its_websocket() {
    let mut fixture = RelayFixture::new().await;
    expect_no_loss(&mut fixture, TestRelay::cut_harnesses).await;
}

#[tokio::test]
async fn reliable_link_survives_loss_of_the_executor_websocket() {
    let mut fixture = RelayFixture::new().await;
    expect_no_loss(&mut fixture, TestRelay::cut_executor).await;
}

#[tokio::test]
async fn link_reports_path_loss_and_recovery() {
    let mut fixture = RelayFixture::new().await;
    let (mut near, mut far) = fixture.pair(reliable()).await;
    echo(&mut near, &mut far).await;
    let mut path = near.path.clone().unwrap();
    assert_eq!(*path.borrow_and_update(), LinkPathState::Connected);
    // The first attempts are refused, so that the loss is observable.
    fixture.relay.refuse(&[503, 503]);
    fixture.relay.cut_harnesses();
    for expected in [LinkPathState::Lost, LinkPathState::Connected] {
        let state = within("a change", path.wait_for(|path| *path == expected)).await;
        assert_eq!(state.map(|path| *path).ok(), Some(expected));
    }
    echo(&mut near, &mut far).await;
}

#[tokio::test]
async fn plain_link_ends_with_its_websocket() {
    let mut fixture = RelayFixture::new().await;
    let (mut near, mut far) = fixture.pair(plain()).await;
    echo(&mut near, &mut far).await;
    fixture.relay.cut_harnesses();
    let end = end_of(&mut near).await;
    assert!(matches!(end, Err(LinkReadError::Io(_))), "{end:?}");
    assert!(end_of(&mut far).await.is_err());
    assert_eq!(fixture.fetched(), 1);
}

#[tokio::test]
async fn changed_executor_key_ends_a_reliable_link() {
    let mut fixture = RelayFixture::new().await;
    let (mut near, mut far) = fixture.pair(reliable()).await;
    echo(&mut near, &mut far).await;
    fixture.grants.state.lock().unwrap().executor_key =
        NoiseIdentity::generate().public_key().clone();
    fixture.relay.cut_harnesses();
    let end = end_of(&mut near).await;
    assert!(
        matches!(end, Err(LinkReadError::ExecutorChanged)),
        "{end:?}"
    );
    assert_eq!(fixture.fetched(), 2);
}

#[tokio::test]
async fn permanent_grant_refusal_ends_a_reliable_link() {
    let mut fixture = RelayFixture::new().await;
    let (mut near, _far) = fixture.pair(reliable()).await;
    fixture.refuse_grants(false);
    fixture.relay.cut_harnesses();
    let end = end_of(&mut near).await;
    assert!(matches!(end, Err(LinkReadError::Io(_))), "{end:?}");
    assert_eq!(fixture.fetched(), 2);
}

#[tokio::test]
async fn reliable_link_retries_until_its_recovery_timeout() {
    let mut fixture = RelayFixture::new().await;
    let options = HarnessOptions {
        recovery: Duration::from_secs(1),
        ..reliable()
    };
    let (mut near, _far) = fixture.pair(options).await;
    fixture.refuse_grants(true);
    let start = std::time::Instant::now();
    fixture.relay.cut_harnesses();
    let end = end_of(&mut near).await;
    assert!(matches!(end, Err(LinkReadError::Io(_))), "{end:?}");
    assert!(start.elapsed() >= Duration::from_secs(1));
    assert!(
        (4..12).contains(&fixture.fetched()),
        "{}",
        fixture.fetched()
    );
}

#[tokio::test]
async fn dropped_link_is_not_reconnected() {
    let mut fixture = RelayFixture::new().await;
    let (mut near, _far) = fixture.pair(reliable()).await;
    fixture.refuse_grants(true);
    fixture.relay.cut_harnesses();
    while fixture.fetched() < 2 {
        tokio::task::yield_now().await;
    }
    send(&mut near, b"lost".to_vec()).await;
    tokio::task::yield_now().await;
    drop(near);
    tokio::task::yield_now().await;
    let fetched = fixture.fetched();
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(fixture.fetched(), fetched);
}

#[tokio::test(start_paused = true)]
async fn silent_harness_path_is_replaced_in_time() {
    let mut fixture = RelayFixture::new().await;
    let (mut near, mut far) = fixture.pair(reliable()).await;
    echo(&mut near, &mut far).await;
    fixture.relay.blackhole_harnesses();
    send(&mut near, b"lost".to_vec()).await;
    let start = tokio::time::Instant::now();
    assert_eq!(receive(&mut far).await, "lost");
    let took = start.elapsed().as_secs();
    assert!((14..25).contains(&took), "{took} s");
    echo(&mut near, &mut far).await;
    assert_eq!(fixture.handshakes(), 1);
}

#[tokio::test(start_paused = true)]
async fn silent_executor_path_is_replaced_in_time() {
    let mut fixture = RelayFixture::new().await;
    let (mut near, mut far) = fixture.pair(reliable()).await;
    echo(&mut near, &mut far).await;
    fixture.relay.blackhole_executor();
    send(&mut near, b"lost".to_vec()).await;
    send(&mut far, b"lost too".to_vec()).await;
    let start = tokio::time::Instant::now();
    assert_eq!(receive(&mut far).await, "lost");
    assert_eq!(receive(&mut near).await, "lost too");
    let took = start.elapsed().as_secs();
    assert!((14..30).contains(&took), "{took} s");
    echo(&mut near, &mut far).await;
    assert_eq!(fixture.handshakes(), 1);
}

#[tokio::test]
async fn reconnects_back_off_and_stop_at_the_recovery_timeout() {
    let mut fixture = RelayFixture::new().await;
    let options = HarnessOptions {
        recovery: Duration::from_secs(2),
        ..reliable()
    };
    let (mut near, mut far) = fixture.pair(options).await;
    echo(&mut near, &mut far).await;
    // Every websocket is accepted and closed at the first frame.
    fixture.relay.remove_executor();
    let start = std::time::Instant::now();
    let end = end_of(&mut near).await;
    assert!(matches!(end, Err(LinkReadError::Io(_))), "{end:?}");
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(
        (4..12).contains(&fixture.fetched()),
        "{}",
        fixture.fetched()
    );
}

#[tokio::test(start_paused = true)]
async fn silent_relay_ends_the_link_in_time() {
    let mut fixture = RelayFixture::new().await;
    let (mut near, mut far) = fixture.pair(reliable()).await;
    echo(&mut near, &mut far).await;
    // All websockets are accepted, but no frame passes.
    fixture.relay.blackhole_all_harnesses();
    let start = tokio::time::Instant::now();
    let end = tokio::time::timeout(Duration::from_secs(120), near.reader.next()).await;
    assert!(matches!(end, Ok(Err(LinkReadError::Io(_)))), "{end:?}");
    let took = start.elapsed().as_secs();
    // The silence timeout comes first, then the recovery timeout.
    assert!((35..45).contains(&took), "{took} s");
}
