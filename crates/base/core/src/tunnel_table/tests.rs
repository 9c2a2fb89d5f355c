use proptest::prelude::*;

use super::*;

fn id(name: &str) -> TunnelId {
    TunnelId::new(name).unwrap()
}

fn data(seq: u64, bytes: usize) -> TunnelMessage {
    TunnelMessage::Data {
        tunnel_id: id("t"),
        seq,
        chunk: Bytes::from(vec![7; bytes]),
    }
}

fn cursor(seq: u64) -> TunnelCursor {
    TunnelCursor {
        tunnel_id: id("t"),
        seq,
    }
}

/// A connected table with the open tunnel `t`.
fn table() -> (TunnelTable, TunnelKey) {
    let mut table = TunnelTable::default();
    table.handle_connected();
    let key = table.open(&id("t")).unwrap();
    (table, key)
}

/// Returns the reason of the only message, a close.
fn close_reason(table: &mut TunnelTable) -> String {
    match table.poll_message() {
        Some(TunnelMessage::Close(close)) => close.reason.unwrap_or_default(),
        other => panic!("expected a close, not {other:?}"),
    }
}

#[test]
fn violations_close_the_tunnel_with_a_reason() {
    let chunk = limits::TUNNEL_CHUNK_BYTES;
    let cases: [(Vec<TunnelMessage>, &str); 7] = [
        (vec![data(2, 1)], "unexpected event 2: expected 1"),
        (
            vec![data(0, 1)],
            "invalid event 0: events are numbered from 1",
        ),
        (
            vec![TunnelMessage::Shutdown(cursor(1)), data(2, 1)],
            "unexpected event 2 after shutdown",
        ),
        (
            vec![data(1, 1), TunnelMessage::Shutdown(cursor(3))],
            "unexpected event 3: expected 2",
        ),
        (
            vec![data(1, chunk + 1)],
            "chunk 1 has 65537 bytes: limit is 65536 bytes",
        ),
        (
            (1..=16).map(|seq| data(seq, chunk)).collect(),
            "event 16 exceeds the window of 1048576 bytes",
        ),
        (
            vec![TunnelMessage::Acknowledge(cursor(1))],
            "event 1 was acknowledged: 0 were sent",
        ),
    ];
    for (messages, reason) in cases {
        let (mut table, key) = table();
        messages
            .into_iter()
            .for_each(|message| table.handle_message(message));
        assert_eq!(close_reason(&mut table), reason);
        assert_eq!(table.closed(key).unwrap().reason, reason);
        assert!(table.is_empty());
        table.release(key);
        assert_eq!(table.held_bytes(), 0);
        assert!(table.tunnels.is_empty());
    }
}

#[test]
fn message_about_an_unknown_tunnel_is_answered_with_a_close() {
    let mut table = TunnelTable::default();
    table.handle_connected();
    for message in [
        data(1, 1),
        TunnelMessage::Shutdown(cursor(1)),
        TunnelMessage::Acknowledge(cursor(1)),
    ] {
        table.handle_message(message);
        assert_eq!(close_reason(&mut table), "unknown tunnel");
    }
    // A close is not answered, or both ends would go on forever.
    table.handle_message(TunnelMessage::Close(CloseTunnel {
        tunnel_id: id("t"),
        reason: None,
    }));
    assert_eq!(table.poll_message(), None);
}

#[test]
fn data_that_crosses_a_close_does_not_change_its_reason() {
    let (mut table, key) = table();
    table.close(key, Some("reset".to_owned()));
    table.handle_message(data(1, 1));
    assert_eq!(close_reason(&mut table), "reset");
    assert_eq!(table.poll_message(), None);
}

#[test]
fn received_data_can_be_read_after_a_close() {
    let (mut table, key) = table();
    table.handle_message(data(1, 3));
    table.handle_message(TunnelMessage::Close(CloseTunnel {
        tunnel_id: id("t"),
        reason: Some("reset".to_owned()),
    }));
    assert_eq!(
        table.read(key),
        TunnelRead::Data(Bytes::from_static(&[7; 3]))
    );
    let reason = "reset".to_owned();
    assert_eq!(table.read(key), TunnelRead::Closed(TunnelClosed { reason }));
    assert_eq!(table.poll_message(), None);
}

