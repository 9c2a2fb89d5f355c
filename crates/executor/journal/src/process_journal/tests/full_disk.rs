//! A full disk: nothing is corrupted, and each call can be repeated.
//!
//! `RLIMIT_FSIZE` makes any write behind a chosen offset fail as on a full disk, with the same
//! partial writes, without privileges. It concerns a whole process, so that each case runs alone in
//! a child, in which a shell made the kernel's signal ignored.

use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

const CHILD: &str = "EXEC_JOURNAL_FULL_DISK";

/// Runs `case` of the test `name` in a child.
fn in_child(name: &str, case: impl FnOnce()) {
    let marker = format!("full disk case {name} is done");
    if std::env::var_os(CHILD).is_some() {
        case();
        println!("{marker}");
        return;
    }
    let path = format!("process_journal::tests::full_disk::{name}");
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &path, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    assert!(
        text.contains(&marker),
        "the case did not run: {text}\n{errors}"
    );
}

/// Makes writes behind `bytes` of a file fail.
fn limit_files(bytes: Option<u64>) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    setrlimit(
        Resource::Fsize,
        Rlimit {
            current: bytes.or(maximum),
            maximum,
        },
    )
    .unwrap();
}

fn assert_full<T: std::fmt::Debug>(result: Result<T, JournalError>) {
    let error = result.unwrap_err();
    assert!(error.is_full(), "{error:?}");
}

#[test]
fn output_stays_in_the_pipe() {
    in_child("output_stays_in_the_pipe", || {
        let fixture = Fixture::new();
        let mut journal = fixture.create();
        append(&mut journal, OutputStream::Stdout, 1, &[1; 5000]);
        let (read, write) = pipe();
        let data = pattern(2, 30_000);
        rustix::io::write(&write, &data).unwrap();
        limit_files(Some(5000));
        assert_full(journal.splice(OutputStream::Stdout, read.as_fd(), usize::MAX));
        assert!(!journal.pending());
        // There is some space again, then enough.
        limit_files(Some(15_000));
        let moved = journal
            .splice(OutputStream::Stdout, read.as_fd(), usize::MAX)
            .unwrap();
        assert!(
            moved.is_some_and(|moved| moved > 0 && moved <= 10_000),
            "{moved:?}"
        );
        limit_files(None);
        let mut found = journal.commit(OutputSeq(2), 0).unwrap().to_vec();
        let moved = journal
            .splice(OutputStream::Stdout, read.as_fd(), usize::MAX)
            .unwrap();
        assert!(moved.is_some());
        found.extend(journal.commit(OutputSeq(3), 0).unwrap());
        assert!(found == data);
        assert_eq!(contents(&journal.reader()).len(), 3);
    });
}

#[test]
fn commit_is_repeated() {
    in_child("commit_is_repeated", || {
        // Bytes of the index for which there is space: none, a part of the header, of the record.
        for space in [0, 10, 30, 55, 56, 57, 80, 95] {
            let fixture = Fixture::new();
            let mut journal = fixture.create();
            let first = space >= 56;
            if first {
                append(&mut journal, OutputStream::Stderr, 1, b"x");
            }
            splice(&mut journal, OutputStream::Stdout, b"output");
            limit_files(Some(space));
            assert_full(journal.commit(OutputSeq(2), 7));
            assert_full(journal.commit(OutputSeq(2), 7));
            assert!(journal.pending());
            let visible = contents(&journal.reader()).len();
            assert_eq!(visible, usize::from(first), "space for {space}");
            limit_files(None);
            let id = journal.id();
            if space % 2 == 0 {
                assert_eq!(journal.commit(OutputSeq(2), 7).unwrap(), &b"output"[..]);
            } else {
                // Killed before it could be repeated.
                drop(journal);
                journal = fixture.state.reopen(id).unwrap().0;
            }
            let chunks = contents(&journal.reader());
            assert_eq!(chunks.last().unwrap().2, b"output", "space for {space}");
            append(&mut journal, OutputStream::Stdout, 3, b"more");
            assert_eq!(contents(&journal.reader()).len(), 2 + usize::from(first));
        }
    });
}

