use std::{
    fs,
    io::{PipeReader, Read, pipe},
    os::fd::AsFd,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
        socket_with,
    },
    process::{Pid, Resource, Rlimit, Signal, pidfd_send_signal, prlimit},
};

use super::{
    keeper_message::{KeeperMessage, KeeperMessageKind, PROTOCOL_VERSION, ReceivedMessage},
    *,
};

/// Longest wait for another process.
const WAIT: Duration = Duration::from_secs(10);
const RECORD: [u8; 16] = *b"0123456789abcdef";

/// A directory for a keeper's socket.
struct Fixture {
    directory: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("keeper.sock")
    }

    fn start(&self) -> KeeperClient {
        KeeperClient::connect_or_start(&self.socket(), Path::new("/proc/self/exe")).unwrap()
    }

    /// Connects without a client, for messages that a client does not send.
    fn connect_raw(&self) -> OwnedFd {
        let socket = seqpacket();
        connect(&socket, &SocketAddrUnix::new(self.socket()).unwrap()).unwrap();
        socket
    }

    fn connect_greeted(&self) -> OwnedFd {
        let socket = self.connect_raw();
        hello(PROTOCOL_VERSION).send(&socket, &[]).unwrap();
        assert_eq!(answer(&socket).unwrap().kind, KeeperMessageKind::Hello);
        socket
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // A keeper that holds a record would go on. The pid is that of a fake keeper otherwise.
        if let Ok(Some(keeper)) = KeeperClient::connect(&self.socket())
            && keeper.pid() != std::process::id()
        {
            pidfd_send_signal(keeper.exit_descriptor(), Signal::KILL).unwrap();
        }
    }
}

fn seqpacket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn hello(version: u32) -> KeeperMessage {
    KeeperMessage {
        value: version,
        ..KeeperMessage::new(KeeperMessageKind::Hello)
    }
}

/// Waits until a descriptor is readable or closed.
fn wait_readable(descriptor: impl AsFd) {
    let timeout = Timespec::try_from(WAIT).unwrap();
    let mut fds = [PollFd::new(&descriptor, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&timeout)), Ok(1), "nothing in {WAIT:?}");
}

/// Receives a message. `None`: the socket was closed.
fn answer(socket: &OwnedFd) -> Option<KeeperMessage> {
    wait_readable(socket);
    match ReceivedMessage::receive(socket) {
        Ok(ReceivedMessage::Complete(message, _)) => Some(message),
        Ok(ReceivedMessage::Closed) | Err(Errno::CONNRESET) => None,
        other => panic!("unexpected message: {other:?}"),
    }
}

/// Waits until all write ends of a pipe are closed.
fn wait_closed(mut pipe: PipeReader) {
    wait_readable(&pipe);
    assert_eq!(pipe.read(&mut [0]).unwrap(), 0, "a write end is open");
}

#[test]
fn held_descriptors_are_returned_to_the_next_client() {
    let fixture = Fixture::new();
    let client = fixture.start();
    let (read, write) = pipe().unwrap();
    let slots = [
        (KeeperSlot::Stdout, read.as_fd()),
        (KeeperSlot::Control, write.as_fd()),
    ];
    client.hold(&RECORD, &slots).unwrap();
    client
        .hold(&[1; 16], &[(KeeperSlot::Terminal, read.as_fd())])
        .unwrap();
    drop((read, client));
    let next = KeeperClient::connect(&fixture.socket()).unwrap().unwrap();
    drop(write);
    let mut records = next.list().unwrap();
    assert_eq!(records.len(), 2);
    assert_eq!(records[0].record, [1; 16]);
    assert_eq!(records[1].record, RECORD);
    let mut held = records.remove(1).descriptors;
    let slots: Vec<KeeperSlot> = held.keys().copied().collect();
    assert_eq!(slots, [KeeperSlot::Control, KeeperSlot::Stdout]);
    let write = held.remove(&KeeperSlot::Control).unwrap();
    rustix::io::write(&write, b"x").unwrap();
    let read = held.remove(&KeeperSlot::Stdout).unwrap();
    wait_readable(&read);
    for record in [[1; 16], RECORD] {
        next.drop_record(&record).unwrap();
    }
    assert!(next.list().unwrap().is_empty());
}

