//! Links whose websockets are cut.

use super::*;

const MESSAGES: usize = 400;

/// Sends many messages both ways while `cut` is done now and then; nothing may be lost, doubled or
/// out of order.
async fn survive(world: &mut World, cut: impl Fn(&Relay)) {
    let (mut near, mut far) = world.pair(reliable()).await;
    let handshakes = world.handshakes();
    let (near_writer, far_writer) = (&mut near.writer, &mut far.writer);
    let (near_reader, far_reader) = (&mut near.reader, &mut far.reader);
    let relay = &world.relay;
    let size = |number: usize| number * 7919 % 100_000;
    let up = async {
        for number in 0..MESSAGES {
            let text = Outgoing::Text(numbered(number, size(number)));
            near_writer.push(text, Encoding::Text);
            within("flushed", near_writer.flush()).await.unwrap();
            if number % 100 == 50 {
                cut(relay);
            }
        }
    };
    let down = async {
        for number in 0..MESSAGES {
            let text = Outgoing::Text(numbered(number, size(number)));
            far_writer.push(text, Encoding::Text);
            within("flushed", far_writer.flush()).await.unwrap();
        }
    };
    let up_there = async {
        for number in 0..MESSAGES {
            let message = within("a message", far_reader.next()).await;
            assert!(message.unwrap().unwrap() == numbered(number, size(number)));
        }
    };
    let down_here = async {
        for number in 0..MESSAGES {
            let message = within("a message", near_reader.next()).await;
            assert!(message.unwrap().unwrap() == numbered(number, size(number)));
        }
    };
    tokio::join!(up, down, up_there, down_here);
    assert_eq!(world.handshakes(), handshakes, "there is no new handshake");
    assert!(world.fetched() > 1, "there were new websockets");
    echo(&mut near, &mut far).await;
}

#[tokio::test]
async fn a_reliable_link_loses_nothing_when_its_websocket_is_cut() {
    let mut world = World::new().await;
    survive(&mut world, Relay::cut_harnesses).await;
}

#[tokio::test]
async fn a_reliable_link_loses_nothing_when_the_executors_websocket_is_cut() {
    let mut world = World::new().await;
    survive(&mut world, Relay::cut_executor).await;
}

#[tokio::test]
async fn a_link_tells_that_its_path_is_lost_and_found_again() {
    let mut world = World::new().await;
    let (mut near, mut far) = world.pair(reliable()).await;
    echo(&mut near, &mut far).await;
    let mut path = near.path.clone().unwrap();
    assert_eq!(*path.borrow_and_update(), Path::There);
    // Nobody is let in at once, so that the loss can be seen.
    world.relay.refuse(&[503, 503]);
    world.relay.cut_harnesses();
    for expected in [Path::Lost, Path::There] {
        let seen = within("a change", path.wait_for(|path| *path == expected)).await;
        assert_eq!(seen.map(|path| *path).ok(), Some(expected));
    }
    echo(&mut near, &mut far).await;
}

#[tokio::test]
async fn a_plain_link_ends_with_its_websocket() {
    let mut world = World::new().await;
    let (mut near, mut far) = world.pair(plain()).await;
    echo(&mut near, &mut far).await;
    world.relay.cut_harnesses();
    let end = end_of(&mut near).await;
    assert!(matches!(end, Err(ReadError::Io(_))), "{end:?}");
    assert!(end_of(&mut far).await.is_err());
    assert_eq!(world.fetched(), 1);
}

#[tokio::test]
async fn a_reliable_link_ends_at_once_when_another_executor_answers() {
    let mut world = World::new().await;
    let (mut near, mut far) = world.pair(reliable()).await;
    echo(&mut near, &mut far).await;
    world.office.state.lock().unwrap().executor_key = Identity::generate().public_key().clone();
    world.relay.cut_harnesses();
    let end = end_of(&mut near).await;
    assert!(matches!(end, Err(ReadError::ExecutorChanged)), "{end:?}");
    assert_eq!(world.fetched(), 2);
}

