use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use exec_relay::{
    frame::{FrameKind, FrameRoute},
    identity::NoiseIdentity,
};

use super::{CircuitId, ExecutorFrameAction, ExecutorTable, HarnessFrameAction, StreamDemux};
use crate::{
    circuit::{CircuitDialer as _, CloseReason, DialError, DialRequest, HarnessTag},
    limits,
    store::{ConnectionId, NewRegistration, RedbStore, Store as _, Timestamp, on_disk},
};

const ALICE: HarnessTag = HarnessTag::from_bytes([1; 16]);
const BOB: HarnessTag = HarnessTag::from_bytes([2; 16]);

fn frame(stream_id: &str, kind: FrameKind) -> FrameRoute<'_> {
    FrameRoute { stream_id, kind }
}

struct DemuxBench {
    demux: StreamDemux,
    now: Instant,
}

impl DemuxBench {
    fn new() -> Self {
        let now = Instant::now();
        let demux = StreamDemux::default();
        Self { demux, now }
    }

    fn sends(&mut self, from: CircuitId, stream_id: &str, kind: FrameKind) -> HarnessFrameAction {
        self.demux
            .route_from_harness(from, &frame(stream_id, kind), self.now)
    }

    fn answers(&mut self, stream_id: &str, kind: FrameKind) -> ExecutorFrameAction {
        self.demux
            .route_from_executor(&frame(stream_id, kind), self.now)
    }

    #[track_caller]
    fn assert_sends(
        &mut self,
        from: CircuitId,
        stream_id: &str,
        kind: FrameKind,
        expected: HarnessFrameAction,
    ) {
        assert_eq!(self.sends(from, stream_id, kind), expected);
    }

    #[track_caller]
    fn assert_answers(&mut self, stream_id: &str, kind: FrameKind, expected: ExecutorFrameAction) {
        assert_eq!(self.answers(stream_id, kind), expected);
    }
}

#[test]
fn first_frame_assigns_the_stream_to_its_sender() {
    let mut bench = DemuxBench::new();
    let (alice, bob) = (bench.demux.admit(ALICE), bench.demux.admit(BOB));
    bench.assert_answers("s", FrameKind::Data, ExecutorFrameAction::Unknown);
    bench.assert_sends(alice, "s", FrameKind::Resume, HarnessFrameAction::Forward);
    for kind in [
        FrameKind::Data,
        FrameKind::Resume,
        FrameKind::Handshake,
        FrameKind::Reset,
    ] {
        assert_eq!(
            bench.sends(bob, "s", kind),
            HarnessFrameAction::Foreign,
            "{kind:?}"
        );
    }
    bench.assert_answers("s", FrameKind::Data, ExecutorFrameAction::Forward(alice));
    assert_eq!(bench.demux.remove(alice), ["s".into()]);
    bench.assert_answers("s", FrameKind::Data, ExecutorFrameAction::Unknown);
    bench.assert_sends(bob, "s", FrameKind::Data, HarnessFrameAction::Forward);
}

#[test]
fn reset_from_either_side_frees_the_stream() {
    let mut bench = DemuxBench::new();
    let (alice, bob) = (bench.demux.admit(ALICE), bench.demux.admit(BOB));
    bench.sends(alice, "s", FrameKind::Resume);
    bench.assert_answers("s", FrameKind::Reset, ExecutorFrameAction::Forward(alice));
    bench.assert_answers("s", FrameKind::Data, ExecutorFrameAction::Unknown);
    bench.assert_sends(bob, "s", FrameKind::Resume, HarnessFrameAction::Forward);
    bench.assert_sends(bob, "s", FrameKind::Reset, HarnessFrameAction::Forward);
    bench.assert_answers("s", FrameKind::Data, ExecutorFrameAction::Unknown);
    assert!(bench.demux.remove(alice).is_empty());
    assert!(bench.demux.remove(bob).is_empty());
}

#[test]
fn harness_resumes_its_stream_on_another_websocket() {
    let mut bench = DemuxBench::new();
    let (old, new) = (bench.demux.admit(ALICE), bench.demux.admit(ALICE));
    bench.sends(old, "s", FrameKind::Resume);
    bench.assert_sends(new, "s", FrameKind::Data, HarnessFrameAction::Foreign);
    bench.assert_sends(
        new,
        "s",
        FrameKind::Resume,
        HarnessFrameAction::ForwardAndClose(old),
    );
    bench.assert_sends(old, "s", FrameKind::Data, HarnessFrameAction::Foreign);
    bench.assert_answers("s", FrameKind::Data, ExecutorFrameAction::Forward(new));
    assert!(
        bench.demux.remove(old).is_empty(),
        "the stream is not reset"
    );
}

