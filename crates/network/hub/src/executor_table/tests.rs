use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use exec_relay::{
    identity::Identity,
    route::{Kind, Route},
};

use super::{CircuitId, Delivery, Port, Switch, Verdict};
use crate::{
    circuit::Ending,
    circuit_dialer::{Dial, DialError, Exchange as _, HarnessTag},
    limits,
    store::{ConnectionId, NewRegistration, RedbStore, Store as _, Timestamp, on_disk},
};

const ALICE: HarnessTag = HarnessTag::from_bytes([1; 16]);
const BOB: HarnessTag = HarnessTag::from_bytes([2; 16]);

fn frame(stream_id: &str, kind: Kind) -> Route<'_> {
    Route { stream_id, kind }
}

struct Bench {
    port: Port,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        let now = Instant::now();
        let port = Port::new(now);
        Self { port, now }
    }

    fn sends(&mut self, from: CircuitId, stream_id: &str, kind: Kind) -> Verdict {
        self.port.judge(from, &frame(stream_id, kind), self.now)
    }

    fn answers(&mut self, stream_id: &str, kind: Kind) -> Delivery {
        self.port.deliver(&frame(stream_id, kind), self.now)
    }
}

#[test]
fn the_first_frame_makes_a_stream_its_senders() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.port.admit(ALICE), bench.port.admit(BOB));
    assert_eq!(bench.answers("s", Kind::Data), Delivery::Unknown);
    assert_eq!(bench.sends(alice, "s", Kind::Resume), Verdict::Forward);
    for kind in [Kind::Data, Kind::Resume, Kind::Handshake, Kind::Reset] {
        assert_eq!(bench.sends(bob, "s", kind), Verdict::Foreign, "{kind:?}");
    }
    assert_eq!(bench.answers("s", Kind::Data), Delivery::Forward(alice));
    assert_eq!(bench.port.remove(alice), ["s".into()]);
    assert_eq!(bench.answers("s", Kind::Data), Delivery::Unknown);
    assert_eq!(bench.sends(bob, "s", Kind::Data), Verdict::Forward);
}

#[test]
fn a_reset_from_either_side_frees_the_stream() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.port.admit(ALICE), bench.port.admit(BOB));
    bench.sends(alice, "s", Kind::Resume);
    assert_eq!(bench.answers("s", Kind::Reset), Delivery::Forward(alice));
    assert_eq!(bench.answers("s", Kind::Data), Delivery::Unknown);
    assert_eq!(bench.sends(bob, "s", Kind::Resume), Verdict::Forward);
    assert_eq!(bench.sends(bob, "s", Kind::Reset), Verdict::Forward);
    assert_eq!(bench.answers("s", Kind::Data), Delivery::Unknown);
    assert!(bench.port.remove(alice).is_empty());
    assert!(bench.port.remove(bob).is_empty());
}

#[test]
fn a_harness_continues_its_stream_on_another_socket() {
    let mut bench = Bench::new();
    let (old, new) = (bench.port.admit(ALICE), bench.port.admit(ALICE));
    bench.sends(old, "s", Kind::Resume);
    assert_eq!(bench.sends(new, "s", Kind::Data), Verdict::Foreign);
    assert_eq!(bench.sends(new, "s", Kind::Resume), Verdict::Overtake(old));
    assert_eq!(bench.sends(old, "s", Kind::Data), Verdict::Foreign);
    assert_eq!(bench.answers("s", Kind::Data), Delivery::Forward(new));
    assert!(bench.port.remove(old).is_empty(), "the stream is not reset");
}

#[test]
fn a_socket_with_other_streams_survives_the_move_of_one() {
    let mut bench = Bench::new();
    let (old, new) = (bench.port.admit(ALICE), bench.port.admit(ALICE));
    bench.sends(old, "s", Kind::Resume);
    bench.sends(old, "t", Kind::Resume);
    assert_eq!(bench.sends(new, "s", Kind::Resume), Verdict::Forward);
    assert_eq!(bench.port.remove(old), ["t".into()]);
}