#[test]
fn ids_of_open_tunnels_are_refused_and_tunnels_are_bounded() {
    let (mut table, key) = table();
    assert_eq!(table.open(&id("t")), Err(TunnelIdError::InUse(id("t"))));
    for number in 1..limits::MAX_TUNNELS {
        table.open(&id(&number.to_string())).unwrap();
    }
    let full = Err(TunnelIdError::TooMany(limits::MAX_TUNNELS));
    assert_eq!(table.open(&id("more")), full);
    table.close(key, None);
    assert!(table.open(&id("more")).is_ok());
}

#[test]
fn reused_id_is_not_closed_by_an_earlier_close() {
    let (mut table, key) = table();
    table.close(key, None);
    table.open(&id("t")).unwrap();
    assert_eq!(table.poll_message(), None);
    table.handle_connected();
    assert_eq!(
        table.poll_message(),
        Some(TunnelMessage::Acknowledge(cursor(0)))
    );
    table.release(key);
    assert!(table.contains(&id("t")));
}

#[test]
fn close_is_repeated_on_the_next_connection() {
    let (mut table, key) = table();
    table.close(key, Some("reset".to_owned()));
    assert_eq!(close_reason(&mut table), "reset");
    table.handle_disconnected();
    table.handle_connected();
    assert_eq!(close_reason(&mut table), "reset");
    assert_eq!(table.poll_message(), None);
}

#[test]
fn registered_tunnel_is_silent_until_it_is_confirmed() {
    let mut table = TunnelTable::default();
    table.handle_connected();
    let key = table.register(&id("t")).unwrap();
    table.write(key, Bytes::from_static(b"x"));
    table.handle_connected();
    assert_eq!(table.poll_message(), None);
    table.confirm(key);
    assert!(matches!(
        table.poll_message(),
        Some(TunnelMessage::Data { seq: 1, .. })
    ));
    let key = table.register(&id("u")).unwrap();
    table.release(key);
    assert_eq!(table.poll_message(), None);
}

#[test]
fn accepted_tunnel_is_announced_until_the_peer_confirms_it() {
    let mut table = TunnelTable::default();
    let listener = ListenId::new("l").unwrap();
    table.announce(&id("t"), listener.clone()).unwrap();
    let incoming = IncomingTunnel {
        listen_id: listener,
        tunnel_id: id("t"),
    };
    let announced = Some(TunnelMessage::Incoming(incoming));
    for _ in 0..2 {
        table.handle_connected();
        assert_eq!(table.poll_message(), announced);
        assert_eq!(table.poll_message(), None);
    }
    table.handle_message(TunnelMessage::Acknowledge(cursor(0)));
    table.handle_connected();
    assert_eq!(
        table.poll_message(),
        Some(TunnelMessage::Acknowledge(cursor(0)))
    );
}

#[test]
fn tunnels_send_in_turn() {
    let mut table = TunnelTable::default();
    table.handle_connected();
    for name in ["a", "b"] {
        let key = table.open(&id(name)).unwrap();
        for _ in 0..3 {
            table.write(key, Bytes::from_static(b"x"));
        }
    }
    let sent = std::iter::from_fn(|| table.poll_message()).map(|message| {
        let TunnelMessage::Data { tunnel_id, .. } = message else {
            panic!("{message:?}");
        };
        tunnel_id.as_str().to_owned()
    });
    assert_eq!(sent.collect::<String>(), "ababab");
}

#[test]
fn limit_of_all_tunnels_follows_from_the_others() {
    let reserved = limits::MAX_TUNNELS * limits::TUNNEL_RESERVED_BYTES;
    let needed = limits::TUNNELS_SHARED_BYTES + reserved + limits::TUNNEL_WINDOW_BYTES;
    assert_eq!(limits::MAX_TUNNELS_BYTES, needed);
}