#[test]
fn websocket_with_other_streams_survives_the_move_of_one() {
    let mut bench = DemuxBench::new();
    let (old, new) = (bench.demux.admit(ALICE), bench.demux.admit(ALICE));
    bench.sends(old, "s", FrameKind::Resume);
    bench.sends(old, "t", FrameKind::Resume);
    bench.assert_sends(new, "s", FrameKind::Resume, HarnessFrameAction::Forward);
    assert_eq!(bench.demux.remove(old), ["t".into()]);
}

#[test]
fn streams_per_websocket_are_bounded() {
    let mut bench = DemuxBench::new();
    let alice = bench.demux.admit(ALICE);
    for number in 0..limits::STREAMS_PER_HARNESS {
        let action = bench.sends(alice, &number.to_string(), FrameKind::Resume);
        assert_eq!(action, HarnessFrameAction::Forward);
    }
    bench.assert_sends(alice, "more", FrameKind::Resume, HarnessFrameAction::Reset);
    bench.assert_sends(alice, "0", FrameKind::Reset, HarnessFrameAction::Forward);
    bench.assert_sends(
        alice,
        "more",
        FrameKind::Resume,
        HarnessFrameAction::Forward,
    );
}

#[test]
fn stream_is_not_moved_to_a_full_websocket() {
    let mut bench = DemuxBench::new();
    let (old, new) = (bench.demux.admit(ALICE), bench.demux.admit(ALICE));
    bench.sends(old, "s", FrameKind::Resume);
    for number in 0..limits::STREAMS_PER_HARNESS {
        bench.sends(new, &number.to_string(), FrameKind::Resume);
    }
    bench.assert_sends(new, "s", FrameKind::Resume, HarnessFrameAction::Reset);
    bench.assert_answers("s", FrameKind::Data, ExecutorFrameAction::Forward(old));
    assert_eq!(
        bench.demux.remove(old),
        ["s".into()],
        "the executor hears of its end"
    );
}

#[test]
fn unanswered_handshakes_are_limited() {
    let mut bench = DemuxBench::new();
    let alice = bench.demux.admit(ALICE);
    let ids: Vec<_> = (0..=limits::UNANSWERED_HANDSHAKES)
        .map(|number| number.to_string())
        .collect();
    let (last, first) = ids.split_last().unwrap();
    for id in first {
        bench.assert_sends(alice, id, FrameKind::Handshake, HarnessFrameAction::Forward);
    }
    bench.assert_sends(alice, last, FrameKind::Handshake, HarnessFrameAction::Reset);
    bench.assert_answers(
        "0",
        FrameKind::Handshake,
        ExecutorFrameAction::Forward(alice),
    );
    bench.assert_sends(
        alice,
        last,
        FrameKind::Handshake,
        HarnessFrameAction::Forward,
    );
}

#[test]
fn resetting_a_stream_does_not_release_its_handshake() {
    let mut bench = DemuxBench::new();
    let alice = bench.demux.admit(ALICE);
    for _ in 0..limits::UNANSWERED_HANDSHAKES {
        bench.assert_sends(
            alice,
            "s",
            FrameKind::Handshake,
            HarnessFrameAction::Forward,
        );
        bench.assert_sends(alice, "s", FrameKind::Reset, HarnessFrameAction::Forward);
    }
    bench.assert_sends(alice, "s", FrameKind::Handshake, HarnessFrameAction::Reset);
}

#[test]
fn websocket_with_failed_handshakes_is_blocked() {
    let mut bench = DemuxBench::new();
    let (alice, bob) = (bench.demux.admit(ALICE), bench.demux.admit(BOB));
    for failure in 1..=limits::FAILED_HANDSHAKES {
        bench.assert_sends(
            alice,
            "s",
            FrameKind::Handshake,
            HarnessFrameAction::Forward,
        );
        let expected = if failure < limits::FAILED_HANDSHAKES {
            ExecutorFrameAction::Forward(alice)
        } else {
            ExecutorFrameAction::ForwardAndRefuse(alice)
        };
        assert_eq!(bench.answers("s", FrameKind::Reset), expected, "{failure}");
    }
    bench.assert_sends(bob, "t", FrameKind::Handshake, HarnessFrameAction::Forward);
    bench.assert_answers("t", FrameKind::Handshake, ExecutorFrameAction::Forward(bob));
}

#[test]
fn harness_with_failed_handshakes_is_blocked_for_a_minute() {
    let mut bench = DemuxBench::new();
    let bob = bench.demux.admit(BOB);
    for _ in 0..limits::FAILED_HANDSHAKES {
        let socket = bench.demux.admit(ALICE);
        bench.assert_sends(
            socket,
            "s",
            FrameKind::Handshake,
            HarnessFrameAction::Forward,
        );
        bench.answers("s", FrameKind::Reset);
        bench.demux.remove(socket);
    }
    let another = bench.demux.admit(ALICE);
    bench.assert_sends(
        another,
        "s",
        FrameKind::Handshake,
        HarnessFrameAction::Reset,
    );
    bench.assert_sends(bob, "t", FrameKind::Handshake, HarnessFrameAction::Forward);
    bench.now += Duration::from_secs(59);
    bench.assert_sends(
        another,
        "s",
        FrameKind::Handshake,
        HarnessFrameAction::Reset,
    );
    bench.now += Duration::from_secs(1);
    bench.assert_sends(
        another,
        "s",
        FrameKind::Handshake,
        HarnessFrameAction::Forward,
    );
}