#[tokio::test]
async fn a_reliable_link_ends_at_once_when_there_are_no_more_tickets() {
    let mut world = World::new().await;
    let (mut near, _far) = world.pair(reliable()).await;
    world.refuse_tickets(false);
    world.relay.cut_harnesses();
    let end = end_of(&mut near).await;
    assert!(matches!(end, Err(ReadError::Io(_))), "{end:?}");
    assert_eq!(world.fetched(), 2);
}

#[tokio::test]
async fn a_reliable_link_tries_until_its_time_is_over() {
    let mut world = World::new().await;
    let options = HarnessOptions {
        recovery: Duration::from_secs(1),
        ..reliable()
    };
    let (mut near, _far) = world.pair(options).await;
    world.refuse_tickets(true);
    let start = std::time::Instant::now();
    world.relay.cut_harnesses();
    let end = end_of(&mut near).await;
    assert!(matches!(end, Err(ReadError::Io(_))), "{end:?}");
    assert!(start.elapsed() >= Duration::from_secs(1));
    assert!((4..12).contains(&world.fetched()), "{}", world.fetched());
}

#[tokio::test]
async fn a_link_that_nobody_wants_is_not_opened_again() {
    let mut world = World::new().await;
    let (mut near, _far) = world.pair(reliable()).await;
    world.refuse_tickets(true);
    world.relay.cut_harnesses();
    while world.fetched() < 2 {
        tokio::task::yield_now().await;
    }
    send(&mut near, b"lost".to_vec()).await;
    tokio::task::yield_now().await;
    drop(near);
    tokio::task::yield_now().await;
    let fetched = world.fetched();
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(world.fetched(), fetched);
}

#[tokio::test(start_paused = true)]
async fn a_path_that_dies_without_a_word_is_replaced_in_time() {
    let mut world = World::new().await;
    let (mut near, mut far) = world.pair(reliable()).await;
    echo(&mut near, &mut far).await;
    world.relay.hold_harnesses();
    send(&mut near, b"lost".to_vec()).await;
    let start = tokio::time::Instant::now();
    assert_eq!(receive(&mut far).await, "lost");
    let took = start.elapsed().as_secs();
    assert!((14..25).contains(&took), "{took} s");
    echo(&mut near, &mut far).await;
    assert_eq!(world.handshakes(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_executors_path_that_dies_without_a_word_is_replaced_in_time() {
    let mut world = World::new().await;
    let (mut near, mut far) = world.pair(reliable()).await;
    echo(&mut near, &mut far).await;
    world.relay.hold_executor();
    send(&mut near, b"lost".to_vec()).await;
    send(&mut far, b"lost too".to_vec()).await;
    let start = tokio::time::Instant::now();
    assert_eq!(receive(&mut far).await, "lost");
    assert_eq!(receive(&mut near).await, "lost too");
    let took = start.elapsed().as_secs();
    assert!((14..30).contains(&took), "{took} s");
    echo(&mut near, &mut far).await;
    assert_eq!(world.handshakes(), 1);
}

#[tokio::test]
async fn a_relay_that_takes_nobody_is_not_asked_without_a_pause_nor_for_longer() {
    let mut world = World::new().await;
    let options = HarnessOptions {
        recovery: Duration::from_secs(2),
        ..reliable()
    };
    let (mut near, mut far) = world.pair(options).await;
    echo(&mut near, &mut far).await;
    // Every websocket is opened, and closed at the first word.
    world.relay.lose_executor_for_good();
    let start = std::time::Instant::now();
    let end = end_of(&mut near).await;
    assert!(matches!(end, Err(ReadError::Io(_))), "{end:?}");
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!((4..12).contains(&world.fetched()), "{}", world.fetched());
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_says_nothing_is_given_up_in_time() {
    let mut world = World::new().await;
    let (mut near, mut far) = world.pair(reliable()).await;
    echo(&mut near, &mut far).await;
    // All websockets are opened, and nothing comes through any of them.
    world.relay.hold_everybody();
    let start = tokio::time::Instant::now();
    let end = tokio::time::timeout(Duration::from_secs(120), near.reader.next()).await;
    assert!(matches!(end, Ok(Err(ReadError::Io(_)))), "{end:?}");
    let took = start.elapsed().as_secs();
    // It takes a while to find out; from then on the usual time counts.
    assert!((35..45).contains(&took), "{took} s");
}