#[test]
fn slow_tunnels_leave_others_their_reserve() {
    let mut table = TunnelTable::default();
    table.handle_connected();
    let fill = |table: &mut TunnelTable, key| {
        let mut written = 0;
        loop {
            let bytes = table.capacity(key).unwrap();
            if bytes == 0 {
                return written;
            }
            table.write(key, Bytes::from(vec![0; bytes]));
            written += bytes;
        }
    };
    let keys: Vec<_> = (0..limits::MAX_TUNNELS)
        .map(|number| table.open(&id(&number.to_string())).unwrap())
        .collect();
    let written: Vec<_> = keys.iter().map(|key| fill(&mut table, *key)).collect();
    assert!(written[0] > limits::TUNNEL_WINDOW_BYTES * 9 / 10);
    let last = *written.last().unwrap();
    assert!(last > limits::TUNNEL_RESERVED_BYTES * 9 / 10 && last < limits::TUNNEL_WINDOW_BYTES);
    assert!(table.held_bytes() <= limits::MAX_TUNNELS_BYTES);
    table.take_woken();
    // The end of slow tunnels gives their share to the others.
    keys[..64].iter().for_each(|key| table.close(*key, None));
    let waiting = TunnelWakeup::Writer(keys[limits::MAX_TUNNELS - 1]);
    assert!(table.take_woken().contains(&waiting));
    assert!(fill(&mut table, keys[limits::MAX_TUNNELS - 1]) > 0);
}

#[test]
fn data_is_delivered_after_the_writer_is_gone() {
    let (mut here, key) = table();
    let (mut there, far) = table();
    here.write(key, Bytes::from_static(b"bye"));
    here.shutdown(key);
    here.release(key);
    while let Some(message) = here.poll_message() {
        there.handle_message(message);
    }
    assert_eq!(
        there.read(far),
        TunnelRead::Data(Bytes::from_static(b"bye"))
    );
    assert_eq!(there.read(far), TunnelRead::End);
    there.write(far, Bytes::from_static(b"nobody reads this"));
    while let Some(message) = there.poll_message() {
        here.handle_message(message);
    }
    assert!(here.tunnels.is_empty() && here.held_bytes() == 0);
    // The other end learns that nobody reads.
    there.handle_message(here.poll_message().unwrap());
    assert!(there.closed(far).is_some());
}

#[test]
fn shutdown_is_acknowledged_once_the_reader_asks_for_more_than_the_data() {
    let (mut here, key) = table();
    let (mut there, far) = table();
    here.write(key, Bytes::from_static(b"bye"));
    here.shutdown(key);
    here.release(key);
    while let Some(message) = here.poll_message() {
        there.handle_message(message);
    }
    assert!(matches!(there.read(far), TunnelRead::Data(_)));
    // The reader may not have passed it on.
    assert_eq!(there.poll_message(), None);
    assert_eq!(there.read(far), TunnelRead::End);
    let cursor = TunnelCursor {
        tunnel_id: id("t"),
        seq: 2,
    };
    let acknowledged = there.poll_message();
    assert_eq!(acknowledged, Some(TunnelMessage::Acknowledge(cursor)));
}

#[test]
fn release_without_shutdown_closes_at_once() {
    let (mut table, key) = table();
    table.write(key, Bytes::from_static(b"lost"));
    table.release(key);
    assert_eq!(close_reason(&mut table), "");
    assert_eq!(table.poll_message(), None);
    assert_eq!(table.held_bytes(), 0);
}

/// Two tables and what is on the way between them.
struct Link {
    ends: [TunnelTable; 2],
    wires: [VecDeque<TunnelMessage>; 2],
    tunnels: Vec<[Side; 2]>,
    connected: bool,
}

struct Side {
    key: TunnelKey,
    written: Vec<u8>,
    read: Vec<u8>,
    is_shut: bool,
    has_end: bool,
}

impl Link {
    fn new(tunnels: u8) -> Self {
        let mut ends = [TunnelTable::default(), TunnelTable::default()];
        let tunnels = (0..tunnels).map(|number| {
            let id = id(&number.to_string());
            [0, 1].map(|end| Side {
                key: TunnelTable::open(&mut ends[end], &id).unwrap(),
                written: Vec::new(),
                read: Vec::new(),
                is_shut: false,
                has_end: false,
            })
        });
        let tunnels = tunnels.collect();
        let mut link = Self {
            ends,
            wires: Default::default(),
            tunnels,
            connected: false,
        };
        link.connect();
        link
    }

    fn connect(&mut self) {
        self.connected = true;
        self.ends.iter_mut().for_each(TunnelTable::handle_connected);
    }

    fn cut(&mut self) {
        self.connected = false;
        self.wires.iter_mut().for_each(VecDeque::clear);
        self.ends
            .iter_mut()
            .for_each(TunnelTable::handle_disconnected);
    }