#[test]
fn single_harness_cannot_trigger_the_executor_cooldown() {
    let mut bench = DemuxBench::new();
    let mut through = 0;
    for number in 0..100 {
        let socket = bench.demux.admit(ALICE);
        let stream = number.to_string();
        if bench.sends(socket, &stream, FrameKind::Handshake) == HarnessFrameAction::Forward {
            through += 1;
        }
        // Handshakes of closed websockets are not released.
        if number % 2 == 0 {
            bench.demux.remove(socket);
        }
    }
    assert_eq!(through, limits::EXECUTOR_FAILURES - 1);
    bench.now += limits::HANDSHAKE;
    let socket = bench.demux.admit(ALICE);
    bench.assert_sends(
        socket,
        "s",
        FrameKind::Handshake,
        HarnessFrameAction::Forward,
    );
}

#[test]
fn refusals_during_the_cooldown_do_not_count() {
    let mut bench = DemuxBench::new();
    for tag in 10..12 {
        let socket = bench.demux.admit(HarnessTag::from_bytes([tag; 16]));
        for _ in 0..limits::FAILED_HANDSHAKES {
            bench.sends(socket, "s", FrameKind::Handshake);
            bench.answers("s", FrameKind::Reset);
        }
        bench.demux.remove(socket);
    }
    let alice = bench.demux.admit(ALICE);
    for _ in 0..limits::FAILED_HANDSHAKES * 2 {
        bench.assert_sends(
            alice,
            "s",
            FrameKind::Handshake,
            HarnessFrameAction::Forward,
        );
        bench.assert_answers("s", FrameKind::Reset, ExecutorFrameAction::Forward(alice));
        bench.now += Duration::from_secs(1);
    }
}

#[test]
fn blocked_harness_uses_no_handshake_capacity() {
    let mut bench = DemuxBench::new();
    for _ in 0..1000 {
        let socket = bench.demux.admit(ALICE);
        bench.sends(socket, "s", FrameKind::Handshake);
        bench.demux.remove(socket);
    }
    let bob = bench.demux.admit(BOB);
    bench.assert_sends(bob, "t", FrameKind::Handshake, HarnessFrameAction::Forward);
}

#[test]
fn stream_end_after_the_handshake_is_not_a_failure() {
    let mut bench = DemuxBench::new();
    let alice = bench.demux.admit(ALICE);
    for _ in 0..limits::FAILED_HANDSHAKES * 2 {
        bench.sends(alice, "s", FrameKind::Handshake);
        bench.assert_answers(
            "s",
            FrameKind::Handshake,
            ExecutorFrameAction::Forward(alice),
        );
        bench.assert_answers("s", FrameKind::Reset, ExecutorFrameAction::Forward(alice));
    }
}

#[test]
fn stream_with_a_refused_second_handshake_is_reset_on_disconnect() {
    let mut bench = DemuxBench::new();
    let alice = bench.demux.admit(ALICE);
    bench.sends(alice, "s", FrameKind::Handshake);
    bench.answers("s", FrameKind::Handshake);
    bench.assert_sends(
        alice,
        "s",
        FrameKind::Handshake,
        HarnessFrameAction::Forward,
    );
    // The executor refuses the second handshake and keeps the stream.
    bench.assert_answers("s", FrameKind::Reset, ExecutorFrameAction::Forward(alice));
    bench.assert_answers("s", FrameKind::Data, ExecutorFrameAction::Forward(alice));
    assert_eq!(bench.demux.remove(alice), ["s".into()]);
}

#[test]
fn handshakes_per_environment_are_rate_limited() {
    let mut bench = DemuxBench::new();
    let attempt = |bench: &mut DemuxBench| {
        let circuit = bench.demux.admit(ALICE);
        let action = bench.sends(circuit, "s", FrameKind::Handshake);
        bench.answers("s", FrameKind::Handshake);
        bench.demux.remove(circuit);
        action
    };
    for _ in 0..limits::HANDSHAKE_BURST {
        assert_eq!(attempt(&mut bench), HarnessFrameAction::Forward);
    }
    assert_eq!(attempt(&mut bench), HarnessFrameAction::Reset);
    bench.now += limits::HANDSHAKE_INTERVAL;
    assert_eq!(attempt(&mut bench), HarnessFrameAction::Forward);
    assert_eq!(attempt(&mut bench), HarnessFrameAction::Reset);
    bench.now += Duration::from_secs(60);
    assert_eq!(attempt(&mut bench), HarnessFrameAction::Forward);
}

