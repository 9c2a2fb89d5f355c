//! Input survives a server that is killed after any step.

use rustix::{fs::SeekFrom, io::Errno};

use super::*;

/// Drops the journal as a killed server does. The keeper's duplicate of the input stays.
fn crash(fixture: &Fixture, mut journal: ProcessJournal) -> ProcessJournal {
    let keeper = journal.input_file().unwrap().try_clone_to_owned().unwrap();
    let id = journal.id();
    drop(journal);
    fixture.state.reopen_with_input(id, keeper).unwrap().0
}

fn drain(pipe: &OwnedFd) -> Vec<u8> {
    let mut data = Vec::new();
    let mut buffer = [0; 65_536];
    loop {
        match rustix::io::read(pipe, &mut buffer) {
            Ok(0) | Err(Errno::AGAIN) => return data,
            Ok(count) => data.extend_from_slice(&buffer[..count]),
            Err(errno) => panic!("{errno}"),
        }
    }
}

#[test]
fn input_is_delivered_once_whenever_the_server_is_killed() {
    let fixture = Fixture::new();
    let mut journal = fixture.create();
    let (read, write) = pipe();
    let (mut accepted, mut received) = (Vec::new(), Vec::new());
    for round in 0..60_u64 {
        let data = pattern(round, 70_000);
        let id = WriteId::new(&format!("w{round}")).unwrap();
        journal.append_input(Some(&id), &data).unwrap();
        accepted.extend(data);
        if round % 3 == 0 {
            journal = crash(&fixture, journal);
        }
        while journal.undelivered_input() > 0 {
            let before = journal.undelivered_input();
            let delivery = journal.deliver_input(write.as_fd(), 50_000).unwrap();
            assert_eq!(delivery.remaining, journal.undelivered_input());
            assert_eq!(delivery.remaining, before - delivery.bytes as u64);
            if round % 2 == 0 {
                journal = crash(&fixture, journal);
                assert_eq!(journal.undelivered_input(), delivery.remaining);
            }
            if delivery.bytes == 0 {
                received.extend(drain(&read));
            }
        }
    }
    received.extend(drain(&read));
    assert!(received == accepted);
    let length = fs::metadata(fixture.file(journal.id(), "input"))
        .unwrap()
        .len();
    assert!(length <= 1 << 21, "the file was not emptied: {length}");
    let (_, recovered) = fixture.state.reader(journal.id()).unwrap();
    assert_eq!(recovered.write_ids.len(), 60);
    assert_eq!(recovered.write_ids[59], WriteId::new("w59").unwrap());
}

#[test]
fn full_pipe_takes_what_fits() {
    let fixture = Fixture::new();
    let mut journal = fixture.create();
    let (read, write) = pipe();
    let data = pattern(1, 300_000);
    journal.append_input(None, &data).unwrap();
    let first = journal.deliver_input(write.as_fd(), usize::MAX).unwrap();
    assert!(first.bytes > 0 && first.remaining > 0, "{first:?}");
    let blocked = journal.deliver_input(write.as_fd(), usize::MAX).unwrap();
    assert_eq!((blocked.bytes, blocked.remaining), (0, first.remaining));
    drop(read);
    let gone = journal
        .deliver_input(write.as_fd(), usize::MAX)
        .unwrap_err();
    assert!(matches!(gone, JournalError::ReaderGone));
    assert_eq!(journal.undelivered_input(), first.remaining);
}

#[test]
fn emptying_the_file_does_not_change_what_is_in_the_pipe() {
    let fixture = Fixture::new();
    let mut journal = fixture.create();
    let (read, write) = pipe();
    let (first, second) = (pattern(1, 1_100_000), pattern(2, 60_000));
    journal.append_input(None, &first).unwrap();
    let mut received = Vec::new();
    loop {
        let delivery = journal.deliver_input(write.as_fd(), 50_000).unwrap();
        if delivery.remaining == 0 {
            break;
        }
        received.extend(drain(&read));
    }
    // The last part is still in the pipe, as references to pages of the file.
    assert_eq!(
        fs::metadata(fixture.file(journal.id(), "input"))
            .unwrap()
            .len(),
        0
    );
    journal.append_input(None, &second).unwrap();
    received.extend(drain(&read));
    assert!(received == first);
    assert_eq!(
        journal
            .deliver_input(write.as_fd(), usize::MAX)
            .unwrap()
            .remaining,
        0
    );
    assert!(drain(&read) == second);
}

