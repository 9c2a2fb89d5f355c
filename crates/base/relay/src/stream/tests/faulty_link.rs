//! Two streams over faulty links in virtual time: each message arrives once, whole and in order.

use std::collections::BTreeMap;

use super::*;

const PERFECT: LinkFaults = LinkFaults {
    delay: 1,
    jitter: 0,
    drop_percent: 0,
    duplicate_percent: 0,
};

/// Seeded random number generator: splitmix64.
struct Rng64(u64);

impl Rng64 {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// Faults of a link.
#[derive(Clone, Copy, Debug)]
struct LinkFaults {
    /// Delay of every frame in milliseconds.
    delay: u64,
    /// Maximum additional random delay in milliseconds, which causes reordering.
    jitter: u64,
    drop_percent: u64,
    duplicate_percent: u64,
}

/// One direction of a connection.
struct FaultyLink {
    faults: LinkFaults,
    rng: Rng64,
    frames: BTreeMap<(Instant, u64), Bytes>,
    count: u64,
}

impl FaultyLink {
    fn new(faults: LinkFaults, seed: u64) -> Self {
        Self {
            faults,
            rng: Rng64::new(seed),
            frames: BTreeMap::new(),
            count: 0,
        }
    }

    fn send(&mut self, frame: Bytes, now: Instant) {
        if self.rng.percent(self.faults.drop_percent) {
            return;
        }
        let copies = 1 + u64::from(self.rng.percent(self.faults.duplicate_percent));
        for _ in 0..copies {
            let late = self.rng.below(self.faults.jitter + 1);
            self.count += 1;
            let key = (now + ms(self.faults.delay + late), self.count);
            // Copy: received frames never share their buffer with retained ones.
            self.frames.insert(key, Bytes::copy_from_slice(&frame));
        }
    }

    fn receive(&mut self, now: Instant) -> Option<Bytes> {
        let entry = self.frames.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }

    /// Drops all frames in flight.
    fn cut(&mut self) {
        self.frames.clear();
    }

    fn next(&self) -> Option<Instant> {
        self.frames.keys().next().map(|key| key.0)
    }
}

/// Parameters of a run.
#[derive(Clone, Copy)]
struct RunOptions {
    faults: LinkFaults,
    /// Messages in each direction.
    messages: u64,
    /// Chance per message of losing the connection around that time.
    cut_percent: u64,
    /// Chance per step that an application stops reading for a while.
    stall_percent: u64,
}

/// Two streams, their links and their applications.
struct StreamPair {
    streams: [RelayStream; 2],
    /// Links in the direction from the stream with the same index.
    links: [FaultyLink; 2],
    sent: [u64; 2],
    received: [u64; 2],
    /// Time until which an application sends nothing.
    silent_until: [Instant; 2],
    /// Time until which an application does not read.
    stalled_until: [Instant; 2],
    /// Time of the reconnect. Absent: connected.
    reconnect: Option<Instant>,
    cuts: u64,
    /// Next new record of each stream, and the number of retransmissions.
    records: [u32; 2],
    retransmissions: u64,
    now: Instant,
    rng: Rng64,
    plan: RunOptions,
}

impl StreamPair {
    fn new(plan: RunOptions, seed: u64) -> Self {
        let (a, b) = stream_pair(DeliveryMode::Reliable);
        Self {
            streams: [a, b],
            links: [
                FaultyLink::new(plan.faults, !seed),
                FaultyLink::new(plan.faults, seed ^ 0x5555),
            ],
            sent: [0; 2],
            received: [0; 2],
            silent_until: [epoch(); 2],
            stalled_until: [epoch(); 2],
            reconnect: None,
            cuts: 0,
            records: [0; 2],
            retransmissions: 0,
            now: epoch(),
            rng: Rng64::new(seed),
            plan,
        }
    }

    /// Runs until everything is delivered and acknowledged.
    fn run(mut self, seed: u64) -> Self {
        let limit = epoch() + Duration::from_secs(3600);
        while !self.is_complete() {
            self.exchange(seed);
            // Read received frames and send the results at the same virtual time.
            self.run_applications();
            self.exchange(seed);
            if self.is_complete() {
                break;
            }
            let next = self.next_event();
            assert!(next < limit, "seed {seed} stalls: {:?}", self.received);
            self.now = self.now.max(next);
        }
        self
    }

