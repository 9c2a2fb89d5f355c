//! Segments: their eviction, what stays of it, and readers meanwhile.

use std::time::Duration;

use super::*;

#[test]
fn oldest_segments_are_evicted_and_heads_stay() {
    let fixture = Fixture::small(4 << 20);
    let mut journal = fixture.create();
    append(&mut journal, OutputStream::Stderr, 1, b"warning");
    let (mut stdout, mut seq) = (Vec::new(), 1);
    for _ in 0..160 {
        seq += 1;
        let data = pattern(seq, 65_536);
        append(&mut journal, OutputStream::Stdout, seq, &data);
        stdout.extend(data);
        assert!(
            journal.bytes() < (4 << 20) + (1 << 18),
            "{}",
            journal.bytes()
        );
    }
    let oldest = journal.first_seq();
    assert!(oldest > OutputSeq(90), "{oldest:?}");
    let reader = journal.reader();
    assert_eq!(reader.oldest().unwrap(), Some(oldest));
    let page = reader.page(OutputSeq(1), 1).unwrap();
    assert_eq!(page[0].chunk.seq, oldest);
    let chunks = contents(&reader);
    let retained = stream_of(&chunks, OutputStream::Stdout);
    assert!(stdout.ends_with(&retained));
    let id = journal.id();
    drop(journal);
    let (reopened, recovered) = fixture.state.reopen(id).unwrap();
    assert_eq!(recovered.next_seq, OutputSeq(seq + 1));
    assert_eq!(recovered.first_seq, Some(oldest));
    assert_eq!(recovered.stream_bytes, [160 << 16, 7, 0]);
    assert_eq!(reopened.first_seq(), oldest);
    assert_eq!(contents(&reopened.reader()), chunks);
    let head = reader.head_bytes(OutputStream::Stdout, usize::MAX).unwrap();
    assert!(head.data == stdout[..HEAD_BYTES]);
    assert!(head.last < oldest && head.split.is_none());
    let head = reader.head_bytes(OutputStream::Stderr, 100).unwrap();
    assert_eq!(head.data, b"warning");
    let tail = reader.tail_bytes(OutputStream::Stdout, 100_001).unwrap();
    assert!(stdout.ends_with(&tail) && tail.len() == 100_001);
    assert_eq!(reader.tail_bytes(OutputStream::Stderr, 100).unwrap(), b"");
}

#[test]
fn head_of_a_slow_stream_spans_evicted_and_retained_segments() {
    let fixture = Fixture::small(2 << 20);
    let mut journal = fixture.create();
    let (mut stderr, mut seq) = (Vec::new(), 0);
    for round in 0..8 {
        seq += 1;
        let data = pattern(1000 + round, 1000);
        append(&mut journal, OutputStream::Stderr, seq, &data);
        stderr.extend(data);
        for _ in 0..16 {
            seq += 1;
            append(
                &mut journal,
                OutputStream::Stdout,
                seq,
                &pattern(seq, 65_536),
            );
        }
    }
    assert!(journal.first_seq() > OutputSeq(50));
    let head = journal
        .reader()
        .head_bytes(OutputStream::Stderr, HEAD_BYTES)
        .unwrap();
    assert!(head.data == stderr);
    assert!(head.last > journal.first_seq());
    let head = journal
        .reader()
        .head_bytes(OutputStream::Stderr, 7_500)
        .unwrap();
    assert!(head.data == stderr[..7_500]);
    assert_eq!(head.split.map(|(_, length)| length), Some(500));
}

#[test]
fn head_ends_within_a_retained_chunk() {
    let fixture = Fixture::new();
    let mut journal = fixture.create();
    append(&mut journal, OutputStream::Stdout, 1, b"abc");
    append(&mut journal, OutputStream::Stdout, 2, b"defg");
    let head = |limit| {
        journal
            .reader()
            .head_bytes(OutputStream::Stdout, limit)
            .unwrap()
    };
    assert_eq!(
        (head(5).data, head(5).last),
        (b"abcde".to_vec(), OutputSeq(1))
    );
    assert_eq!(head(5).split, Some((OutputSeq(2), 2)));
    assert_eq!((head(7).last, head(7).split), (OutputSeq(2), None));
    assert_eq!((head(3).last, head(3).split), (OutputSeq(1), None));
    assert_eq!(head(0).data, b"");
}

#[test]
fn protected_output_is_not_evicted() {
    let fixture = Fixture::small(2 << 20);
    let mut journal = fixture.create();
    journal.protect(Some(OutputSeq(5)));
    let (read, write) = pipe();
    let mut seq = 0;
    let refused = loop {
        rustix::io::write(&write, &[7; 60_000]).unwrap();
        match journal.splice(OutputStream::Stdout, read.as_fd(), usize::MAX) {
            Ok(_) => seq += 1,
            Err(error) => break error,
        }
        journal.commit(OutputSeq(seq), 0).unwrap();
        assert!(seq < 100);
    };
    assert!(matches!(refused, JournalError::Protected), "{refused}");
    assert_eq!(journal.first_seq(), OutputSeq(1));
    // The output waits in its pipe until the client confirms.
    journal.protect(Some(OutputSeq(seq)));
    let moved = journal
        .splice(OutputStream::Stdout, read.as_fd(), usize::MAX)
        .unwrap();
    assert_eq!(moved, Some(60_000));
    journal.commit(OutputSeq(seq + 1), 0).unwrap();
    assert!(journal.first_seq() > OutputSeq(10));
    assert_eq!(contents(&journal.reader()).last().unwrap().0, seq + 1);
}

#[test]
fn reader_follows_a_writer_that_rotates() {
    let fixture = Fixture::small(2 << 20);
    let mut journal = fixture.create();
    let reader = journal.reader();
    let writer = std::thread::spawn(move || {
        for seq in 1..=400 {
            let stream = STREAMS[place(seq) % 3];
            append(&mut journal, stream, seq, &pattern(seq, 30_000));
        }
        journal
    });
    let mut after = OutputSeq(0);
    let mut idle = 0;
    while after < OutputSeq(400) && idle < 60_000 {
        let page = reader.page(after, 100_000).unwrap();
        if page.is_empty() {
            idle += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        for timed in page {
            let seq = timed.chunk.seq;
            assert!(seq > after);
            assert!(timed.chunk.data == pattern(seq.0, 30_000));
            after = seq;
        }
    }
    assert_eq!(after, OutputSeq(400));
    writer.join().unwrap();
}

#[test]
fn interrupted_eviction_is_finished() {
    let fixture = Fixture::small(2 << 20);
    let mut journal = fixture.create();
    for seq in 1..=40 {
        append(
            &mut journal,
            OutputStream::Stdout,
            seq,
            &pattern(seq, 65_536),
        );
    }
    let id = journal.id();
    let before = contents(&journal.reader());
    drop(journal);
    let oldest = fixture
        .files(id)
        .iter()
        .find(|name| name.ends_with(".index"))
        .unwrap()
        .clone();
    let number: u64 = oldest.trim_end_matches(".index").parse().unwrap();
    assert!(number > 0);
    // The index is removed before the data.
    fs::copy(
        fixture.file(id, &format!("{number}.stdout")),
        fixture.file(id, "0.stdout"),
    )
    .unwrap();
    let (journal, recovered) = fixture.state.reopen(id).unwrap();
    assert_eq!(contents(&journal.reader()), before);
    assert_eq!(recovered.stream_bytes, [40 << 16, 0, 0]);
    assert!(!fixture.files(id).contains(&"0.stdout".to_owned()));
}