fn dial(registration: &str) -> DialRequest {
    DialRequest {
        environment: "env".parse().unwrap(),
        registration: registration.parse().unwrap(),
        harness: ALICE,
    }
}

fn attach(executor_table: &Arc<ExecutorTable>, registration: &str) -> super::TableAttachment {
    let DialRequest {
        environment,
        registration,
        ..
    } = dial(registration);
    executor_table.attach(environment, registration, ConnectionId::generate())
}

#[tokio::test]
async fn circuit_connects_to_the_websocket_of_its_registration() {
    let executor_table = Arc::new(ExecutorTable::default());
    assert_eq!(
        executor_table.dial(dial("a")).await.unwrap_err(),
        DialError::Offline
    );
    let mut attachment = attach(&executor_table, "a");
    assert_eq!(
        executor_table.dial(dial("b")).await.unwrap_err(),
        DialError::Offline
    );
    let mut harness = executor_table.dial(dial("a")).await.unwrap();
    let mut arrival = attachment.arrivals.recv().await.unwrap();
    assert_eq!(arrival.harness, ALICE);
    harness.sender.send("hello".into()).await.unwrap();
    assert_eq!(arrival.circuit.receiver.frame().await, Ok("hello".into()));
    drop(attachment);
    assert_eq!(
        executor_table.dial(dial("a")).await.unwrap_err(),
        DialError::Offline
    );
}

#[tokio::test]
async fn new_websocket_replaces_the_old_one() {
    let executor_table = Arc::new(ExecutorTable::default());
    let mut old = attach(&executor_table, "a");
    let mut new = attach(&executor_table, "a");
    assert_eq!((&mut old.evicted).await, Ok(CloseReason::Replaced));
    let _circuit = executor_table.dial(dial("a")).await.unwrap();
    assert!(new.arrivals.recv().await.is_some());
    assert_eq!(executor_table.attached().len(), 1);
}

#[tokio::test]
async fn detaching_the_old_websocket_keeps_the_new_one() {
    let executor_table = Arc::new(ExecutorTable::default());
    let old = attach(&executor_table, "a");
    let _new = attach(&executor_table, "a");
    drop(old);
    assert_eq!(executor_table.attached().len(), 1);
}

#[tokio::test]
async fn supersession_closes_only_other_registrations() {
    let executor_table = Arc::new(ExecutorTable::default());
    let (store, _disk) = on_disk();
    let DialRequest { environment, .. } = dial("a");
    register(&store, "a").await;
    let mut socket = attach(&executor_table, "a");
    executor_table.supersede(environment.clone(), &store).await;
    assert!(socket.evicted.try_recv().is_err());
    register(&store, "b").await;
    executor_table.supersede(environment.clone(), &store).await;
    assert_eq!((&mut socket.evicted).await, Ok(CloseReason::Replaced));
    let mut socket = attach(&executor_table, "c");
    store.remove(&environment).await.unwrap();
    executor_table.supersede(environment, &store).await;
    assert_eq!((&mut socket.evicted).await, Ok(CloseReason::Replaced));
    assert!(executor_table.attached().is_empty());
}

#[tokio::test]
async fn late_supersession_keeps_a_newer_registration() {
    let executor_table = Arc::new(ExecutorTable::default());
    let (store, _disk) = on_disk();
    let DialRequest { environment, .. } = dial("a");
    register(&store, "a").await;
    let late = executor_table.supersede(environment, &store);
    register(&store, "b").await;
    let mut socket = attach(&executor_table, "b");
    late.await;
    assert!(socket.evicted.try_recv().is_err());
}

async fn register(store: &RedbStore, id: &str) {
    let new = NewRegistration {
        environment: dial(id).environment,
        id: id.parse().unwrap(),
        executor_key: NoiseIdentity::generate().public_key().clone(),
        principal: "alice".parse().unwrap(),
        at: Timestamp::now(),
    };
    store.register(new).await.unwrap();
}

#[tokio::test]
async fn harnesses_per_executor_are_bounded() {
    let executor_table = Arc::new(ExecutorTable::default());
    let mut attachment = attach(&executor_table, "a");
    let mut circuits = Vec::new();
    for _ in 0..limits::HARNESSES_PER_EXECUTOR {
        let circuit = executor_table.dial(dial("a")).await.unwrap();
        circuits.push((circuit, attachment.arrivals.recv().await.unwrap()));
    }
    assert_eq!(
        executor_table.dial(dial("a")).await.unwrap_err(),
        DialError::Busy
    );
    circuits.pop();
    assert!(executor_table.dial(dial("a")).await.is_ok());
}