    fn is_complete(&self) -> bool {
        self.received == [self.plan.messages; 2]
            && self.streams.iter().all(|end| end.unacknowledged() == 0)
    }

    fn run_applications(&mut self) {
        for side in 0..2 {
            while self.wants_to_push(side) {
                let message = message(side, self.sent[side]);
                push(&mut self.streams[side], &message);
                self.sent[side] += 1;
                if self.rng.percent(20) {
                    self.silent_until[side] = self.now + ms(self.rng.below(200));
                }
                if self.reconnect.is_none() && self.rng.percent(self.plan.cut_percent) {
                    self.cut();
                }
            }
            if self.stalled_until[side] > self.now {
                continue;
            }
            while let Some(received) = self.streams[side].poll_message() {
                let expected = message(1 - side, self.received[side]);
                assert!(received == expected, "message {}", self.received[side]);
                self.received[side] += 1;
                if self.rng.percent(self.plan.stall_percent) {
                    self.stalled_until[side] = self.now + ms(self.rng.below(3000));
                    break;
                }
            }
        }
    }

    fn wants_to_push(&self, side: usize) -> bool {
        self.sent[side] < self.plan.messages
            && self.silent_until[side] <= self.now
            && self.streams[side].buffered() < 1 << 20
    }

    /// Loses the connection. A stream may not notice it. The first stream is the one that
    /// reconnects.
    fn cut(&mut self) {
        self.cuts += 1;
        for link in &mut self.links {
            link.cut();
        }
        self.streams[0].handle_disconnect(self.now);
        if self.rng.percent(70) {
            self.streams[1].handle_disconnect(self.now);
        }
        self.reconnect = Some(self.now + ms(self.rng.below(400)));
    }

    fn exchange(&mut self, seed: u64) {
        if self.reconnect.is_some_and(|at| at <= self.now) {
            self.reconnect = None;
            self.streams[0].handle_reconnect(self.now);
            // The other stream learns about it from its connection or only from `Resume`.
            if self.rng.percent(50) {
                self.streams[1].handle_reconnect(self.now);
            }
        }
        for side in 0..2 {
            while let Some(bytes) = self.links[side].receive(self.now) {
                let frame = RelayFrame::decode(bytes).unwrap();
                let result = self.streams[1 - side].handle_frame(frame, self.now);
                assert_eq!(result, Ok(()), "seed {seed}");
            }
            if self.streams[side]
                .poll_timeout()
                .is_some_and(|at| at <= self.now)
            {
                let result = self.streams[side].handle_timeout(self.now);
                assert_eq!(result, Ok(()), "seed {seed}");
            }
            assert!(
                self.streams[side]
                    .poll_timeout()
                    .is_none_or(|at| at > self.now),
                "seed {seed}: the driver would spin"
            );
        }
        for side in 0..2 {
            while let Some(frame) = self.streams[side].poll_frame(self.now) {
                self.count(side, &frame);
                if self.reconnect.is_none() {
                    self.links[side].send(frame, self.now);
                }
            }
        }
    }

    fn count(&mut self, side: usize, frame: &Bytes) {
        let FrameBody::Data(data) = RelayFrame::decode(frame.clone()).unwrap().body else {
            return;
        };
        if data.seq == self.records[side] {
            self.records[side] += 1;
        } else {
            self.retransmissions += 1;
        }
    }