#[test]
fn delivered_input_is_given_back_while_the_command_lags() {
    use std::os::unix::fs::MetadataExt;
    let fixture = Fixture::new();
    let mut journal = fixture.create();
    let (read, write) = pipe();
    let block = pattern(1, 1 << 20);
    journal.append_input(None, &block).unwrap();
    for _ in 0..40 {
        // There is always more.
        journal.append_input(None, &block).unwrap();
        let mut received = Vec::new();
        while received.len() < block.len() {
            let most = block.len() - received.len();
            journal.deliver_input(write.as_fd(), most).unwrap();
            received.extend(drain(&read));
        }
        assert!(received == block);
    }
    let stat = fs::metadata(fixture.file(journal.id(), "input")).unwrap();
    assert_eq!(stat.len(), 41 << 20);
    assert!(stat.blocks() * 512 < 20 << 20, "{} blocks", stat.blocks());
}

#[test]
fn each_step_of_emptying_the_file_may_be_the_last() {
    // Steps: shorten the file, record the event, move the position.
    for steps in 0..=3 {
        let fixture = Fixture::new();
        let mut journal = fixture.create();
        let (read, write) = pipe();
        journal.append_input(None, b"delivered").unwrap();
        journal.deliver_input(write.as_fd(), 100).unwrap();
        assert_eq!(drain(&read), b"delivered");
        let keeper = journal.input_file().unwrap().try_clone_to_owned().unwrap();
        if steps >= 1 {
            rustix::fs::ftruncate(&keeper, 0).unwrap();
        }
        if steps >= 2 {
            journal.record(&JournalEvent::InputReset).unwrap();
        }
        if steps >= 3 {
            rustix::fs::seek(&keeper, SeekFrom::Start(0)).unwrap();
        }
        let id = journal.id();
        drop(journal);
        let (mut journal, _) = fixture.state.reopen_with_input(id, keeper).unwrap();
        assert_eq!(journal.undelivered_input(), 0, "{steps} steps");
        journal.append_input(None, b"more").unwrap();
        journal = crash(&fixture, journal);
        assert_eq!(journal.undelivered_input(), 4, "{steps} steps");
        journal.deliver_input(write.as_fd(), 100).unwrap();
        assert_eq!(drain(&read), b"more", "{steps} steps");
    }
}

#[test]
fn input_without_its_event_was_not_accepted() {
    let fixture = Fixture::new();
    let mut journal = fixture.create();
    let (read, write) = pipe();
    journal.append_input(None, b"accepted").unwrap();
    let id = journal.id();
    // The server was killed between the data and the event.
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(fixture.file(id, "input"))
        .unwrap();
    file.write_all(b"not acknowledged").unwrap();
    let mut journal = crash(&fixture, journal);
    assert_eq!(journal.undelivered_input(), 8);
    journal.append_input(None, b", repeated").unwrap();
    journal.deliver_input(write.as_fd(), 100).unwrap();
    assert_eq!(drain(&read), b"accepted, repeated");
}

#[test]
fn descriptor_of_another_file_is_refused_as_input() {
    let fixture = Fixture::new();
    let mut journal = fixture.create();
    journal
        .append_input(Some(&WriteId::new("a").unwrap()), b"x")
        .unwrap();
    let id = journal.id();
    drop(journal);
    let other: OwnedFd = tempfile::tempfile().unwrap().into();
    let refused = fixture.state.reopen_with_input(id, other).unwrap_err();
    assert!(matches!(refused, JournalError::ForeignInput));
    let read_only: OwnedFd = fs::File::open(fixture.file(id, "input")).unwrap().into();
    let refused = fixture.state.reopen_with_input(id, read_only).unwrap_err();
    assert!(matches!(refused, JournalError::ForeignInput));
    let (mut journal, _) = fixture.state.reopen(id).unwrap();
    assert!(matches!(
        journal.append_input(None, b"y"),
        Err(JournalError::NoInput)
    ));
}

#[test]
fn input_passes_a_holding_pipe_to_a_terminal() {
    use rustix::pipe::{SpliceFlags, splice};
    let fixture = Fixture::new();
    let mut journal = fixture.create();
    let (terminal, command) = terminal();
    let (read, write) = pipe();
    journal.append_input(None, b"hello\n").unwrap();
    assert_eq!(journal.deliver_input(write.as_fd(), 100).unwrap().bytes, 6);
    let moved = splice(&read, None, &terminal, None, 100, SpliceFlags::NONBLOCK).unwrap();
    assert_eq!(moved, 6);
    let mut line = [0; 100];
    let count = rustix::io::read(&command, &mut line).unwrap();
    assert_eq!(&line[..count], b"hello\n");
}