#[test]
fn released_and_dropped_descriptors_are_closed() {
    let fixture = Fixture::new();
    let client = fixture.start();
    let (first, first_write) = pipe().unwrap();
    let (second, second_write) = pipe().unwrap();
    let slots = [
        (KeeperSlot::Stdin, first_write.as_fd()),
        (KeeperSlot::HoldWrite, second_write.as_fd()),
    ];
    client.hold(&RECORD, &slots).unwrap();
    drop((first_write, second_write));
    client.release(&RECORD, KeeperSlot::Stdin).unwrap();
    wait_closed(first);
    let record = client.list().unwrap().remove(0);
    assert_eq!(record.descriptors.len(), 1);
    drop(record);
    client.drop_record(&RECORD).unwrap();
    wait_closed(second);
    assert!(client.list().unwrap().is_empty());
    // Repetition changes nothing.
    client.release(&RECORD, KeeperSlot::Stdin).unwrap();
    client.drop_record(&RECORD).unwrap();
}

#[test]
fn replaced_descriptor_is_closed() {
    let fixture = Fixture::new();
    let client = fixture.start();
    let (read, write) = pipe().unwrap();
    client
        .hold(&RECORD, &[(KeeperSlot::Stdin, write.as_fd())])
        .unwrap();
    drop(write);
    client
        .hold(&RECORD, &[(KeeperSlot::Stdin, read.as_fd())])
        .unwrap();
    wait_closed(read);
    client.drop_record(&RECORD).unwrap();
}

#[test]
fn malformed_message_disconnects_only_its_sender() {
    let fixture = Fixture::new();
    let client = fixture.start();
    let (read, _write) = pipe().unwrap();
    client
        .hold(&RECORD, &[(KeeperSlot::Stdout, read.as_fd())])
        .unwrap();
    let valid = hello(PROTOCOL_VERSION).encode();
    let with_word = |index: usize, word: u32| {
        let mut bytes = KeeperMessage::new(KeeperMessageKind::Hold).encode();
        bytes[index * 4..index * 4 + 4].copy_from_slice(&word.to_le_bytes());
        bytes.to_vec()
    };
    let messages = [
        // Truncated, too long, unknown kind, an answer, unknown slot, no slot, no descriptor.
        valid[..31].to_vec(),
        valid[..1].to_vec(),
        [&valid[..], &[0]].concat(),
        vec![0; 70_000],
        with_word(0, 77),
        with_word(0, KeeperMessageKind::Ack as u32),
        with_word(3, 1 << MAX_SLOTS),
        with_word(3, 0),
        with_word(3, 1),
        valid.to_vec(),
    ];
    for message in messages {
        let socket = fixture.connect_greeted();
        rustix::io::write(&socket, &message).unwrap();
        assert_eq!(
            answer(&socket),
            None,
            "{:?}",
            &message[..message.len().min(32)]
        );
    }
    assert_eq!(client.list().unwrap().len(), 1);
}

#[test]
fn wrong_number_of_descriptors_disconnects_only_its_sender() {
    let fixture = Fixture::new();
    let client = fixture.start();
    let (read, _write) = pipe().unwrap();
    let request = |kind, slots| KeeperMessage {
        slots,
        ..KeeperMessage::new(kind)
    };
    for (request, count) in [
        (request(KeeperMessageKind::Hold, 0b11), 1),
        (request(KeeperMessageKind::Hold, 0b11), 3),
        (request(KeeperMessageKind::Hold, 0b1111_1111_1111), 11),
        (request(KeeperMessageKind::Next, 0), 1),
        (request(KeeperMessageKind::StartSpawner, 0), 1),
    ] {
        let socket = fixture.connect_greeted();
        request.send(&socket, &vec![read.as_fd(); count]).unwrap();
        assert_eq!(answer(&socket), None, "{request:?} with {count}");
    }
    assert!(client.list().unwrap().is_empty());
}