#[test]
fn a_socket_owns_a_bounded_number_of_streams() {
    let mut bench = Bench::new();
    let alice = bench.port.admit(ALICE);
    for number in 0..limits::STREAMS_PER_HARNESS {
        let verdict = bench.sends(alice, &number.to_string(), Kind::Resume);
        assert_eq!(verdict, Verdict::Forward);
    }
    assert_eq!(bench.sends(alice, "more", Kind::Resume), Verdict::Reset);
    assert_eq!(bench.sends(alice, "0", Kind::Reset), Verdict::Forward);
    assert_eq!(bench.sends(alice, "more", Kind::Resume), Verdict::Forward);
}

#[test]
fn a_socket_without_room_for_a_stream_leaves_it_where_it_is() {
    let mut bench = Bench::new();
    let (old, new) = (bench.port.admit(ALICE), bench.port.admit(ALICE));
    bench.sends(old, "s", Kind::Resume);
    for number in 0..limits::STREAMS_PER_HARNESS {
        bench.sends(new, &number.to_string(), Kind::Resume);
    }
    assert_eq!(bench.sends(new, "s", Kind::Resume), Verdict::Reset);
    assert_eq!(bench.answers("s", Kind::Data), Delivery::Forward(old));
    assert_eq!(
        bench.port.remove(old),
        ["s".into()],
        "the executor hears of its end"
    );
}

#[test]
fn handshakes_wait_for_their_answers() {
    let mut bench = Bench::new();
    let alice = bench.port.admit(ALICE);
    let ids: Vec<_> = (0..=limits::UNANSWERED_HANDSHAKES)
        .map(|number| number.to_string())
        .collect();
    let (last, first) = ids.split_last().unwrap();
    for id in first {
        assert_eq!(bench.sends(alice, id, Kind::Handshake), Verdict::Forward);
    }
    assert_eq!(bench.sends(alice, last, Kind::Handshake), Verdict::Reset);
    assert_eq!(
        bench.answers("0", Kind::Handshake),
        Delivery::Forward(alice)
    );
    assert_eq!(bench.sends(alice, last, Kind::Handshake), Verdict::Forward);
}

#[test]
fn a_harness_cannot_take_its_handshakes_back() {
    let mut bench = Bench::new();
    let alice = bench.port.admit(ALICE);
    for _ in 0..limits::UNANSWERED_HANDSHAKES {
        assert_eq!(bench.sends(alice, "s", Kind::Handshake), Verdict::Forward);
        assert_eq!(bench.sends(alice, "s", Kind::Reset), Verdict::Forward);
    }
    assert_eq!(bench.sends(alice, "s", Kind::Handshake), Verdict::Reset);
}

#[test]
fn a_socket_whose_handshakes_fail_is_refused() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.port.admit(ALICE), bench.port.admit(BOB));
    for failure in 1..=limits::FAILED_HANDSHAKES {
        assert_eq!(bench.sends(alice, "s", Kind::Handshake), Verdict::Forward);
        let expected = if failure < limits::FAILED_HANDSHAKES {
            Delivery::Forward(alice)
        } else {
            Delivery::ForwardAndRefuse(alice)
        };
        assert_eq!(bench.answers("s", Kind::Reset), expected, "{failure}");
    }
    assert_eq!(bench.sends(bob, "t", Kind::Handshake), Verdict::Forward);
    assert_eq!(bench.answers("t", Kind::Handshake), Delivery::Forward(bob));
}

#[test]
fn a_harness_whose_handshakes_fail_on_any_sockets_is_refused_for_a_minute() {
    let mut bench = Bench::new();
    let bob = bench.port.admit(BOB);
    for _ in 0..limits::FAILED_HANDSHAKES {
        let socket = bench.port.admit(ALICE);
        assert_eq!(bench.sends(socket, "s", Kind::Handshake), Verdict::Forward);
        bench.answers("s", Kind::Reset);
        bench.port.remove(socket);
    }
    let another = bench.port.admit(ALICE);
    assert_eq!(bench.sends(another, "s", Kind::Handshake), Verdict::Reset);
    assert_eq!(bench.sends(bob, "t", Kind::Handshake), Verdict::Forward);
    bench.now += Duration::from_secs(59);
    assert_eq!(bench.sends(another, "s", Kind::Handshake), Verdict::Reset);
    bench.now += Duration::from_secs(1);
    assert_eq!(bench.sends(another, "s", Kind::Handshake), Verdict::Forward);
}