#[test]
fn process_is_adopted_on_a_full_disk() {
    in_child("process_is_adopted_on_a_full_disk", || {
        let fixture = Fixture::new();
        let mut journal = fixture.create();
        append(&mut journal, OutputStream::Stdout, 1, b"a");
        splice(&mut journal, OutputStream::Stdout, b"tail");
        let id = journal.id();
        drop(journal);
        limit_files(Some(0));
        let (mut journal, recovered) = fixture.state.reopen(id).unwrap();
        assert_eq!(
            (recovered.next_seq, recovered.tail_bytes),
            (OutputSeq(2), 0)
        );
        assert_eq!(recovered.bytes_total, 1);
        assert!(journal.pending());
        assert_full(journal.commit(OutputSeq(2), 0));
        limit_files(None);
        assert_eq!(journal.commit(OutputSeq(2), 0).unwrap(), &b"tail"[..]);
    });
}

#[test]
fn events_and_input_are_refused_whole() {
    in_child("events_and_input_are_refused_whole", || {
        let fixture = Fixture::new();
        let mut journal = fixture.create();
        journal.record(&JournalEvent::Detached).unwrap();
        let length = fs::metadata(fixture.file(journal.id(), "events"))
            .unwrap()
            .len();
        limit_files(Some(length + 12));
        assert_full(journal.record(&JournalEvent::InputEnd));
        // The data fits, its event does not.
        assert_full(journal.append_input(Some(&WriteId::new("a").unwrap()), b"input"));
        assert_full(journal.append_input(None, &[0; 4096]));
        assert_eq!(journal.undelivered_input(), 0);
        assert_eq!(
            fs::metadata(fixture.file(journal.id(), "input"))
                .unwrap()
                .len(),
            0
        );
        let (_, recovered) = fixture.state.reader(journal.id()).unwrap();
        assert!(recovered.detached && !recovered.input_end && recovered.write_ids.is_empty());
        limit_files(None);
        journal
            .append_input(Some(&WriteId::new("a").unwrap()), b"again")
            .unwrap();
        journal.record(&JournalEvent::InputEnd).unwrap();
        let (_, recovered) = fixture.state.reader(journal.id()).unwrap();
        assert!(recovered.input_end && recovered.write_ids.len() == 1);
        let (read, write) = pipe();
        journal.deliver_input(write.as_fd(), 100).unwrap();
        let mut data = [0; 100];
        let count = rustix::io::read(&read, &mut data).unwrap();
        assert_eq!(&data[..count], b"again");
    });
}

#[test]
fn eviction_needs_no_space() {
    in_child("eviction_needs_no_space", || {
        let fixture = Fixture::small(2 << 20);
        let mut journal = fixture.create();
        let mut seq = 0;
        while journal.bytes() < 2 << 20 {
            seq += 1;
            append(
                &mut journal,
                OutputStream::Stdout,
                seq,
                &pattern(seq, 65_536),
            );
        }
        // Neither heads nor events can be written.
        limit_files(Some(0));
        let (read, write) = pipe();
        rustix::io::write(&write, b"x").unwrap();
        assert_full(journal.splice(OutputStream::Stdout, read.as_fd(), 1));
        limit_files(None);
        assert!(journal.first_seq() > OutputSeq(1));
        append(&mut journal, OutputStream::Stdout, seq + 1, b"more");
        let head = journal
            .reader()
            .head_bytes(OutputStream::Stdout, 100)
            .unwrap();
        assert_eq!(head.data, b"", "the head was not saved");
        let id = journal.id();
        let expected = contents(&journal.reader());
        drop(journal);
        let (journal, recovered) = fixture.state.reopen(id).unwrap();
        assert!(contents(&journal.reader()) == expected);
        assert_eq!(recovered.next_seq, OutputSeq(seq + 2));
        // The event was written as soon as there was space.
        assert_eq!(recovered.bytes_total, seq * 65_536 + 4);
    });
}

#[test]
fn record_that_cannot_be_written_is_not_created() {
    in_child("record_that_cannot_be_written_is_not_created", || {
        let fixture = Fixture::new();
        limit_files(Some(10));
        assert_full(fixture.state.create(&head()).map(drop));
        limit_files(None);
        assert_eq!(fixture.state.records().unwrap(), []);
        let names = fs::read_dir(fixture.state.path().join("processes"))
            .unwrap()
            .count();
        assert_eq!(names, 0);
        fixture.create();
    });
}