#[test]
fn request_before_the_version_disconnects() {
    let fixture = Fixture::new();
    let _client = fixture.start();
    let socket = fixture.connect_raw();
    KeeperMessage::new(KeeperMessageKind::Next)
        .send(&socket, &[])
        .unwrap();
    assert_eq!(answer(&socket), None);
}

#[test]
fn client_of_another_version_learns_the_version_and_is_disconnected() {
    let fixture = Fixture::new();
    let _client = fixture.start();
    let socket = fixture.connect_raw();
    hello(PROTOCOL_VERSION + 1).send(&socket, &[]).unwrap();
    assert_eq!(answer(&socket).unwrap().value, PROTOCOL_VERSION);
    assert_eq!(answer(&socket), None);
}

/// Listens in the place of a keeper, and calls `serve` with one connection.
fn fake_keeper(
    fixture: &Fixture,
    serve: impl FnOnce(OwnedFd) + Send + 'static,
) -> thread::JoinHandle<()> {
    let listener = seqpacket();
    bind(&listener, &SocketAddrUnix::new(fixture.socket()).unwrap()).unwrap();
    listen(&listener, 8).unwrap();
    thread::spawn(move || serve(accept_with(&listener, SocketFlags::CLOEXEC).unwrap()))
}

#[test]
fn keeper_of_another_version_is_an_error() {
    let fixture = Fixture::new();
    let keeper = fake_keeper(&fixture, |socket| {
        let request = answer(&socket).unwrap();
        let version = KeeperMessage {
            value: 7,
            ..request
        };
        version.send(&socket, &[]).unwrap();
    });
    let result = KeeperClient::connect(&fixture.socket());
    assert!(
        matches!(result, Err(KeeperError::Version { theirs: 7, .. })),
        "{result:?}"
    );
    keeper.join().unwrap();
}

#[test]
fn keeper_that_does_not_answer_is_an_error_in_bounded_time() {
    let fixture = Fixture::new();
    let (wait, done) = pipe().unwrap();
    let keeper = fake_keeper(&fixture, move |socket| {
        wait_closed(wait);
        drop(socket);
    });
    let start = Instant::now();
    let result = KeeperClient::connect(&fixture.socket());
    assert!(
        matches!(result, Err(KeeperError::Unresponsive { .. })),
        "{result:?}"
    );
    assert!(start.elapsed() < WAIT);
    drop(done);
    keeper.join().unwrap();
}

#[test]
fn late_answer_is_not_taken_for_the_next_one() {
    let fixture = Fixture::new();
    let keeper = fake_keeper(&fixture, |socket| {
        let greeting = answer(&socket).unwrap();
        greeting.send(&socket, &[]).unwrap();
        let late = answer(&socket).unwrap();
        let next = answer(&socket).unwrap();
        for (request, kind) in [
            (late, KeeperMessageKind::End),
            (next, KeeperMessageKind::Ack),
        ] {
            let sequence = request.sequence;
            let message = KeeperMessage {
                sequence,
                ..KeeperMessage::new(kind)
            };
            message.send(&socket, &[]).unwrap();
        }
    });
    let client = KeeperClient::connect(&fixture.socket()).unwrap().unwrap();
    let result = client.list();
    assert!(
        matches!(result, Err(KeeperError::Unresponsive { .. })),
        "{result:?}"
    );
    client.drop_record(&RECORD).unwrap();
    keeper.join().unwrap();
}

#[test]
fn stopped_keeper_is_continued() {
    let fixture = Fixture::new();
    let client = fixture.start();
    pidfd_send_signal(client.exit_descriptor(), Signal::STOP).unwrap();
    assert!(client.list().unwrap().is_empty());
}