    fn next_event(&self) -> Instant {
        let links = self.links.iter().filter_map(FaultyLink::next);
        let timers = self.streams.iter().filter_map(RelayStream::poll_timeout);
        let stalls = self.stalled_until.into_iter().filter(|at| *at > self.now);
        let pauses = (0..2)
            .filter(|side| self.sent[*side] < self.plan.messages)
            .map(|side| self.silent_until[side])
            .filter(|at| *at > self.now);
        let pushes = (0..2).any(|side| self.wants_to_push(side));
        links
            .chain(timers)
            .chain(stalls)
            .chain(self.reconnect)
            .chain(pauses)
            .chain(pushes.then_some(self.now))
            .min()
            .unwrap_or(self.now + ms(1))
            .max(self.now)
    }
}

/// Returns the n-th message of a side: arbitrary length, all different.
fn message(side: usize, n: u64) -> Vec<u8> {
    let side = u8::try_from(side).unwrap();
    let mut rng = Rng64::new(n << 1 | u64::from(side));
    let len = match rng.below(20) {
        0 => 60_000 + rng.below(3000),
        1 => rng.below(300_000),
        _ => rng.below(300),
    };
    let mut message = n.to_le_bytes().to_vec();
    message.resize(message.len() + usize::try_from(len).unwrap(), side | 0x40);
    message
}

/// Runs many seeds and returns the number of lost connections.
fn run_seeds(seeds: u64, plan: RunOptions) -> u64 {
    (0..seeds)
        .map(|seed| StreamPair::new(plan, seed).run(seed).cuts)
        .sum()
}

const STEADY_RUN: RunOptions = RunOptions {
    faults: PERFECT,
    messages: 100,
    cut_percent: 0,
    stall_percent: 0,
};

#[test]
fn perfect_link_carries_no_retransmissions() {
    for delay in [1, 90] {
        let faults = LinkFaults { delay, ..PERFECT };
        let pair = StreamPair::new(
            RunOptions {
                faults,
                ..STEADY_RUN
            },
            1,
        )
        .run(1);
        assert_eq!((pair.received, pair.retransmissions), ([100; 2], 0));
    }
}

#[test]
fn only_lost_records_are_retransmitted() {
    let faults = LinkFaults {
        delay: 10,
        drop_percent: 2,
        ..PERFECT
    };
    let plan = RunOptions {
        faults,
        messages: 1000,
        ..STEADY_RUN
    };
    let pair = StreamPair::new(plan, 1).run(1);
    let records = u64::from(pair.records[0] + pair.records[1]);
    assert!(pair.retransmissions > records / 100);
    assert!(
        pair.retransmissions < records / 5,
        "{} of {records}",
        pair.retransmissions
    );
}

#[test]
fn messages_survive_delay_and_reordering() {
    let faults = LinkFaults {
        delay: 20,
        jitter: 40,
        ..PERFECT
    };
    run_seeds(
        60,
        RunOptions {
            faults,
            ..STEADY_RUN
        },
    );
}

#[test]
fn messages_survive_loss() {
    for drop_percent in [1, 10, 30] {
        let faults = LinkFaults {
            delay: 10,
            drop_percent,
            ..PERFECT
        };
        run_seeds(
            40,
            RunOptions {
                faults,
                ..STEADY_RUN
            },
        );
    }
}

#[test]
fn messages_survive_duplication() {
    let faults = LinkFaults {
        delay: 5,
        jitter: 50,
        duplicate_percent: 50,
        ..PERFECT
    };
    run_seeds(
        40,
        RunOptions {
            faults,
            ..STEADY_RUN
        },
    );
}

#[test]
fn messages_survive_connection_loss_exactly_once() {
    let faults = LinkFaults {
        delay: 15,
        ..PERFECT
    };
    let cuts = run_seeds(
        60,
        RunOptions {
            faults,
            cut_percent: 5,
            ..STEADY_RUN
        },
    );
    assert!(cuts > 200, "{cuts}");
}

#[test]
fn messages_survive_stalled_readers() {
    run_seeds(
        40,
        RunOptions {
            stall_percent: 5,
            messages: 300,
            ..STEADY_RUN
        },
    );
}

#[test]
fn messages_survive_all_faults_combined() {
    let faults = LinkFaults {
        delay: 10,
        jitter: 30,
        drop_percent: 10,
        duplicate_percent: 10,
    };
    let plan = RunOptions {
        faults,
        messages: 150,
        cut_percent: 3,
        stall_percent: 3,
    };
    let cuts = run_seeds(100, plan);
    assert!(cuts > 300, "{cuts}");
}