    fn send(&mut self, end: usize, most: usize) {
        for _ in 0..most {
            match self.ends[end].poll_message() {
                Some(message) => self.wires[end].push_back(message),
                None => break,
            }
        }
    }

    fn receive(&mut self, end: usize, most: usize) {
        for _ in 0..most {
            match self.wires[1 - end].pop_front() {
                Some(message) => self.ends[end].handle_message(message),
                None => break,
            }
        }
    }

    fn write(&mut self, tunnel: usize, end: usize, bytes: usize) {
        let side = &mut self.tunnels[tunnel][end];
        if side.is_shut {
            return;
        }
        let capacity = self.ends[end].capacity(side.key).unwrap();
        let start = side.written.len();
        let fill =
            (start..start + bytes.min(capacity)).map(|at| u8::try_from(at * 31 / 7 % 251).unwrap());
        let data: Vec<u8> = fill.collect();
        side.written.extend_from_slice(&data);
        self.ends[end].write(side.key, data.into());
    }

    fn shutdown(&mut self, tunnel: usize, end: usize) {
        let side = &mut self.tunnels[tunnel][end];
        side.is_shut = true;
        self.ends[end].shutdown(side.key);
    }

    fn read(&mut self, tunnel: usize, end: usize) -> bool {
        let side = &mut self.tunnels[tunnel][end];
        match self.ends[end].read(side.key) {
            TunnelRead::Data(data) => side.read.extend_from_slice(&data),
            TunnelRead::End => side.has_end = true,
            TunnelRead::Pending => return false,
            TunnelRead::Closed(closed) => panic!("closed: {closed}"),
        }
        !side.has_end
    }

    /// Lets everything arrive.
    fn settle(&mut self) {
        loop {
            (0..2).for_each(|end| self.send(end, usize::MAX));
            if self.wires.iter().all(VecDeque::is_empty) {
                break;
            }
            (0..2).for_each(|end| self.receive(end, usize::MAX));
            for tunnel in 0..self.tunnels.len() {
                (0..2).for_each(|end| while self.read(tunnel, end) {});
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// Whatever is cut and when, each reader gets what was written, once and in order, and at the
    /// end no end holds anything.
    #[test]
    fn every_byte_arrives_once_over_a_link_that_breaks(
        steps in prop::collection::vec((0u8..12, 0usize..3, 0usize..2, 1usize..70_000), 0..200),
    ) {
        let mut link = Link::new(3);
        for (kind, tunnel, end, size) in steps {
            match kind {
                0..=2 => link.write(tunnel, end, size),
                3 => link.write(tunnel, end, size % 5 + 1),
                4 | 5 => { link.read(tunnel, end); }
                6 | 7 => link.send(end, size % 7),
                8 | 9 => link.receive(end, size % 7),
                10 if size % 4 == 0 => link.shutdown(tunnel, end),
                10 => {}
                _ if link.connected => link.cut(),
                _ => link.connect(),
            }
            for end in &link.ends {
                let unacked: usize = end.tunnels.values().map(Tunnel::unacked_bytes).sum();
                let unread: usize = end.tunnels.values().map(Tunnel::unread_bytes).sum();
                prop_assert_eq!((unacked, unread), (end.unacked, end.unread));
            }
        }
        if !link.connected { link.connect(); }
        link.settle();
        // A cut during the last messages.
        for (tunnel, end) in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)] {
            link.shutdown(tunnel, end);
        }
        (0..2).for_each(|end| link.send(end, 2));
        link.receive(0, 1);
        link.cut();
        link.connect();
        link.settle();
        link.cut();
        link.connect();
        link.settle();
        for sides in &link.tunnels {
            for (side, other) in [(&sides[0], &sides[1]), (&sides[1], &sides[0])] {
                prop_assert!(side.has_end);
                prop_assert!(side.read == other.written);
            }
        }
        for (end, table) in link.ends.iter_mut().enumerate() {
            prop_assert!(table.is_empty(), "{table:?}");
            prop_assert_eq!(table.held_bytes(), 0);
            for sides in &link.tunnels {
                table.release(sides[end].key);
            }
            prop_assert!(table.tunnels.is_empty() && table.ready.is_empty());
        }
    }
}