#[test]
fn keeper_that_is_stopped_in_a_loop_delays_a_call_by_a_bounded_time() {
    let fixture = Fixture::new();
    let client = fixture.start();
    let pidfd = client.exit_descriptor().try_clone_to_owned().unwrap();
    let (stop, running) = pipe().unwrap();
    let attacker = thread::spawn(move || {
        let mut fds = [PollFd::new(&stop, PollFlags::IN)];
        while poll(&mut fds, Some(&Timespec::default())) == Ok(0) {
            pidfd_send_signal(&pidfd, Signal::STOP).unwrap();
        }
    });
    let start = Instant::now();
    let result = client.list();
    assert!(
        matches!(result, Ok(_) | Err(KeeperError::Unresponsive { .. })),
        "{result:?}"
    );
    assert!(start.elapsed() < WAIT);
    drop(running);
    attacker.join().unwrap();
    assert!(client.list().unwrap().is_empty());
}

#[test]
fn keeper_ignores_signals_that_end_servers() {
    let fixture = Fixture::new();
    let client = fixture.start();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::PIPE] {
        pidfd_send_signal(client.exit_descriptor(), signal).unwrap();
    }
    assert!(client.list().unwrap().is_empty());
    assert!(!client.has_exited());
}

#[test]
fn full_keeper_refuses_another_record() {
    let fixture = Fixture::new();
    let client = fixture.start();
    let (read, _write) = pipe().unwrap();
    let slots = [(KeeperSlot::Stdout, read.as_fd())];
    let record = |index: u128| index.to_be_bytes();
    for index in 0..MAX_RECORDS as u128 {
        client.hold(&record(index), &slots).unwrap();
    }
    let result = client.hold(&record(MAX_RECORDS as u128), &slots);
    assert!(matches!(result, Err(KeeperError::Full)), "{result:?}");
    // A record that exists can still change.
    client.hold(&record(0), &slots).unwrap();
    client.drop_record(&record(1)).unwrap();
    client.hold(&record(MAX_RECORDS as u128), &slots).unwrap();
}

#[test]
fn keeper_without_free_descriptors_refuses_and_goes_on() {
    let fixture = Fixture::new();
    let client = fixture.start();
    let few = Rlimit {
        current: Some(16),
        maximum: Some(16),
    };
    prlimit(
        Pid::from_raw(client.pid().cast_signed()),
        Resource::Nofile,
        few,
    )
    .unwrap();
    let (read, write) = pipe().unwrap();
    let slots = [
        (KeeperSlot::Stdout, read.as_fd()),
        (KeeperSlot::Stdin, write.as_fd()),
    ];
    let mut records = (0..16_u8).map(|index| [index; 16]);
    let refused = records.find_map(|record| client.hold(&record, &slots).err());
    assert!(
        matches!(refused, Some(KeeperError::Failed(_))),
        "{refused:?}"
    );
    for record in client.list().unwrap() {
        assert_eq!(record.descriptors.len(), 2);
        client.drop_record(&record.record).unwrap();
    }
    client.hold(&RECORD, &slots).unwrap();
}

#[test]
fn seventeenth_client_is_refused() {
    let fixture = Fixture::new();
    let first = fixture.start();
    let _others: Vec<OwnedFd> = (0..15).map(|_| fixture.connect_greeted()).collect();
    let result = KeeperClient::connect(&fixture.socket());
    assert!(matches!(result, Err(KeeperError::Busy)), "{result:?}");
    assert!(first.list().unwrap().is_empty());
}

#[test]
fn starters_at_the_same_time_share_one_keeper() {
    let fixture = Fixture::new();
    for _ in 0..5 {
        let starters: Vec<_> = (0..6)
            .map(|_| {
                let socket = fixture.socket();
                thread::spawn(move || {
                    KeeperClient::connect_or_start(&socket, Path::new("/proc/self/exe")).unwrap()
                })
            })
            .collect();
        let clients: Vec<_> = starters
            .into_iter()
            .map(|starter| starter.join().unwrap())
            .collect();
        let first = &clients[0];
        assert!(clients.iter().all(|client| client.pid() == first.pid()));
        pidfd_send_signal(first.exit_descriptor(), Signal::KILL).unwrap();
        wait_readable(first.exit_descriptor());
    }
}

