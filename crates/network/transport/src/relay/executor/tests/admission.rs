//! Who gets in: the rows of handshakes and validations.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_harness_that_the_validator_approves_gets_a_link() {
    let mut rig = rig();
    let (mut stream, mut link) = rig.admit("a", Delivery::Plain).await;
    rig.echo(&mut stream, &mut link).await;
    assert_eq!(link.peer, r#"relay stream "a""#);
}

#[tokio::test(start_paused = true)]
async fn a_harness_that_the_validator_refuses_is_reset() {
    let mut rig = rig();
    let (_, answer) = rig.knock("a").await;
    answer.send(ValidationOutcome::Refused).unwrap();
    rig.expect_reset("a").await;
    assert!(rig.links.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_harness_learns_that_the_registry_rejects_the_executor_and_gets_no_stream() {
    let mut rig = rig();
    for failure in 0..8 {
        let name = format!("rejected {failure}");
        let (initiator, answer) = rig.knock(&name).await;
        answer
            .send(ValidationOutcome::ExecutorUnauthenticated)
            .unwrap();
        let Body::Handshake(message) = rig.hear().await.body else {
            panic!("no second message");
        };
        let error = initiator.finish(&message).unwrap_err();
        assert_eq!(error, HandshakeError::RegistryAuthentication);
        assert!(rig.links.try_recv().is_err());
        rig.say(data(&name, 0)).await;
        rig.expect_reset(&name).await;
    }
    // It counts as a failed handshake, as with the stock executor.
    rig.knock_in_vain("the ninth").await;
}

#[tokio::test(start_paused = true)]
async fn a_validation_takes_ten_seconds_at_most_and_blocks_nobody() {
    let mut rig = rig();
    let start = Instant::now();
    let (_, _never) = rig.knock("a").await;
    let (mut stream, mut link) = rig.admit("b", Delivery::Plain).await;
    rig.echo(&mut stream, &mut link).await;
    assert_eq!(start.elapsed().as_secs(), 0);
    rig.expect_reset("a").await;
    assert_eq!(start.elapsed(), Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn the_eighth_failure_stops_handshakes_for_ten_seconds_and_nothing_else() {
    let mut rig = rig();
    let (mut stream, mut link) = rig.admit("active", Delivery::Plain).await;
    for failure in 0..7 {
        rig.botch(&format!("bad {failure}")).await;
    }
    let (mut other, mut other_link) = rig.admit("in time", Delivery::Plain).await;
    rig.botch("the eighth").await;
    let closed = Instant::now();
    rig.knock_in_vain("late").await;
    rig.echo(&mut stream, &mut link).await;
    rig.echo(&mut other, &mut other_link).await;
    tokio::time::sleep_until(closed + Duration::from_secs(10)).await;
    for failure in 0..7 {
        rig.botch(&format!("bad again {failure}")).await;
    }
    rig.admit("late", Delivery::Plain).await;
}

#[tokio::test(start_paused = true)]
async fn refused_validations_count_as_failures_and_so_does_data_too_early() {
    let mut rig = rig();
    for failure in 0..4 {
        let (_, answer) = rig.knock(&format!("refused {failure}")).await;
        answer.send(ValidationOutcome::Refused).unwrap();
        rig.expect_reset(&format!("refused {failure}")).await;
    }
    for failure in 0..3 {
        let name = format!("early {failure}");
        let (_, _answer) = rig.knock(&name).await;
        rig.say(data(&name, 0)).await;
        rig.expect_reset(&name).await;
    }
    let (_, _answer) = rig.knock("twice").await;
    rig.knock_in_vain("twice").await;
    rig.knock_in_vain("the ninth").await;
}

#[tokio::test(start_paused = true)]
async fn a_second_handshake_cancels_one_that_waits() {
    let mut rig = rig();
    let (_, answer) = rig.knock("a").await;
    rig.knock_in_vain("a").await;
    assert!(
        answer.send(ValidationOutcome::Accepted).is_err(),
        "nobody waits for the answer"
    );
    rig.expect_silence().await;
    assert!(rig.links.try_recv().is_err());
    rig.admit("a", Delivery::Plain).await;
}

#[tokio::test(start_paused = true)]
async fn a_reset_cancels_a_handshake_that_waits_without_an_answer() {
    let mut rig = rig();
    let (_, answer) = rig.knock("a").await;
    rig.say(reset("a")).await;
    rig.expect_silence().await;
    assert!(
        answer.send(ValidationOutcome::Accepted).is_err(),
        "nobody waits for the answer"
    );
    for failure in 0..7 {
        rig.botch(&format!("bad {failure}")).await;
    }
    rig.admit("not counted", Delivery::Plain).await;
}

#[tokio::test(start_paused = true)]
async fn a_handshake_on_an_active_stream_is_reset_and_the_stream_lives_on() {
    let mut rig = rig();
    let (mut stream, mut link) = rig.admit("a", Delivery::Plain).await;
    rig.knock_in_vain("a").await;
    rig.echo(&mut stream, &mut link).await;
}

#[tokio::test(start_paused = true)]
async fn the_thirty_third_validation_is_reset_and_not_counted() {
    let mut rig = rig();
    let mut waiting = Vec::new();
    for index in 0..32 {
        waiting.push(rig.knock(&format!("waiting {index}")).await);
    }
    for _ in 0..9 {
        rig.knock_in_vain("one more").await;
    }
    let (_, answer) = waiting.pop().unwrap();
    answer.send(ValidationOutcome::Accepted).unwrap();
    assert!(matches!(rig.hear().await.body, Body::Handshake(_)));
    rig.admit("one more", Delivery::Plain).await;
}

#[tokio::test(start_paused = true)]
async fn the_129th_stream_is_reset_until_another_ends() {
    let mut rig = rig();
    let mut links = Vec::new();
    for index in 0..128 {
        let (_, link) = rig.admit(&format!("active {index}"), Delivery::Plain).await;
        links.push(link);
    }
    rig.knock_in_vain("one more").await;
    drop(links.pop());
    rig.expect_reset("active 127").await;
    rig.admit("one more", Delivery::Plain).await;
}

#[tokio::test(start_paused = true)]
async fn a_harness_of_another_registration_is_reset() {
    let mut rig = rig();
    let scope = Scope {
        environment_id: ENVIRONMENT,
        registration_id: "reg-2",
        stream_id: "a",
    };
    let started = Initiator::start(&rig.harness, &rig.executor_key, scope, "x");
    let message = Body::Handshake(started.unwrap().1);
    rig.say(Frame::new(id("a"), message)).await;
    rig.expect_reset("a").await;
    assert!(rig.claims.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_validator_that_panics_refuses_and_the_others_live_on() {
    struct Panics;
    impl Validator for Panics {
        fn validate(&self, _: Claim) -> BoxFuture<'static, ValidationOutcome> {
            Box::pin(async { panic!("a test's validator") })
        }
    }
    let mut rig = rig();
    let identity = Arc::new(Identity::generate());
    rig.executor_key = identity.public_key().clone();
    let (links, _accepted) = mpsc::channel(1);
    let executor = Executor::new(identity, ENVIRONMENT.into(), Arc::new(Panics), links);
    let [relay, socket] = pipe(1 << 20);
    rig.relay = relay;
    rig.serving = serve(executor, socket);
    for _ in 0..2 {
        rig.knock_in_vain("a").await;
    }
}