#[test]
fn one_harness_alone_does_not_make_an_executor_refuse_everybody() {
    let mut bench = Bench::new();
    let mut through = 0;
    for number in 0..100 {
        let socket = bench.port.admit(ALICE);
        let stream = number.to_string();
        if bench.sends(socket, &stream, Kind::Handshake) == Verdict::Forward {
            through += 1;
        }
        // Sockets that are gone give no handshake back.
        if number % 2 == 0 {
            bench.port.remove(socket);
        }
    }
    assert_eq!(through, limits::EXECUTOR_FAILURES - 1);
    bench.now += limits::HANDSHAKE;
    let socket = bench.port.admit(ALICE);
    assert_eq!(bench.sends(socket, "s", Kind::Handshake), Verdict::Forward);
}

#[test]
fn what_an_executor_refuses_while_it_refuses_everybody_counts_against_nobody() {
    let mut bench = Bench::new();
    for tag in 10..12 {
        let socket = bench.port.admit(HarnessTag::from_bytes([tag; 16]));
        for _ in 0..limits::FAILED_HANDSHAKES {
            bench.sends(socket, "s", Kind::Handshake);
            bench.answers("s", Kind::Reset);
        }
        bench.port.remove(socket);
    }
    let alice = bench.port.admit(ALICE);
    for _ in 0..limits::FAILED_HANDSHAKES * 2 {
        assert_eq!(bench.sends(alice, "s", Kind::Handshake), Verdict::Forward);
        assert_eq!(bench.answers("s", Kind::Reset), Delivery::Forward(alice));
        bench.now += Duration::from_secs(1);
    }
}

#[test]
fn a_harness_that_is_refused_uses_up_nobodys_handshakes() {
    let mut bench = Bench::new();
    for _ in 0..1000 {
        let socket = bench.port.admit(ALICE);
        bench.sends(socket, "s", Kind::Handshake);
        bench.port.remove(socket);
    }
    let bob = bench.port.admit(BOB);
    assert_eq!(bench.sends(bob, "t", Kind::Handshake), Verdict::Forward);
}

#[test]
fn streams_that_end_after_their_handshake_are_no_failures() {
    let mut bench = Bench::new();
    let alice = bench.port.admit(ALICE);
    for _ in 0..limits::FAILED_HANDSHAKES * 2 {
        bench.sends(alice, "s", Kind::Handshake);
        assert_eq!(
            bench.answers("s", Kind::Handshake),
            Delivery::Forward(alice)
        );
        assert_eq!(bench.answers("s", Kind::Reset), Delivery::Forward(alice));
    }
}

#[test]
fn a_stream_whose_second_handshake_is_refused_is_still_reset_when_its_harness_is_gone() {
    let mut bench = Bench::new();
    let alice = bench.port.admit(ALICE);
    bench.sends(alice, "s", Kind::Handshake);
    bench.answers("s", Kind::Handshake);
    assert_eq!(bench.sends(alice, "s", Kind::Handshake), Verdict::Forward);
    // The executor refuses the second one and keeps the stream.
    assert_eq!(bench.answers("s", Kind::Reset), Delivery::Forward(alice));
    assert_eq!(bench.answers("s", Kind::Data), Delivery::Forward(alice));
    assert_eq!(bench.port.remove(alice), ["s".into()]);
}

#[test]
fn an_environment_takes_so_many_handshakes_at_a_time() {
    let mut bench = Bench::new();
    let attempt = |bench: &mut Bench| {
        let circuit = bench.port.admit(ALICE);
        let verdict = bench.sends(circuit, "s", Kind::Handshake);
        bench.answers("s", Kind::Handshake);
        bench.port.remove(circuit);
        verdict
    };
    for _ in 0..limits::HANDSHAKE_BURST {
        assert_eq!(attempt(&mut bench), Verdict::Forward);
    }
    assert_eq!(attempt(&mut bench), Verdict::Reset);
    bench.now += limits::HANDSHAKE_INTERVAL;
    assert_eq!(attempt(&mut bench), Verdict::Forward);
    assert_eq!(attempt(&mut bench), Verdict::Reset);
    bench.now += Duration::from_secs(60);
    assert_eq!(attempt(&mut bench), Verdict::Forward);
}