#[test]
fn socket_path_of_200_bytes_works() {
    let mut fixture = Fixture::new();
    let prefix = "d".repeat(200);
    fixture.directory = tempfile::Builder::new().prefix(&prefix).tempdir().unwrap();
    let client = fixture.start();
    let next = KeeperClient::connect(&fixture.socket()).unwrap().unwrap();
    assert_eq!(client.pid(), next.pid());
}

#[test]
fn idle_keeper_exits_and_removes_its_socket() {
    let fixture = Fixture::new();
    assert!(KeeperClient::connect(&fixture.socket()).unwrap().is_none());
    let client = fixture.start();
    let exit = client.exit_descriptor().try_clone_to_owned().unwrap();
    drop(client);
    wait_readable(exit);
    assert!(!fixture.socket().exists());
    assert!(KeeperClient::connect(&fixture.socket()).unwrap().is_none());
}

#[test]
fn keeper_with_a_record_does_not_exit() {
    let fixture = Fixture::new();
    let client = fixture.start();
    let (read, _write) = pipe().unwrap();
    client
        .hold(&RECORD, &[(KeeperSlot::Stdout, read.as_fd())])
        .unwrap();
    let exit = client.exit_descriptor().try_clone_to_owned().unwrap();
    drop(client);
    // Longer than an idle keeper waits.
    let timeout = Timespec::try_from(Duration::from_millis(1500)).unwrap();
    let mut fds = [PollFd::new(&exit, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&timeout)), Ok(0));
    let client = KeeperClient::connect(&fixture.socket()).unwrap().unwrap();
    client.drop_record(&RECORD).unwrap();
    drop(client);
    wait_readable(exit);
}

#[test]
fn keeper_without_its_socket_exits_and_leaves_the_next_one_alone() {
    let fixture = Fixture::new();
    let first = fixture.start();
    fs::remove_file(fixture.socket()).unwrap();
    let second = fixture.start();
    assert_ne!(first.pid(), second.pid());
    let exit = first.exit_descriptor().try_clone_to_owned().unwrap();
    drop(first);
    wait_readable(exit);
    assert!(fixture.socket().exists());
    assert!(second.list().unwrap().is_empty());
}

#[test]
fn killed_keeper_is_noticed_and_replaced() {
    let fixture = Fixture::new();
    let first = fixture.start();
    pidfd_send_signal(first.exit_descriptor(), Signal::KILL).unwrap();
    wait_readable(first.exit_descriptor());
    assert!(matches!(first.list(), Err(KeeperError::Gone)));
    let second = fixture.start();
    assert_ne!(first.pid(), second.pid());
    assert!(second.list().unwrap().is_empty());
}

#[test]
fn file_in_the_place_of_the_socket_is_not_removed() {
    let fixture = Fixture::new();
    fs::write(fixture.socket(), "data").unwrap();
    let result = KeeperClient::connect_or_start(&fixture.socket(), Path::new("/proc/self/exe"));
    assert!(matches!(result, Err(KeeperError::Socket(_))), "{result:?}");
    assert_eq!(fs::read(fixture.socket()).unwrap(), b"data");
}

#[test]
fn program_that_cannot_run_is_an_error() {
    let fixture = Fixture::new();
    let result = KeeperClient::connect_or_start(&fixture.socket(), Path::new("/nope"));
    assert!(matches!(result, Err(KeeperError::Start(_))), "{result:?}");
    assert!(!fixture.socket().exists());
    // A program that is not a keeper exits without listening.
    let result = KeeperClient::connect_or_start(&fixture.socket(), Path::new("/bin/true"));
    assert!(matches!(result, Err(KeeperError::Start(_))), "{result:?}");
    let client = fixture.start();
    let result = client.start_spawner(Path::new("/etc/passwd"));
    assert!(matches!(result, Err(KeeperError::Failed(_))), "{result:?}");
}
