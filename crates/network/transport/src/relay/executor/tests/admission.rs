//! Admission of harnesses: handshakes and validation.

use super::*;

#[tokio::test(start_paused = true)]
async fn accepted_harness_gets_a_link() {
    let mut fixture = fixture();
    let (mut stream, mut link) = fixture.open_stream("a", DeliveryMode::Plain).await;
    fixture.echo(&mut stream, &mut link).await;
    assert_eq!(link.peer, r#"relay stream "a""#);
}

#[tokio::test(start_paused = true)]
async fn refused_harness_is_reset() {
    let mut fixture = fixture();
    let (_, validation) = fixture.start_handshake("a").await;
    validation.send(ValidationOutcome::Refused).unwrap();
    fixture.expect_reset("a").await;
    assert!(fixture.links.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn registry_rejection_of_the_executor_reaches_the_harness() {
    let mut fixture = fixture();
    for failure in 0..8 {
        let name = format!("rejected {failure}");
        let (initiator, validation) = fixture.start_handshake(&name).await;
        validation
            .send(ValidationOutcome::ExecutorUnauthenticated)
            .unwrap();
        let FrameBody::Handshake(message) = fixture.next_frame().await.body else {
            panic!("no second message");
        };
        let error = initiator.finish(&message).unwrap_err();
        assert_eq!(error, NoiseHandshakeError::RegistryAuthentication);
        assert!(fixture.links.try_recv().is_err());
        fixture.send_frame(data(&name, 0)).await;
        fixture.expect_reset(&name).await;
    }
    // It counts as a failed handshake, as in the stock executor.
    fixture.expect_handshake_refused("the ninth").await;
}

#[tokio::test(start_paused = true)]
async fn validation_times_out_after_ten_seconds_without_blocking_others() {
    let mut fixture = fixture();
    let start = Instant::now();
    let (_, _never) = fixture.start_handshake("a").await;
    let (mut stream, mut link) = fixture.open_stream("b", DeliveryMode::Plain).await;
    fixture.echo(&mut stream, &mut link).await;
    assert_eq!(start.elapsed().as_secs(), 0);
    fixture.expect_reset("a").await;
    assert_eq!(start.elapsed(), Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn eighth_failure_blocks_handshakes_but_not_active_streams() {
    let mut fixture = fixture();
    let (mut stream, mut link) = fixture.open_stream("active", DeliveryMode::Plain).await;
    for failure in 0..7 {
        fixture
            .send_garbage_handshake(&format!("bad {failure}"))
            .await;
    }
    let (mut other, mut other_link) = fixture.open_stream("in time", DeliveryMode::Plain).await;
    fixture.send_garbage_handshake("the eighth").await;
    let closed = Instant::now();
    fixture.expect_handshake_refused("late").await;
    fixture.echo(&mut stream, &mut link).await;
    fixture.echo(&mut other, &mut other_link).await;
    tokio::time::sleep_until(closed + Duration::from_secs(10)).await;
    for failure in 0..7 {
        fixture
            .send_garbage_handshake(&format!("bad again {failure}"))
            .await;
    }
    fixture.open_stream("late", DeliveryMode::Plain).await;
}

#[tokio::test(start_paused = true)]
async fn refusals_and_early_data_count_as_failures() {
    let mut fixture = fixture();
    for failure in 0..4 {
        let (_, validation) = fixture.start_handshake(&format!("refused {failure}")).await;
        validation.send(ValidationOutcome::Refused).unwrap();
        fixture.expect_reset(&format!("refused {failure}")).await;
    }
    for failure in 0..3 {
        let name = format!("early {failure}");
        let (_, _answer) = fixture.start_handshake(&name).await;
        fixture.send_frame(data(&name, 0)).await;
        fixture.expect_reset(&name).await;
    }
    let (_, _answer) = fixture.start_handshake("twice").await;
    fixture.expect_handshake_refused("twice").await;
    fixture.expect_handshake_refused("the ninth").await;
}

#[tokio::test(start_paused = true)]
async fn second_handshake_cancels_the_pending_one() {
    let mut fixture = fixture();
    let (_, validation) = fixture.start_handshake("a").await;
    fixture.expect_handshake_refused("a").await;
    assert!(
        validation.send(ValidationOutcome::Accepted).is_err(),
        "the validation was cancelled"
    );
    fixture.expect_silence().await;
    assert!(fixture.links.try_recv().is_err());
    fixture.open_stream("a", DeliveryMode::Plain).await;
}

#[tokio::test(start_paused = true)]
async fn reset_cancels_a_pending_handshake_silently() {
    let mut fixture = fixture();
    let (_, validation) = fixture.start_handshake("a").await;
    fixture.send_frame(reset("a")).await;
    fixture.expect_silence().await;
    assert!(
        validation.send(ValidationOutcome::Accepted).is_err(),
        "the validation was cancelled"
    );
    for failure in 0..7 {
        fixture
            .send_garbage_handshake(&format!("bad {failure}"))
            .await;
    }
    fixture
        .open_stream("not counted", DeliveryMode::Plain)
        .await;
}

#[tokio::test(start_paused = true)]
async fn handshake_on_an_active_stream_is_reset_and_leaves_it_open() {
    let mut fixture = fixture();
    let (mut stream, mut link) = fixture.open_stream("a", DeliveryMode::Plain).await;
    fixture.expect_handshake_refused("a").await;
    fixture.echo(&mut stream, &mut link).await;
}

#[tokio::test(start_paused = true)]
async fn thirty_third_validation_is_reset_without_counting_as_failure() {
    let mut fixture = fixture();
    let mut waiting = Vec::new();
    for index in 0..32 {
        waiting.push(fixture.start_handshake(&format!("waiting {index}")).await);
    }
    for _ in 0..9 {
        fixture.expect_handshake_refused("one more").await;
    }
    let (_, validation) = waiting.pop().unwrap();
    validation.send(ValidationOutcome::Accepted).unwrap();
    assert!(matches!(
        fixture.next_frame().await.body,
        FrameBody::Handshake(_)
    ));
    fixture.open_stream("one more", DeliveryMode::Plain).await;
}

#[tokio::test(start_paused = true)]
async fn stream_beyond_the_limit_is_reset_until_one_ends() {
    let mut fixture = fixture();
    let mut links = Vec::new();
    for index in 0..128 {
        let (_, link) = fixture
            .open_stream(&format!("active {index}"), DeliveryMode::Plain)
            .await;
        links.push(link);
    }
    fixture.expect_handshake_refused("one more").await;
    drop(links.pop());
    fixture.expect_reset("active 127").await;
    fixture.open_stream("one more", DeliveryMode::Plain).await;
}

#[tokio::test(start_paused = true)]
async fn handshake_for_another_registration_is_reset() {
    let mut fixture = fixture();
    let scope = HandshakeScope {
        environment_id: ENVIRONMENT,
        registration_id: "reg-2",
        stream_id: "a",
    };
    let started = NoiseInitiator::start(&fixture.harness, &fixture.executor_key, scope, "x");
    let message = FrameBody::Handshake(started.unwrap().1);
    fixture.send_frame(RelayFrame::new(id("a"), message)).await;
    fixture.expect_reset("a").await;
    assert!(fixture.claims.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn panicking_validator_counts_as_refusal() {
    struct PanickingValidator;
    impl HarnessValidator for PanickingValidator {
        fn validate(&self, _: HarnessClaim) -> BoxFuture<'static, ValidationOutcome> {
            Box::pin(async { panic!("a test's validator") })
        }
    }
    let mut fixture = fixture();
    let identity = Arc::new(NoiseIdentity::generate());
    fixture.executor_key = identity.public_key().clone();
    let (links, _accepted) = mpsc::channel(1);
    let executor = RelayExecutor::new(
        identity,
        ENVIRONMENT.into(),
        Arc::new(PanickingValidator),
        links,
    );
    let [relay, socket] = pipe(1 << 20);
    fixture.relay = relay;
    fixture.serving = serve(executor, socket);
    for _ in 0..2 {
        fixture.expect_handshake_refused("a").await;
    }
}