fn dial(registration: &str) -> Dial {
    Dial {
        environment: "env".parse().unwrap(),
        registration: registration.parse().unwrap(),
        harness: ALICE,
    }
}

fn attach(switch: &Arc<Switch>, registration: &str) -> super::Attachment {
    let Dial {
        environment,
        registration,
        ..
    } = dial(registration);
    switch.attach(environment, registration, ConnectionId::generate())
}

#[tokio::test]
async fn a_circuit_leads_to_the_socket_of_its_registration() {
    let switch = Arc::new(Switch::default());
    assert_eq!(
        switch.dial(dial("a")).await.unwrap_err(),
        DialError::Offline
    );
    let mut attachment = attach(&switch, "a");
    assert_eq!(
        switch.dial(dial("b")).await.unwrap_err(),
        DialError::Offline
    );
    let mut harness = switch.dial(dial("a")).await.unwrap();
    let mut arrival = attachment.arrivals.recv().await.unwrap();
    assert_eq!(arrival.harness, ALICE);
    harness.sender.send("hello".into()).await.unwrap();
    assert_eq!(arrival.circuit.receiver.frame().await, Ok("hello".into()));
    drop(attachment);
    assert_eq!(
        switch.dial(dial("a")).await.unwrap_err(),
        DialError::Offline
    );
}

#[tokio::test]
async fn a_new_socket_replaces_the_old_one() {
    let switch = Arc::new(Switch::default());
    let mut old = attach(&switch, "a");
    let mut new = attach(&switch, "a");
    assert_eq!((&mut old.evicted).await, Ok(Ending::Replaced));
    let _circuit = switch.dial(dial("a")).await.unwrap();
    assert!(new.arrivals.recv().await.is_some());
    assert_eq!(switch.attached().len(), 1);
}

#[tokio::test]
async fn the_old_socket_leaves_the_place_of_the_new_one_alone() {
    let switch = Arc::new(Switch::default());
    let old = attach(&switch, "a");
    let _new = attach(&switch, "a");
    drop(old);
    assert_eq!(switch.attached().len(), 1);
}

#[tokio::test]
async fn supersession_closes_the_others_only() {
    let switch = Arc::new(Switch::default());
    let (store, _disk) = on_disk();
    let Dial { environment, .. } = dial("a");
    register(&store, "a").await;
    let mut socket = attach(&switch, "a");
    switch.supersede(environment.clone(), &store).await;
    assert!(socket.evicted.try_recv().is_err());
    register(&store, "b").await;
    switch.supersede(environment.clone(), &store).await;
    assert_eq!((&mut socket.evicted).await, Ok(Ending::Replaced));
    let mut socket = attach(&switch, "c");
    store.remove(&environment).await.unwrap();
    switch.supersede(environment, &store).await;
    assert_eq!((&mut socket.evicted).await, Ok(Ending::Replaced));
    assert!(switch.attached().is_empty());
}

#[tokio::test]
async fn a_late_supersession_leaves_a_newer_registration_alone() {
    let switch = Arc::new(Switch::default());
    let (store, _disk) = on_disk();
    let Dial { environment, .. } = dial("a");
    register(&store, "a").await;
    let late = switch.supersede(environment, &store);
    register(&store, "b").await;
    let mut socket = attach(&switch, "b");
    late.await;
    assert!(socket.evicted.try_recv().is_err());
}

async fn register(store: &RedbStore, id: &str) {
    let new = NewRegistration {
        environment: dial(id).environment,
        id: id.parse().unwrap(),
        executor_key: Identity::generate().public_key().clone(),
        principal: "alice".parse().unwrap(),
        at: Timestamp::now(),
    };
    store.register(new).await.unwrap();
}

#[tokio::test]
async fn an_executor_takes_a_bounded_number_of_harnesses() {
    let switch = Arc::new(Switch::default());
    let mut attachment = attach(&switch, "a");
    let mut held = Vec::new();
    for _ in 0..limits::HARNESSES_PER_EXECUTOR {
        let circuit = switch.dial(dial("a")).await.unwrap();
        held.push((circuit, attachment.arrivals.recv().await.unwrap()));
    }
    assert_eq!(switch.dial(dial("a")).await.unwrap_err(), DialError::Busy);
    held.pop();
    assert!(switch.dial(dial("a")).await.is_ok());
}
